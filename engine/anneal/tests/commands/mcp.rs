//! Tests of `anneal mcp` with rmcp's client, and with clients that send arbitrary data.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rmcp::ServiceExt;
use rmcp::model::{CallToolRequestParams, ClientRequest, NumberOrString, RequestMetaObject, ServerResult};
use serde_json::{Value, json};
use tokio::net::unix::pipe;

use crate::common::tiny;

/// Time limit of each step of a test.
const PATIENCE: Duration = Duration::from_secs(120);

/// Grammar whose texts have thousands of tokens, so that the model cannot end early.
const LONG: &str = "root ::= p p p p p p p p p p\np ::= [a-z]{2000}";

fn command(more: &[&str]) -> Command {
    let mut command = crate::common::command();
    command.args(["mcp", "-t", "1", "--chat-template", "chatml", "-m"]).arg(tiny()).args(more);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

/// Running MCP server, which ends with its test.
struct Mcp {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Drop for Mcp {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Mcp {
    /// Starts a server and performs the handshake.
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().expect("the executable runs");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut mcp = Mcp { child, stdin, stdout };
        let hello = json!({
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" },
        });
        mcp.ask(0, "initialize", &hello);
        assert_eq!(mcp.answer(0)["result"]["serverInfo"]["name"], "anneal");
        mcp.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }).to_string());
        mcp
    }

    fn send(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("open");
        stdin.write_all(line.as_bytes()).and_then(|()| stdin.write_all(b"\n")).expect("it reads");
    }

    fn ask(&mut self, id: u64, method: &str, params: &Value) {
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string());
    }

    fn call(&mut self, id: u64, tool: &str, arguments: &Value) {
        self.ask(id, "tools/call", &json!({ "name": tool, "arguments": arguments }));
    }

    /// Returns the next message.
    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("it writes");
        let message: Value = match line.as_str() {
            "" => return None,
            line => serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}")),
        };
        assert_eq!(message["jsonrpc"], "2.0", "{message}");
        Some(message)
    }

    /// Returns the answer to request `id`, skipping other messages.
    fn answer(&mut self, id: u64) -> Value {
        loop {
            let message = self.next().expect("an answer");
            if message["id"] == id {
                return message;
            }
        }
    }

    fn code(&mut self) -> Option<i32> {
        crate::common::code(&mut self.child, PATIENCE)
    }
}

/// Returns the text of a tool's result, which must not be an error.
fn text(answer: &Value) -> &str {
    assert_eq!(answer["result"]["isError"], false, "{answer}");
    answer["result"]["content"][0]["text"].as_str().expect("a text")
}

fn greedy(max_tokens: u32) -> Value {
    json!({ "prompt": "hello", "max_tokens": max_tokens, "temperature": 0 })
}

#[test]
fn thoughts_are_no_part_of_the_text() {
    let mut mcp = Mcp::start(command(&[]));
    let grammar = "root ::= \"<think>\\ntwo plus two\\n</think>\\n\\nFour\"";
    let messages = json!([{ "role": "user", "content": "hi" }]);
    mcp.call(1, "chat", &json!({ "messages": messages, "grammar": grammar, "thinking_budget_tokens": -1 }));
    let result = &mcp.answer(1)["result"];
    assert_eq!(result["content"][0]["text"], "Four", "{result}");
    let value = &result["structuredContent"];
    assert_eq!((&value["text"], &value["reasoning_content"]), (&json!("Four"), &json!("two plus two")));
    assert!(value["usage"]["reasoning_tokens"].as_u64() > Some(0), "{result}");
}

#[test]
fn rmcps_own_client_uses_every_tool() {
    let mut child = command(&[]).spawn().expect("the executable runs");
    let expected = crate::common::on_tiny("run", &["-t", "1", "-p", "hello", "-n", "8", "--greedy"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let output = OwnedFd::from(child.stdout.take().expect("piped"));
        let input = OwnedFd::from(child.stdin.take().expect("piped"));
        let output = pipe::Receiver::from_owned_fd(output).expect("a pipe");
        let input = pipe::Sender::from_owned_fd(input).expect("a pipe");
        let client = ().serve((output, input)).await.expect("a handshake");
        let tools = client.list_all_tools().await.expect("a list");
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_ref()).collect();
        assert_eq!(names, ["generate", "chat", "embed", "tokenize", "info"]);

        let call = async |name: &'static str, arguments: Value| {
            let arguments = arguments.as_object().cloned().expect("an object");
            let result = client.call_tool(CallToolRequestParams::new(name).with_arguments(arguments)).await;
            let result = result.expect("an answer");
            assert_eq!(result.is_error, Some(false), "{result:?}");
            result.structured_content.expect("it is structured")
        };
        let generated = call("generate", greedy(8)).await;
        assert_eq!(generated["text"], expected.trim_end_matches('\n'));
        assert_eq!((&generated["stop"], &generated["usage"]["completion_tokens"]), (&json!("length"), &json!(8)));
        let messages = json!([{ "role": "user", "content": "hi" }]);
        let chatted = call("chat", json!({ "messages": messages, "max_tokens": 4, "json_schema": { "type": "integer", "maximum": 9, "minimum": 0 } })).await;
        assert!(chatted["text"].as_str().is_some_and(|text| text.trim().parse::<u8>().is_ok()), "{chatted}");
        let embedded = call("embed", json!({ "texts": ["a", "b"] })).await;
        for vector in embedded["embeddings"].as_array().expect("a list") {
            let length: f64 = vector.as_array().expect("a list").iter().filter_map(Value::as_f64).map(|x| x * x).sum();
            assert!((length - 1.0).abs() < 1e-3, "{length}");
        }
        let tokens = call("tokenize", json!({ "text": "hello" })).await;
        assert_eq!(tokens["count"].as_u64(), tokens["tokens"].as_array().map(|list| list.len() as u64));
        let info = call("info", json!({})).await;
        assert_eq!((&info["models"][0]["id"], &info["models"][0]["context"]), (&json!("tiny"), &json!(4096)));

        // The texts of the progress messages add up to the answer.
        let arguments = greedy(20).as_object().cloned().expect("an object");
        let mut request = CallToolRequestParams::new("generate").with_arguments(arguments);
        let mut meta = RequestMetaObject::new();
        meta.set_progress_token(rmcp::model::ProgressToken(NumberOrString::Number(7)));
        request.meta = Some(meta);
        let answer = client.send_request(ClientRequest::CallToolRequest(rmcp::model::CallToolRequest::new(request))).await;
        assert!(matches!(answer, Ok(ServerResult::CallToolResult(_))), "{answer:?}");
        let missing = client.call_tool(CallToolRequestParams::new("nothing")).await.expect_err("there is none");
        assert!(missing.to_string().contains("unknown tool"), "{missing}");
        client.cancel().await.expect("it is closed");
    });
    drop(runtime);
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn progress_adds_up_to_the_answer_and_only_where_it_was_asked_for() {
    let mut mcp = Mcp::start(command(&[]));
    mcp.call(1, "generate", &greedy(8));
    let first = mcp.next().expect("a message");
    assert_eq!(first["id"], 1, "no progress was requested: {first}");
    let whole = text(&first).to_string();
    let params = json!({ "name": "generate", "arguments": greedy(8), "_meta": { "progressToken": "p" } });
    mcp.ask(2, "tools/call", &params);
    let (mut told, mut last) = (String::new(), 0.0);
    loop {
        let message = mcp.next().expect("a message");
        if message["id"] == 2 {
            assert_eq!((text(&message), told.as_str(), last), (whole.as_str(), whole.as_str(), 8.0));
            return;
        }
        let params = &message["params"];
        assert_eq!(
            (&message["method"], &params["progressToken"]),
            (&json!("notifications/progress"), &json!("p"))
        );
        assert_eq!(params["total"], 8.0);
        let progress = params["progress"].as_f64().expect("a number");
        assert!(progress > last, "{message}");
        last = progress;
        told.push_str(params["message"].as_str().unwrap_or_default());
    }
}

#[test]
fn whatever_is_sent_the_next_request_is_answered() {
    let mut mcp = Mcp::start(command(&["--verbose"]));
    let long = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"{}\"}}", "x".repeat(17 << 20));
    let deep = "[".repeat(200_000);
    let cases = [
        ("garbage", -32700),
        ("{\"jsonrpc\":\"2.0\",", -32700),
        (deep.as_str(), -32700),
        ("[1,2]", -32600),
        (long.as_str(), -32600),
        ("{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"no/such\"}", -32601),
        ("{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"tools/call\"}", -32602),
        ("{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"tools/call\",\"params\":{\"name\":\"no\"}}", -32602),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"tools/call\",\"params\":{\"name\":\"info\",\"arguments\":[]}}",
            -32602,
        ),
    ];
    for (line, code) in cases {
        mcp.send(line);
        let error = mcp.next().expect("an answer");
        assert_eq!(error["error"]["code"], code, "{}: {error}", &line[..line.len().min(80)]);
    }
    // An empty line is not a request, so there is no answer.
    mcp.send("");
    mcp.send(&json!({ "jsonrpc": "2.0", "id": 1, "result": {} }).to_string());
    mcp.send(&json!({ "jsonrpc": "2.0", "method": "no/such" }).to_string());
    mcp.send(
        &json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 99 } })
            .to_string(),
    );
    let wrong = [
        ("generate", json!({}), "prompt: is missing"),
        ("generate", json!({ "prompt": 7 }), "prompt: use a string"),
        ("generate", json!({ "prompt": "a", "max_tokens": -2 }), "max_tokens: use a whole number"),
        ("generate", json!({ "prompt": "a", "max_tokens": 1e300 }), "max_tokens: use a whole number"),
        ("generate", json!({ "prompt": "a", "stream": true }), "stream: unknown argument"),
        ("generate", json!({ "prompt": "a", "grammar": "root ::=" }), "grammar"),
        ("generate", json!({ "prompt": "a ".repeat(100_000) }), "context_length_exceeded"),
        ("generate", json!({ "prompt": "a".repeat(9 << 20) }), "request_too_large"),
        ("chat", json!({}), "messages: is missing"),
        ("chat", json!({ "messages": [] }), "messages"),
        ("chat", json!({ "messages": [{ "content": "a" }] }), "messages[0].role"),
        ("embed", json!({}), "texts: is missing"),
        ("embed", json!({ "texts": [7] }), "texts"),
        ("tokenize", json!({}), "text: is missing"),
        ("tokenize", json!({ "text": 7 }), "text: use a string"),
        ("info", json!({ "a": 1 }), "info takes no arguments"),
    ];
    for (tool, arguments, words) in wrong {
        mcp.call(6, tool, &arguments);
        let answer = mcp.next().expect("an answer");
        let told = answer["result"]["content"][0]["text"].as_str().unwrap_or_default();
        assert!(answer["result"]["isError"] == true && told.contains(words), "{tool} {words}: {answer}");
    }
    mcp.call(7, "generate", &greedy(3));
    text(&mcp.answer(7));
}

#[test]
fn a_text_that_the_time_limit_ended_is_an_error() {
    let mut mcp = Mcp::start(command(&["-c", "65536"]));
    let endless = json!({ "prompt": "a", "max_tokens": 60_000, "grammar": LONG, "timeout_s": 1 });
    mcp.call(1, "generate", &endless);
    let result = &mcp.answer(1)["result"];
    assert_eq!(
        (&result["isError"], &result["structuredContent"]["stop"]),
        (&json!(true), &json!("deadline"))
    );
    assert_eq!(result["content"][0]["text"], result["structuredContent"]["text"]);
    let why = result["content"][1]["text"].as_str().unwrap_or_default();
    assert!(why.contains("incomplete") && why.contains("timeout_s"), "{why}");
}

#[test]
fn a_call_that_is_cancelled_ends_and_gets_no_answer() {
    let mut mcp = Mcp::start(command(&["--slots", "1", "-c", "65536"]));
    let endless = json!({ "prompt": "a", "max_tokens": 60_000, "grammar": LONG });
    mcp.ask(
        1,
        "tools/call",
        &json!({ "name": "generate", "arguments": endless, "_meta": { "progressToken": 1 } }),
    );
    assert_eq!(mcp.next().expect("it began")["method"], "notifications/progress");
    mcp.send(
        &json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 1 } })
            .to_string(),
    );
    // The server has only one slot, which the cancelled call must have released.
    mcp.call(2, "generate", &greedy(3));
    loop {
        let message = mcp.next().expect("an answer");
        assert_ne!(message["id"], 1, "{message}");
        if message["id"] == 2 {
            text(&message);
            return;
        }
    }
}

#[test]
fn the_end_of_stdin_is_the_end_but_what_was_asked_is_answered() {
    let mut mcp = Mcp::start(command(&[]));
    for id in 1..=6 {
        mcp.call(id, "generate", &greedy(20));
    }
    drop(mcp.stdin.take());
    let mut found: Vec<u64> =
        std::iter::from_fn(|| mcp.next()).filter_map(|message| message["id"].as_u64()).collect();
    found.sort_unstable();
    assert_eq!(found, [1, 2, 3, 4, 5, 6]);
    assert_eq!(mcp.code(), Some(0));

    // The input ends before the handshake, or is empty.
    let mut nothing = command(&[]).stdin(Stdio::null()).spawn().expect("the executable runs");
    let mut stdout = String::new();
    nothing.stdout.take().expect("piped").read_to_string(&mut stdout).expect("text");
    assert_eq!((nothing.wait().expect("it ends").code(), stdout.as_str()), (Some(0), ""));
}

#[test]
fn a_signal_is_the_end_and_what_runs_is_answered() {
    for signal in ["TERM", "INT"] {
        let mut mcp = Mcp::start(command(&["-c", "16384"]));
        mcp.ask(
            1,
            "tools/call",
            &json!({ "name": "generate", "arguments": greedy(200), "_meta": { "progressToken": 1 } }),
        );
        assert_eq!(mcp.next().expect("it began")["method"], "notifications/progress");
        let status = Command::new("kill").args([format!("-{signal}"), mcp.child.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
        text(&mcp.answer(1));
        assert_eq!(mcp.next(), None);
        assert_eq!(mcp.code(), Some(0), "{signal}");
    }
}

#[test]
fn a_model_that_is_not_there_is_told() {
    let mut child = crate::common::command()
        .args(["mcp", "-m", "/nowhere/model.gguf"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the executable runs");
    let (mut stdout, mut stderr) = (String::new(), String::new());
    child.stdout.take().expect("piped").read_to_string(&mut stdout).expect("text");
    child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("text");
    assert_eq!((child.wait().expect("it ends").code(), stdout.as_str()), (Some(1), ""));
    assert!(stderr.contains("/nowhere/model.gguf"), "{stderr}");
}

#[test]
fn several_clients_share_a_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("a.sock");
    let connect = || {
        let mut command = crate::common::command();
        command.args(["mcp", "--connect"]).arg(&socket);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        command
    };
    // The client connects before the server is ready.
    let mut first = Mcp::start(connect());
    first.call(1, "generate", &greedy(4));
    let answer = first.answer(1);
    assert!(answer["result"]["isError"] == true && answer.to_string().contains("no answer from"), "{answer}");

    let mut server = crate::common::command();
    server.args(["serve", "--json", "-t", "1", "-m"]).arg(tiny()).arg("--socket").arg(&socket);
    let mut server =
        server.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the executable runs");
    let mut ready = String::new();
    BufReader::new(server.stdout.take().expect("piped")).read_line(&mut ready).expect("it is ready");
    let mut second = Mcp::start(connect());
    for (id, mcp) in [(2, &mut first), (3, &mut second)] {
        mcp.call(id, "generate", &greedy(4));
        text(&mcp.answer(id));
    }
    server.kill().and_then(|()| server.wait()).expect("it ends");
    second.call(4, "info", &json!({}));
    let answer = second.answer(4);
    assert!(answer["result"]["isError"] == true, "{answer}");
    drop(second.stdin.take());
    assert_eq!(second.code(), Some(0));
    let status = Command::new("kill").args(["-TERM", &first.child.id().to_string()]).status();
    assert!(status.expect("kill runs").success());
    assert_eq!(first.code(), Some(0));
}
