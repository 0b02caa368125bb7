//! Conversations with known answers. Each answer has thoughts, text and a tool call, and is requested through three
//! APIs, streamed or whole. The turns of a conversation have a common beginning, which the server may reuse.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use load::answer::fetch;
use load::request::http;
use serde_json::{Map, Value, json};

use super::known::PATIENCE;
use crate::serving::prompts::Random;
use crate::serving::server::Server;

/// Chat template of the server: it shows tools, and opens the thoughts of the answer.
pub const TEMPLATE: &str = "{% if tools %}<|im_start|>tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}\
    <|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    <|im_start|>assistant\n<think>\n{# </think> <tool_call> #}";

/// Grammar of the answers. The model chooses the words.
const GRAMMAR: &str = r#"root ::= words "</think>\n\n" words "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"" words "\"}}\n</tool_call>"
words ::= [a-z ]{3,9}"#;

/// Maximum number of tokens of an answer. The grammar ends earlier.
const MOST: u32 = 120;

/// Numbers of conversations, and of their turns.
const TALKS: usize = 4;
const TURNS: usize = 3;

/// API with conversations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Api {
    /// OpenAI's `/v1/chat/completions`.
    Chat,
    /// OpenAI's `/v1/responses`.
    Responses,
    /// Anthropic's `/v1/messages`.
    Messages,
}

impl Api {
    /// All APIs.
    pub const ALL: [Api; 3] = [Api::Chat, Api::Responses, Api::Messages];

    fn path(self) -> &'static str {
        match self {
            Api::Chat => "/v1/chat/completions",
            Api::Responses => "/v1/responses",
            Api::Messages => "/v1/messages",
        }
    }

    /// Kind of a request in the result.
    pub fn kind(self, streamed: bool) -> &'static str {
        match (self, streamed) {
            (Api::Chat, false) => "chat",
            (Api::Chat, true) => "streamed chat",
            (Api::Responses, false) => "response",
            (Api::Responses, true) => "streamed response",
            (Api::Messages, false) => "message",
            (Api::Messages, true) => "streamed message",
        }
    }
}

/// Content of an answer, in any format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TalkAnswer {
    thoughts: String,
    text: String,
    /// Names and arguments of the calls.
    calls: Vec<(String, String)>,
}

/// Known answers, by conversation, turn and API.
pub struct Talks(BTreeMap<(usize, usize, Api), TalkAnswer>);

/// Outcome of a turn.
pub enum Turn {
    /// The answer equals the known answer.
    Right,
    /// The server has no free slot.
    Busy,
    /// The answer is complete, but differs from the known answer.
    Unlike(String),
}

impl Talks {
    /// Collects the answers of a server that has no other clients.
    pub fn learn(server: &Server) -> Result<Self> {
        let mut known = BTreeMap::new();
        for (talk, turn) in (0..TALKS).flat_map(|talk| (0..TURNS).map(move |turn| (talk, turn))) {
            for api in Api::ALL {
                let learned = ask(server, api, &body(api, talk, turn, false, false), false)
                    .map_err(anyhow::Error::msg)
                    .and_then(|content| {
                        content.context("the server is busy, although it has no other clients")
                    })
                    .with_context(|| format!("cannot collect the server's answers at {}", api.path()))?;
                known.insert((talk, turn, api), learned);
            }
        }
        Ok(Talks(known))
    }

    /// Sends a random turn to `api`, and compares its answer with the known answer.
    ///
    /// # Errors
    /// A description of an answer that is invalid.
    pub fn visit(
        &self,
        server: &Server,
        api: Api,
        streamed: bool,
        random: &mut Random,
    ) -> Result<Turn, String> {
        let (talk, turn) = (random.below(TALKS), random.below(TURNS));
        let body = body(api, talk, turn, streamed, random.below(4) > 0);
        let Some(found) = ask(server, api, &body, streamed)? else { return Ok(Turn::Busy) };
        let known = self.0.get(&(talk, turn, api));
        Ok(match known == Some(&found) {
            true => Turn::Right,
            false => {
                Turn::Unlike(format!("turn {turn} of conversation {talk}: {found:?} instead of {known:?}"))
            }
        })
    }
}

/// Returns the request for turn `turn` of conversation `talk`.
fn body(api: Api, talk: usize, turn: usize, streamed: bool, cache: bool) -> Value {
    let system = format!("Conversation {talk}. {}", "Answer in a few words. ".repeat(talk + 1));
    let mut messages = Vec::new();
    for turn in 0..=turn {
        messages.push(json!({ "role": "user", "content": format!("Question {turn} of {talk}?") }));
        messages.push(json!({ "role": "assistant", "content": format!("Answer {turn} of {talk}.") }));
    }
    messages.pop();
    let parameters = json!({
        "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"],
    });
    let described = json!({ "name": "weather", "description": "Tells the weather." });
    let with = |key: &str, value: Value| {
        let mut tool = described.clone();
        tool[key] = value;
        tool
    };
    let own = match api {
        Api::Chat => {
            messages.insert(0, json!({ "role": "system", "content": system }));
            let function = with("parameters", parameters);
            json!({
                "messages": messages, "max_tokens": MOST,
                "tools": [{ "type": "function", "function": function }],
            })
        }
        Api::Responses => {
            let mut tool = with("parameters", parameters);
            tool["type"] = "function".into();
            json!({ "instructions": system, "input": messages, "max_output_tokens": MOST, "tools": [tool] })
        }
        Api::Messages => {
            let tool = with("input_schema", parameters);
            json!({ "system": system, "messages": messages, "max_tokens": MOST, "tools": [tool] })
        }
    };
    let mut body = json!({
        "temperature": 0, "grammar": GRAMMAR, "stream": streamed, "cache_prompt": cache,
    });
    if let (Value::Object(body), Value::Object(own)) = (&mut body, own) {
        body.extend(own);
    }
    body
}

/// Sends `body`. Returns the content of the answer; `None` if the server is busy.
fn ask(server: &Server, api: Api, body: &Value, streamed: bool) -> Result<Option<TalkAnswer>, String> {
    let request = http("POST", api.path(), body.to_string().as_bytes());
    let (status, answer) = fetch(&server.http, &request, PATIENCE)?;
    let answer = String::from_utf8(answer).map_err(|_| "the answer is not UTF-8".to_string())?;
    match status {
        200 => {}
        429 | 529 => return Ok(None),
        _ => return Err(format!("status {status}: {answer:.300}")),
    }
    let parse = |text: &str| {
        serde_json::from_str::<Value>(text)
            .map_err(|why| format!("the answer is not JSON: {why}: {text:.300}"))
    };
    let content = match streamed {
        false => whole(api, &parse(&answer)?),
        true => {
            let data = answer.lines().filter_map(|line| line.strip_prefix("data: "));
            let events = data.filter(|data| *data != "[DONE]").map(parse).collect::<Result<Vec<_>, _>>()?;
            if events.iter().any(|event| event.get("error").is_some_and(|error| !error.is_null())) {
                return Err(format!("an error in the stream: {answer:.600}"));
            }
            pieces(api, &events)
        }
    };
    match content.filter(|content| !content.calls.is_empty() && !content.thoughts.is_empty()) {
        Some(content) => Ok(Some(content)),
        None => Err(format!("the answer has no thoughts or no call: {answer:.600}")),
    }
}

/// Returns the text at `pointer`, or an empty text.
fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the items of the list at `pointer`.
fn items<'a>(value: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    value.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

/// Returns `arguments`, which are JSON, without optional white space.
fn compact(arguments: &str) -> String {
    serde_json::from_str::<Map<String, Value>>(arguments)
        .map_or(format!("invalid: {arguments}"), |map| Value::Object(map).to_string())
}

/// Returns the content of an answer in one piece.
fn whole(api: Api, answer: &Value) -> Option<TalkAnswer> {
    let mut content = TalkAnswer::default();
    match api {
        Api::Chat => {
            let message = answer.pointer("/choices/0/message")?;
            content.thoughts.push_str(text(message, "/reasoning_content"));
            content.text.push_str(text(message, "/content"));
            for call in items(message, "/tool_calls") {
                let arguments = compact(text(call, "/function/arguments"));
                content.calls.push((text(call, "/function/name").to_string(), arguments));
            }
        }
        Api::Responses => {
            for item in items(answer, "/output") {
                match text(item, "/type") {
                    "reasoning" => content.thoughts.push_str(text(item, "/content/0/text")),
                    "message" => content.text.push_str(text(item, "/content/0/text")),
                    _ => content
                        .calls
                        .push((text(item, "/name").to_string(), compact(text(item, "/arguments")))),
                }
            }
        }
        Api::Messages => {
            for block in items(answer, "/content") {
                match text(block, "/type") {
                    "thinking" => content.thoughts.push_str(text(block, "/thinking")),
                    "text" => content.text.push_str(text(block, "/text")),
                    _ => content.calls.push((text(block, "/name").to_string(), block["input"].to_string())),
                }
            }
        }
    }
    Some(content)
}

/// Returns the content of a streamed answer. `None` if the stream has no end.
fn pieces(api: Api, events: &[Value]) -> Option<TalkAnswer> {
    let mut content = TalkAnswer::default();
    let mut ended = false;
    for event in events {
        let (mut call, mut arguments) = ("", "");
        match api {
            Api::Chat => {
                let Some(choice) = event.pointer("/choices/0") else { continue };
                content.thoughts.push_str(text(choice, "/delta/reasoning_content"));
                content.text.push_str(text(choice, "/delta/content"));
                call = text(choice, "/delta/tool_calls/0/function/name");
                arguments = text(choice, "/delta/tool_calls/0/function/arguments");
                ended |= choice.get("finish_reason").is_some_and(Value::is_string);
            }
            Api::Responses => match text(event, "/type") {
                "response.reasoning_text.delta" => content.thoughts.push_str(text(event, "/delta")),
                "response.output_text.delta" => content.text.push_str(text(event, "/delta")),
                "response.output_item.added" => call = text(event, "/item/name"),
                "response.function_call_arguments.delta" => arguments = text(event, "/delta"),
                "response.completed" => ended = true,
                _ => {}
            },
            Api::Messages => {
                content.thoughts.push_str(text(event, "/delta/thinking"));
                content.text.push_str(text(event, "/delta/text"));
                call = text(event, "/content_block/name");
                arguments = text(event, "/delta/partial_json");
                ended |= text(event, "/type") == "message_stop";
            }
        }
        if !call.is_empty() {
            content.calls.push((call.to_string(), String::new()));
        }
        if let Some((_, all)) = content.calls.last_mut() {
            all.push_str(arguments);
        }
    }
    for (_, arguments) in &mut content.calls {
        *arguments = compact(arguments);
    }
    ended.then_some(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected() -> TalkAnswer {
        TalkAnswer {
            thoughts: "ab".to_string(),
            text: "cd".to_string(),
            calls: vec![("weather".to_string(), r#"{"city":"x"}"#.to_string())],
        }
    }

    #[test]
    fn whole_answers_are_read_in_each_format() {
        let arguments = r#"{"city": "x"}"#;
        let call = json!({ "function": { "name": "weather", "arguments": arguments } });
        let answers = [
            json!({ "choices": [{ "message": {
                "reasoning_content": "ab", "content": "cd", "tool_calls": [call],
            }}]}),
            json!({ "output": [
                { "type": "reasoning", "content": [{ "text": "ab" }] },
                { "type": "message", "content": [{ "text": "cd" }] },
                { "type": "function_call", "name": "weather", "arguments": arguments },
            ]}),
            json!({ "content": [
                { "type": "thinking", "thinking": "ab" },
                { "type": "text", "text": "cd" },
                { "type": "tool_use", "name": "weather", "input": { "city": "x" } },
            ]}),
        ];
        for (api, answer) in Api::ALL.into_iter().zip(answers) {
            assert_eq!(whole(api, &answer), Some(expected()), "{api:?}");
        }
    }

    #[test]
    fn streamed_answers_are_read_in_each_format() {
        let delta = |delta: Value| json!({ "choices": [{ "delta": delta }] });
        let arguments = |part: &str| delta(json!({ "tool_calls": [{ "function": { "arguments": part } }] }));
        let of = |kind: &str, part: &str| json!({ "type": format!("response.{kind}.delta"), "delta": part });
        let block = |delta: Value| json!({ "type": "content_block_delta", "delta": delta });
        let streams = [
            vec![
                delta(json!({ "reasoning_content": "a" })),
                delta(json!({ "reasoning_content": "b" })),
                delta(json!({ "content": "cd" })),
                delta(json!({ "tool_calls": [{ "function": { "name": "weather" } }] })),
                arguments("{\"city\":"),
                arguments(" \"x\"}"),
                json!({ "choices": [{ "delta": {}, "finish_reason": "tool_calls" }] }),
            ],
            vec![
                of("reasoning_text", "ab"),
                of("output_text", "cd"),
                json!({ "type": "response.output_item.added", "item": { "name": "weather" } }),
                of("function_call_arguments", "{\"city\":\"x\"}"),
                json!({ "type": "response.completed" }),
            ],
            vec![
                block(json!({ "thinking": "ab" })),
                block(json!({ "text": "cd" })),
                json!({ "type": "content_block_start", "content_block": { "name": "weather" } }),
                block(json!({ "partial_json": "{\"city\": \"x\"}" })),
                json!({ "type": "message_stop" }),
            ],
        ];
        for (api, events) in Api::ALL.into_iter().zip(streams) {
            assert_eq!(pieces(api, &events), Some(expected()), "{api:?}");
            // A stream that was cut off is not an answer.
            assert_eq!(pieces(api, &events[..events.len() - 1]), None, "{api:?}");
        }
    }
}
