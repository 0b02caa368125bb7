//! Accepts the connections that the [`Gate`](crate::admission::Gate) admits. The first byte of a connection selects the
//! protocol.

pub mod shared;

use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;

use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use self::shared::{FIRST, ListenerContext, pause};
use super::admission::{ConnectionState, Late};
use super::client::Client;
use super::ndjson;
use super::scope::Owner;

/// Accepts connections to the Unix socket until the server stops.
pub async fn unix(listener: UnixListener, shared: ListenerContext) {
    let mut stopping = shared.stopping.clone();
    loop {
        let accepted = tokio::select! {
            _ = stopping.wait_for(|stopping| *stopping) => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let Some(open) = shared.admit(None) else { continue };
                let state = Arc::clone(open.state());
                tokio::spawn(open.during(speak(stream, state, shared.clone())));
            }
            Err(error) => pause(&error).await,
        }
    }
}

/// Receiver of connections from inside the process.
pub type Inside = mpsc::UnboundedReceiver<StdUnixStream>;

/// Accepts connections from inside the process until the server stops or the sender is dropped. Then drops `over`.
pub async fn inside(mut streams: Inside, shared: ListenerContext, over: oneshot::Sender<()>) {
    let _over = over;
    let mut stopping = shared.stopping.clone();
    loop {
        let stream = tokio::select! {
            _ = stopping.wait_for(|stopping| *stopping) => return,
            stream = streams.recv() => match stream {
                Some(stream) => stream,
                None => return,
            },
        };
        let Some(open) = shared.admit(None) else { continue };
        // A stream that cannot be registered is closed, so the client sees an error.
        let Ok(stream) = UnixStream::from_std(stream) else { continue };
        let state = Arc::clone(open.state());
        tokio::spawn(open.during(speak(stream, state, shared.clone())));
    }
}

/// Serves a connection to the Unix socket. The first byte shows the protocol: an HTTP method begins with a capital
/// letter, and a line of JSON does not.
async fn speak(mut stream: UnixStream, state: Arc<ConnectionState>, shared: ListenerContext) {
    let peer = stream.peer_cred().ok();
    let process = peer.and_then(|peer| Some((peer.pid()?, peer.uid())));
    let client = process.map_or(Client::Unknown, |(id, user)| Client::Process { id, user });
    let who = (client, Owner::of_user(peer.map(|peer| peer.uid())));
    let (registry, mut stopping) = (Arc::clone(&shared.registry), shared.stopping.clone());
    let mut read = Vec::with_capacity(4096);
    let first = tokio::select! {
        first = timeout(registry.current().limits.idle.min(FIRST), stream.read_buf(&mut read)) => first,
        _ = stopping.wait_for(|stopping| *stopping) => return,
    };
    match first {
        Ok(Ok(1..)) => {}
        Ok(_) => return,
        Err(_) => return state.was_late(Late::Head),
    }
    match read.first() {
        Some(byte) if byte.is_ascii_uppercase() => {
            super::http::unix(stream, read, shared, who, state).await;
        }
        _ => ndjson::serve(stream, read, registry, who, state, stopping).await,
    }
}
