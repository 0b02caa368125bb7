//! Execution of tool calls.

use std::time::{Duration, Instant};

use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, CustomRequest, CustomResult,
    ErrorCode, ErrorData, Implementation, JsonObject, ListToolsResult, PaginatedRequestParams,
    ProgressNotificationParam, ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{Peer, RoleServer};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::tools::{self, TOOLS, ToolKind};
use crate::remote::{Failure, ServerAddress};

/// Maximum number of calls sent to the server at the same time. Further calls wait in this process, at no cost.
const CALLS: usize = 32;

/// Minimum interval between two progress notifications.
const PROGRESS: Duration = Duration::from_millis(100);

const INSTRUCTIONS: &str = "A language model on this machine. chat answers questions, generate continues text, \
                           embed computes a vector for each text, tokenize counts tokens, and info describes the model. \
                           Nothing is kept between calls, and nothing leaves the machine.";

/// Handler for a client.
pub struct Handler {
    place: ServerAddress,
    calls: Semaphore,
}

/// Output of a tool: text for people, and structured data for programs.
struct ToolOutput {
    text: Option<String>,
    value: Value,
    /// Reason why the text is incomplete, if a time limit or a shutdown ended it.
    cut_off: Option<&'static str>,
}

impl ToolOutput {
    /// Creates an output without a text.
    fn structured(value: Value) -> Self {
        ToolOutput { text: None, value, cut_off: None }
    }
}

/// Reasons that the server gives for an incomplete text, and their descriptions.
const CUT_OFF: [(&str, &str); 2] = [
    (
        "deadline",
        "the text is incomplete: the time limit was reached; use a larger timeout_s or a smaller max_tokens",
    ),
    ("shutdown", "the text is incomplete: the server was shut down"),
];

impl Handler {
    /// Creates a handler that uses the server at `place`.
    pub fn new(place: ServerAddress) -> Self {
        Handler { place, calls: Semaphore::new(CALLS) }
    }

    async fn call(
        &self,
        kind: ToolKind,
        arguments: JsonObject,
        context: &RequestContext<RoleServer>,
    ) -> Result<ToolOutput, Failure> {
        // An error is impossible, because the semaphore is never closed.
        let _turn = self.calls.acquire().await;
        match kind {
            ToolKind::Generate | ToolKind::Chat => {
                let progress = ProgressNotifier::wanted(context, &arguments);
                self.generate(arguments, progress).await
            }
            ToolKind::Embed => self.embed(arguments).await,
            ToolKind::Tokenize => self.tokenize(arguments).await,
            ToolKind::Info => self.info().await,
        }
    }

    async fn generate(
        &self,
        mut request: JsonObject,
        mut progress: Option<ProgressNotifier>,
    ) -> Result<ToolOutput, Failure> {
        // Tokens are streamed only if the client requested progress.
        request.insert("stream".to_string(), progress.is_some().into());
        let mut lines = self.place.lines(&Value::Object(request)).await?;
        let (mut text, mut thoughts) = (String::new(), String::new());
        loop {
            let mut line = lines.next().await?;
            let piece = line["text"].as_str().unwrap_or_default();
            text.push_str(piece);
            thoughts.push_str(line["reasoning_content"].as_str().unwrap_or_default());
            if line["done"] == true {
                if let Some(progress) = &mut progress {
                    progress.finish().await;
                }
                line["text"] = text.clone().into();
                if !thoughts.is_empty() {
                    line["reasoning_content"] = thoughts.into();
                }
                let cut_off = CUT_OFF.iter().find(|(stop, _)| line["stop"] == *stop).map(|(_, why)| *why);
                return Ok(ToolOutput { text: Some(text), value: only(&line, &GENERATED), cut_off });
            }
            if let Some(progress) = &mut progress {
                progress.tell(piece).await;
            }
        }
    }

    async fn embed(&self, mut arguments: JsonObject) -> Result<ToolOutput, Failure> {
        let texts = arguments.remove("texts").unwrap_or_default();
        // The server also accepts lists of tokens, but in a tool call they would be a mistake.
        if !texts.as_array().is_some_and(|texts| texts.iter().all(Value::is_string)) {
            return Err(wrong("texts: use a list of strings"));
        }
        arguments.insert("embed".to_string(), texts);
        let line = self
            .place
            .lines(&Value::Object(arguments))
            .await?
            .next()
            .await
            .map_err(|failure| renamed(failure, "embed", "texts"))?;
        Ok(ToolOutput::structured(only(&line, &["embeddings", "usage"])))
    }

    async fn tokenize(&self, mut arguments: JsonObject) -> Result<ToolOutput, Failure> {
        let text = arguments.remove("text").unwrap_or_default();
        let mut request = json!({ "content": text });
        if let Some(model) = arguments.remove("model") {
            request["model"] = model;
        }
        let answer = self.place.post("/tokenize", &request).await;
        let answer = answer.map_err(|failure| renamed(failure, "content", "text"))?;
        let count = answer["tokens"].as_array().map_or(0, Vec::len);
        Ok(ToolOutput::structured(json!({ "tokens": answer["tokens"], "count": count })))
    }

    async fn info(&self) -> Result<ToolOutput, Failure> {
        let status = self.place.get("/status").await?;
        let names = ["version", "llama_version", "models", "queue", "threads", "memory"];
        Ok(ToolOutput::structured(only(&status, &names)))
    }
}

/// Fields of the server's last line that clients receive.
const GENERATED: [&str; 7] = ["text", "reasoning_content", "stop", "stop_string", "seed", "usage", "timings"];

/// Returns the fields `names` of `value`, in the order of `names`.
fn only(value: &Value, names: &[&str]) -> Value {
    names.iter().filter_map(|name| Some((name.to_string(), value.get(name)?.clone()))).collect()
}

fn wrong(message: &str) -> Failure {
    Failure::Refused { code: "invalid_value".to_string(), message: message.to_string() }
}

/// Replaces the server's field name in `failure` with the name of the tool's argument.
fn renamed(failure: Failure, theirs: &str, ours: &str) -> Failure {
    match failure {
        Failure::Refused { code, message } => {
            let rest = message.strip_prefix(theirs).filter(|rest| rest.starts_with(':'));
            let message = rest.map_or(message.clone(), |rest| format!("{ours}{rest}"));
            Failure::Refused { code, message }
        }
        other => other,
    }
}

/// Sender of progress notifications, for a client that requested progress.
struct ProgressNotifier {
    peer: Peer<RoleServer>,
    told: ProgressNotificationParam,
    last: Option<Instant>,
    /// Text generated since the last notification.
    new: String,
}

impl ProgressNotifier {
    fn wanted(context: &RequestContext<RoleServer>, arguments: &JsonObject) -> Option<Self> {
        let mut told = ProgressNotificationParam::new(context.meta.get_progress_token()?, 0.0);
        told.total = arguments.get("max_tokens").and_then(Value::as_f64);
        Some(ProgressNotifier { peer: context.peer.clone(), told, last: None, new: String::new() })
    }

    /// Reports one more token, whose text is `piece`.
    async fn tell(&mut self, piece: &str) {
        self.told.progress += 1.0;
        self.new.push_str(piece);
        if self.last.is_some_and(|last| last.elapsed() < PROGRESS) {
            return;
        }
        self.send().await;
    }

    /// Reports the text that has not been reported yet.
    async fn finish(&mut self) {
        if !self.new.is_empty() {
            self.send().await;
        }
    }

    async fn send(&mut self) {
        self.last = Some(Instant::now());
        self.told.message = Some(std::mem::take(&mut self.new));
        // An error is ignored, because other code detects a disconnected client.
        let _ = self.peer.notify_progress(self.told.clone()).await;
    }
}

/// Converts an answer for the client. A failure becomes a tool result, so that the client's model can read the
/// message and correct its call.
fn result(answer: Result<ToolOutput, Failure>) -> CallToolResult {
    match answer {
        Ok(ToolOutput { text: None, value, .. }) => CallToolResult::structured(value),
        Ok(ToolOutput { text: Some(text), value, cut_off }) => {
            let mut content = vec![ContentBlock::text(text)];
            let mut result = match cut_off {
                None => CallToolResult::success(content),
                Some(why) => {
                    content.push(ContentBlock::text(why));
                    CallToolResult::error(content)
                }
            };
            result.structured_content = Some(value);
            result
        }
        Err(Failure::Refused { code, message }) => {
            CallToolResult::error(vec![ContentBlock::text(format!("{code}: {message}"))])
        }
        Err(failure) => CallToolResult::error(vec![ContentBlock::text(failure.to_string())]),
    }
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        let about = Implementation::new("anneal", env!("CARGO_PKG_VERSION")).with_title("Anneal");
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(about)
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(TOOLS.iter().map(|(_, tool)| tool.clone()).collect()))
    }

    /// Handles methods that the protocol does not define, and calls without parameters.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let method: String = request.method.chars().take(60).collect();
        Err(match method.as_str() {
            "tools/call" => {
                ErrorData::invalid_params("the parameters are missing: give the name of a tool", None)
            }
            _ => ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("unknown method {method:?}"), None),
        })
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some((kind, tool)) = tools::named(&request.name) else {
            let name: String = request.name.chars().take(60).collect();
            let names: Vec<&str> = TOOLS.iter().map(|(_, tool)| tool.name.as_ref()).collect();
            let message = format!("unknown tool {name:?}; available tools: {}", names.join(", "));
            return Err(ErrorData::invalid_params(message, None));
        };
        let arguments = request.arguments.unwrap_or_default();
        let refused = tools::unknown(tool, &arguments).or_else(|| tools::missing(tool, &arguments));
        if let Some(message) = refused {
            return Ok(result(Err(wrong(&message))).into());
        }
        tokio::select! {
            biased;
            // Dropping the call closes its connection, which cancels the request.
            () = context.ct.cancelled() => Err(ErrorData::internal_error("the call was cancelled", None)),
            answer = self.call(*kind, arguments, &context) => Ok(result(answer).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_argument_as_the_client_knows_it() {
        let cases =
            [("content: is missing", "text: is missing"), ("contents", "contents"), ("other", "other")];
        for (theirs, ours) in cases {
            assert_eq!(renamed(wrong(theirs), "content", "text").to_string(), ours);
        }
    }
}
