//! Answers as server-sent events.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use http_body::Frame;
use tokio::time::{Sleep, sleep};

use super::answer_format::{AnswerFormat, EventBuffer};
use super::out::{BegunChoice, without_tokens};
use super::token_details::TokenDetails;
use crate::api_error::{ApiError, ApiErrorKind};
use crate::choices::{ChoiceEvent, Choices};
use crate::done::Done;
use crate::job::JobEvent;
use crate::models::ModelLease;

/// Answer as server-sent events. Dropping the stream, for example at the end of the connection, cancels the request.
pub(super) struct Stream {
    format: Box<dyn AnswerFormat>,
    events: Choices,
    choices: Vec<BegunChoice>,
    over: bool,
    ready: EventBuffer,
    /// Time without a token after which a comment is sent; zero for never.
    keep_alive: Duration,
    /// Timer of the next comment, while no token arrives.
    pause: Option<Pin<Box<Sleep>>>,
    /// Lease of the model, held while the answer is sent.
    server: ModelLease,
}

impl Stream {
    /// Creates the stream of `choices`, whose events come from `events`.
    pub fn new(
        mut format: Box<dyn AnswerFormat>,
        mut choices: Vec<BegunChoice>,
        events: Choices,
        keep_alive: Duration,
        server: ModelLease,
    ) -> Self {
        let mut ready = EventBuffer::default();
        format.begin(&mut ready, choices.len());
        for (index, choice) in choices.iter_mut().enumerate().filter(|(_, choice)| !choice.text.is_empty()) {
            let parts = choice.reader.push(&std::mem::take(&mut choice.text));
            format.parts(&mut ready, index, parts, TokenDetails::default());
        }
        Stream { format, events, choices, over: false, ready, keep_alive, pause: None, server }
    }

    fn take(&mut self, (index, event): ChoiceEvent) {
        let refusal = match event {
            Some(JobEvent::Token(mut piece)) => {
                let choice = &mut self.choices[index];
                choice.gathered.add(&mut piece);
                let details = choice.gathered.take();
                if !piece.text.is_empty() || !details.is_empty() {
                    let parts = choice.reader.push(&piece.text);
                    self.format.parts(&mut self.ready, index, parts, details);
                }
                return;
            }
            Some(JobEvent::Prompt(scores)) => {
                let choice = &mut self.choices[index];
                choice.gathered.add_prompt(scores);
                let details = choice.gathered.take();
                return self.format.parts(&mut self.ready, index, Vec::new(), details);
            }
            Some(JobEvent::Progress(progress)) => {
                return self.format.progress(&mut self.ready, index, progress);
            }
            Some(JobEvent::Done(done)) => match without_tokens(&done).filter(|_| self.choices.len() == 1) {
                None => return self.finish(index, done),
                Some(refusal) => refusal,
            },
            Some(JobEvent::Failed(message)) => ApiError::new(ApiErrorKind::Failed, message),
            None => self.server.unread(),
        };
        self.format.failed(&mut self.ready, &refusal);
        self.over = true;
    }

    fn finish(&mut self, index: usize, done: Box<Done>) {
        let choice = &mut self.choices[index];
        choice.done = Some(done.clone());
        let rest = done.rest.clone();
        self.format.end(&mut self.ready, choice.end(index, &rest, done));
        let ends: Option<Vec<Box<Done>>> = self.choices.iter().map(|choice| choice.done.clone()).collect();
        if let Some(ends) = ends {
            self.format.over(&mut self.ready, &ends);
            self.over = true;
        }
    }

    /// Waits until no token has arrived for a while.
    fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.keep_alive.is_zero() {
            return Poll::Pending;
        }
        let keep_alive = self.keep_alive;
        let pause = self.pause.get_or_insert_with(|| Box::pin(sleep(keep_alive)));
        ready!(pause.as_mut().poll(cx));
        self.pause = None;
        Poll::Ready(())
    }
}

impl HttpBody for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        while self.ready.is_empty() && !self.over {
            let told = match self.events.poll_next(cx) {
                Poll::Ready(Some(told)) => told,
                Poll::Ready(None) => break,
                Poll::Pending => {
                    ready!(self.poll_pause(cx));
                    // Clients ignore lines that begin with a colon (the HTML standard, server-sent events).
                    self.ready.put_line(": waiting");
                    break;
                }
            };
            self.pause = None;
            self.take(told);
            // Events that are already available are sent together.
            while !self.over
                && let Some(told) = self.events.try_next()
            {
                self.take(told);
            }
        }
        if self.ready.is_empty() {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(Ok(Frame::data(self.ready.take().into()))))
    }
}
