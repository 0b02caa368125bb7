//! Connections: each is accepted if its [`Gate`] admits it, and served by the protocol that its first byte shows.

use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

use super::admission::{Admitted, Bounds, ConnectionState, Full, Gate, Late, Network};
use super::http::Routes;
use super::job::Client;
use super::models::Front;
use super::ndjson;
use super::refusal::{Kind, Refusal};
use super::scope::Owner;
use super::server::Limits;

/// State that all connections of a listener share.
#[derive(Clone)]
pub struct Shared {
    /// Registry of the models.
    pub front: Arc<Front>,
    /// HTTP routes of the listener.
    pub routes: Routes,
    /// Gate of this listener. Each listener has one, so that a flood at one leaves room at the other.
    pub gate: Arc<Gate>,
    /// Bounds of the gate that override those of the configuration.
    pub bounds: Option<Bounds>,
    /// Becomes true when the server stops.
    pub stopping: watch::Receiver<bool>,
    /// Cloned into every connection: the channel closes when the last connection ends.
    pub open: mpsc::Sender<()>,
}

/// Place of an open connection.
pub struct Open {
    admitted: Admitted,
    _open: mpsc::Sender<()>,
}

impl Open {
    /// Returns the state of the connection.
    pub fn state(&self) -> &Arc<ConnectionState> {
        self.admitted.state()
    }

    /// Runs `work` until another connection needs the place.
    pub async fn during(self, work: impl Future<Output = ()>) {
        tokio::select! {
            () = work => {}
            () = self.state().evicted() => {}
        }
    }
}

impl Shared {
    /// Returns a place for a connection from `network`, if one is free or another connection can be closed for it.
    pub fn admit(&self, network: Option<Network>) -> Option<Open> {
        let limits = self.front.current().limits;
        let configured = Bounds { total: limits.connections, per_network: limits.connections_per_address };
        let admitted = self.gate.admit(network, self.bounds.unwrap_or(configured))?;
        Some(Open { admitted, _open: self.open.clone() })
    }
}

/// Returns the refusal for a connection beyond the bound `full`.
pub fn full(full: Full, limits: &Limits) -> Refusal {
    let (bound, key) = match full {
        Full::Total => {
            (limits.connections, "connections are open (max_connections), and none of them is idle")
        }
        Full::Network => (
            limits.connections_per_address,
            "connections of this address are open (max_connections_per_address), and none of them is idle",
        ),
    };
    let message = format!("{bound} {key}: try again later");
    Refusal { retry_after: Some(1), ..Refusal::new(Kind::Overloaded, message) }
}

/// Accepts connections at the Unix socket until the server stops.
pub async fn unix(listener: UnixListener, shared: Shared) {
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

/// Accepts connections from inside the process until the server stops or the sender is gone. Then drops `over`.
pub async fn inside(mut streams: Inside, shared: Shared, over: oneshot::Sender<()>) {
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
        // A stream that cannot be registered is closed, which its other end sees.
        let Ok(stream) = UnixStream::from_std(stream) else { continue };
        let state = Arc::clone(open.state());
        tokio::spawn(open.during(speak(stream, state, shared.clone())));
    }
}

/// Pauses after a failed accept. Usually no file descriptor is free, and some connections must end first.
pub async fn pause(error: &io::Error) {
    if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) {
        sleep(Duration::from_millis(50)).await;
    }
}

/// Time limit for the first byte of a connection. Over HTTP it also limits the head of a request, from the first byte on.
pub const FIRST: Duration = Duration::from_secs(10);

/// Serves a connection to the Unix socket. HTTP methods begin with a capital letter, lines of JSON never do.
async fn speak(mut stream: UnixStream, state: Arc<ConnectionState>, shared: Shared) {
    let peer = stream.peer_cred().ok();
    let process = peer.and_then(|peer| Some((peer.pid()?, peer.uid())));
    let client = process.map_or(Client::Unknown, |(id, user)| Client::Process { id, user });
    let who = (client, Owner::of_user(peer.map(|peer| peer.uid())));
    let (front, mut stopping) = (Arc::clone(&shared.front), shared.stopping.clone());
    let mut read = Vec::with_capacity(4096);
    let first = tokio::select! {
        first = timeout(front.current().limits.idle.min(FIRST), stream.read_buf(&mut read)) => first,
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
        _ => ndjson::serve(stream, read, front, who, state, stopping).await,
    }
}
