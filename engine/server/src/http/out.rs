//! Answers to requests for text, as one JSON object or as server-sent events. The formats are in other modules.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::CACHE_CONTROL;
use axum::response::Response;

use super::answer_format::{AnswerChoice, AnswerFormat};
use super::app::{client_of, fields, owner_of};
use super::ignored_keywords;
use super::other::token_text;
use super::reader::{AnswerReader, NewReader};
use super::respond::{answer, long_answer, typed};
use super::shape::AnswerShape;
use super::stream::Stream;
use super::token_details::Gathered;
use crate::api_error::{ApiError, ApiErrorKind};
use crate::choices::Choices;
use crate::client::Client;
use crate::done::Done;
use crate::fields::Fields;
use crate::finish_reason::FinishReason;
use crate::job::JobEvent;
use crate::models::ModelRegistry;
use crate::request::{Generate, Prompt};
use crate::request_log::RequestLog;
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
}

/// Format of an endpoint's requests and answers.
pub(super) struct Dialect {
    /// Format of log-probabilities.
    pub shape: AnswerShape,
    /// Reads the fields of a request.
    pub read: fn(&Server, &mut Fields) -> Result<CompletionRequest, ApiError>,
    /// Creates the answer to a request.
    pub answer: fn(&Server, &CompletionRequest) -> Box<dyn AnswerFormat>,
    /// Creates the response for an error.
    pub refuse: fn(&ApiError) -> Response,
}

/// Answers `request` in the format `dialect`.
pub(super) async fn respond(
    registry: &Arc<ModelRegistry>,
    request: Request,
    dialect: &'static Dialect,
) -> Response {
    complete(registry, request, dialect).await.unwrap_or_else(|refusal| (dialect.refuse)(&refusal))
}

async fn complete(
    registry: &Arc<ModelRegistry>,
    request: Request,
    dialect: &'static Dialect,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let (client, owner) = (client_of(&request), owner_of(&request));
    let mut fields = fields(registry, request).await?;
    let server = registry.choose(&mut fields, arrived).await?;
    let request = (dialect.read)(&server, &mut fields)?;
    // The fields are dropped early, because their bytes are charged only while the request waits.
    drop(fields);
    let mut format = (dialect.answer)(&server, &request);
    let CompletionRequest { generate, choices, return_tokens, .. } = request;
    let stream = generate.stream;
    let reader = NewReader::of(&server, &generate)?;
    let echoes = echoes(&server, &client, &generate).await?;
    let schema_field = generate.schema_field.clone();
    let submitting = {
        let (server, client) = (Arc::clone(&server), client.clone());
        async move {
            let submitted = server.submit(generate, choices, client, owner, arrived).await;
            let submitted = submitted.inspect_err(|refusal| RequestLog::current().refused(refusal))?;
            let ignored = ignored_keywords::header(&submitted.ignored_keywords, &schema_field);
            let (reader, events) = (reader.with(submitted.thoughts), Choices::new(submitted.events));
            // The answers to the same prompt are adjacent.
            let begun = |index: usize| {
                let echo = echoes.get(index / choices as usize).cloned().unwrap_or_default();
                let gathered = Gathered::new(dialect.shape, return_tokens, Arc::clone(&echo));
                BegunChoice::new(&reader, gathered, &echo)
            };
            let choices = (0..events.len()).map(begun).collect();
            Ok(BegunAnswers { choices, events, ignored })
        }
    };
    if !stream {
        let mut begun = submitting.await?;
        let ignored = begun.ignored.take();
        let choices = all(&server, begun).await?;
        let is_long = choices.iter().any(BegunChoice::is_long);
        let make =
            move || format.whole(choices.into_iter().enumerate().filter_map(BegunChoice::ended).collect());
        let response = if is_long { long_answer(&server, &client, make).await? } else { answer(&{ make }()) };
        return Ok(ignored_keywords::mark(response, ignored));
    }
    let keep_alive = registry.current().limits.keep_alive;
    let submitting = Box::pin(RequestLog::current().during(submitting));
    let mut stream = Stream::begin(format, submitting, keep_alive, server).await?;
    let ignored = stream.take_ignored();
    let mut response = typed("text/event-stream", Body::new(stream));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(ignored_keywords::mark(response, ignored))
}

/// Returns the texts of the prompts of `request` if its answers begin with them.
async fn echoes(server: &Server, client: &Client, request: &Generate) -> Result<Vec<Arc<str>>, ApiError> {
    if !request.echo {
        return Ok(Vec::new());
    }
    let mut texts = Vec::new();
    for prompt in std::iter::once(&request.prompt).chain(&request.further) {
        texts.push(match prompt {
            Prompt::Text(text) => Arc::from(text.as_str()),
            Prompt::Tokens(tokens) => Arc::from(token_text(server, client, "prompt", tokens.clone()).await?),
            Prompt::Messages(_) | Prompt::Infill(_) => Arc::default(),
        });
    }
    Ok(texts)
}

/// Returns the error for an answer without any token, if a timeout or a shutdown is the reason.
pub(super) fn without_tokens(done: &Done) -> Option<ApiError> {
    match done.finish {
        _ if done.usage.completion_tokens > 0 => None,
        FinishReason::Deadline => {
            let message = "the request timed out before its first token (timeout_s)";
            Some(ApiError::new(ApiErrorKind::Deadline, message))
        }
        FinishReason::Shutdown => Some(crate::api_error::stopping()),
        _ => None,
    }
}

/// Size in bytes above which the blocking pool serialises an answer, so that it does not delay other clients' tokens.
const LONG: usize = 64 << 10;

/// One of several answers, or the only answer, that has not ended.
pub(super) struct BegunChoice {
    /// Text so far, for a complete answer. For a stream, the prompt, if the answer includes the prompt.
    pub text: String,
    /// Reader of the parts of the text.
    pub reader: AnswerReader,
    /// Details of the tokens so far.
    pub gathered: Gathered,
    /// End of the generation.
    pub done: Option<Box<Done>>,
}

impl BegunChoice {
    fn new(reader: &AnswerReader, gathered: Gathered, echo: &str) -> Self {
        BegunChoice { text: echo.to_string(), reader: reader.clone(), gathered, done: None }
    }

    /// True if serialising the answer takes a long time.
    fn is_long(&self) -> bool {
        self.text.len() > LONG || self.gathered.is_long()
    }

    /// Returns the complete answer; `None` if it has not ended.
    fn ended((index, mut choice): (usize, BegunChoice)) -> Option<AnswerChoice> {
        let (text, done) = (std::mem::take(&mut choice.text), choice.done.take()?);
        Some(choice.end(index, &text, done))
    }

    /// Ends the answer with `index`: `text` is the text that its reader has not seen.
    pub fn end(&mut self, index: usize, text: &str, done: Box<Done>) -> AnswerChoice {
        let mut parts = self.reader.push(text);
        parts.extend(self.reader.finish());
        let has_calls = self.reader.ends_with_calls(done.finish);
        AnswerChoice { index, parts, details: self.gathered.take(), done, has_calls }
    }
}

/// Answers to a request, whose jobs are in the queue.
#[derive(Default)]
pub(super) struct BegunAnswers {
    /// Answers.
    pub choices: Vec<BegunChoice>,
    /// Events of the answers.
    pub events: Choices,
    /// Value of the header that lists the schema keywords that are not enforced.
    pub ignored: Option<HeaderValue>,
}

/// Waits until all answers have ended.
async fn all(server: &Server, answers: BegunAnswers) -> Result<Vec<BegunChoice>, ApiError> {
    let BegunAnswers { mut choices, mut events, .. } = answers;
    while let Some((index, event)) = events.next().await {
        let choice = &mut choices[index];
        match event {
            Some(JobEvent::Token(mut piece)) => {
                choice.gathered.add(&mut piece);
                choice.text.push_str(&piece.text);
            }
            Some(JobEvent::Progress(_)) => {}
            Some(JobEvent::Prompt(scores)) => choice.gathered.add_prompt(scores),
            Some(JobEvent::Done(done)) => {
                choice.text.push_str(&done.rest);
                choice.done = Some(done);
            }
            Some(JobEvent::Failed(message)) => return Err(ApiError::new(ApiErrorKind::Failed, message)),
            None => return Err(server.unread()),
        }
    }
    // If only some of several choices have tokens, the answer contains those choices.
    let none = |choice: &BegunChoice| choice.done.as_ref().and_then(|done| without_tokens(done));
    if let Some(refusal) = choices.iter().map(none).reduce(Option::and).flatten() {
        return Err(refusal);
    }
    Ok(choices)
}
