//! Connections: taken as long as there are not too many, each served by what it speaks.

use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

use super::job::Client;
use super::models::Front;
use super::ndjson;
use super::scope::Owner;

/// What a connection needs besides itself.
#[derive(Clone)]
pub struct Shared {
    /// The way to the models.
    pub front: Arc<Front>,
    /// One permit a connection. Each listener has its own, so that many at one leave room at the other.
    pub permits: Arc<Semaphore>,
    /// Becomes true when the server stops.
    pub stopping: watch::Receiver<bool>,
    /// Every connection holds one: whoever has the receiver knows when all are closed.
    pub open: mpsc::Sender<()>,
}

/// A place for a connection.
pub struct Place {
    front: Arc<Front>,
    permit: OwnedSemaphorePermit,
    open: mpsc::Sender<()>,
}

/// Counts a connection as long as it lives.
pub struct Open {
    front: Arc<Front>,
    _permit: OwnedSemaphorePermit,
    _open: mpsc::Sender<()>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.front.metrics.connections.sub_one();
    }
}

impl Shared {
    /// A place for another connection, as soon as there is one.
    pub async fn place(&self) -> Option<Place> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok()?;
        Some(Place { front: Arc::clone(&self.front), permit, open: self.open.clone() })
    }
}

impl Place {
    /// Somebody takes it.
    pub fn enter(self) -> Open {
        self.front.metrics.connections.add(1);
        Open { front: self.front, _permit: self.permit, _open: self.open }
    }
}

/// Takes connections from the Unix socket until the server stops.
pub async fn unix(listener: UnixListener, shared: Shared) {
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
            Some((place, Ok((stream, _)))) => {
                let (open, shared) = (place.enter(), shared.clone());
                tokio::spawn(async move {
                    let _open = open;
                    speak(stream, shared).await;
                });
            }
            Some((_, Err(error))) => pause(&error).await,
            None => return,
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
        let next = async {
            let stream = streams.recv().await?;
            Some((shared.place().await?, stream))
        };
        let (place, stream) = tokio::select! {
            _ = stopping.wait_for(|stopping| *stopping) => return,
            next = next => match next {
                Some(next) => next,
                None => return,
            },
        };
        let (open, shared) = (place.enter(), shared.clone());
        // What is not registered is closed, and its other end sees that.
        let Ok(stream) = UnixStream::from_std(stream) else { continue };
        tokio::spawn(async move {
            let _open = open;
            speak(stream, shared).await;
        });
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
async fn speak(mut stream: UnixStream, shared: Shared) {
    let peer = stream.peer_cred().ok();
    let client = peer.as_ref().and_then(|peer| peer.pid()).map_or(Client::Unknown, Client::Process);
    let who = (client, Owner::of_user(peer.map(|peer| peer.uid())));
    let Shared { front, mut stopping, .. } = shared;
    let mut read = Vec::with_capacity(4096);
    let first = tokio::select! {
        first = timeout(front.current().limits.idle.min(FIRST), stream.read_buf(&mut read)) => first,
        _ = stopping.wait_for(|stopping| *stopping) => return,
    };
    if !matches!(first, Ok(Ok(1..))) {
        return;
    }
    match read.first() {
        Some(byte) if byte.is_ascii_uppercase() => {
            super::http::unix(stream, read, front, who, stopping).await;
        }
        _ => ndjson::serve(stream, read, front, who, stopping).await,
    }
}
