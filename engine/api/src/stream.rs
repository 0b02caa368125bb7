//! Generated tokens as an async stream.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use engine_core::generate::Stop;
use futures_core::Stream;
use llama::error::{Error, Result};
use tokio::sync::{mpsc, oneshot};

use crate::sampler::Sampler;
use crate::session::{Canceller, Session};
use crate::tokens::Piece;

/// Maximum number of unread tokens. The thread pauses when this number is reached.
const AHEAD: usize = 32;

/// Async stream of tokens, for any executor, created by [`Session::stream`]. A separate thread generates the tokens.
///
/// Dropping the stream ends the thread within one token, even in the middle of a prompt.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/common/tiny.rs"));
/// # fn main() -> engine::Result<()> {
/// # let file = tiny();
/// # let path = file.path();
/// use engine::{Model, Options, Sampler};
///
/// let model = Model::load(path, &Options::default())?;
/// let mut session = model.session()?;
/// session.push("Once upon a time")?;
/// # tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(async {
/// let mut stream = session.stream(Sampler::greedy(&model)?, 8);
/// let mut text = String::new();
/// while let Some(piece) = stream.next().await {
///     text.push_str(&piece?.text);
/// }
/// let finished = stream.finish().await?; // returns the session, for the next turn
/// assert!(finished.session.tokens().len() > 8, "{text}");
/// # Ok(())
/// # })
/// # }
/// ```
#[derive(Debug)]
pub struct TokenStream {
    pieces: mpsc::Receiver<Result<Piece>>,
    finished: oneshot::Receiver<Finished>,
    canceller: Option<Canceller>,
}

/// Session and sampler after the end of a [`TokenStream`].
#[derive(Debug)]
pub struct Finished {
    /// Session, with all generated tokens.
    pub session: Session,
    /// Sampler of the stream.
    pub sampler: Sampler,
    /// Reason why the generation stopped; `None` after an error.
    pub stop: Option<Stop>,
}

impl TokenStream {
    pub(super) fn new(session: Session, sampler: Sampler, most: usize) -> Self {
        let (sender, pieces) = mpsc::channel(AHEAD);
        let (done, finished) = oneshot::channel();
        let canceller = Some(session.canceller());
        let refused = sender.clone();
        let work = move || work(session, sampler, most, &sender, done);
        let thread = std::thread::Builder::new().name("anneal-stream".to_string()).spawn(work);
        if let Err(error) = thread {
            // The channel has room, because it is empty.
            let _ = refused.try_send(Err(Error::Threadpool { threads: 1, why: error.to_string() }));
        }
        TokenStream { pieces, finished, canceller }
    }

    /// Returns the next token, or `None` at the end, like [`Stream`]'s method.
    pub async fn next(&mut self) -> Option<Result<Piece>> {
        poll_fn(|context| self.pieces.poll_recv(context)).await
    }

    /// Stops the generation if it has not ended, and returns the session. The session's text includes tokens that
    /// were generated but not read.
    ///
    /// # Errors
    /// [`Error::Internal`] if the generating thread ended unexpectedly.
    pub async fn finish(mut self) -> Result<Finished> {
        self.pieces.close();
        // The canceller is removed, so that dropping the stream does not stop the session's next operation.
        if let Some(canceller) = self.canceller.take() {
            canceller.cancel();
        }
        let finished = (&mut self.finished).await;
        let finished = finished.map_err(|_| Error::Internal {
            what: "generate",
            why: "the generating thread ended unexpectedly".to_string(),
        })?;
        finished.session.forget_cancel();
        Ok(finished)
    }
}

impl Stream for TokenStream {
    type Item = Result<Piece>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.pieces.poll_recv(context)
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        if let Some(canceller) = &self.canceller {
            canceller.cancel();
        }
    }
}

/// Generates the tokens of a stream, in its thread.
fn work(
    mut session: Session,
    mut sampler: Sampler,
    most: usize,
    pieces: &mpsc::Sender<Result<Piece>>,
    done: oneshot::Sender<Finished>,
) {
    let mut tokens = session.generate(&mut sampler, most);
    // Ends if the stream was dropped.
    while !pieces.is_closed() {
        let Some(piece) = tokens.next() else { break };
        if pieces.blocking_send(piece).is_err() {
            break;
        }
    }
    let stop = tokens.stop();
    // If the stream was dropped, the session is dropped here.
    let _ = done.send(Finished { session, sampler, stop });
}

impl Session {
    /// Returns an async stream that generates at most `most` tokens like [`generate`](Self::generate), in its own
    /// thread. Dropping the stream ends the thread within one token.
    pub fn stream(self, sampler: Sampler, most: usize) -> TokenStream {
        TokenStream::new(self, sampler, most)
    }
}
