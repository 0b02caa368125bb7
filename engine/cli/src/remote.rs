//! Client of a running server: over its Unix socket, over TCP, or from inside the server's process.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;
use std::{fmt, io};

use axum::body::{Body, to_bytes};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use axum::http::{Method, Request, StatusCode};
use hyper::body::Body as _;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use server::listen;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Sender of connections from inside the process, to [`connection::inside`](server::connection::inside).
pub type Door = mpsc::UnboundedSender<StdUnixStream>;

/// Address of a server.
#[derive(Clone, Debug)]
pub enum ServerAddress {
    /// Unix socket.
    Socket(PathBuf),
    /// TCP address, with an optional API key.
    Address {
        /// Host and port as `HOST:PORT`.
        authority: String,
        /// API key.
        key: Option<String>,
    },
    /// Server in this process.
    Inside(Door),
}

/// Reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The server does not answer.
    #[error("no answer from {place}: {why}")]
    Gone {
        /// Address that was used.
        place: String,
        /// Cause of the failure.
        why: String,
        /// True if the server accepted the connection.
        connected: bool,
    },
    /// The server refused the request.
    #[error("{message}")]
    Refused {
        /// Error code for programs.
        code: String,
        /// Message for people.
        message: String,
    },
    /// The peer is not an Anneal server, or has a different version.
    #[error(
        "unexpected answer from {place}: {why}\nhint: check that this address belongs to an Anneal server of the same \
         version"
    )]
    Odd {
        /// Address that was used.
        place: String,
        /// Explanation of the mismatch.
        why: String,
    },
}

/// Result of a request to a server.
pub type Result<T> = std::result::Result<T, Failure>;

/// Stream of a connection.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Limits that decide when a server is considered unreachable, or considered not to be an Anneal server.
#[derive(Clone, Copy, Debug)]
struct PeerLimits {
    /// Time limit for connecting.
    connect: Duration,
    /// Time limit for answers that need no model, such as status and health.
    answer: Duration,
    /// Time without data, in an answer that needs a model, after which the client queries the server's health.
    silence: Duration,
    /// Number of consecutive failed connections for health queries after which a TCP server is considered
    /// unreachable.
    refusals: u32,
    /// Maximum size of an answer or a line, in bytes.
    longest: usize,
}

/// Maximum length in bytes of a line in [`ServerAddress::text_lines`].
const LONGEST_LINE: usize = 1 << 20;

/// Sender of requests on a connection.
type Sender = http1::SendRequest<Body>;

/// Limits in normal use. The time between tokens has no limit: a long prompt on a CPU, a queue, or an answer in a
/// single line may take hours. Instead, the client queries the health of a server that was silent for five minutes. A
/// server answers this query within milliseconds, even while it computes. A server that does not answer within half a
/// minute is considered hung. After a server creates its socket, it does not answer until its first model is loaded;
/// five minutes are enough to load 40 GB from a hard disk. A machine accepts a connection in far less than ten seconds,
/// even from the other side of the world. The embeddings for a full request are tens of megabytes.
const LIMITS: PeerLimits = PeerLimits {
    connect: Duration::from_secs(10),
    answer: Duration::from_secs(30),
    silence: Duration::from_secs(300),
    refusals: 3,
    longest: 256 << 20,
};

impl fmt::Display for ServerAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerAddress::Socket(path) => write!(formatter, "{}", path.display()),
            ServerAddress::Address { authority, .. } => write!(formatter, "http://{authority}"),
            ServerAddress::Inside(_) => write!(formatter, "the server in this process"),
        }
    }
}

impl ServerAddress {
    /// Parses an address: the path of a socket, `http://HOST:PORT`, or an IP address with a port. Without `text`,
    /// returns the default socket.
    ///
    /// # Errors
    /// If `text` is not a valid address. The message describes valid addresses.
    pub fn read(text: Option<&str>, key: Option<String>) -> std::result::Result<Self, String> {
        let Some(text) = text else {
            return listen::default_path().map(ServerAddress::Socket).map_err(|_| {
                "cannot find the default socket: XDG_RUNTIME_DIR is not set\nhint: specify a socket or an address, for \
                example /run/anneal.sock or http://127.0.0.1:8080"
                    .to_string()
            });
        };
        if text.starts_with("https://") {
            return Err(format!("{text}: anneal serve does not support TLS\nhint: use http, or a tunnel"));
        }
        let place = |authority: &str| Ok(ServerAddress::Address { authority: authority.to_string(), key });
        match text.strip_prefix("http://") {
            Some(rest) => match rest.trim_end_matches('/') {
                "" => Err(format!("{text}: the host is missing\nhint: use an address such as http://127.0.0.1:8080")),
                rest if rest.contains(['/', '@', '?', '#']) => {
                    Err(format!(
                        "{text}: the address must contain only a host and a port\nhint: use an address such as \
                         http://127.0.0.1:8080"
                    ))
                }
                authority
                    if authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) =>
                {
                    place(authority)
                }
                host => place(&format!("{host}:80")),
            },
            None if text.parse::<SocketAddr>().is_ok() => place(text),
            None if text.is_empty() => Err(
                "the server's address is empty\nhint: use a socket, or an address such as http://127.0.0.1:8080"
                    .to_string(),
            ),
            None => Ok(ServerAddress::Socket(PathBuf::from(text))),
        }
    }

    async fn connect(&self, limits: &PeerLimits) -> Result<Box<dyn Io>> {
        let connecting = async {
            match self {
                ServerAddress::Socket(path) => {
                    UnixStream::connect(path).await.map(|stream| Box::new(stream) as Box<dyn Io>)
                }
                ServerAddress::Address { authority, .. } => {
                    TcpStream::connect(authority).await.map(|stream| Box::new(stream) as Box<dyn Io>)
                }
                ServerAddress::Inside(door) => enter(door).map(|stream| Box::new(stream) as Box<dyn Io>),
            }
        };
        match timeout(limits.connect, connecting).await {
            Ok(connected) => connected.map_err(|why| self.not_connected(&why)),
            Err(_) => {
                let why = format_args!("the server accepted no connection within {:?}", limits.connect);
                Err(self.not_connected(&why))
            }
        }
    }

    fn gone(&self, why: &dyn fmt::Display) -> Failure {
        Failure::Gone { place: self.to_string(), why: why.to_string(), connected: true }
    }

    fn not_connected(&self, why: &dyn fmt::Display) -> Failure {
        Failure::Gone { place: self.to_string(), why: why.to_string(), connected: false }
    }

    fn odd(&self, why: &dyn fmt::Display) -> Failure {
        Failure::Odd { place: self.to_string(), why: why.to_string() }
    }

    /// Returns the answer to `GET path`. `path` must be an endpoint that needs no model.
    ///
    /// # Errors
    /// If the server does not answer, or refuses the request.
    pub async fn get(&self, path: &str) -> Result<Value> {
        self.get_within(path, &LIMITS).await
    }

    async fn get_within(&self, path: &str, limits: &PeerLimits) -> Result<Value> {
        let asked = self.http(Method::GET, path, Body::empty(), limits);
        // A server in this process answers no request before the model is loaded.
        if matches!(self, ServerAddress::Inside(_)) {
            return asked.await;
        }
        let late = |_| {
            let answer = limits.answer;
            Err(self.gone(&format_args!(
                "no answer for {answer:?}: the server is unresponsive, or is still loading its model"
            )))
        };
        timeout(limits.answer, asked).await.unwrap_or_else(late)
    }

    /// Returns the answer to `POST path` with `body`.
    ///
    /// # Errors
    /// If the server does not answer, or refuses the request.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.post_within(path, body, &LIMITS).await
    }

    async fn post_within(&self, path: &str, body: &Value, limits: &PeerLimits) -> Result<Value> {
        let asked = self.http(Method::POST, path, Body::from(body.to_string()), limits);
        self.while_it_is_well(limits, asked).await
    }

    /// Waits for the result of `work`. Fails if the server becomes unresponsive.
    async fn while_it_is_well<T>(
        &self,
        limits: &PeerLimits,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        // A server in this process cannot fail independently of the client.
        if matches!(self, ServerAddress::Inside(_)) {
            return work.await;
        }
        let mut work = std::pin::pin!(work);
        let mut refused = 0;
        loop {
            if let Ok(done) = timeout(limits.silence, &mut work).await {
                return done;
            }
            // A machine that accepts no connections is treated like a machine that does not answer.
            let patient = PeerLimits { connect: 2 * limits.answer, ..*limits };
            let health = timeout(limits.answer, self.http(Method::GET, "/health", Body::empty(), &patient));
            tokio::select! {
                biased;
                done = &mut work => return done,
                // Any answer shows that the server is alive. A few refused connections are tolerated, because a server
                // that is shutting down accepts no connections but finishes its work. A machine that has restarted no
                // longer knows this connection, so it never reports the connection's end.
                asked = health => {
                    // An answer with an error also shows that the server is alive.
                    refused = if matches!(asked, Ok(Err(Failure::Gone { .. }))) { refused + 1 } else { 0 };
                    let is_gone = refused >= limits.refusals && matches!(self, ServerAddress::Address { .. });
                    let (silence, answer) = (limits.silence, limits.answer);
                    if asked.is_err() {
                        return Err(self.gone(&format_args!(
                            "no answer for {silence:?}, and none from /health for {answer:?}: the server is \
                            unresponsive, or is still loading its model"
                        )));
                    }
                    if is_gone {
                        return Err(self.gone(&format_args!(
                            "no answer for {:?}, and the server no longer accepts connections",
                            silence * refused
                        )));
                    }
                },
            }
        }
    }

    async fn http(&self, method: Method, path: &str, body: Body, limits: &PeerLimits) -> Result<Value> {
        let (mut sender, connection) = self.handshake(limits).await?;
        let request = self.request(method, path, body)?;
        let answered = async {
            let response = sender.send_request(request).await.map_err(|why| self.gone(&why))?;
            let status = response.status();
            let bytes = to_bytes(Body::new(response.into_body()), limits.longest).await;
            Ok((status, bytes.map_err(|why| self.gone(&why))?))
        };
        let (status, bytes) = drive(answered, connection).await?;
        let value: Value = serde_json::from_slice(&bytes)
            .map_err(|_| self.odd(&format_args!("status {status} without JSON")))?;
        // Status 503 is an ordinary answer from /health; only a refusal has the key `error`.
        match value.get("error") {
            Some(error) => Err(refused(error)),
            None => Ok(value),
        }
    }

    fn request(&self, method: Method, path: &str, body: Body) -> Result<Request<Body>> {
        let (host, key) = match self {
            ServerAddress::Address { authority, key } => (authority.as_str(), key.as_deref()),
            _ => ("localhost", None),
        };
        let mut request = Request::builder().method(method).uri(path).header(HOST, host);
        request = request.header(CONTENT_TYPE, "application/json");
        if let Some(key) = key {
            request = request.header(AUTHORIZATION, format!("Bearer {key}"));
        }
        request.body(body).map_err(|why| self.odd(&why))
    }

    async fn handshake(&self, limits: &PeerLimits) -> Result<(Sender, impl Future + use<>)> {
        let stream = self.connect(limits).await?;
        http1::handshake(TokioIo::new(stream)).await.map_err(|why| self.gone(&why))
    }

    /// Sends a request to a server of any kind, and passes each line of the answer to `line` until `line` returns
    /// false or the answer ends. `body` is the body of a `POST`; without a body, the request is a `GET`. Dropping the
    /// returned future closes the connection.
    ///
    /// # Errors
    /// If the server does not answer, or returns a status other than 200.
    pub async fn text_lines(
        &self,
        path: &str,
        body: Option<&Value>,
        mut line: impl FnMut(&str) -> bool,
    ) -> Result<()> {
        let (mut sender, connection) = self.handshake(&LIMITS).await?;
        let request = match body {
            Some(body) => self.request(Method::POST, path, Body::from(body.to_string()))?,
            None => self.request(Method::GET, path, Body::empty())?,
        };
        let answered = async {
            let response = sender.send_request(request).await.map_err(|why| self.gone(&why))?;
            let status = response.status();
            if status != StatusCode::OK {
                return Err(self.odd(&format_args!("status {status}")));
            }
            let mut frames = response.into_body();
            let mut rest = Vec::new();
            while let Some(frame) = poll_fn(|context| Pin::new(&mut frames).poll_frame(context)).await {
                let Ok(data) = frame.map_err(|why| self.gone(&why))?.into_data() else { continue };
                rest.extend_from_slice(&data);
                while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                    let whole: Vec<u8> = rest.drain(..=end).collect();
                    if !line(String::from_utf8_lossy(&whole).trim_end()) {
                        return Ok(());
                    }
                }
                if rest.len() > LONGEST_LINE {
                    return Err(self.odd(&format_args!("a line of more than {LONGEST_LINE} bytes")));
                }
            }
            line(&String::from_utf8_lossy(&rest));
            Ok(())
        };
        drive(answered, connection).await
    }

    /// Sends `request` as a line of JSON. Returns the lines of the answer. Dropping the returned value cancels the
    /// request.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub async fn lines(&self, request: &Value) -> Result<Lines> {
        self.lines_within(request, &LIMITS).await
    }

    async fn lines_within(&self, request: &Value, limits: &PeerLimits) -> Result<Lines> {
        let mut stream = self.connect(limits).await?;
        let mut line = request.to_string();
        line.push('\n');
        let sending = async {
            // An error is ignored: a server that refuses a long line may close the connection early, and its answer
            // then states the reason.
            let _ = stream.write_all(line.as_bytes()).await;
            Ok(())
        };
        self.while_it_is_well(limits, sending).await?;
        Ok(Lines { reader: BufReader::new(stream), place: self.clone(), limits: *limits })
    }
}

/// Opens a connection to the server behind `door`.
fn enter(door: &Door) -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    let over = |_| io::Error::new(io::ErrorKind::NotConnected, "the server is shutting down");
    door.send(theirs.into_std()?).map_err(over)?;
    Ok(ours)
}

/// Drives `connection` while waiting for `answered`.
async fn drive<T>(answered: impl Future<Output = T>, connection: impl Future) -> T {
    let (mut answered, mut connection) = (std::pin::pin!(answered), std::pin::pin!(connection));
    tokio::select! {
        biased;
        answer = &mut answered => return answer,
        _ = &mut connection => {}
    }
    answered.await
}

fn refused(error: &Value) -> Failure {
    let text = |name: &str| error[name].as_str().unwrap_or_default().to_string();
    Failure::Refused { code: text("code"), message: text("message") }
}

/// Lines of an answer.
pub struct Lines {
    reader: BufReader<Box<dyn Io>>,
    place: ServerAddress,
    limits: PeerLimits,
}

impl Lines {
    /// Returns the next line.
    ///
    /// # Errors
    /// If the line is a refusal, or if the answer has no further line.
    pub async fn next(&mut self) -> Result<Value> {
        let Lines { reader, place, limits } = self;
        let mut line = Vec::new();
        let mut bounded = reader.take(limits.longest as u64);
        let reading = async { bounded.read_until(b'\n', &mut line).await.map_err(|why| place.gone(&why)) };
        place.while_it_is_well(limits, reading).await?;
        if line.is_empty() {
            return Err(place.gone(&"the server closed the connection"));
        }
        if line.len() == limits.longest && !line.ends_with(b"\n") {
            return Err(place.odd(&format_args!("a line of more than {} bytes", limits.longest)));
        }
        let value: Value = serde_json::from_slice(&line).map_err(|why| place.odd(&why))?;
        match value.get("error") {
            Some(error) => Err(refused(error)),
            None => Ok(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_path_or_an_address() {
        let cases = [
            ("/run/a.sock", "/run/a.sock"),
            ("a.sock", "a.sock"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("http://localhost:8080/", "http://localhost:8080"),
            ("http://[::1]:80", "http://[::1]:80"),
            ("http://box", "http://box:80"),
            ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ];
        for (text, expected) in cases {
            assert_eq!(
                ServerAddress::read(Some(text), None).map(|place| place.to_string()),
                Ok(expected.to_string())
            );
        }
        for text in ["https://box", "http://", "http:///", "http://box/v1", "http://a@box:80", ""] {
            assert!(ServerAddress::read(Some(text), None).is_err(), "{text:?} was taken");
        }
    }

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(work)
    }

    /// Returns the result of `ServerAddress::get` for a server that sends `response`.
    fn answered(response: &'static [u8]) -> String {
        block_on(async {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("a.sock");
            let listener = tokio::net::UnixListener::bind(&path).expect("bound");
            let serve = async {
                let (mut stream, _) = listener.accept().await.expect("a client");
                let mut request = [0; 512];
                let _ = tokio::io::AsyncReadExt::read(&mut stream, &mut request).await;
                let _ = stream.write_all(response).await;
            };
            let place = ServerAddress::Socket(path);
            let (answer, ()) = tokio::join!(place.get("/status"), serve);
            answer.map_or_else(|error| error.to_string(), |value| value.to_string())
        })
    }

    #[test]
    fn what_is_answered_is_told_apart() {
        let cases: [(&[u8], &str); 5] = [
            (b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{\"a\":1}", "{\"a\":1}"),
            (
                b"HTTP/1.1 401 No\r\nContent-Length: 38\r\n\r\n{\"error\":{\"code\":\"c\",\"message\":\"why\"}}",
                "why",
            ),
            (b"HTTP/1.1 404 No\r\nContent-Length: 4\r\n\r\nnope", "unexpected answer from"),
            (b"220 mail.example ESMTP\r\n", "no answer from"),
            (b"", "no answer from"),
        ];
        for (response, expected) in cases {
            let found = answered(response);
            assert!(found.contains(expected), "{}: {found}", String::from_utf8_lossy(response));
        }
    }

    #[test]
    fn a_server_that_is_not_there_is_named() {
        let error =
            block_on(ServerAddress::Socket("/nowhere/a.sock".into()).get("/status")).expect_err("nobody");
        assert!(error.to_string().starts_with("no answer from /nowhere/a.sock: "), "{error}");
        let (door, receiver) = mpsc::unbounded_channel();
        drop(receiver);
        let error = block_on(ServerAddress::Inside(door).get("/status")).expect_err("nobody");
        assert!(error.to_string().contains("the server is shutting down"), "{error}");
    }

    /// Limits that are short enough for tests. Every tested address has a listener.
    const SHORT: PeerLimits = PeerLimits {
        connect: Duration::from_secs(10),
        answer: Duration::from_millis(50),
        silence: Duration::from_millis(20),
        refusals: 3,
        longest: 4096,
    };

    /// Returns the result of `ask` at a socket where `serve` handles each connection. `serve` receives the
    /// connection's number.
    fn asked_of<T, S: Future<Output = ()> + 'static>(
        serve: impl Fn(UnixStream, usize) -> S + 'static,
        ask: impl AsyncFnOnce(ServerAddress) -> T,
    ) -> T {
        block_on(async {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("a.sock");
            let listener = tokio::net::UnixListener::bind(&path).expect("bound");
            let all = tokio::task::LocalSet::new();
            all.spawn_local(async move {
                for number in 0.. {
                    let (stream, _) = listener.accept().await.expect("a client");
                    tokio::task::spawn_local(serve(stream, number));
                }
            });
            all.run_until(ask(ServerAddress::Socket(path))).await
        })
    }

    /// Holds a connection open without answering.
    async fn hang(stream: UnixStream, _: usize) {
        let _held = stream;
        std::future::pending().await
    }

    #[test]
    fn a_server_that_takes_connections_and_says_nothing_is_given_up() {
        let request = serde_json::json!({ "prompt": "x" });
        let state = asked_of(hang, async |place| place.get_within("/status", &SHORT).await);
        let error = state.expect_err("it hangs").to_string();
        assert!(error.contains("no answer for 50ms: the server is unresponsive"), "{error}");
        let posted = asked_of(hang, async |place| place.post_within("/tokenize", &request, &SHORT).await);
        // Send more bytes than the kernel buffers for a server that does not read.
        let long = serde_json::json!({ "prompt": "x".repeat(8 << 20) });
        let sent = asked_of(hang, async |place| place.lines_within(&long, &SHORT).await.map(|_| Value::Null));
        let read = asked_of(hang, async |place| place.lines_within(&request, &SHORT).await?.next().await);
        for answer in [posted, sent, read] {
            let error = answer.expect_err("it hangs").to_string();
            assert!(error.contains("no answer for 20ms, and none from /health for 50ms"), "{error}");
        }
    }

    #[test]
    fn a_server_that_is_well_may_take_its_time() {
        let line = asked_of(
            async |mut stream, number| {
                if number > 0 {
                    // This is the health query. Its answer ends the long work.
                    let _ = stream.read(&mut [0; 512]).await;
                    let _ = stream.write_all(b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\n{}").await;
                    return;
                }
                tokio::time::sleep(SHORT.silence * 5).await;
                let _ = stream.write_all(b"{\"done\":true}\n").await;
            },
            async |place| {
                place
                    .lines_within(&Value::Null, &PeerLimits { answer: LIMITS.answer, ..SHORT })
                    .await?
                    .next()
                    .await
            },
        );
        assert_eq!(line.expect("a line"), serde_json::json!({ "done": true }));
    }

    #[test]
    fn a_machine_that_knows_nothing_of_the_connection_any_more_is_given_up() {
        let error = block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
            let authority = listener.local_addr().expect("an address").to_string();
            let place = ServerAddress::Address { authority, key: None };
            let request = Value::Null;
            let asked = place.lines_within(&request, &SHORT);
            let (lines, taken) = tokio::join!(asked, async {
                let taken = listener.accept().await.expect("a client");
                // The connection stays open without a listener, as if the machine had disappeared.
                drop(listener);
                taken
            });
            let answer = lines.expect("sent").next().await;
            drop(taken);
            answer.expect_err("gone")
        });
        assert!(error.to_string().contains("no longer accepts connections"), "{error}");
    }

    #[test]
    fn a_server_at_an_address_that_refuses_in_words_is_well() {
        let line = block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
            let place = ServerAddress::Address {
                authority: listener.local_addr().expect("an address").to_string(),
                key: None,
            };
            let limits = PeerLimits { answer: LIMITS.answer, ..SHORT };
            let serve = async {
                let (mut work, _) = listener.accept().await.expect("a client");
                // Refuse more connections than the client tolerates.
                for _ in 0..=2 * limits.refusals {
                    let (mut health, _) = listener.accept().await.expect("a client");
                    let _ = health.read(&mut [0; 512]).await;
                    let refusal = b"HTTP/1.1 503 No\r\nContent-Length: 14\r\n\r\n{\"error\":\"no\"}";
                    let _ = health.write_all(refusal).await;
                }
                let _ = work.write_all(b"{\"done\":true}\n").await;
                work
            };
            let ask = async { place.lines_within(&Value::Null, &limits).await?.next().await };
            tokio::join!(ask, serve).0
        });
        assert_eq!(line.expect("a line"), serde_json::json!({ "done": true }));
    }

    #[test]
    fn a_line_without_end_is_not_kept() {
        let endless =
            async |mut stream: UnixStream, _| while stream.write_all(&[b'x'; 1024]).await.is_ok() {};
        let line =
            asked_of(endless, async |place| place.lines_within(&Value::Null, &SHORT).await?.next().await);
        let error = line.expect_err("too long").to_string();
        assert!(error.contains("a line of more than 4096 bytes"), "{error}");
    }
}
