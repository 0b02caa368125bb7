//! What becomes of a request, in OpenAI's shapes: whole, or as server-sent events.

use std::convert::Infallible;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::CACHE_CONTROL;
use axum::response::Response;
use http_body::Frame;
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;

use super::{answer, fields, refuse, typed};
use crate::serve::fields::Fields;
use crate::serve::job::{Client, Done, Event, Finish};
use crate::serve::refusal::{Kind, Refusal};
use crate::serve::request::Generate;
use crate::serve::server::Server;

/// Which endpoint's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `/v1/completions`
    Text,
    /// `/v1/chat/completions`
    Chat,
}

/// Reads a request: what to generate, and whether a stream ends with the usage.
type Read = fn(&Server, &mut Fields) -> Result<(Generate, bool), Refusal>;

/// Answers `request`, which `read` understands.
pub async fn respond(server: &Arc<Server>, request: Request, shape: Shape, read: Read) -> Response {
    match complete(server, request, shape, read).await {
        Ok(response) => response,
        Err(refusal) => refuse(&refusal),
    }
}

async fn complete(
    server: &Arc<Server>,
    request: Request,
    shape: Shape,
    read: Read,
) -> Result<Response, Refusal> {
    let arrived = Instant::now();
    let client = request.extensions().get::<Client>().cloned().unwrap_or(Client::Unknown);
    let mut fields = fields(server, request).await?;
    let (generate, include_usage) = read(server, &mut fields)?;
    let stream = generate.stream;
    let events = server.submit(generate, client, arrived).await?;
    let head = Head::new(server, shape);
    if !stream {
        return whole(&head, events).await;
    }
    let body = Body::new(Stream::new(head, events, include_usage));
    let mut response = typed("text/event-stream", body);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

/// What every object of an answer begins with.
struct Head {
    shape: Shape,
    id: String,
    created: u64,
    model: String,
}

impl Head {
    fn new(server: &Server, shape: Shape) -> Self {
        let random = || RandomState::new().build_hasher().finish();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let kind = match shape {
            Shape::Text => "cmpl",
            Shape::Chat => "chatcmpl",
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

    /// All of the answer.
    fn whole(&self, text: &str, finish: Finish) -> Value {
        let finish = finish_reason(finish);
        match self.shape {
            Shape::Text => self.text(text, Some(finish)),
            Shape::Chat => {
                let message = json!({ "role": "assistant", "content": text, "refusal": null });
                let choice =
                    json!({ "index": 0, "message": message, "logprobs": null, "finish_reason": finish });
                self.object("chat.completion", json!([choice]))
            }
        }
    }

    /// A part of a stream.
    fn part(&self, text: &str) -> Value {
        match self.shape {
            Shape::Text => self.text(text, None),
            Shape::Chat => self.delta(json!({ "content": text }), None),
        }
    }

    /// The last parts of a stream, of which `rest` was not told yet.
    fn last(&self, rest: &str, finish: Finish) -> (Option<Value>, Value) {
        let finish = Some(finish_reason(finish));
        match self.shape {
            Shape::Text => (None, self.text(rest, finish)),
            // Clients look for text where there is no reason yet.
            Shape::Chat => ((!rest.is_empty()).then(|| self.part(rest)), self.delta(json!({}), finish)),
        }
    }

    /// What the usage at the end of a stream comes in.
    fn empty(&self) -> Value {
        let kind = match self.shape {
            Shape::Text => "text_completion",
            Shape::Chat => "chat.completion.chunk",
        };
        self.object(kind, json!([]))
    }

    fn text(&self, text: &str, finish: Option<&str>) -> Value {
        let choice = json!({ "index": 0, "text": text, "logprobs": null, "finish_reason": finish });
        self.object("text_completion", json!([choice]))
    }

    fn delta(&self, delta: Value, finish: Option<&str>) -> Value {
        let choice = json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish });
        self.object("chat.completion.chunk", json!([choice]))
    }
}

/// OpenAI knows no other.
fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::End | Finish::StopString => "stop",
        Finish::Length | Finish::ContextFull | Finish::Deadline | Finish::Shutdown => "length",
    }
}

fn usage(done: &Done) -> Value {
    let usage = done.usage;
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": { "cached_tokens": usage.cached_tokens },
    })
}

/// Adds what OpenAI does not have: the exact stop reason, the seed, the times.
fn add_ours(object: &mut Value, done: &Done) {
    object["stop"] = json!(done.finish);
    object["stop_string"] = json!(done.stop_string);
    object["seed"] = json!(done.seed);
    object["timings"] = done.timings.to_json(&done.usage);
}

/// Why there is not a single token, where there should be some.
fn without_tokens(done: &Done) -> Option<Refusal> {
    match done.finish {
        _ if done.usage.completion_tokens > 0 => None,
        Finish::Deadline => {
            let message = "the time of the request was over before its first token";
            Some(Refusal::new(Kind::Deadline, message))
        }
        Finish::Shutdown => Some(crate::serve::server::stopping()),
        _ => None,
    }
}

fn unread() -> Refusal {
    Refusal::new(Kind::Failed, "the request was ended: its answer was not read in time")
}

/// All of the answer at once.
async fn whole(head: &Head, mut events: Receiver<Event>) -> Result<Response, Refusal> {
    let mut text = String::new();
    loop {
        match events.recv().await {
            Some(Event::Token(piece)) => text.push_str(&piece.text),
            Some(Event::Done(done)) => {
                if let Some(refusal) = without_tokens(&done) {
                    return Err(refusal);
                }
                text.push_str(&done.rest);
                let mut object = head.whole(&text, done.finish);
                object["usage"] = usage(&done);
                add_ours(&mut object, &done);
                return Ok(answer(&object));
            }
            Some(Event::Failed(message)) => return Err(Refusal::new(Kind::Failed, message)),
            None => return Err(unread()),
        }
    }
}

/// The answer as it comes, as server-sent events. Dropped with the connection, and the request ends with it.
struct Stream {
    head: Head,
    events: Receiver<Event>,
    include_usage: bool,
    over: bool,
    ready: Vec<u8>,
}

impl Stream {
    fn new(head: Head, events: Receiver<Event>, include_usage: bool) -> Self {
        let mut stream = Stream { head, events, include_usage, over: false, ready: Vec::new() };
        if stream.head.shape == Shape::Chat {
            let begin = json!({ "role": "assistant", "content": "" });
            stream.put(&stream.head.delta(begin, None));
        }
        stream
    }

    fn put(&mut self, object: &Value) {
        self.ready.extend_from_slice(format!("data: {object}\n\n").as_bytes());
    }

    fn take(&mut self, event: Option<Event>) {
        let refusal = match event {
            Some(Event::Token(piece)) if piece.text.is_empty() => return,
            Some(Event::Token(piece)) => return self.put(&self.head.part(&piece.text)),
            Some(Event::Done(done)) => match without_tokens(&done) {
                None => return self.finish(&done),
                Some(refusal) => refusal,
            },
            Some(Event::Failed(message)) => Refusal::new(Kind::Failed, message),
            None => unread(),
        };
        self.put(&json!({ "error": refusal.error() }));
        self.over = true;
    }

    fn finish(&mut self, done: &Done) {
        let (rest, mut last) = self.head.last(&done.rest, done.finish);
        if let Some(rest) = rest {
            self.put(&rest);
        }
        add_ours(&mut last, done);
        self.put(&last);
        if self.include_usage {
            let mut object = self.head.empty();
            object["usage"] = usage(done);
            self.put(&object);
        }
        self.ready.extend_from_slice(b"data: [DONE]\n\n");
        self.over = true;
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
            let event = ready!(self.events.poll_recv(cx));
            self.take(event);
            // What came together goes together.
            while let (false, Ok(event)) = (self.over, self.events.try_recv()) {
                self.take(Some(event));
            }
        }
        if self.ready.is_empty() {
            return Poll::Ready(None);
        }
        let bytes = std::mem::take(&mut self.ready);
        Poll::Ready(Some(Ok(Frame::data(bytes.into()))))
    }
}
