//! HTTP, as OpenAI's clients speak it, on the TCP address and on the Unix socket.

mod access;
mod answered;
mod beside;
mod body;
mod calls;
mod chat;
mod completions;
mod embeddings;
mod format;
mod head;
mod io;
mod logprobs;
mod openapi;
mod other;
mod out;
mod status;

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use axum::routing::{get, post};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixStream};
use tokio::time::sleep;

use self::access::Peer;
use self::answered::answered;
use self::io::{Line, Patient};
use super::admission::{ConnectionState, Late, Phase};
use super::connection::{self, Shared, pause};
use super::fields::Fields;
use super::job::Client;
use super::models::Front;
use super::refusal::{Kind, Refusal};
use super::scope::Owner;
use super::server::Server;
use super::ticket::Ticket;

type App = State<Arc<Front>>;

/// Every path there is.
fn router(front: Arc<Front>) -> Router {
    Router::new()
        .route("/v1/completions", post(completions::completions))
        .route("/v1/chat/completions", post(chat::chat))
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/v1/models", get(other::models))
        .route("/v1/models/{*name}", get(other::model))
        .route("/tokenize", post(other::tokenize))
        .route("/detokenize", post(other::detokenize))
        .route("/health", get(other::health))
        .route("/metrics", get(other::metrics))
        .route("/status", get(status::status))
        .route("/openapi.json", get(openapi::openapi))
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method)
        .with_state(front)
}

async fn nothing_here(request: Request) -> Response {
    let path: String = request.uri().path().chars().take(100).collect();
    refuse(&Refusal::new(Kind::NotFound, format!("{path}: there is nothing here")))
}

async fn wrong_method(request: Request) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    refuse(&Refusal::new(Kind::Method, format!("{path} is not there for {method}")))
}

/// Router of the address of `--health-listen`.
fn health_router(front: Arc<Front>) -> Router {
    Router::new()
        .route("/health", get(other::health))
        .route("/metrics", get(other::metrics))
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method)
        .with_state(front)
}

/// Paths that are answered also where there are too many connections.
const WATCHING: [&str; 3] = ["/health", "/metrics", "/status"];

/// Size in bytes of the longest head of a request; also the most bytes that a connection buffers.
const HEAD: usize = 64 << 10;

/// Set of paths that are served at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// Everything.
    All,
    /// `/health` and `/metrics`.
    Health {
        /// True if `/metrics` needs no key here.
        open_metrics: bool,
    },
}

/// Routes of an address. They are made once, and each connection has a handle to them.
#[derive(Clone)]
pub struct Routes {
    router: Router,
    door: Door,
}

impl Routes {
    /// Makes the routes of `front` that are served at `door`.
    pub fn new(front: &Arc<Front>, door: Door) -> Self {
        let router = if door == Door::All { router } else { health_router };
        Routes { router: router(Arc::clone(front)), door }
    }
}

/// Serves a connection to the Unix socket, of which `read` was read already.
pub async fn unix(
    stream: UnixStream,
    read: Vec<u8>,
    shared: Shared,
    (client, owner): (Client, Owner),
    state: Arc<ConnectionState>,
) {
    let io = Patient::new(stream, read, &state, &shared.front.current().limits);
    let peer = Peer { client, by_file: Some(owner) };
    serve(io, shared, peer, state).await;
}

/// Takes connections from a TCP address until the server stops.
pub async fn tcp(listener: TcpListener, shared: Shared) {
    let mut stopping = shared.stopping.clone();
    loop {
        let accepted = tokio::select! {
            _ = stopping.wait_for(|stopping| *stopping) => return,
            accepted = listener.accept() => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                pause(&error).await;
                continue;
            }
        };
        let Some(open) = shared.admit(Some(address.ip().into())) else { continue };
        // A token is less than a packet.
        let _ = stream.set_nodelay(true);
        let state = Arc::clone(open.state());
        let io = Patient::new(stream, Vec::new(), &state, &shared.front.current().limits);
        let peer = Peer { client: Client::Machine(address.ip()), by_file: None };
        tokio::spawn(open.during(serve(io, shared.clone(), peer, state)));
    }
}

async fn serve<I>(io: Patient<I>, shared: Shared, peer: Peer, state: Arc<ConnectionState>)
where
    I: AsyncRead + AsyncWrite + Line + Unpin + Send + 'static,
{
    let Shared { front, routes: Routes { router, door }, mut stopping, .. } = shared;
    let idle = front.current().limits.idle;
    let app = TowerToHyperService::new(router);
    let counting = Arc::clone(&front);
    let late = Arc::clone(&state);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        state.set(Phase::Answering);
        let allowed = allowed(&front, &peer, &state, door, &request);
        // The probes of whoever watches the server show no key.
        let is_health = request.uri().path() == "/health";
        // Where there are no keys, the answer tells whether the request was valid.
        let needs_key = peer.by_file.is_none() && !front.current().keys.is_empty();
        let shows_key = matches!(allowed, Ok(owner) if owner != Owner::Open);
        if needs_key && shows_key {
            state.prove();
        }
        state.set_unread(!hyper::body::Body::is_end_stream(request.body()));
        request.extensions_mut().insert(peer.client.clone());
        request.extensions_mut().insert(Arc::clone(&state));
        if let Ok(owner) = &allowed {
            request.extensions_mut().insert(*owner);
        }
        let ticket = Ticket::new(request.method().as_str(), request.uri().path(), &peer.client);
        let answer = app.call(request);
        let (front, state) = (Arc::clone(&front), Arc::clone(&state));
        let early = state.early();
        async move {
            if !early.is_zero() {
                // Meanwhile it may be closed for another connection.
                state.set(Phase::Resting);
                sleep(early).await;
                state.set(Phase::Answering);
            }
            let work = async {
                match allowed {
                    Ok(_) => answer.await,
                    Err(refusal) => Ok::<Response, Infallible>(refuse(&refusal)),
                }
            };
            let mut response = ticket.clone().during(work).await?;
            let status = response.status();
            ticket.status(status.as_u16());
            front.metrics.count_refusal(status.as_u16());
            if status.is_success() && !needs_key && !is_health {
                state.prove();
            }
            if state.reserve().is_some() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<Response, Infallible>(answered(response, &state))
        }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(idle);
    // hyper checks the size of its buffer only after a read, which may exceed the bound: the head has a bound of its own.
    builder.max_buf_size(HEAD).max_header_size(HEAD);
    let client = io.line();
    let gone = client.gone();
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(io), service));
    // What goes wrong with a connection is between it and its client.
    let work = async {
        tokio::select! {
            ended = connection.as_mut() => return ended,
            _ = stopping.wait_for(|stopping| *stopping) => connection.as_mut().graceful_shutdown(),
        }
        connection.await
    };
    tokio::select! {
        ended = work => match ended {
            Err(error) if error.is_parse() => counting.metrics.invalid.add(1),
            Err(error) if error.is_timeout() => late.was_late(Late::Idle),
            _ => {}
        },
        () = gone => {}
    }
}

/// Returns the owner of the prompts of `request`, or refuses what may not be answered to `peer`, at `door` or on a connection
/// of the reserve.
fn allowed(
    front: &Front,
    peer: &Peer,
    state: &ConnectionState,
    door: Door,
    request: &hyper::Request<Incoming>,
) -> Result<Owner, Refusal> {
    head::check(request.version(), request.headers())?;
    let path = request.uri().path();
    if let Some(full) = state.reserve().filter(|_| !WATCHING.contains(&path)) {
        state.was_refused(full);
        return Err(connection::full(full, &front.current().limits));
    }
    match door {
        Door::Health { open_metrics: true } if path == "/metrics" => Ok(Owner::Open),
        _ => access::check(front, peer, request),
    }
}

/// The fields in the body of `request`.
async fn fields(front: &Front, request: Request) -> Result<Fields, Refusal> {
    check_head(&request, front.current().limits.request)?;
    let client = client_of(&request);
    let (bytes, charge) = body::read(front, request, &client).await?;
    front.fields(bytes, charge, &client).await
}

/// Who asks.
fn client_of(request: &Request) -> Client {
    request.extensions().get::<Client>().cloned().unwrap_or(Client::Unknown)
}

/// Owner of the prompts of `request`.
fn owner_of(request: &Request) -> Owner {
    request.extensions().get::<Owner>().copied().unwrap_or(Owner::Open)
}

/// Whether a body is worth reading.
fn check_head(request: &Request, limit: usize) -> Result<(), Refusal> {
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let is_one = request.headers().get_all(CONTENT_TYPE).iter().count() == 1;
    if !is_one || !header(CONTENT_TYPE).is_some_and(is_json) {
        // Also what keeps a web page from having a browser send requests here in secret.
        let message = "the body must be JSON and say so: send the header Content-Type: application/json";
        return Err(Refusal::new(Kind::MediaType, message));
    }
    head::check_encoding(request.headers())?;
    let length = header(CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    match length.is_some_and(|length| length > limit as u64) {
        true => Err(too_large(limit)),
        false => Ok(()),
    }
}

/// Whether a media type is JSON's. Browsers send some types, whatever their parameters, without asking the server first.
fn is_json(kind: &str) -> bool {
    let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let Some(subtype) = essence.strip_prefix("application/") else { return false };
    let is_word = subtype.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.!#$&^_".contains(&byte));
    is_word && (subtype == "json" || subtype.strip_suffix("+json").is_some_and(|name| !name.is_empty()))
}

fn too_large(limit: usize) -> Refusal {
    Refusal::new(Kind::TooLarge, format!("the body of a request has at most {limit} bytes"))
}

/// A refusal as a response.
fn refuse(refusal: &Refusal) -> Response {
    Ticket::current().refused(refusal);
    let status = StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = answer(&json!({ "error": refusal.error() }));
    *response.status_mut() = status;
    if let Some(seconds) = refusal.retry_after {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// JSON as a response.
fn answer(value: &Value) -> Response {
    typed("application/json", Body::from(value.to_string()))
}

/// Answers `client` with the JSON of what `make` returns. Both are made on a thread for light work, since the answer is long.
async fn long_answer<T: Serialize>(
    server: &Server,
    client: &Client,
    make: impl FnOnce() -> T + Send + 'static,
) -> Result<Response, Refusal> {
    let text = server.aside(client, move || serde_json::to_string(&make())).await?;
    let text = text.map_err(|error| Refusal::new(Kind::Failed, error.to_string()))?;
    Ok(typed("application/json", Body::from(text)))
}

fn typed(kind: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_what_says_so_in_its_essence() {
        let cases = [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            (" application/json ", true),
            ("application/ld+json", true),
            ("text/plain; x=json", false),
            ("text/plain;application/json", false),
            ("text/json", false),
            ("application/jsonp", false),
            ("application/+json", false),
            ("application/x-www-form-urlencoded, application/json", false),
            ("multipart/form-data; boundary=json", false),
            ("", false),
        ];
        for (kind, expected) in cases {
            assert_eq!(is_json(kind), expected, "{kind:?}");
        }
    }
}
