//! Stream of an HTTP connection, with time limits for reading and writing. The stream can return bytes that were
//! already read, and detects a client that has disconnected. Before the stream closes, it discards the rest of a
//! refused request.

use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Sleep, sleep};

use crate::admission::{ConnectionPhase, ConnectionState, Late};
use crate::connection::shared::FIRST;
use crate::limits::ServerLimits;

/// Interval between checks for a client that has disconnected.
const LOOK: Duration = Duration::from_millis(500);

/// Maximum number of bytes that are discarded before a connection closes while its client may still be sending.
/// Without discarding, the kernel resets the connection, and clients that write a whole body before they read
/// (Python's `http.client`) never see the answer. [`LINGER_TIME`] also limits the total time. If the body is larger
/// or slower, the connection is reset.
const LINGER_BYTES: usize = 32 << 20;

/// Maximum time for discarding bytes; see [`LINGER_BYTES`].
const LINGER_TIME: Duration = Duration::from_secs(2);

/// Connection to a client.
pub trait ClientConnection {
    /// True if the client has closed its side for writing. Unread bytes may remain.
    fn is_closed(&self) -> bool;
}

macro_rules! client_connection {
    ($stream:ty) => {
        impl ClientConnection for $stream {
            fn is_closed(&self) -> bool {
                // Only the current readiness matters, so no task needs to be woken.
                let ready = pin!(self.ready(Interest::READABLE | Interest::WRITABLE));
                match ready.poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(Ok(ready)) => ready.is_read_closed() || ready.is_write_closed(),
                    Poll::Ready(Err(_)) => true,
                    Poll::Pending => false,
                }
            }
        }
    };
}

client_connection!(TcpStream);
client_connection!(UnixStream);

/// Stream shared by two users on one thread.
pub struct SharedStream<I>(Arc<Mutex<I>>);

impl<I> SharedStream<I> {
    fn lock(&self) -> MutexGuard<'_, I> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<I: ClientConnection> SharedStream<I> {
    /// Completes when the client has disconnected. hyper reads the next request only after the current answer, so it
    /// does not notice a disconnection while bytes are unread.
    pub async fn gone(&self) {
        loop {
            sleep(LOOK).await;
            if self.lock().is_closed() {
                return;
            }
        }
    }
}

/// Stream of an HTTP connection; see the module documentation.
pub struct Patient<I> {
    stream: SharedStream<I>,
    read: Vec<u8>,
    /// Maximum time that a write may wait for the client.
    stall: Duration,
    /// Maximum idle time of an unproven client.
    rest: Duration,
    /// Timer that runs while the client does not read.
    waiting: Option<Pin<Box<Sleep>>>,
    state: Arc<ConnectionState>,
    /// Timer that runs while the client must send data, with the phase in which it started.
    patience: Option<(ConnectionPhase, Pin<Box<Sleep>>)>,
    /// True once any byte was received.
    received: bool,
    /// Progress of discarding; `None` before discarding starts.
    linger: Option<Linger>,
}

/// Progress of discarding the rest of a request.
struct Linger {
    left: usize,
    time: Pin<Box<Sleep>>,
}

impl<I> Patient<I> {
    /// Wraps `stream`, the connection of `state`. Reads return the bytes in `read` first.
    pub fn new(stream: I, read: Vec<u8>, state: &Arc<ConnectionState>, limits: &ServerLimits) -> Self {
        Patient {
            stream: SharedStream(Arc::new(Mutex::new(stream))),
            stall: limits.stall,
            received: !read.is_empty(),
            read,
            linger: None,
            rest: limits.idle_unauthenticated.min(limits.idle),
            waiting: None,
            state: Arc::clone(state),
            patience: None,
        }
    }

    /// Returns a handle to the connection.
    pub fn connection(&self) -> SharedStream<I> {
        SharedStream(Arc::clone(&self.stream.0))
    }

    fn written_in_time<T>(&mut self, poll: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        self.state.set_writing(poll.is_pending());
        if poll.is_ready() {
            self.waiting = None;
            self.state.touch();
            return poll;
        }
        let stall = self.stall;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(stall)));
        ready!(waiting.as_mut().poll(cx));
        self.state.was_late(Late::Write);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Applies the time limits for reading. The timer does not restart with each byte, so a head that arrives very
    /// slowly also times out.
    fn read_in_time(&mut self, poll: Poll<io::Result<()>>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if poll.is_ready() && self.state.phase() == ConnectionPhase::Resting {
            self.state.set(ConnectionPhase::Expecting);
        }
        let phase = self.state.phase();
        let (time, late) = match phase {
            ConnectionPhase::Expecting => (FIRST, Late::Head),
            ConnectionPhase::Resting if self.state.rests_shortly() => (self.rest, Late::Idle),
            // Bodies have their own time limit, and hyper limits long idle times.
            _ => {
                self.patience = None;
                return poll;
            }
        };
        if self.patience.as_ref().is_none_or(|(began, _)| *began != phase) {
            self.patience = Some((phase, Box::pin(sleep(time))));
        }
        if poll.is_pending()
            && let Some((_, patience)) = &mut self.patience
        {
            ready!(patience.as_mut().poll(cx));
            self.state.was_late(late);
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        poll
    }
}

impl<I: AsyncRead + Unpin> Patient<I> {
    /// True if the client may still be sending bytes that the server will not read: the rest of a body or of a
    /// refused head.
    fn may_be_sending(&self) -> bool {
        self.state.is_unread() || (self.received && self.state.phase() == ConnectionPhase::Expecting)
    }

    /// Reads and discards data from the client, within [`LINGER_BYTES`] and [`LINGER_TIME`].
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.linger.is_none() {
            if !self.may_be_sending() {
                return Poll::Ready(());
            }
            // While bytes are discarded, the connection may be evicted.
            self.state.set(ConnectionPhase::Resting);
        }
        let linger = self
            .linger
            .get_or_insert_with(|| Linger { left: LINGER_BYTES, time: Box::pin(sleep(LINGER_TIME)) });
        loop {
            if linger.left == 0 || linger.time.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            let mut bytes = [const { MaybeUninit::uninit() }; 16 << 10];
            let mut buffer = ReadBuf::uninit(&mut bytes);
            let read = ready!(Pin::new(&mut *self.stream.lock()).poll_read(cx, &mut buffer));
            match (read, buffer.filled().len()) {
                (Err(_), _) | (_, 0) => return Poll::Ready(()),
                (Ok(()), length) => linger.left = linger.left.saturating_sub(length),
            }
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Patient<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.read.is_empty() {
            let before = buffer.filled().len();
            let poll = Pin::new(&mut *self.stream.lock()).poll_read(cx, buffer);
            self.received |= buffer.filled().len() > before;
            return self.read_in_time(poll, cx);
        }
        let length = self.read.len().min(buffer.remaining());
        buffer.put_slice(&self.read[..length]);
        self.read.drain(..length);
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Patient<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut *self.stream.lock()).poll_write(cx, bytes);
        self.written_in_time(poll, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut *self.stream.lock()).poll_write_vectored(cx, bytes);
        self.written_in_time(poll, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.lock().is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream.lock()).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            ready!(Pin::new(&mut *self.stream.lock()).poll_shutdown(cx))?;
        }
        self.poll_discard(cx).map(Ok)
    }
}
