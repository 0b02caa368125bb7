//! A stream that gives back what was read of it, does not wait for ever for a client that does not read or does not say
//! what it wants, and knows when its client is gone.

use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Sleep, sleep};

use crate::serve::connection::FIRST;

/// How often a client is looked at: whether it is still there.
const LOOK: Duration = Duration::from_millis(500);

/// What a connection is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Pace {
    /// The head of a request is expected, the first one or one that has begun.
    Expecting,
    /// A request is answered; its body may be read.
    Working,
    /// Nothing is expected.
    Resting,
}

/// The pace that a stream and its server share.
#[derive(Clone, Debug)]
pub struct SharedPace(Arc<AtomicU8>);

impl SharedPace {
    /// Goes on to `pace`.
    pub fn set(&self, pace: Pace) {
        self.0.store(pace as u8, Ordering::Relaxed);
    }

    fn is(&self, pace: Pace) -> bool {
        self.0.load(Ordering::Relaxed) == pace as u8
    }
}

/// The line to a client.
pub trait Line {
    /// Whether nothing more will come, though there may be something that was not read.
    fn is_closed(&self) -> bool;
}

macro_rules! line {
    ($stream:ty) => {
        impl Line for $stream {
            fn is_closed(&self) -> bool {
                // What is known already; nobody has to be woken.
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

line!(TcpStream);
line!(UnixStream);

/// A stream that two look at, on one thread.
pub struct Shared<I>(Arc<Mutex<I>>);

impl<I> Shared<I> {
    fn lock(&self) -> MutexGuard<'_, I> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<I: Line> Shared<I> {
    /// Returns when the client is gone. hyper sees it too, but not behind the bytes of a next request, which it does not
    /// read before it has answered.
    pub async fn gone(&self) {
        loop {
            sleep(LOOK).await;
            if self.lock().is_closed() {
                return;
            }
        }
    }
}

/// See above.
pub struct Patient<I> {
    stream: Shared<I>,
    read: Vec<u8>,
    stall: Duration,
    /// Runs while the client does not read.
    waiting: Option<Pin<Box<Sleep>>>,
    pace: SharedPace,
    /// Runs while a head is expected.
    head: Option<Pin<Box<Sleep>>>,
}

impl<I> Patient<I> {
    /// `stream` with `read` before what comes out of it; a write may wait for `stall`.
    pub fn new(stream: I, read: Vec<u8>, stall: Duration) -> Self {
        Patient {
            stream: Shared(Arc::new(Mutex::new(stream))),
            read,
            stall,
            waiting: None,
            pace: SharedPace(Arc::new(AtomicU8::new(Pace::Expecting as u8))),
            head: None,
        }
    }

    /// Where it is told what the connection is at.
    pub fn pace(&self) -> SharedPace {
        self.pace.clone()
    }

    /// The line to the client.
    pub fn line(&self) -> Shared<I> {
        Shared(Arc::clone(&self.stream.0))
    }

    fn in_time<T>(&mut self, poll: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.waiting = None;
            return poll;
        }
        let stall = self.stall;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(stall)));
        ready!(waiting.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// A head that comes byte by byte is late all the same.
    fn head_in_time(&mut self, poll: Poll<io::Result<()>>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if poll.is_ready() && self.pace.is(Pace::Resting) {
            self.pace.set(Pace::Expecting);
            self.head = None;
        }
        if !self.pace.is(Pace::Expecting) {
            self.head = None;
            return poll;
        }
        let head = self.head.get_or_insert_with(|| Box::pin(sleep(FIRST)));
        if poll.is_pending() {
            ready!(head.as_mut().poll(cx));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        poll
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Patient<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.read.is_empty() {
            let poll = Pin::new(&mut *self.stream.lock()).poll_read(cx, buffer);
            return self.head_in_time(poll, cx);
        }
        let length = self.read.len().min(buffer.remaining());
        buffer.put_slice(&self.read[..length]);
        self.read.drain(..length);
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Patient<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut *self.stream.lock()).poll_write(cx, bytes);
        self.in_time(poll, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut *self.stream.lock()).poll_write_vectored(cx, bytes);
        self.in_time(poll, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.lock().is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream.lock()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream.lock()).poll_shutdown(cx)
    }
}
