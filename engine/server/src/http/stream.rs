//! Answers as server-sent events.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use axum::http::HeaderValue;
use http_body::Frame;
use tokio::time::{Sleep, sleep, timeout};

use super::answer_format::{AnswerFormat, EventBuffer};
use super::ignored_keywords::IGNORED;
use super::out::{BegunAnswers, without_tokens};
use super::token_details::TokenDetails;
use crate::api_error::{ApiError, ApiErrorKind};
use crate::choices::ChoiceEvent;
use crate::done::Done;
use crate::job::JobEvent;
use crate::models::ModelLease;

/// Submission of a request: tokenises its prompts, compiles its grammar, and queues its jobs.
pub(super) type Submitting = Pin<Box<dyn Future<Output = Result<BegunAnswers, ApiError>> + Send>>;

/// Comment that keeps the connection open. Clients ignore lines that begin with a colon (the HTML standard, server-sent
/// events).
const COMMENT: &str = ": waiting";

/// Answer as server-sent events. Dropping the stream, for example at the end of the connection, cancels the request.
pub(super) struct Stream {
    format: Box<dyn AnswerFormat>,
    /// Submission of the request, until it has ended.
    submitting: Option<Submitting>,
    answers: BegunAnswers,
    over: bool,
    ready: EventBuffer,
    /// Time after which a comment is sent if nothing else was sent; zero for never.
    keep_alive: Duration,
    /// Timer of the next comment.
    pause: Option<Pin<Box<Sleep>>>,
    /// Lease of the model, held while the answer is sent.
    server: ModelLease,
}

impl Stream {
    /// Begins the stream of the answers that `submitting` returns. An invalid request needs an HTTP status, so this
    /// function waits for the submission, but only for the time `keep_alive`. Later errors are events of the stream.
    pub async fn begin(
        format: Box<dyn AnswerFormat>,
        mut submitting: Submitting,
        keep_alive: Duration,
        server: ModelLease,
    ) -> Result<Self, ApiError> {
        let submitted = match keep_alive.is_zero() {
            true => Some(submitting.as_mut().await),
            false => timeout(keep_alive, submitting.as_mut()).await.ok(),
        };
        let mut stream = Stream {
            format,
            submitting: None,
            answers: BegunAnswers::default(),
            over: false,
            ready: EventBuffer::default(),
            keep_alive,
            pause: None,
            server,
        };
        match submitted {
            Some(answers) => stream.open(answers?),
            None => {
                stream.submitting = Some(submitting);
                stream.ready.put_line(COMMENT);
            }
        }
        Ok(stream)
    }

    /// Returns the value of the header that lists ignored schema keywords, if the submission ended before the head was
    /// sent.
    pub fn take_ignored(&mut self) -> Option<HeaderValue> {
        self.answers.ignored.take()
    }

    /// Writes the first events of `answers`.
    fn open(&mut self, answers: BegunAnswers) {
        self.answers = answers;
        let choices = &mut self.answers.choices;
        self.format.begin(&mut self.ready, choices.len());
        for (index, choice) in choices.iter_mut().enumerate().filter(|(_, choice)| !choice.text.is_empty()) {
            let parts = choice.reader.push(&std::mem::take(&mut choice.text));
            self.format.parts(&mut self.ready, index, parts, TokenDetails::default());
        }
    }

    fn take(&mut self, (index, event): ChoiceEvent) {
        let refusal = match event {
            Some(JobEvent::Token(mut piece)) => {
                let choice = &mut self.answers.choices[index];
                choice.gathered.add(&mut piece);
                let details = choice.gathered.take();
                if !piece.text.is_empty() || !details.is_empty() {
                    let parts = choice.reader.push(&piece.text);
                    self.format.parts(&mut self.ready, index, parts, details);
                }
                return;
            }
            Some(JobEvent::Prompt(scores)) => {
                let choice = &mut self.answers.choices[index];
                choice.gathered.add_prompt(scores);
                let details = choice.gathered.take();
                return self.format.parts(&mut self.ready, index, Vec::new(), details);
            }
            Some(JobEvent::Progress(progress)) => {
                return self.format.progress(&mut self.ready, index, progress);
            }
            Some(JobEvent::Done(done)) => {
                match without_tokens(&done).filter(|_| self.answers.choices.len() == 1) {
                    None => return self.finish(index, done),
                    Some(refusal) => refusal,
                }
            }
            Some(JobEvent::Failed(message)) => ApiError::new(ApiErrorKind::Failed, message),
            None => self.server.unread(),
        };
        self.fail(&refusal);
    }

    fn fail(&mut self, refusal: &ApiError) {
        self.format.failed(&mut self.ready, refusal);
        self.over = true;
    }

    fn finish(&mut self, index: usize, done: Box<Done>) {
        let choice = &mut self.answers.choices[index];
        choice.done = Some(done.clone());
        let rest = done.rest.clone();
        self.format.end(&mut self.ready, choice.end(index, &rest, done));
        let choices = self.answers.choices.iter();
        let ends: Option<Vec<Box<Done>>> = choices.map(|choice| choice.done.clone()).collect();
        if let Some(ends) = ends {
            self.format.over(&mut self.ready, &ends);
            self.over = true;
        }
    }

    /// Takes the result of the submission, or the next event of an answer.
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.submitting {
            Some(submitting) => {
                let submitted = ready!(submitting.as_mut().poll(cx));
                self.submitting = None;
                match submitted {
                    Ok(answers) => {
                        // The head was sent, so a comment replaces the header.
                        if let Some(ignored) =
                            answers.ignored.as_ref().and_then(|ignored| ignored.to_str().ok())
                        {
                            self.ready.put_line(&format!(": {IGNORED}: {ignored}"));
                        }
                        self.open(answers)
                    }
                    Err(refusal) => self.fail(&refusal),
                }
            }
            None => match ready!(self.answers.events.poll_next(cx)) {
                Some(told) => self.take(told),
                None => self.over = true,
            },
        }
        Poll::Ready(())
    }

    /// Waits until it is time for a comment.
    fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.keep_alive.is_zero() {
            return Poll::Pending;
        }
        let keep_alive = self.keep_alive;
        let pause = self.pause.get_or_insert_with(|| Box::pin(sleep(keep_alive)));
        pause.as_mut().poll(cx)
    }
}

impl HttpBody for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        // Events that are already available are sent together. Not every event has bytes for the client: a part of a
        // tool call is held back until the call is certain.
        while !self.over && self.poll_event(cx).is_ready() {}
        if self.ready.is_empty() && !self.over {
            ready!(self.poll_pause(cx));
            self.ready.put_line(COMMENT);
        }
        if self.ready.is_empty() {
            return Poll::Ready(None);
        }
        self.pause = None;
        Poll::Ready(Some(Ok(Frame::data(self.ready.take().into()))))
    }
}
