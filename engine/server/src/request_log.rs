//! Log line of a request, written when the whole request has ended.
//!
//! A [`RequestLog`] is passed along with the request to its answer and its jobs, and collects data. Dropping the last
//! handle writes the line. If logging is off, the handle is empty. The line never contains text from the client:
//! names of fields and endpoints appear only if the server knows them. Error messages are omitted, because they
//! repeat parts of requests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use llama::error::Error;
use llama::notice;
use sampling::PARAMETERS;

use super::api_error::ApiError;
use super::client::Client;
use super::done::Done;
use super::finish_reason::FinishReason;
use super::unauthorized_log;

/// Target of log lines about requests. The name must not change, because scripts filter by it.
const TARGET: &str = "engine::serve::ticket";

/// Names of fields that the log may contain, in addition to the sampling parameters.
const FIELDS: [&str; 32] = [
    "cache_prompt",
    "chat_template_kwargs",
    "content",
    "dimensions",
    "dry_sequence_breakers",
    "embed",
    "encoding_format",
    "grammar",
    "id",
    "ignore_eos",
    "input",
    "json_schema",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "model",
    "n",
    "prompt",
    "response_format",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "timeout_s",
    "tokens",
    "tool_choice",
    "tools",
    "top_logprobs",
    "user",
    "workload",
];

/// Route as it appears in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedRoute {
    /// Name in the log.
    pub name: &'static str,
    /// Log level of the route's requests.
    pub loudness: Loudness,
}

/// Log level of a route's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loudness {
    /// One line per request, with the token counts.
    Generates,
    /// One line per request.
    Normal,
    /// One line per request at the level `debug`, or at `info` if the request is refused. Monitoring programs send
    /// these requests every few seconds.
    Quiet,
}

/// Route of the line protocol on the Unix socket.
pub const LINES: LoggedRoute = LoggedRoute { name: "lines", loudness: Loudness::Generates };

/// Number of the next request.
static NUMBER: AtomicU64 = AtomicU64::new(1);

/// Data for the log line of a request.
#[derive(Debug)]
struct RequestRecord {
    number: u64,
    route: LoggedRoute,
    method: &'static str,
    /// Name of the model, in the server's spelling.
    model: Option<String>,
    client: Client,
    arrived: Instant,
    status: Option<u16>,
    error: Option<&'static str>,
    field: Option<&'static str>,
    answers: u32,
    stop: Option<FinishReason>,
    failed: bool,
    prompt_tokens: u32,
    cached_tokens: u32,
    tokens: u32,
    queued: Duration,
    first_token: Option<Duration>,
    decode: Duration,
}

#[derive(Debug)]
struct SharedRecord(Mutex<RequestRecord>);

/// Handle to the log line of a request.
#[derive(Clone, Debug, Default)]
pub struct RequestLog(Option<Arc<SharedRecord>>);

tokio::task_local! {
    static CURRENT: RequestLog;
}

impl RequestLog {
    /// Starts the line of a request from `client` with `method` to `route`.
    pub fn new(method: &str, route: LoggedRoute, client: &Client) -> Self {
        // Refusals are also logged at this level.
        if !notice::is_logged() || !tracing::enabled!(tracing::Level::INFO) {
            return RequestLog(None);
        }
        let methods = ["GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "LINE"];
        RequestLog(Some(Arc::new(SharedRecord(Mutex::new(RequestRecord {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            route,
            method: methods.into_iter().find(|known| *known == method).unwrap_or("other"),
            model: None,
            client: client.clone(),
            arrived: Instant::now(),
            status: None,
            error: None,
            field: None,
            answers: 0,
            stop: None,
            failed: false,
            prompt_tokens: 0,
            cached_tokens: 0,
            tokens: 0,
            queued: Duration::ZERO,
            first_token: None,
            decode: Duration::ZERO,
        })))))
    }

    /// Returns the handle of the current task's request.
    pub fn current() -> Self {
        CURRENT.try_with(RequestLog::clone).unwrap_or_default()
    }

    /// Runs `work` with this handle as the current handle.
    pub async fn during<T>(self, work: impl Future<Output = T>) -> T {
        match self.0.is_some() {
            true => CURRENT.scope(self, work).await,
            false => work.await,
        }
    }

    /// True if the request is logged.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    fn note(&self, what: impl FnOnce(&mut RequestRecord)) {
        if let Some(shared) = &self.0 {
            what(&mut shared.0.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Records the HTTP status of the answer.
    pub fn status(&self, status: u16) {
        self.note(|entry| entry.status = Some(status));
    }

    /// Records the model of the request.
    pub fn model(&self, name: &str) {
        self.note(|entry| entry.model = Some(name.to_string()));
    }

    /// Records that the request was refused. A stream that has begun keeps its status.
    pub fn refused(&self, refusal: &ApiError) {
        let (status, _, code) = refusal.kind.words();
        let field = refusal.param.as_deref().and_then(field);
        self.note(|entry| {
            entry.status.get_or_insert(status);
            (entry.error, entry.field) = (Some(code), field);
        });
    }

    /// Records that embeddings of `tokens` tokens were computed.
    pub fn embedded(&self, tokens: usize) {
        self.note(|entry| entry.prompt_tokens = u32::try_from(tokens).unwrap_or(u32::MAX));
    }

    /// Records that one of the answers is complete.
    pub fn done(&self, done: &Done) {
        self.note(|entry| {
            entry.answers += 1;
            entry.stop = Some(done.finish);
            entry.tokens = entry.tokens.saturating_add(done.usage.completion_tokens);
            if entry.answers == 1 {
                // All answers share the prompt, so its tokens count once.
                (entry.prompt_tokens, entry.cached_tokens) =
                    (done.usage.prompt_tokens, done.usage.cached_tokens);
                (entry.queued, entry.first_token) = (done.timings.queued, done.timings.first_token);
            }
            entry.decode = entry.decode.max(done.timings.decode);
        });
    }

    /// Records and logs that one of the answers could not be evaluated.
    pub fn failed(&self, error: &Error) {
        let why = match error {
            // The messages of these errors may contain text from the client.
            Error::Sampler(_) | Error::Grammar { .. } | Error::Tokenize(_) => {
                "sampling or tokenising failed".to_string()
            }
            other => build_info::words::with_inline_hint(&other.to_string()),
        };
        self.note(|entry| {
            entry.failed = true;
            tracing::error!(
                target: TARGET,
                request = entry.number,
                "a request failed: {}",
                build_info::words::printable(&why)
            );
        });
    }

    /// Logs that `keywords` of the request's JSON schema are not enforced.
    pub fn ignored(&self, keywords: &str) {
        self.note(|entry| {
            tracing::warn!(
                target: TARGET,
                request = entry.number,
                keywords,
                "keywords of the JSON schema are not enforced"
            );
        });
    }

    /// Logs that the request got a slot.
    pub fn began(&self, slot: usize, cached: u32) {
        self.note(|entry| tracing::debug!(target: TARGET, request = entry.number, slot, cached_tokens = cached, "began"));
    }

    /// Logs that the request was preempted.
    pub fn preempted(&self) {
        self.note(
            |entry| tracing::debug!(target: TARGET, request = entry.number, "preempted: no room in the context"),
        );
    }

    /// Logs the prompt and the answer. Called only if the log includes prompts.
    pub fn said(&self, prompt: &str, answer: &str) {
        self.note(|entry| tracing::info!(target: TARGET, request = entry.number, prompt, answer, "said"));
    }
}

/// Returns the field name at the start of `param`, if it is a known name.
fn field(param: &str) -> Option<&'static str> {
    let end = param.find(|letter: char| !letter.is_ascii_lowercase() && letter != '_').unwrap_or(param.len());
    let name = &param[..end];
    let known = FIELDS.into_iter().find(|known| *known == name);
    known.or_else(|| PARAMETERS.iter().map(|parameter| parameter.name).find(|known| *known == name))
}

impl Drop for SharedRecord {
    fn drop(&mut self) {
        let entry = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        let milliseconds = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        let rate = (entry.tokens > 1 && !entry.decode.is_zero())
            .then(|| (f64::from(entry.tokens - 1) / entry.decode.as_secs_f64() * 100.0).round() / 100.0);
        let over = match (entry.failed, entry.stop, entry.error, entry.status) {
            (true, ..) => "failed",
            (_, Some(stop), ..) => stop.word(),
            (_, None, Some(_), _) => "refused",
            (_, None, None, Some(200..300)) if entry.route.loudness != Loudness::Generates => "answered",
            (_, None, None, Some(200..300)) if entry.prompt_tokens > 0 => "answered",
            (_, None, None, Some(300..)) => "refused",
            _ => "abandoned",
        };
        if entry.route.loudness == Loudness::Quiet && matches!(entry.status, Some(200..300)) {
            return tracing::debug!(
                target: TARGET,
                request = entry.number,
                route = entry.route.name,
                status = entry.status,
                "request"
            );
        }
        let mut suppressed = None;
        if let (Some(401), &Client::Machine(address)) = (entry.status, &entry.client) {
            let Some(count) = unauthorized_log::admit(address.into()) else { return };
            suppressed = (count > 0).then_some(count);
        }
        let client = match entry.client {
            Client::Process { id, .. } => format!("process {id}"),
            Client::Machine(address) => address.to_string(),
            Client::Unknown => "unknown".to_string(),
        };
        tracing::info!(
            target: TARGET,
            request = entry.number,
            method = entry.method,
            route = entry.route.name,
            model = entry.model,
            client,
            end = over,
            status = entry.status,
            error = entry.error,
            field = entry.field,
            answers = (entry.answers > 1).then_some(entry.answers),
            prompt_tokens = entry.prompt_tokens,
            cached_tokens = entry.cached_tokens,
            tokens = entry.tokens,
            queue_ms = milliseconds(entry.queued),
            first_token_ms = entry.first_token.map(milliseconds),
            decode_ms = milliseconds(entry.decode),
            tokens_per_second = rate,
            total_ms = milliseconds(entry.arrived.elapsed()),
            suppressed,
            "request"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_names_are_told() {
        for (param, expected) in [
            ("prompt", Some("prompt")),
            ("messages[3].content", Some("messages")),
            ("top_k", Some("top_k")),
            ("logit_bias.secret", Some("logit_bias")),
            ("secret", None),
            ("promptsecret", None),
            ("", None),
            ("ü", None),
        ] {
            assert_eq!(field(param), expected, "{param}");
        }
    }
}
