//! `POST /v1/completions`

use std::convert::Infallible;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::http::header::CACHE_CONTROL;
use axum::response::Response;
use http_body::Frame;
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;

use super::other::named;
use super::{App, answer, fields, refuse, typed};
use crate::serve::fields::{Fields, shown, wrong};
use crate::serve::job::{Client, Done, Event, Finish};
use crate::serve::refusal::{Kind, Refusal};
use crate::serve::request::{Generate, prompt};
use crate::serve::server::Server;

/// `POST /v1/completions`
pub async fn completions(State(server): App, request: Request) -> Response {
    match complete(&server, request).await {
        Ok(response) => response,
        Err(refusal) => refuse(&refusal),
    }
}

async fn complete(server: &Arc<Server>, request: Request) -> Result<Response, Refusal> {
    let arrived = Instant::now();
    let client = request.extensions().get::<Client>().cloned().unwrap_or(Client::Unknown);
    let mut fields = fields(server, request).await?;
    let read = read(server, &mut fields).inspect_err(|_| server.metrics.invalid.add(1));
    let (generate, include_usage) = read?;
    let stream = generate.stream;
    let events = server.submit(generate, client, arrived).await?;
    let head = Head::new(server);
    if !stream {
        return whole(&head, events).await;
    }
    let body = Body::new(Stream { head, events, include_usage, over: false, ready: Vec::new() });
    let mut response = typed("text/event-stream", body);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

/// The request, and whether a stream ends with the usage. Fields that nobody knows are ignored: clients send many.
fn read(server: &Server, fields: &mut Fields) -> Result<(Generate, bool), Refusal> {
    if let Some(model) = fields.text("model")? {
        named(server, &model)?;
    }
    only(fields, "n", &json!(1))?;
    only(fields, "best_of", &json!(1))?;
    only(fields, "echo", &json!(false))?;
    only(fields, "suffix", &json!(""))?;
    if let Some(value) = fields.take("logprobs") {
        return Err(wrong("logprobs", "is not offered yet; leave it out", &value));
    }
    let include_usage = match fields.take("stream_options") {
        None => false,
        Some(Value::Object(mut options)) => match options.remove("include_usage") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(include)) => include,
            Some(other) => return Err(wrong("stream_options.include_usage", "use true or false", &other)),
        },
        Some(other) => return Err(wrong("stream_options", "use an object", &other)),
    };
    let prompt = prompt(fields.take("prompt"))?;
    Ok((Generate::take(fields, prompt, &server.defaults)?, include_usage))
}

/// Refuses a value of `name` that asks for what is not offered.
fn only(fields: &mut Fields, name: &'static str, neutral: &Value) -> Result<(), Refusal> {
    let Some(value) = fields.take(name) else { return Ok(()) };
    let same = match (value.as_f64(), neutral.as_f64()) {
        (Some(value), Some(neutral)) => value == neutral,
        _ => value == *neutral,
    };
    match same {
        true => Ok(()),
        false => {
            let what = format!("only {} is offered, not {}", neutral, shown(&value));
            Err(Refusal::field(name, what))
        }
    }
}

/// What every object of an answer begins with.
struct Head {
    id: String,
    created: u64,
    model: String,
}

impl Head {
    fn new(server: &Server) -> Self {
        let random = || RandomState::new().build_hasher().finish();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Head {
            id: format!("cmpl-{:016x}{:016x}", random(), random()),
            created: now.map_or(0, |now| now.as_secs()),
            model: server.name.clone(),
        }
    }

    fn object(&self, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    fn choice(&self, text: &str, finish: Option<Finish>) -> Value {
        let finish = finish.map(finish_reason);
        self.object(json!([{ "index": 0, "text": text, "logprobs": null, "finish_reason": finish }]))
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
                let mut object = head.choice(&text, Some(done.finish));
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
    fn put(&mut self, object: &Value) {
        self.ready.extend_from_slice(format!("data: {object}\n\n").as_bytes());
    }

    fn take(&mut self, event: Option<Event>) {
        let refusal = match event {
            Some(Event::Token(piece)) if piece.text.is_empty() => return,
            Some(Event::Token(piece)) => return self.put(&self.head.choice(&piece.text, None)),
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
        let mut last = self.head.choice(&done.rest, Some(done.finish));
        add_ours(&mut last, done);
        self.put(&last);
        if self.include_usage {
            let mut object = self.head.object(json!([]));
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
