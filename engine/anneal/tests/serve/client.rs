//! Server for tests, which ends with its test, and functions that send requests to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{self, tiny};

/// Time limit of each step of a test, long enough for a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Running server.
pub struct Server {
    pub child: Child,
    pub folder: tempfile::TempDir,
    pub ready: Value,
    _stdout: BufReader<ChildStdout>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the command `anneal serve` for the tiny model, on one thread, with the flags `more`.
pub fn command(more: &[&str]) -> Command {
    let mut command = common::command();
    command.args(["serve", "--json", "-t", "1", "-m"]).arg(tiny()).args(more);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

impl Server {
    /// Starts a server on a socket in a separate folder.
    pub fn start(more: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let socket = folder.path().join("a.sock");
        let mut command = command(more);
        command.arg("--socket").arg(socket);
        Self::with(command, folder)
    }

    /// Starts a server that listens at the address in `command`.
    pub fn with(mut command: Command, folder: tempfile::TempDir) -> Self {
        let mut child = command.spawn().expect("the executable runs");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("a line");
        let Ok(ready) = serde_json::from_str(&line) else {
            let mut stderr = String::new();
            let _ = child.stderr.take().map(|mut pipe| pipe.read_to_string(&mut stderr));
            panic!("it did not start: {stderr}");
        };
        Server { child, folder, ready, _stdout: stdout }
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("a.sock")
    }

    pub fn connect(&self) -> Lines {
        Lines::new(&self.socket())
    }

    /// Sends one request on a new connection and returns the answer.
    pub fn ask(&self, request: &Value) -> Value {
        self.connect().ask(request)
    }

    /// Returns the address on which the server listens for HTTP.
    pub fn address(&self) -> String {
        let listen = self.ready["listen"].as_str().expect("an address");
        listen.trim_start_matches("http://").to_string()
    }

    /// Returns the value of a metric.
    pub fn metric(&self, name: &str) -> f64 {
        let (_, _, text) =
            http(UnixStream::connect(self.socket()).expect("it listens"), "GET", "/metrics", &[], b"");
        let line =
            text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
        let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
        line.rsplit(' ').next().and_then(|number| number.parse().ok()).expect("a number")
    }

    /// True if the results for each token were bit-identical in every batch.
    pub fn is_batch_invariant(&self) -> bool {
        self.metric("anneal_batch_invariant") == 1.0
    }

    /// Waits until a metric has the value `value`.
    pub fn wait_for(&self, name: &str, value: f64) {
        let begin = Instant::now();
        while self.metric(name) != value {
            assert!(begin.elapsed() < PATIENCE, "{name} is {} and not {value}", self.metric(name));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends the signal `name` to the server.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
    }

    /// Waits until the server exits. Returns its exit code.
    pub fn code(&mut self) -> Option<i32> {
        common::code(&mut self.child, PATIENCE)
    }
}

/// Connection for requests as lines of JSON.
pub struct Lines {
    pub stream: UnixStream,
    reader: BufReader<UnixStream>,
}

impl Lines {
    pub fn new(path: &Path) -> Self {
        let stream = UnixStream::connect(path).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        let reader = BufReader::new(stream.try_clone().expect("a second handle"));
        Lines { stream, reader }
    }

    pub fn send(&mut self, line: &[u8]) {
        self.stream.write_all(line).and_then(|()| self.stream.write_all(b"\n")).expect("it is sent");
    }

    /// Returns the next line. `None` at the end of the stream.
    pub fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.reader.read_line(&mut line).expect("a line in time") {
            0 => None,
            _ => Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))),
        }
    }

    /// Sends `request` and returns the last line of its answer.
    pub fn ask(&mut self, request: &Value) -> Value {
        self.send(request.to_string().as_bytes());
        loop {
            let line = self.next().expect("an answer");
            if line.get("done").is_some() || line.get("error").is_some() {
                return line;
            }
        }
    }
}

/// Returns a greedy request.
pub fn greedy(prompt: &str, max_tokens: u32) -> Value {
    json!({ "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true })
}

/// Sends an HTTP request on a new connection. Returns the status, head and body of the response.
pub fn http(
    mut stream: impl Read + Write,
    method: &str,
    path: &str,
    headers: &[&str],
    body: &[u8],
) -> (u16, String, String) {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    if !body.is_empty() {
        head.push_str(&format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()));
    }
    for header in headers {
        head.push_str(&format!("{header}\r\n"));
    }
    head.push_str("\r\n");
    // A server that rejects a body may close the connection before the whole body is sent.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response);
    let response = String::from_utf8_lossy(&response).into_owned();
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {response:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let body = match head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        true => unchunked(body),
        false => body.to_string(),
    };
    (status, head.to_string(), body)
}

fn unchunked(mut body: &str) -> String {
    let mut text = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).expect("a length");
        text.push_str(&rest[..length]);
        body = rest[length..].trim_start_matches("\r\n");
    }
    text
}

/// Sends an HTTP request over TCP, like [`http`].
pub fn tcp(
    server: &Server,
    method: &str,
    path: &str,
    headers: &[&str],
    body: &[u8],
) -> (u16, String, String) {
    let stream = TcpStream::connect(server.address()).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    http(stream, method, path, headers, body)
}

/// Starts a server with the configuration `text`, in a folder with links to the tiny model. The links are named
/// `a.gguf` and so on.
pub fn configured(text: &str, links: &[&str]) -> Server {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for link in links {
        std::os::unix::fs::symlink(tiny(), folder.path().join(link)).expect("a link");
    }
    let config = folder.path().join("server_config.toml");
    std::fs::write(&config, text).expect("written");
    let mut command = common::command();
    command.args(["serve", "--json", "-t", "1", "--config"]).arg(&config);
    command.arg("--socket").arg(folder.path().join("a.sock"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Server::with(command, folder)
}

impl Server {
    /// Returns the status and the JSON at `path` over HTTP.
    pub fn get(&self, path: &str) -> (u16, Value) {
        let stream = UnixStream::connect(self.socket()).expect("it listens");
        let (status, _, body) = http(stream, "GET", path, &[], b"");
        (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}")))
    }

    /// Returns the status of the answer to `body` over HTTP, and the answer.
    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let stream = UnixStream::connect(self.socket()).expect("it listens");
        let (status, _, body) = http(stream, "POST", path, &[], body.to_string().as_bytes());
        (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}")))
    }

    /// Returns the events of a streamed answer to `body`, which must end normally.
    pub fn events(&self, path: &str, body: &Value) -> Vec<Value> {
        let stream = UnixStream::connect(self.socket()).expect("it listens");
        let (status, _, text) = http(stream, "POST", path, &[], body.to_string().as_bytes());
        assert_eq!(status, 200, "{text}");
        let mut parts: Vec<&str> = text.split_terminator("\n\n").collect();
        assert_eq!(parts.pop(), Some("data: [DONE]"));
        let read = |part: &str| serde_json::from_str(part.strip_prefix("data: ").expect("an event"));
        parts.into_iter().map(|part| read(part).expect("JSON")).collect()
    }
}
