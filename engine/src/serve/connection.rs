//! Connections: taken as far as their [`Gate`] admits, each served by what it speaks.

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

/// What a connection needs besides itself.
#[derive(Clone)]
pub struct Shared {
    /// The way to the models.
    pub front: Arc<Front>,
    /// Routes that are served over HTTP.
    pub routes: Routes,
    /// Connections of this listener. Each has its own, so that many at one leave room at the other.
    pub gate: Arc<Gate>,
    /// Bounds of the gate, where they are not those of the configuration.
    pub bounds: Option<Bounds>,
    /// Becomes true when the server stops.
    pub stopping: watch::Receiver<bool>,
    /// Every connection holds one: whoever has the receiver knows when all are closed.
    pub open: mpsc::Sender<()>,
}

/// A connection's place as long as it lives.
pub struct Open {
    admitted: Admitted,
    _open: mpsc::Sender<()>,
}

impl Open {
    /// The state of the connection.
    pub fn state(&self) -> &Arc<ConnectionState> {
        self.admitted.state()
    }

    /// Does `work`, unless another connection needs the place.
    pub async fn during(self, work: impl Future<Output = ()>) {
        tokio::select! {
            () = work => {}
            () = self.state().evicted() => {}
        }
    }
}

impl Shared {
    /// A place for a connection from `network`, if there is one or another connection can be closed for it.
    pub fn admit(&self, network: Option<Network>) -> Option<Open> {
        let limits = self.front.current().limits;
        let configured = Bounds { total: limits.connections, per_network: limits.connections_per_address };
        let admitted = self.gate.admit(network, self.bounds.unwrap_or(configured))?;
        Some(Open { admitted, _open: self.open.clone() })
    }
}

/// The answer on a connection beyond the bound `full`.
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

/// Takes connections from the Unix socket until the server stops.
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

/// Connections that were made inside the process.
pub type Inside = mpsc::UnboundedReceiver<StdUnixStream>;

/// Takes connections from inside the process until the server stops, or no more can come: then `over` is dropped.
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
        // What is not registered is closed, and its other end sees that.
        let Ok(stream) = UnixStream::from_std(stream) else { continue };
        let state = Arc::clone(open.state());
        tokio::spawn(open.during(speak(stream, state, shared.clone())));
    }
}

/// No more files, as a rule: some connections must end first.
pub async fn pause(error: &io::Error) {
    if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) {
        sleep(Duration::from_millis(50)).await;
    }
}

/// How long a client may take to say what it wants, from when it is connected; over HTTP also from the first byte of a
/// request to the end of its head.
pub const FIRST: Duration = Duration::from_secs(10);

/// Serves a connection to the Unix socket: methods of HTTP begin with a capital letter, lines of JSON never do.
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
