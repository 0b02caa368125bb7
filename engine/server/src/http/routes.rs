//! Routes of the HTTP server: one table of paths, handlers, descriptions and names for the log.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::Uri;
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, on};

use super::respond::refuse;
use super::{
    apply_template, chat, completions, embeddings, infill, messages, model_control, openapi, other, rerank,
    responses, status,
};
use crate::api_error::{ApiError, ApiErrorKind};
use crate::models::ModelRegistry;
use crate::request_log::{LoggedRoute, Loudness};

/// Endpoint of the HTTP server.
pub(super) struct Endpoint {
    /// Path in axum's syntax. `{*name}` matches the rest of the path.
    path: &'static str,
    /// Path in the log and in the reference.
    shown: &'static str,
    /// Function that creates the handler for requests with the given method.
    handler: fn(MethodFilter) -> MethodRouter<Arc<ModelRegistry>>,
    /// Name of the request's schema. An endpoint with a schema accepts `POST`, and any other endpoint accepts `GET`.
    pub(super) request: Option<&'static str>,
    /// Content of the endpoint's answers.
    pub(super) answer: AnswerContent,
    /// Possible errors of the endpoint, in addition to the errors of access control.
    pub(super) errors: &'static [&'static [ApiErrorKind]],
    /// Name of the operation in OpenAPI.
    pub(super) id: &'static str,
    /// Description of the endpoint for OpenAPI, in one sentence.
    pub(super) summary: &'static str,
    /// Description in Markdown for the reference, which a test generates.
    #[cfg_attr(not(test), expect(dead_code, reason = "only the reference uses it"))]
    reference: &'static str,
    /// Log level of the endpoint's requests. Quiet endpoints are also served on connections of the reserve.
    loudness: Loudness,
    /// True if the endpoint is also served at the address of `--health-listen`.
    at_health_door: bool,
}

/// Content of an answer. Schemas are given by name.
pub(super) enum AnswerContent {
    /// One JSON value.
    Json(&'static str),
    /// One JSON value, or events of the second schema if the request sets `stream`.
    Streamed(&'static str, &'static str),
    /// Any JSON object.
    Object,
    /// Plain text.
    Text,
}

/// Possible errors of requests with a body.
const BODY: &[ApiErrorKind] =
    &[ApiErrorKind::Invalid, ApiErrorKind::TooLarge, ApiErrorKind::MediaType, ApiErrorKind::Overloaded];

/// Possible errors of requests for text.
const GENERATE: &[ApiErrorKind] = &[
    ApiErrorKind::PromptTooLong,
    ApiErrorKind::NoModel,
    ApiErrorKind::NoRoom,
    ApiErrorKind::Busy,
    ApiErrorKind::Failed,
    ApiErrorKind::Stopping,
    ApiErrorKind::Deadline,
];

/// Possible errors of requests that only need the model's vocabulary.
const MODEL: &[ApiErrorKind] = &[
    ApiErrorKind::NoModel,
    ApiErrorKind::NoRoom,
    ApiErrorKind::Busy,
    ApiErrorKind::Failed,
    ApiErrorKind::Stopping,
    ApiErrorKind::Deadline,
];

/// Possible errors of requests that name a model in the path.
const NAMED: &[ApiErrorKind] = &[ApiErrorKind::Invalid, ApiErrorKind::NoModel, ApiErrorKind::NotFound];

/// All endpoints, in the order of the reference.
#[rustfmt::skip]
pub(super) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        path: "/v1/completions", shown: "/v1/completions", handler: |by| on(by, completions::completions),
        request: Some("CompletionRequest"), answer: AnswerContent::Streamed("Completion", "CompletionChunk"), errors: &[BODY, GENERATE],
        id: "completions", summary: "Continue a text.",
        reference: "OpenAI's format: one JSON object, or with `stream` server-sent events that end with `[DONE]`",
        loudness: Loudness::Generates, at_health_door: false,
    },
    Endpoint {
        path: "/infill", shown: "/infill", handler: |by| on(by, infill::infill),
        request: Some("InfillRequest"), answer: AnswerContent::Streamed("InfillAnswer", "InfillChunk"), errors: &[BODY, GENERATE],
        id: "infill", summary: "Generate the text between a prefix and a suffix.",
        reference: "llama-server's fields and the answers of `/v1/completions`; see [infill](#infill)",
        loudness: Loudness::Generates, at_health_door: false,
    },
    Endpoint {
        path: "/v1/chat/completions", shown: "/v1/chat/completions", handler: |by| on(by, chat::chat),
        request: Some("ChatRequest"), answer: AnswerContent::Streamed("ChatCompletion", "ChatChunk"), errors: &[BODY, GENERATE],
        id: "chat", summary: "Answer a conversation.",
        reference: "OpenAI's format: one JSON object, or with `stream` server-sent events with the role, the text in parts, `finish_reason`, the usage if requested, and `[DONE]`",
        loudness: Loudness::Generates, at_health_door: false,
    },
    Endpoint {
        path: "/v1/responses", shown: "/v1/responses", handler: |by| on(by, responses::responses),
        request: Some("ResponsesRequest"), answer: AnswerContent::Streamed("Response", "ResponseEvent"), errors: &[BODY, GENERATE],
        id: "responses", summary: "Answer a conversation with output items.",
        reference: "OpenAI's Responses API without stored responses; see [responses](#responses)",
        loudness: Loudness::Generates, at_health_door: false,
    },
    Endpoint {
        path: "/v1/messages", shown: "/v1/messages", handler: |by| on(by, messages::messages),
        request: Some("MessagesRequest"), answer: AnswerContent::Streamed("AnthropicMessage", "MessagesEvent"), errors: &[BODY, GENERATE],
        id: "messages", summary: "Answer a conversation in Anthropic's format.",
        reference: "Anthropic's format; see [Anthropic's API](#anthropics-api)",
        loudness: Loudness::Generates, at_health_door: false,
    },
    Endpoint {
        path: "/v1/messages/count_tokens", shown: "/v1/messages/count_tokens", handler: |by| on(by, messages::count_tokens),
        request: Some("MessagesRequest"), answer: AnswerContent::Json("TokenCount"), errors: &[BODY, MODEL],
        id: "count_tokens", summary: "Count the tokens of a conversation in Anthropic's format.",
        reference: "the number of prompt tokens of a request to `/v1/messages`: `{\"input_tokens\": N}`",
        loudness: Loudness::Normal, at_health_door: false,
    },
    Endpoint {
        path: "/v1/embeddings", shown: "/v1/embeddings", handler: |by| on(by, embeddings::embeddings),
        request: Some("EmbeddingRequest"), answer: AnswerContent::Json("Embeddings"), errors: &[BODY, GENERATE],
        id: "embeddings", summary: "Compute embeddings of texts.",
        reference: "OpenAI's format; see [embeddings](#embeddings)",
        loudness: Loudness::Normal, at_health_door: false,
    },
    Endpoint {
        path: "/v1/rerank", shown: "/v1/rerank", handler: |by| on(by, rerank::rerank),
        request: Some("RerankRequest"), answer: AnswerContent::Json("Ranking"), errors: &[BODY, GENERATE],
        id: "rerank", summary: "Score documents by their relevance to a query.",
        reference: "sorts documents by their relevance to a query, as in Jina's and Cohere's APIs; see [reranking](#reranking)",
        loudness: Loudness::Normal, at_health_door: false,
    },
    Endpoint {
        path: "/v1/reranking", shown: "/v1/reranking", handler: |by| on(by, rerank::rerank),
        request: Some("RerankRequest"), answer: AnswerContent::Json("Ranking"), errors: &[BODY, GENERATE],
        id: "reranking", summary: "Score documents by their relevance to a query.",
        reference: "alias of `/v1/rerank`",
        loudness: Loudness::Normal, at_health_door: false,
    },
    Endpoint {
        path: "/rerank", shown: "/rerank", handler: |by| on(by, rerank::rerank),
        request: Some("RerankRequest"), answer: AnswerContent::Json("Ranking"), errors: &[BODY, GENERATE],
        id: "rerank_short", summary: "Score documents by their relevance to a query.",
        reference: "alias of `/v1/rerank`",
        loudness: Loudness::Normal, at_health_door: false,
    },
    Endpoint {
        path: "/v1/models", shown: "/v1/models", handler: |by| on(by, other::models),
        request: None, answer: AnswerContent::Json("Models"), errors: &[],
        id: "models", summary: "List the models.",
        reference: "the models with their `state` (`unloaded`, `loading`, `loaded`, `leaving`, or `failed` with `error`); loaded models also have `description`, `context` and `slots`",
        loudness: Loudness::Normal, at_health_door: false,
    },
    Endpoint {
        path: "/v1/models/{*name}", shown: "/v1/models/NAME", handler: |by| on(by, other::model),
        request: None, answer: AnswerContent::Json("Model"), errors: &[NAMED],
        id: "model", summary: "Describe one model.",
        reference: "one of the models; a name may contain slashes",
        loudness: Loudness::Normal, at_health_door: false,
    },
    Endpoint {
        path: "/models", shown: "/models", handler: |by| on(by, other::models),
        request: None, answer: AnswerContent::Json("Models"), errors: &[],
        id: "models_short", summary: "List the models.",
        reference: "alias of `/v1/models`",
        loudness: Loudness::Normal, at_health_door: false,
    },
    Endpoint {
        path: "/models/load", shown: "/models/load", handler: |by| on(by, model_control::load),
        request: Some("ModelName"), answer: AnswerContent::Json("ModelChange"), errors: &[BODY, MODEL],
        id: "load_model", summary: "Load a model, and wait until it is loaded.",
        reference: "request `{\"model\": NAME}`; loads the model and answers `{\"success\": true, \"model\"}`; see [loading and unloading](#loading-and-unloading)",
        loudness: Loudness::Normal, at_health_door: false,
    },
    Endpoint {
        path: "/models/unload", shown: "/models/unload", handler: |by| on(by, model_control::unload),
        request: Some("ModelName"), answer: AnswerContent::Json("ModelChange"), errors: &[BODY, MODEL],
        id: "unload_model", summary: "Unload a model after its running requests have ended.",
        reference: "request `{\"model\": NAME}`; unloads the model after its running requests have ended",
        loudness: Loudness::Normal, at_health_door: false,
    },
    Endpoint {
        path: "/tokenize", shown: "/tokenize", handler: |by| on(by, other::tokenize),
        request: Some("TokenizeRequest"), answer: AnswerContent::Json("Tokens"), errors: &[BODY, MODEL],
        id: "tokenize", summary: "Split a text into tokens.",
        reference: "request `{\"content\": TEXT}`, with `model` if the server has several; answer `{\"tokens\": […]}`, the tokens of a prompt with this text. With `\"add_special_tokens\": false`, the tokenizer adds no BOS or EOS token. As in vLLM, the text may be in `prompt` instead of `content`. A text with more bytes than the context can hold is refused",
        loudness: Loudness::Normal, at_health_door: false,
    },
    Endpoint {
        path: "/tokenizer_info", shown: "/tokenizer_info", handler: |by| on(by, other::tokenizer_info),
        request: None, answer: AnswerContent::Json("TokenizerInfo"), errors: &[MODEL, BODY],
        id: "tokenizer_info", summary: "Return the special tokens of the default model.",
        reference: "the special tokens of the default model, for [lm-evaluation-harness](#lm-evaluation-harness): `{\"model\", \"bos_token\", \"eos_token\", \"add_bos_token\"}`. Loads the model if necessary",
        loudness: Loudness::Normal, at_health_door: false,
    },
    Endpoint {
        path: "/detokenize", shown: "/detokenize", handler: |by| on(by, other::detokenize),
        request: Some("Tokens"), answer: AnswerContent::Json("Text"), errors: &[BODY, MODEL],
        id: "detokenize", summary: "Convert tokens to text.",
        reference: "request `{\"tokens\": […]}`, with `model` if the server has several; answer `{\"content\": TEXT}`",
        loudness: Loudness::Normal, at_health_door: false,
    },
    Endpoint {
        path: "/apply-template", shown: "/apply-template", handler: |by| on(by, apply_template::apply_template),
        request: Some("ChatRequest"), answer: AnswerContent::Json("RenderedPrompt"), errors: &[BODY, MODEL],
        id: "apply_template", summary: "Render a conversation as the prompt that the model sees.",
        reference: "request as for `/v1/chat/completions`; answer `{\"prompt\": TEXT}`, without generating. With `\"add_generation_prompt\": false`, the prompt ends after the last message",
        loudness: Loudness::Normal, at_health_door: false,
    },
    Endpoint {
        path: "/health", shown: "/health", handler: |by| on(by, other::health),
        request: None, answer: AnswerContent::Json("Health"), errors: &[],
        id: "health", summary: "Health check; needs no key.",
        reference: "`{\"status\": \"ok\"}`, or `\"degraded\"` after a part of the server has panicked. The requests of that part failed, other requests are answered, and the log contains the cause. Needs no key",
        loudness: Loudness::Quiet, at_health_door: true,
    },
    Endpoint {
        path: "/metrics", shown: "/metrics", handler: |by| on(by, other::metrics),
        request: None, answer: AnswerContent::Text, errors: &[],
        id: "metrics", summary: "Metrics for Prometheus.",
        reference: "counters and gauges for Prometheus",
        loudness: Loudness::Quiet, at_health_door: true,
    },
    Endpoint {
        path: "/status", shown: "/status", handler: |by| on(by, status::status),
        request: None, answer: AnswerContent::Json("Status"), errors: &[],
        id: "status", summary: "State of slots, queue, speed and memory, as in `anneal top`.",
        reference: "slots, queue, speed and memory, as in `anneal top`: [the status](#the-status)",
        loudness: Loudness::Quiet, at_health_door: false,
    },
    Endpoint {
        path: "/openapi.json", shown: "/openapi.json", handler: |by| on(by, openapi::openapi),
        request: None, answer: AnswerContent::Object, errors: &[],
        id: "openapi", summary: "OpenAPI description.",
        reference: "OpenAPI 3.1 description of the API: every field with its range and default, every answer and error, and the limits of this server",
        loudness: Loudness::Normal, at_health_door: false,
    },
];

impl Endpoint {
    /// Returns the path in OpenAPI's syntax.
    pub(super) fn openapi_path(&self) -> String {
        self.path.replace("{*", "{")
    }

    /// Returns the HTTP method.
    pub(super) fn method(&self) -> &'static str {
        if self.request.is_some() { "POST" } else { "GET" }
    }

    fn route(&self) -> MethodRouter<Arc<ModelRegistry>> {
        (self.handler)(if self.request.is_some() { MethodFilter::POST } else { MethodFilter::GET })
    }

    fn is_at(&self, path: &str) -> bool {
        match self.path.split_once("{*") {
            Some((start, _)) => path.starts_with(start),
            None => self.path == path,
        }
    }
}

/// Removes a slash from the end of the path of `uri`, because some clients append it to the address of the API.
pub(super) fn drop_trailing_slash(uri: &mut Uri) {
    let Some(path) = uri.path().strip_suffix('/').filter(|path| !path.is_empty()) else { return };
    let query = uri.query().map_or(String::new(), |query| format!("?{query}"));
    if let Ok(shorter) = format!("{path}{query}").parse() {
        *uri = shorter;
    }
}

/// Returns the route of `path` for the log. Other parts of `path` come from the client and are not logged.
pub(super) fn logged(path: &str) -> LoggedRoute {
    match ENDPOINTS.iter().find(|endpoint| endpoint.is_at(path)) {
        Some(endpoint) => LoggedRoute { name: endpoint.shown, loudness: endpoint.loudness },
        None => LoggedRoute { name: "other", loudness: Loudness::Normal },
    }
}

/// True if `path` is also served on connections of the reserve.
pub(super) fn is_watching(path: &str) -> bool {
    logged(path).loudness == Loudness::Quiet
}

async fn nothing_here(request: Request) -> Response {
    let path: String = request.uri().path().chars().take(100).collect();
    let refusal = ApiError::new(ApiErrorKind::NotFound, format!("no endpoint at {path}"));
    refusal_at(request.uri().path())(&refusal)
}

async fn wrong_method(request: Request) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    refusal_at(path)(&ApiError::new(ApiErrorKind::Method, format!("{method} is not allowed on {path}")))
}

/// Returns the function that converts an error to a response in the format of the API at `path`.
pub(super) fn refusal_at(path: &str) -> fn(&ApiError) -> Response {
    if path.starts_with(messages::PATH) { messages::refuse } else { refuse }
}

/// Set of paths that are served at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// All paths.
    All,
    /// `/health` and `/metrics`.
    Health {
        /// True if `/metrics` needs no key at this address.
        open_metrics: bool,
    },
}

/// Routes of an address. The routes are built once, and each connection has a handle to them.
#[derive(Clone)]
pub struct Routes {
    pub(super) router: Router,
    pub(super) door: Door,
}

impl Routes {
    /// Builds the routes of `registry` that are served at `door`.
    pub fn new(registry: &Arc<ModelRegistry>, door: Door) -> Self {
        let served = |endpoint: &&Endpoint| door == Door::All || endpoint.at_health_door;
        let router = ENDPOINTS
            .iter()
            .filter(served)
            .fold(Router::new(), |router, endpoint| router.route(endpoint.path, endpoint.route()))
            .fallback(nothing_here)
            .method_not_allowed_fallback(wrong_method)
            .with_state(Arc::clone(registry));
        Routes { router, door }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trailing_slash_is_dropped() {
        for (given, expected) in [
            ("/v1/models/", "/v1/models"),
            ("/v1/models/?a=b/", "/v1/models?a=b/"),
            ("/v1/models", "/v1/models"),
            ("/", "/"),
            ("//", "/"),
        ] {
            let mut uri: Uri = given.parse().expect("a URI");
            drop_trailing_slash(&mut uri);
            assert_eq!(uri.to_string(), expected, "{given}");
        }
    }

    #[test]
    fn a_path_is_told_as_its_endpoint() {
        let name = |path: &str| logged(path).name;
        for (path, expected) in [
            ("/v1/completions", "/v1/completions"),
            ("/v1/models", "/v1/models"),
            ("/v1/models/a/b", "/v1/models/NAME"),
            ("/v1/modelsx", "other"),
            ("/health", "/health"),
            ("/secret", "other"),
        ] {
            assert_eq!(name(path), expected, "{path}");
        }
        assert!(is_watching("/status") && !is_watching("/v1/models"));
    }

    /// Run with `UPDATE_DOCS=1` to rewrite the table in the docs.
    #[test]
    fn the_reference_has_every_endpoint() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/run/server.md");
        let text = std::fs::read_to_string(path).expect("the reference");
        let row = |endpoint: &Endpoint| {
            format!("| `{} {}` | {} |\n", endpoint.method(), endpoint.shown, endpoint.reference)
        };
        let rows: String = ENDPOINTS.iter().map(row).collect();
        let table = format!("| endpoint | meaning |\n| --- | --- |\n{rows}");
        generated::check(path, &generated::with_part(&text, "endpoints", &table));
    }
}
