//! Answers to completion requests in OpenAI's formats, as one JSON object or as server-sent events.

use std::convert::Infallible;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::CACHE_CONTROL;
use axum::response::Response;
use http_body::Frame;
use serde_json::{Value, json};
use tokio::time::{Sleep, sleep};

use super::app::{client_of, fields, owner_of};
use super::calls::{Calls, thoughts};
use super::ignored_keywords::{self, ignored_keywords};
use super::respond::{answer, long_answer, refuse, typed};
use super::shape::{AnswerShape, finish_reason};
use super::token_details::{Gathered, TokenDetails};
use crate::api_error::{ApiError, ApiErrorKind};
use crate::choices::{ChoiceEvent, Choices};
use crate::done::Done;
use crate::fields::Fields;
use crate::finish_reason::FinishReason;
use crate::job::JobEvent;
use crate::models::{ModelLease, ModelRegistry};
use crate::request::Generate;
use crate::server::Server;

/// Completion request.
pub struct CompletionRequest {
    /// Parameters of the generation.
    pub generate: Generate,
    /// Number of answers.
    pub choices: u32,
    /// True if a stream must end with the token counts.
    pub include_usage: bool,
    /// True if the answer must contain the token numbers.
    pub return_tokens: bool,
    /// True if thoughts are returned apart from the content of a message.
    pub separate_thoughts: bool,
}

/// Function that reads the fields of a request.
type Read = fn(&Server, &mut Fields) -> Result<CompletionRequest, ApiError>;

/// Answers `request`, whose fields `read` parses.
pub async fn respond(
    registry: &Arc<ModelRegistry>,
    request: Request,
    shape: AnswerShape,
    read: Read,
) -> Response {
    match complete(registry, request, shape, read).await {
        Ok(response) => response,
        Err(refusal) => refuse(&refusal),
    }
}

async fn complete(
    registry: &Arc<ModelRegistry>,
    request: Request,
    shape: AnswerShape,
    read: Read,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let (client, owner) = (client_of(&request), owner_of(&request));
    let mut fields = fields(registry, request).await?;
    let server = registry.choose(&mut fields, arrived).await?;
    let CompletionRequest { generate, choices, include_usage, return_tokens, separate_thoughts } =
        read(&server, &mut fields)?;
    // The fields are dropped early, because their bytes are charged only while the request waits.
    drop(fields);
    let stream = generate.stream;
    let thoughts = match separate_thoughts && shape == AnswerShape::Chat {
        true => thoughts(&server, &client, &generate).await?,
        false => None,
    };
    let calls = Calls::of(&generate, thoughts, &server)?;
    let ignored = ignored_keywords(&server, &client, &generate).await?;
    let events = server.submit_all(generate, choices, client.clone(), owner, arrived).await?;
    let events = Choices::new(events);
    let head = Head::new(&server, shape);
    let choices = AnswerChoice::several(&head, calls.as_ref(), events.len(), return_tokens);
    if !stream {
        let choices = all(&server, choices, events).await?;
        let is_long = choices.iter().any(AnswerChoice::is_long);
        let make = move || whole(&head, choices);
        let response = if is_long { long_answer(&server, &client, make).await? } else { answer(&make()) };
        return Ok(ignored_keywords::mark(response, ignored));
    }
    let keep_alive = registry.current().limits.keep_alive;
    let body = Body::new(Stream::new(head, choices, events, include_usage, keep_alive, server));
    let mut response = typed("text/event-stream", body);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(ignored_keywords::mark(response, ignored))
}

/// Fields at the beginning of every object of an answer.
struct Head {
    shape: AnswerShape,
    id: String,
    created: u64,
    model: String,
}

impl Head {
    fn new(server: &Server, shape: AnswerShape) -> Self {
        let random = || RandomState::new().build_hasher().finish();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let kind = match shape {
            AnswerShape::Text => "cmpl",
            AnswerShape::Chat => "chatcmpl",
        };
        Head {
            shape,
            id: format!("{kind}-{:016x}{:016x}", random(), random()),
            created: now.map_or(0, |now| now.as_secs()),
            model: server.name.clone(),
        }
    }

    fn object(&self, kind: &str, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    /// Returns the object of a complete answer.
    fn whole(&self, choices: Vec<Value>) -> Value {
        match self.shape {
            AnswerShape::Text => self.object("text_completion", choices.into()),
            AnswerShape::Chat => self.object("chat.completion", choices.into()),
        }
    }

    /// Returns one choice of a complete answer.
    fn choice(
        &self,
        index: usize,
        text: &str,
        calls: Option<&mut Calls>,
        details: TokenDetails,
        finish: FinishReason,
    ) -> Value {
        match self.shape {
            AnswerShape::Text => {
                let finish = finish_reason(finish);
                details.add_to(json!({ "index": index, "text": text, "finish_reason": finish }))
            }
            AnswerShape::Chat => {
                let (message, finish) = match calls {
                    Some(calls) => calls.message(text, finish),
                    None => {
                        let message = json!({ "role": "assistant", "content": text, "refusal": null });
                        (message, finish_reason(finish))
                    }
                };
                details.add_to(json!({ "index": index, "message": message, "finish_reason": finish }))
            }
        }
    }

    /// Returns a chunk of a stream.
    fn part(&self, index: usize, text: &str, details: TokenDetails) -> Value {
        match self.shape {
            AnswerShape::Text => self.text(index, text, details, None),
            AnswerShape::Chat => self.delta(index, json!({ "content": text }), details, None),
        }
    }

    /// Returns the last chunks of a choice in a stream. `rest` is the text that has not been sent yet.
    fn last(&self, index: usize, rest: &str, finish: FinishReason) -> (Option<Value>, Value) {
        let finish = Some(finish_reason(finish));
        match self.shape {
            AnswerShape::Text => (None, self.text(index, rest, TokenDetails::default(), finish)),
            // Clients expect text only in chunks without a finish reason.
            AnswerShape::Chat => (
                (!rest.is_empty()).then(|| self.part(index, rest, TokenDetails::default())),
                self.delta(index, json!({}), TokenDetails::default(), finish),
            ),
        }
    }

    /// Returns the chunk that carries the token counts at the end of a stream.
    fn empty(&self) -> Value {
        let kind = match self.shape {
            AnswerShape::Text => "text_completion",
            AnswerShape::Chat => "chat.completion.chunk",
        };
        self.object(kind, json!([]))
    }

    fn text(&self, index: usize, text: &str, details: TokenDetails, finish: Option<&str>) -> Value {
        let choice = details.add_to(json!({ "index": index, "text": text, "finish_reason": finish }));
        self.object("text_completion", json!([choice]))
    }

    fn delta(&self, index: usize, delta: Value, details: TokenDetails, finish: Option<&str>) -> Value {
        let choice = details.add_to(json!({ "index": index, "delta": delta, "finish_reason": finish }));
        self.object("chat.completion.chunk", json!([choice]))
    }
}

/// Returns the token counts of all choices. The prompt is counted only once, with the first choice's number of cached
/// tokens.
fn usage(choices: &[AnswerChoice]) -> Value {
    let ends = || choices.iter().filter_map(|choice| choice.done.as_ref()).map(|done| done.usage);
    let prompt = ends().next().unwrap_or_default();
    let completion: u32 = ends().map(|usage| usage.completion_tokens).sum();
    json!({
        "prompt_tokens": prompt.prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": prompt.prompt_tokens + completion,
        "prompt_tokens_details": { "cached_tokens": prompt.cached_tokens },
    })
}

/// Adds the fields that OpenAI's API does not have: the exact stop reason, the seed and the times.
fn add_ours(object: &mut Value, done: &Done) {
    add_end(object, done);
    object["timings"] = done.timings.to_json(&done.usage);
    if let Some(report) = &done.device {
        object["device_sampling"] = json!(report);
    }
}

fn add_end(object: &mut Value, done: &Done) {
    object["stop"] = json!(done.finish);
    object["stop_string"] = json!(done.stop_string);
    object["seed"] = json!(done.seed);
}

/// Returns the error for an answer without any token, if a timeout or a shutdown is the reason.
fn without_tokens(done: &Done) -> Option<ApiError> {
    match done.finish {
        _ if done.usage.completion_tokens > 0 => None,
        FinishReason::Deadline => {
            let message = "the request timed out before its first token";
            Some(ApiError::new(ApiErrorKind::Deadline, message))
        }
        FinishReason::Shutdown => Some(crate::api_error::stopping()),
        _ => None,
    }
}

/// Size in bytes above which the blocking pool serialises an answer, so that it does not delay other clients' tokens.
const LONG: usize = 64 << 10;

/// One of several answers, or the only answer.
struct AnswerChoice {
    /// Text so far, for a complete answer.
    text: String,
    /// Reader of the tool calls in the text.
    calls: Option<Calls>,
    gathered: Gathered,
    done: Option<Box<Done>>,
}

impl AnswerChoice {
    fn several(head: &Head, calls: Option<&Calls>, count: usize, return_tokens: bool) -> Vec<AnswerChoice> {
        let one = |_| AnswerChoice {
            text: String::new(),
            calls: calls.cloned(),
            gathered: Gathered::new(head.shape, return_tokens),
            done: None,
        };
        (0..count).map(one).collect()
    }

    /// True if serialising the answer takes a long time.
    fn is_long(&self) -> bool {
        self.text.len() > LONG || self.gathered.is_long()
    }
}

/// Waits until all `choices` have ended. Their events come from `events`.
async fn all(
    server: &Server,
    mut choices: Vec<AnswerChoice>,
    mut events: Choices,
) -> Result<Vec<AnswerChoice>, ApiError> {
    while let Some((index, event)) = events.next().await {
        let choice = &mut choices[index];
        match event {
            Some(JobEvent::Token(mut piece)) => {
                choice.gathered.add(&mut piece);
                choice.text.push_str(&piece.text);
            }
            Some(JobEvent::Done(done)) => {
                choice.text.push_str(&done.rest);
                choice.done = Some(done);
            }
            Some(JobEvent::Failed(message)) => return Err(ApiError::new(ApiErrorKind::Failed, message)),
            None => return Err(server.unread()),
        }
    }
    // If only some of several choices have tokens, the answer contains those choices.
    let none = |choice: &AnswerChoice| choice.done.as_ref().and_then(|done| without_tokens(done));
    if let Some(refusal) = choices.iter().map(none).reduce(Option::and).flatten() {
        return Err(refusal);
    }
    Ok(choices)
}

/// Returns the complete answer.
fn whole(head: &Head, mut choices: Vec<AnswerChoice>) -> Value {
    let several = choices.len() > 1;
    let told = choices.iter_mut().enumerate().filter_map(|(index, choice)| {
        let done = choice.done.as_ref()?;
        let mut value =
            head.choice(index, &choice.text, choice.calls.as_mut(), choice.gathered.take(), done.finish);
        if several {
            add_end(&mut value, done);
        }
        Some(value)
    });
    let mut object = head.whole(told.collect());
    object["usage"] = usage(&choices);
    if let Some(done) = choices.first().and_then(|choice| choice.done.as_ref()) {
        add_ours(&mut object, done);
    }
    object
}

/// Answer as server-sent events. Dropping the stream, for example at the end of the connection, cancels the request.
struct Stream {
    head: Head,
    events: Choices,
    choices: Vec<AnswerChoice>,
    include_usage: bool,
    over: bool,
    ready: Vec<u8>,
    /// Time without a token after which a comment is sent; zero for never.
    keep_alive: Duration,
    /// Timer of the next comment, while no token arrives.
    pause: Option<Pin<Box<Sleep>>>,
    /// Lease of the model, held while the answer is sent.
    server: ModelLease,
}

impl Stream {
    fn new(
        head: Head,
        choices: Vec<AnswerChoice>,
        events: Choices,
        include_usage: bool,
        keep_alive: Duration,
        server: ModelLease,
    ) -> Self {
        let (over, ready, pause) = (false, Vec::new(), None);
        let mut stream =
            Stream { head, events, choices, include_usage, over, ready, keep_alive, pause, server };
        if stream.head.shape == AnswerShape::Chat {
            for index in 0..stream.choices.len() {
                let begin = json!({ "role": "assistant", "content": "" });
                stream.put(&stream.head.delta(index, begin, TokenDetails::default(), None));
            }
        }
        stream
    }

    fn put(&mut self, object: &Value) {
        self.ready.extend_from_slice(format!("data: {object}\n\n").as_bytes());
    }

    fn tell(&mut self, index: usize, text: &str, details: TokenDetails) {
        let deltas = match &mut self.choices[index].calls {
            None => return self.put(&self.head.part(index, text, details)),
            Some(calls) => calls.deltas(text),
        };
        // If the text is held back, the details are sent with an empty delta.
        let deltas = if deltas.is_empty() && !details.is_empty() { vec![json!({})] } else { deltas };
        self.put_deltas(index, deltas, details);
    }

    fn put_deltas(&mut self, index: usize, deltas: Vec<Value>, mut details: TokenDetails) {
        for delta in deltas {
            self.put(&self.head.delta(index, delta, std::mem::take(&mut details), None));
        }
    }

    fn take(&mut self, (index, event): ChoiceEvent) {
        let refusal = match event {
            Some(JobEvent::Token(mut piece)) => {
                let gathered = &mut self.choices[index].gathered;
                gathered.add(&mut piece);
                let details = gathered.take();
                if !piece.text.is_empty() || !details.is_empty() {
                    self.tell(index, &piece.text, details);
                }
                return;
            }
            Some(JobEvent::Done(done)) => match without_tokens(&done).filter(|_| self.choices.len() == 1) {
                None => return self.finish(index, done),
                Some(refusal) => refusal,
            },
            Some(JobEvent::Failed(message)) => ApiError::new(ApiErrorKind::Failed, message),
            None => self.server.unread(),
        };
        self.put(&json!({ "error": refusal.error() }));
        self.over = true;
    }

    fn finish(&mut self, index: usize, done: Box<Done>) {
        let (rest, mut last) = match &mut self.choices[index].calls {
            None => self.head.last(index, &done.rest, done.finish),
            Some(calls) => {
                let deltas = [calls.deltas(&done.rest), calls.last()].concat();
                let finish = calls.finish_reason(done.finish);
                self.put_deltas(index, deltas, TokenDetails::default());
                (None, self.head.delta(index, json!({}), TokenDetails::default(), Some(finish)))
            }
        };
        if let Some(rest) = rest {
            self.put(&rest);
        }
        add_ours(&mut last, &done);
        self.put(&last);
        self.choices[index].done = Some(done);
        if self.choices.iter().any(|choice| choice.done.is_none()) {
            return;
        }
        if self.include_usage {
            let mut object = self.head.empty();
            object["usage"] = usage(&self.choices);
            self.put(&object);
        }
        self.ready.extend_from_slice(b"data: [DONE]\n\n");
        self.over = true;
    }
}

impl Stream {
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
                    self.ready.extend_from_slice(b": waiting\n\n");
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
        let bytes = std::mem::take(&mut self.ready);
        Poll::Ready(Some(Ok(Frame::data(bytes.into()))))
    }
}
