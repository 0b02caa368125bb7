//! Line protocol on the Unix socket: requests and answers as lines of JSON.
//!
//! A connection's requests are answered in sequence: the next request is read when the previous answer is complete.
//! For simultaneous answers, a client opens several connections. Every line of an answer repeats the request's `id`.

mod lines;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use build_info::Bytes;
use chat::ThoughtReader;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::task::yield_now;
use tokio::time::{Instant as Time, sleep, timeout, timeout_at};

use self::lines::{ProgressLine, SplitText, TokenLine, WholeAnswer, last, with_id};
use super::admission::{ConnectionPhase, ConnectionState, Late};
use super::api_error::{ApiError, ApiErrorKind};
use super::budget::{ByteBounds, Charge};
use super::client::Client;
use super::done::Done;
use super::fields::Fields;
use super::job::JobEvent;
use super::models::{ModelLease, ModelRegistry};
use super::request::{Generate, prompt_or_messages, take_logprobs};
use super::request_log::{LINES, RequestLog};
use super::scope::Owner;
use super::server::{Server, Submitted};
use super::{arrival, embeddings};

/// Interval between checks of whether a client is still connected after it has closed its writing side.
const LOOK: Duration = Duration::from_millis(20);

/// Maximum size of a request's `id`, in bytes.
const MAX_ID: usize = 1024;

/// Number of bytes that are buffered before a write.
const TOGETHER: usize = 64 << 10;

/// Connection that uses the line protocol.
struct Connection {
    stream: UnixStream,
    /// Bytes that were read. The bytes before `at` have already been taken.
    buffer: Vec<u8>,
    at: usize,
    /// True if the client will send no more data.
    end: bool,
    registry: Arc<ModelRegistry>,
    client: Client,
    state: Arc<ConnectionState>,
    owner: Owner,
}

/// Serves `stream` until the client disconnects or the server stops. `read` contains the bytes that were already read
/// from the stream.
pub async fn serve(
    stream: UnixStream,
    read: Vec<u8>,
    registry: Arc<ModelRegistry>,
    (client, owner): (Client, Owner),
    state: Arc<ConnectionState>,
    mut stopping: watch::Receiver<bool>,
) {
    let mut connection =
        Connection { stream, buffer: read, at: 0, end: false, registry, client, state, owner };
    if let Some(full) = connection.state.reserve() {
        connection.state.was_refused(full);
        let refusal =
            super::connection::shared::too_many_connections(full, &connection.registry.current().limits);
        let _ = connection.refuse(&Value::Null, &refusal).await;
        return;
    }
    loop {
        connection.state.set(ConnectionPhase::Resting);
        let line = tokio::select! {
            biased;
            line = connection.line() => line,
            _ = stopping.wait_for(|stopping| *stopping) => return,
        };
        let Ok(Some((line, charge))) = line else { return };
        connection.state.set(ConnectionPhase::Answering);
        // An error means that the client has disconnected.
        let request_log = RequestLog::new("LINE", LINES, &connection.client);
        if request_log.during(connection.answer(line, charge)).await.is_err() {
            return;
        }
        // Yielding lets other connections make progress between lines that arrived together.
        if !connection.unread().is_empty() {
            yield_now().await;
        }
    }
}

/// Capacity above which an empty buffer is freed, in bytes.
const BUFFER: usize = 64 << 10;

/// Minimum free space for a read, in bytes.
const READ: usize = 4 << 10;

impl Connection {
    /// Returns the next non-empty line. `None` if the client has closed its writing side, or was idle for too long.
    async fn line(&mut self) -> io::Result<Option<(Vec<u8>, Charge)>> {
        let current = self.registry.current();
        let limit = current.limits.request;
        let until = Time::now() + current.limits.idle;
        // `lead` is the number of blanks before the line. The next `seen` bytes are known to contain no newline.
        let (mut lead, mut seen) = (0, 0);
        let mut charge = self.registry.charge(&self.client);
        let mut begin = None;
        loop {
            if seen == 0 {
                let blank = self.unread().iter().take_while(|byte| byte.is_ascii_whitespace()).count();
                lead = match self.unread()[..blank].iter().rposition(|byte| *byte == b'\n') {
                    Some(end) => blank - end - 1,
                    None => lead + blank,
                };
                self.at += blank;
            }
            let unread = self.unread();
            let found = unread[seen..].iter().position(|byte| *byte == b'\n').map(|at| seen + at);
            let before = seen;
            seen = unread.len();
            if lead + found.unwrap_or(seen) > limit {
                let message = format!(
                    "the line is longer than {} (max_request_bytes); the connection is closed",
                    Bytes(limit as u64)
                );
                self.refuse(&Value::Null, &ApiError::new(ApiErrorKind::TooLarge, message)).await?;
                self.swallow().await;
                return Ok(None);
            }
            let more = found.unwrap_or(seen).saturating_sub(before);
            if let Err(refusal) = charge.grow(more, ByteBounds::of(&current.limits)) {
                self.refuse(&Value::Null, &refusal).await?;
                self.swallow().await;
                return Ok(None);
            }
            if let Some(length) = found {
                return Ok(Some((self.take(length), charge)));
            }
            if self.end {
                let last = self.take(seen);
                return Ok((!last.is_empty()).then_some((last, charge)));
            }
            if seen > 0 && begin.is_none() {
                // A partial line ends the idle time, and the rest must arrive at least as fast as a request body.
                self.state.set(ConnectionPhase::Reading);
                begin = Some(Time::now());
            }
            let late = begin.map(|begin| arrival::deadline(begin, seen));
            match timeout_at(late.map_or(until, |late| late.min(until)), self.stream.readable()).await {
                Ok(readable) => readable?,
                Err(_) => {
                    self.state.was_late(if begin.is_some() { Late::Body } else { Late::Idle });
                    if let Some(begin) = begin {
                        self.refuse(&Value::Null, &arrival::late("line", begin, seen)).await?;
                    }
                    return Ok(None);
                }
            }
            self.read()?;
        }
    }

    /// Takes `length` bytes and the newline after them. For a long line, reuses the buffer's memory.
    fn take(&mut self, length: usize) -> Vec<u8> {
        if length <= BUFFER {
            let line = self.unread()[..length].to_vec();
            self.at = (self.at + length + 1).min(self.buffer.len());
            return line;
        }
        let rest = self.buffer.split_off((self.at + length + 1).min(self.buffer.len()));
        let mut line = std::mem::replace(&mut self.buffer, rest);
        line.drain(..std::mem::take(&mut self.at));
        line.truncate(length);
        line
    }

    /// Returns the bytes that were read but not taken.
    fn unread(&self) -> &[u8] {
        &self.buffer[self.at..]
    }

    /// Reads the available bytes.
    fn read(&mut self) -> io::Result<()> {
        // Taken bytes are removed only when they fill most of the buffer, because moving the rest each time would be
        // slow.
        if self.at == self.buffer.len() && self.buffer.capacity() > BUFFER {
            (self.buffer, self.at) = (Vec::new(), 0);
        } else if self.at * 2 >= self.buffer.len() {
            self.buffer.drain(..self.at);
            self.at = 0;
        }
        self.buffer.reserve(READ);
        match self.stream.try_read_buf(&mut self.buffer) {
            Ok(0) => self.end = true,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Discards the rest of a line that is too long. If the connection closed earlier, the client would not receive
    /// the error.
    async fn swallow(&mut self) {
        let begin = Instant::now();
        while !self.end && begin.elapsed() < Duration::from_secs(2) {
            self.buffer.clear();
            self.at = 0;
            if timeout(LOOK, self.stream.readable()).await.is_ok_and(|ready| ready.is_err())
                || self.read().is_err()
            {
                return;
            }
        }
    }

    /// Completes when the client has disconnected. A client that closes only its writing side has not disconnected.
    async fn gone(&mut self) {
        let most = self.registry.current().limits.request;
        loop {
            // Bytes that arrive meanwhile belong to the next request. They are read so that the end of the stream is
            // detected.
            while !self.end && self.unread().len() <= most {
                match self.stream.ready(Interest::READABLE).await {
                    Ok(ready) if ready.is_read_closed() && ready.is_write_closed() => return,
                    Ok(_) if self.read().is_ok() => {}
                    _ => return,
                }
            }
            match timeout(LOOK, self.stream.ready(Interest::WRITABLE)).await {
                Ok(Ok(ready)) if ready.is_write_closed() => return,
                Ok(Err(_)) => return,
                _ => sleep(LOOK).await,
            }
        }
    }

    async fn answer(&mut self, line: Vec<u8>, charge: Charge) -> io::Result<()> {
        let arrived = Instant::now();
        let mut id = Value::Null;
        let (registry, client) = (Arc::clone(&self.registry), self.client.clone());
        let asked = async {
            let mut fields = registry.fields(line, charge, &client).await?;
            id = take_id(&mut fields)?;
            let server = registry.choose(&mut fields, arrived).await?;
            Ok((read(fields, &server)?, server))
        };
        let asked: Result<(LineRequest, ModelLease), ApiError> = tokio::select! {
            biased;
            asked = asked => asked,
            () = self.gone() => return Err(io::ErrorKind::BrokenPipe.into()),
        };
        if asked.is_ok() {
            self.state.prove();
        }
        // The lease is held until the request is answered.
        let (request, server) = match asked {
            Ok(asked) => asked,
            Err(refusal) => return self.refuse(&id, &refusal).await,
        };
        let request = match request {
            LineRequest::Generate(request) => *request,
            LineRequest::Embed(request) => return self.embed(&id, request, &server, arrived).await,
        };
        let (stream, is_separate) = (request.stream, request.reasoning.is_separate);
        let submission = server.submit(request, 1, self.client.clone(), self.owner, arrived);
        let submitted = tokio::select! {
            biased;
            submitted = submission => submitted,
            () = self.gone() => return Err(io::ErrorKind::BrokenPipe.into()),
        };
        match submitted {
            Ok(Submitted { mut events, thoughts, .. }) => {
                // The request asks for one answer.
                let Some(events) = events.pop() else { return Err(io::ErrorKind::Other.into()) };
                // Calls stay text, as the model wrote them.
                let thoughts = thoughts.filter(|_| is_separate);
                self.tell(&id, stream, thoughts, events, &server).await
            }
            Err(refusal) => self.refuse(&id, &refusal).await,
        }
    }

    /// Answers an embedding request.
    async fn embed(
        &mut self,
        id: &Value,
        request: embeddings::EmbeddingRequest,
        server: &Server,
        arrived: Instant,
    ) -> io::Result<()> {
        let (encoding, client) = (request.encoding, self.client.clone());
        let work = async {
            let (found, tokens) = request.run(server, client.clone(), arrived).await?;
            RequestLog::current().embedded(tokens);
            RequestLog::current().status(200);
            let id = id.clone();
            let line = move || {
                let embeddings: Vec<Value> =
                    found.iter().map(|embedding| embeddings::rendered(embedding, encoding)).collect();
                let usage = json!({ "prompt_tokens": tokens });
                let mut out = Vec::new();
                put(
                    &mut out,
                    &with_id(&id, json!({ "done": true, "embeddings": embeddings, "usage": usage })),
                );
                out
            };
            server.aside(&client, line).await
        };
        let answer = tokio::select! {
            biased;
            answer = work => answer,
            () = self.gone() => return Err(io::ErrorKind::BrokenPipe.into()),
        };
        match answer {
            Ok(line) => self.write(&line).await,
            Err(refusal) => self.refuse(id, &refusal).await,
        }
    }

    /// Writes the events of a request.
    async fn tell(
        &mut self,
        id: &Value,
        stream: bool,
        mut thoughts: Option<ThoughtReader>,
        mut events: mpsc::Receiver<JobEvent>,
        server: &Server,
    ) -> io::Result<()> {
        let mut whole = WholeAnswer::default();
        loop {
            let event = tokio::select! {
                biased;
                event = events.recv() => event,
                // Returning drops the receiver, which cancels the request.
                () = self.gone() => return Err(io::ErrorKind::BrokenPipe.into()),
            };
            let mut out = Vec::new();
            let mut event = event;
            // Events that are already available are written together.
            let over = loop {
                match event {
                    Some(JobEvent::Progress(progress)) => {
                        put(&mut out, &ProgressLine { id, prompt_progress: progress })
                    }
                    // The line protocol has no field that requests these probabilities.
                    Some(JobEvent::Prompt(_)) => {}
                    Some(JobEvent::Token(piece)) => {
                        let text = SplitText::of(&mut thoughts, &piece.text);
                        match stream {
                            true => put(&mut out, &TokenLine::new(id, &piece, &text)),
                            false => whole.add(piece, &text),
                        }
                    }
                    Some(JobEvent::Done(done)) => {
                        let mut whole = std::mem::take(&mut whole);
                        whole.text.add(&SplitText::of(&mut thoughts, &done.rest));
                        whole.text.add(&SplitText::rest(&mut thoughts));
                        let line = self.last(id, done, whole, stream, server).await;
                        out.extend(line);
                        break true;
                    }
                    Some(JobEvent::Failed(message)) => {
                        put(&mut out, &refused(id, &ApiError::new(ApiErrorKind::Failed, message)));
                        break true;
                    }
                    None => {
                        put(&mut out, &refused(id, &server.unread()));
                        break true;
                    }
                }
                match (out.len() < TOGETHER).then(|| events.try_recv().ok()).flatten() {
                    Some(next) => event = Some(next),
                    None => break false,
                }
            };
            self.write(&out).await?;
            if over {
                return Ok(());
            }
        }
    }

    /// Returns the last line of an answer. The blocking pool serialises a long line.
    async fn last(
        &self,
        id: &Value,
        done: Box<Done>,
        whole: WholeAnswer,
        stream: bool,
        server: &Server,
    ) -> Vec<u8> {
        let is_long = !whole.logprobs.is_empty() || whole.text.len() > TOGETHER;
        let given = id.clone();
        let line = move || {
            let mut out = Vec::new();
            put(&mut out, &last(&given, &done, &whole, stream));
            out
        };
        if !is_long {
            return line();
        }
        server.aside(&self.client, line).await.unwrap_or_else(|refusal| {
            let mut out = Vec::new();
            put(&mut out, &refused(id, &refusal));
            out
        })
    }

    async fn refuse(&self, id: &Value, refusal: &ApiError) -> io::Result<()> {
        self.registry.metrics.count_refusal(refusal.status());
        RequestLog::current().refused(refusal);
        let mut out = Vec::new();
        put(&mut out, &refused(id, refusal));
        self.write(&out).await
    }

    async fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        let stall = self.registry.current().limits.stall;
        while !bytes.is_empty() {
            match self.stream.try_write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let writable = timeout(stall, self.stream.writable()).await;
                    writable.map_err(|_| {
                        self.state.was_late(Late::Write);
                        io::ErrorKind::TimedOut
                    })??;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Parsed request of the line protocol.
enum LineRequest {
    Generate(Box<Generate>),
    Embed(embeddings::EmbeddingRequest),
}

/// Takes the request's `id` before all other fields, because errors repeat the `id`.
fn take_id(fields: &mut Fields) -> Result<Value, ApiError> {
    match fields.take("id") {
        Some(Value::String(long)) if long.len() > MAX_ID => {
            let message =
                format!("must have at most {MAX_ID} bytes, because every line of the answer repeats it");
            Err(ApiError::field("id", message))
        }
        Some(given @ (Value::String(_) | Value::Number(_))) => Ok(given),
        Some(other) => Err(super::fields::wrong("id", "use a string or a number", &other)),
        None => Ok(Value::Null),
    }
}

/// Reads the other fields of the request.
fn read(mut fields: Fields, server: &Server) -> Result<LineRequest, ApiError> {
    if fields.has("embed") {
        let request = embeddings::EmbeddingRequest::take(&mut fields, "embed", server)?;
        fields.finish()?;
        return Ok(LineRequest::Embed(request));
    }
    let prompt = prompt_or_messages(&mut fields)?;
    let mut generate = Generate::take(&mut fields, prompt, &server.current().defaults)?;
    generate.logprobs = take_logprobs(&mut fields)?;
    fields.finish()?;
    Ok(LineRequest::Generate(Box::new(generate)))
}

fn put(out: &mut Vec<u8>, line: &impl Serialize) {
    // Writing to memory cannot fail, and the value is always valid JSON.
    let _ = serde_json::to_writer(&mut *out, line);
    out.push(b'\n');
}

fn refused(id: &Value, refusal: &ApiError) -> Value {
    with_id(id, json!({ "error": refusal.error() }))
}
