//! Transports messages on stdin and stdout, one message per line.
//!
//! Unlike rmcp's own transport, this one answers invalid messages with an error, and lets calls finish after stdin has
//! closed.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::thread::Builder;
use std::time::Duration;

use llama::error::{Error, Result};
use rmcp::RoleServer;
use rmcp::model::{ClientNotification, ClientRequest, ErrorCode, JsonRpcMessage, RequestId};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};

/// Maximum size of a message, in bytes.
const LONGEST: usize = 16 << 20;

/// Maximum number of messages that are read ahead.
const AHEAD: usize = 16;

/// Maximum number of simultaneous calls; further calls are refused.
const CALLS: usize = 256;

/// Maximum time that calls may continue after stdin has closed or a signal has arrived.
pub const LAST: Duration = Duration::from_secs(30);

/// Line of stdin.
#[derive(Debug, PartialEq)]
enum InputLine {
    Whole(Vec<u8>),
    TooLong,
}

/// Message for stdout, with the channel that reports the result of the write.
type Outgoing = (Vec<u8>, oneshot::Sender<io::Result<()>>);

/// Transport on stdin and stdout.
pub struct Stdio {
    lines: mpsc::Receiver<InputLine>,
    out: mpsc::Sender<Outgoing>,
    /// IDs of requests that have not been answered yet.
    open: watch::Sender<HashSet<RequestId>>,
    /// True once a request that can begin a session was received.
    begun: bool,
    /// Time at which unfinished calls are abandoned, after stdin has closed.
    until: Option<Instant>,
}

impl Stdio {
    /// Starts reading stdin and writing to `protocol`.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(protocol: File) -> Result<Self> {
        let (read, lines) = mpsc::channel(AHEAD);
        let (out, written) = mpsc::channel(AHEAD);
        let failed = |why: io::Error| Error::Serve(format!("cannot start a thread for the protocol: {why}"));
        // The threads are not joined at the end, because reading stdin cannot be interrupted.
        let reading = Builder::new().name("mcp-stdin".to_string());
        reading.spawn(move || read_lines(io::stdin().lock(), &read)).map_err(failed)?;
        let writing = Builder::new().name("mcp-stdout".to_string());
        writing.spawn(move || write_lines(protocol, written)).map_err(failed)?;
        Ok(Stdio { lines, out, open: watch::Sender::new(HashSet::new()), begun: false, until: None })
    }

    /// Returns the IDs of requests that have not been answered yet.
    pub fn open(&self) -> watch::Receiver<HashSet<RequestId>> {
        self.open.subscribe()
    }

    /// Parses `line`. Returns a message, nothing, or an error to send back to the client.
    fn read(&mut self, line: InputLine) -> Read {
        let wrong = |code: ErrorCode, id: Option<&Value>, message: String| {
            let id = id.filter(|id| is_id(id));
            let error = json!({ "code": code.0, "message": message });
            Read::Wrong(json!({ "jsonrpc": "2.0", "id": id, "error": error }))
        };
        let bytes = match line {
            InputLine::Whole(bytes) => bytes,
            InputLine::TooLong => {
                let message = format!("the message is longer than {LONGEST} bytes");
                return wrong(ErrorCode::INVALID_REQUEST, None, message);
            }
        };
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Read::Nothing;
        }
        let value: Value = match serde_json::from_slice(&bytes) {
            Ok(value) => value,
            Err(why) => return wrong(ErrorCode::PARSE_ERROR, None, format!("invalid JSON: {why}")),
        };
        let (id, method) = (value.get("id").cloned(), value.get("method").cloned());
        let is_request = value.get("jsonrpc").is_some_and(|version| version == "2.0")
            && id.as_ref().is_some_and(is_id)
            && method.as_ref().is_some_and(Value::is_string);
        let message: RxJsonRpcMessage<RoleServer> = match serde_json::from_value(value) {
            Ok(message) => message,
            // Notifications are never answered.
            Err(_) if id.is_none() && method.as_ref().is_some_and(Value::is_string) => return Read::Nothing,
            Err(_) if is_request => {
                let method = method.as_ref().and_then(Value::as_str).unwrap_or_default();
                let method: String = method.chars().take(60).collect();
                let message = format!("invalid parameters for {method:?}");
                return wrong(ErrorCode::INVALID_PARAMS, id.as_ref(), message);
            }
            Err(_) => {
                let message = "not a JSON-RPC 2.0 message: send one request or notification per line";
                return wrong(ErrorCode::INVALID_REQUEST, id.as_ref(), message.to_string());
            }
        };
        match &message {
            JsonRpcMessage::Request(request) => {
                self.begun |= !matches!(request.request, ClientRequest::PingRequest(_));
                if self.open.borrow().len() >= CALLS {
                    let message =
                        format!("too many requests: {CALLS} are being answered; wait for an answer");
                    return wrong(ErrorCode::INTERNAL_ERROR, id.as_ref(), message);
                }
                self.open.send_modify(|open| _ = open.insert(request.id.clone()));
            }
            JsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) = &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                {
                    // A cancelled request is never answered.
                    self.open.send_modify(|open| _ = open.remove(id));
                }
                if !self.begun {
                    return Read::Nothing;
                }
            }
            // Responses are ignored, because the server sends no requests.
            JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => return Read::Nothing,
        }
        Read::Message(Box::new(message))
    }

    /// Called when stdin has closed. Completes when every request has its answer, or after a time limit.
    async fn finish(&mut self) {
        let until = *self.until.get_or_insert_with(|| Instant::now() + LAST);
        let _ = timeout_at(until, self.open.subscribe().wait_for(HashSet::is_empty)).await;
    }
}

/// Parsed line.
enum Read {
    Message(Box<RxJsonRpcMessage<RoleServer>>),
    Wrong(Value),
    Nothing,
}

/// True if `id` is a valid request ID.
fn is_id(id: &Value) -> bool {
    id.is_string() || id.is_i64() || id.is_u64()
}

impl Transport<RoleServer> for Stdio {
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let (out, open) = (self.out.clone(), self.open.clone());
        async move {
            let id = match &message {
                JsonRpcMessage::Response(response) => Some(response.id.clone()),
                JsonRpcMessage::Error(error) => error.id.clone(),
                JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => None,
            };
            let sent = put(&out, &message).await;
            if let Some(id) = id {
                open.send_modify(|open| _ = open.remove(&id));
            }
            sent
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            // If nothing reads the answers, the client has ended.
            let line = tokio::select! {
                line = self.lines.recv() => line,
                () = self.out.closed() => return None,
            };
            let Some(line) = line else {
                self.finish().await;
                return None;
            };
            match self.read(line) {
                Read::Message(message) => return Some(*message),
                // Sent in a separate task, because this future may be cancelled at any time.
                Read::Wrong(error) => {
                    let out = self.out.clone();
                    tokio::spawn(async move { put(&out, &error).await });
                }
                Read::Nothing => {}
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends `message`, and waits until it is written.
async fn put(out: &mpsc::Sender<Outgoing>, message: &impl serde::Serialize) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(message)?;
    bytes.push(b'\n');
    let (written, result) = oneshot::channel();
    let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
    out.send((bytes, written)).await.map_err(|_| gone())?;
    result.await.map_err(|_| gone())?
}

fn write_lines(mut out: impl Write, mut messages: mpsc::Receiver<Outgoing>) {
    while let Some((bytes, written)) = messages.blocking_recv() {
        let result = out.write_all(&bytes).and_then(|()| out.flush());
        let is_over = result.is_err();
        let _ = written.send(result);
        if is_over {
            return;
        }
    }
}

fn read_lines(mut input: impl BufRead, lines: &mpsc::Sender<InputLine>) {
    let mut line = Vec::new();
    let mut is_too_long = false;
    loop {
        let bytes = match input.fill_buf() {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        let (end, taken) = match bytes.iter().position(|byte| *byte == b'\n') {
            Some(at) => (true, at + 1),
            None => (bytes.is_empty(), bytes.len()),
        };
        let is_last = bytes.is_empty();
        is_too_long |= line.len() + taken > LONGEST;
        if !is_too_long {
            line.extend_from_slice(&bytes[..taken]);
        }
        input.consume(taken);
        if !end {
            continue;
        }
        let next = match std::mem::take(&mut is_too_long) {
            true => InputLine::TooLong,
            false => InputLine::Whole(std::mem::take(&mut line)),
        };
        line.clear();
        let is_empty = matches!(&next, InputLine::Whole(bytes) if bytes.is_empty());
        if (!is_empty && lines.blocking_send(next).is_err()) || is_last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stdio() -> Stdio {
        let (_, lines) = mpsc::channel(1);
        let (out, _) = mpsc::channel(1);
        Stdio { lines, out, open: watch::Sender::new(HashSet::new()), begun: true, until: None }
    }

    #[test]
    fn what_is_no_message_is_answered_with_an_error() {
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        let cases: [(&[u8], i64, Value, &str); 10] = [
            (b"x", -32700, Value::Null, "invalid JSON"),
            (b"{\"jsonrpc\":\"2.0\"", -32700, Value::Null, "invalid JSON"),
            (b"\xff\xfe", -32700, Value::Null, "invalid JSON"),
            (deep.as_bytes(), -32700, Value::Null, "recursion limit"),
            (b"7", -32600, Value::Null, "not a JSON-RPC"),
            (b"[]", -32600, Value::Null, "not a JSON-RPC"),
            (br#"{"jsonrpc":"1.0","id":3,"method":"ping"}"#, -32600, json!(3), "not a JSON-RPC"),
            (br#"{"jsonrpc":"2.0","id":"a"}"#, -32600, json!("a"), "not a JSON-RPC"),
            (br#"{"jsonrpc":"2.0","id":{"a":1},"method":"ping"}"#, -32600, Value::Null, "not a JSON-RPC"),
            (
                br#"{"jsonrpc":"2.0","id":4,"method":"tools/call","params":7}"#,
                -32602,
                json!(4),
                "\"tools/call\"",
            ),
        ];
        for (bytes, code, id, words) in cases {
            let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
            let Read::Wrong(error) = stdio().read(InputLine::Whole(bytes.to_vec())) else {
                panic!("{shown} was taken");
            };
            assert_eq!((&error["error"]["code"], &error["id"]), (&json!(code), &id), "{shown}: {error}");
            assert!(error["error"]["message"].as_str().is_some_and(|text| text.contains(words)), "{error}");
        }
        let Read::Wrong(error) = stdio().read(InputLine::TooLong) else { panic!("it was taken") };
        assert_eq!(error["error"]["code"], -32600);
    }

    #[test]
    fn notifications_and_blanks_get_no_answer() {
        let lines: [&[u8]; 3] = [
            b" \r",
            br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":7}"#,
            br#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
        ];
        for line in lines {
            let read = stdio().read(InputLine::Whole(line.to_vec()));
            assert!(matches!(read, Read::Nothing), "{}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn too_many_at_a_time_are_refused_and_the_cancelled_do_not_count() {
        let mut stdio = stdio();
        let request = |id: usize| {
            let request = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/list" });
            InputLine::Whole(request.to_string().into_bytes())
        };
        for id in 0..CALLS {
            assert!(matches!(stdio.read(request(id)), Read::Message(_)), "{id}");
        }
        assert!(matches!(stdio.read(request(CALLS)), Read::Wrong(_)));
        let cancel = json!({
            "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 3 },
        });
        assert!(matches!(stdio.read(InputLine::Whole(cancel.to_string().into_bytes())), Read::Message(_)));
        assert!(matches!(stdio.read(request(CALLS)), Read::Message(_)));
    }

    #[test]
    fn lines_are_cut_at_their_ends_and_long_ones_told() {
        let read = |bytes: &[u8]| {
            let (sender, mut lines) = mpsc::channel(8);
            read_lines(bytes, &sender);
            drop(sender);
            std::iter::from_fn(|| lines.blocking_recv()).collect::<Vec<_>>()
        };
        let whole = |text: &str| InputLine::Whole(text.as_bytes().to_vec());
        assert_eq!(read(b""), []);
        assert_eq!(read(b"a\nb"), [whole("a\n"), whole("b")]);
        let long = [vec![b'x'; LONGEST + 1], b"\nc\n".to_vec()].concat();
        assert_eq!(read(&long), [InputLine::TooLong, whole("c\n")]);
    }
}
