//! HTTP, as OpenAI's clients speak it, on the TCP address and on the Unix socket.

mod access;
mod chat;
mod completions;
mod io;
mod other;
mod out;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use axum::routing::{get, post};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::watch;
use tokio::time::timeout;

use self::access::Peer;
use self::io::Patient;
use super::connection::{Shared, pause};
use super::fields::Fields;
use super::job::Client;
use super::refusal::{Kind, Refusal};
use super::server::Server;

type App = State<Arc<Server>>;

/// Every path there is.
fn router(server: Arc<Server>) -> Router {
    Router::new()
        .route("/v1/completions", post(completions::completions))
        .route("/v1/chat/completions", post(chat::chat))
        .route("/v1/models", get(other::models))
        .route("/v1/models/{name}", get(other::model))
        .route("/tokenize", post(other::tokenize))
        .route("/detokenize", post(other::detokenize))
        .route("/health", get(other::health))
        .route("/metrics", get(other::metrics))
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method)
        .with_state(server)
}

async fn nothing_here(request: Request) -> Response {
    let path: String = request.uri().path().chars().take(100).collect();
    refuse(&Refusal::new(Kind::NotFound, format!("{path}: there is nothing here")))
}

async fn wrong_method(request: Request) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    refuse(&Refusal::new(Kind::Method, format!("{path} is not there for {method}")))
}

/// Serves a connection to the Unix socket, of which `read` was read already.
pub async fn unix(
    stream: UnixStream,
    read: Vec<u8>,
    server: Arc<Server>,
    client: Client,
    stopping: watch::Receiver<bool>,
) {
    let io = Patient::new(stream, read, server.limits.stall);
    serve(io, server, Peer { client, by_file: true }, stopping).await;
}

/// Takes connections from the TCP address until the server stops.
pub async fn tcp(listener: TcpListener, shared: Shared) {
    let mut stopping = shared.stopping.clone();
    loop {
        let next = async {
            let place = shared.place().await?;
            Some((place, listener.accept().await))
        };
        let accepted = tokio::select! {
            _ = stopping.wait_for(|stopping| *stopping) => return,
            accepted = next => accepted,
        };
        match accepted {
            Some((place, Ok((stream, address)))) => {
                let open = place.enter();
                // A token is less than a packet.
                let _ = stream.set_nodelay(true);
                let Shared { server, stopping, .. } = shared.clone();
                let io = Patient::new(stream, Vec::new(), server.limits.stall);
                let peer = Peer { client: Client::Machine(address.ip()), by_file: false };
                tokio::spawn(async move {
                    let _open = open;
                    serve(io, server, peer, stopping).await;
                });
            }
            Some((_, Err(error))) => pause(&error).await,
            None => return,
        }
    }
}

async fn serve<I>(io: I, server: Arc<Server>, peer: Peer, mut stopping: watch::Receiver<bool>)
where
    I: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let idle = server.limits.idle;
    let app = TowerToHyperService::new(router(Arc::clone(&server)));
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        let allowed = access::check(&server, &peer, &request);
        request.extensions_mut().insert(peer.client.clone());
        let answer = app.call(request);
        async move {
            match allowed {
                Ok(()) => answer.await,
                Err(refusal) => Ok::<Response, Infallible>(refuse(&refusal)),
            }
        }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(idle);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(io), service));
    // What goes wrong with a connection is between it and its client.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = stopping.wait_for(|stopping| *stopping) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// How long the body of a request may take.
const BODY: Duration = Duration::from_secs(60);

/// The fields in the body of `request`.
async fn fields(server: &Server, request: Request) -> Result<Fields, Refusal> {
    let limit = server.limits.request;
    check_head(&request, limit)?;
    match timeout(BODY, to_bytes(request.into_body(), limit)).await {
        Ok(Ok(bytes)) => Fields::read(&bytes),
        Ok(Err(error)) if format!("{error:?}").contains("LengthLimit") => Err(too_large(limit)),
        Ok(Err(error)) => Err(Refusal::new(Kind::Invalid, format!("the body cannot be read: {error}"))),
        Err(_) => {
            let message = format!("the body did not come within {} seconds", BODY.as_secs());
            Err(Refusal::new(Kind::Invalid, message))
        }
    }
}

/// Whether a body is worth reading.
fn check_head(request: &Request, limit: usize) -> Result<(), Refusal> {
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let is_json = header(CONTENT_TYPE).is_some_and(|kind| kind.to_ascii_lowercase().contains("json"));
    if !is_json {
        // Also what keeps a web page from having a browser send requests here in secret.
        let message = "the body must be JSON and say so: send the header Content-Type: application/json";
        return Err(Refusal::new(Kind::MediaType, message));
    }
    let length = header(CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    match length.is_some_and(|length| length > limit as u64) {
        true => Err(too_large(limit)),
        false => Ok(()),
    }
}

fn too_large(limit: usize) -> Refusal {
    Refusal::new(Kind::TooLarge, format!("the body of a request has at most {limit} bytes"))
}

/// A refusal as a response.
fn refuse(refusal: &Refusal) -> Response {
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

fn typed(kind: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
