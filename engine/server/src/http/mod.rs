//! HTTP server with OpenAI's API, on the TCP address and on the Unix socket.

mod access;
mod answer_format;
mod answered;
mod app;
mod apply_template;
mod body;
mod chat;
mod completions;
mod cors;
mod embeddings;
mod format;
mod head;
mod ident;
mod ignored_keywords;
mod infill;
mod io;
mod logprobs;
mod messages;
mod model_control;
mod openai;
mod openapi;
mod other;
mod out;
mod reader;
mod rerank;
mod respond;
mod responses;
pub mod routes;
mod shape;
mod status;
mod stream;
mod token_details;

use std::convert::Infallible;
use std::sync::Arc;

use axum::http::HeaderValue;
use axum::http::header::CONNECTION;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixStream};
use tokio::time::sleep;

use self::access::Peer;
use self::answered::answered;
use self::io::{ClientConnection, Patient};
use self::routes::{Door, Routes};
use super::admission::{ConnectionPhase, ConnectionState, Late};
use super::api_error::ApiError;
use super::client::Client;
use super::connection::shared::{ListenerContext, pause, too_many_connections};
use super::models::ModelRegistry;
use super::request_log::RequestLog;
use super::scope::Owner;

/// Maximum size of a request head, in bytes. A connection buffers no more than this.
const HEAD: usize = 64 << 10;

/// Serves a connection to the Unix socket. `read` contains the bytes that were already read from the connection.
pub async fn unix(
    stream: UnixStream,
    read: Vec<u8>,
    shared: ListenerContext,
    (client, owner): (Client, Owner),
    state: Arc<ConnectionState>,
) {
    let io = Patient::new(stream, read, &state, &shared.registry.current().limits);
    let peer = Peer { client, by_file: Some(owner) };
    serve(io, shared, peer, state).await;
}

/// Accepts connections to a TCP address until the server stops.
pub async fn tcp(listener: TcpListener, shared: ListenerContext) {
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
        // A token is smaller than a packet, and Nagle's algorithm would delay it.
        let _ = stream.set_nodelay(true);
        let state = Arc::clone(open.state());
        let io = Patient::new(stream, Vec::new(), &state, &shared.registry.current().limits);
        let peer = Peer { client: Client::Machine(address.ip()), by_file: None };
        tokio::spawn(open.during(serve(io, shared.clone(), peer, state)));
    }
}

async fn serve<I>(io: Patient<I>, shared: ListenerContext, peer: Peer, state: Arc<ConnectionState>)
where
    I: AsyncRead + AsyncWrite + ClientConnection + Unpin + Send + 'static,
{
    let ListenerContext { registry, routes: Routes { router, door }, mut stopping, .. } = shared;
    let idle = registry.current().limits.idle;
    let app = TowerToHyperService::new(router);
    let counting = Arc::clone(&registry);
    let late = Arc::clone(&state);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        state.set(ConnectionPhase::Answering);
        routes::drop_trailing_slash(request.uri_mut());
        let allowed = allowed(&registry, &peer, &state, door, &request);
        let origin = cors::origin(&registry.current().origins, &request);
        let preflight = cors::preflight(&request, origin.as_ref());
        // Monitoring probes do not send a key.
        let is_health = request.uri().path() == "/health";
        // If the server has no keys, the status of the answer determines whether the client is proven.
        let needs_key = peer.by_file.is_none() && !registry.current().keys.is_empty();
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
        let request_log =
            RequestLog::new(request.method().as_str(), routes::logged(request.uri().path()), &peer.client);
        let refuse = routes::refusal_at(request.uri().path());
        let answer = app.call(request);
        let (registry, state) = (Arc::clone(&registry), Arc::clone(&state));
        let early = state.early();
        async move {
            if !early.is_zero() {
                // An idle connection may be evicted.
                state.set(ConnectionPhase::Resting);
                sleep(early).await;
                state.set(ConnectionPhase::Answering);
            }
            let work = async {
                match (preflight, allowed) {
                    (Some(Ok(response)), _) => Ok::<Response, Infallible>(response),
                    (Some(Err(refusal)), _) | (None, Err(refusal)) => Ok(refuse(&refusal)),
                    (None, Ok(_)) => answer.await,
                }
            };
            let mut response = request_log.clone().during(work).await?;
            let status = response.status();
            request_log.status(status.as_u16());
            registry.metrics.count_refusal(status.as_u16());
            if status.is_success() && !needs_key && !is_health {
                state.prove();
            }
            cors::mark(&mut response, origin);
            if state.reserve().is_some() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<Response, Infallible>(answered(response, &state))
        }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(idle);
    // hyper checks the size of its buffer only after a read, which may exceed the limit. Therefore the head has a
    // separate limit.
    builder.max_buf_size(HEAD).max_header_size(HEAD);
    let client = io.connection();
    let gone = client.gone();
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(io), service));
    // Errors of a connection only affect its client, so they are not logged.
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

/// Returns the owner of the prompts of `request`.
///
/// # Errors
/// If `peer` is not allowed to send this request at this `door`, or on a connection of the reserve.
fn allowed(
    registry: &ModelRegistry,
    peer: &Peer,
    state: &ConnectionState,
    door: Door,
    request: &hyper::Request<Incoming>,
) -> Result<Owner, ApiError> {
    head::check(request.version(), request.headers())?;
    let path = request.uri().path();
    if let Some(full) = state.reserve().filter(|_| !routes::is_watching(path)) {
        state.was_refused(full);
        return Err(too_many_connections(full, &registry.current().limits));
    }
    match door {
        Door::Health { open_metrics: true } if path == "/metrics" => Ok(Owner::Open),
        _ => access::check(registry, peer, request),
    }
}
