//! A running server, asked from outside: over its Unix socket, over TCP, or from inside the process that it runs in.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::time::Duration;
use std::{fmt, io};

use axum::body::{Body, to_bytes};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use axum::http::{Method, Request};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use server::listen;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Where connections from inside the process go: [`connection::inside`](server::connection::inside) takes them.
pub type Door = mpsc::UnboundedSender<StdUnixStream>;

/// Where a server is.
#[derive(Clone, Debug)]
pub enum ServerAddress {
    /// At a Unix socket.
    Socket(PathBuf),
    /// At an address, `HOST:PORT`, which may want a key.
    Address {
        /// `HOST:PORT`.
        authority: String,
        /// The key.
        key: Option<String>,
    },
    /// In this process.
    Inside(Door),
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Nobody answers there.
    #[error("there is no answer from {place}: {why}")]
    Gone {
        /// Where.
        place: String,
        /// Why.
        why: String,
    },
    /// The server refuses, for a reason of its list.
    #[error("{message}")]
    Refused {
        /// As a program reads it.
        code: String,
        /// In words.
        message: String,
    },
    /// It is no server of ours, or another version.
    #[error(
        "{place} answers what this program does not understand: {why}; is an anneal serve of this version there?"
    )]
    Odd {
        /// Where.
        place: String,
        /// What.
        why: String,
    },
}

/// The answer, or why there is none.
pub type Result<T> = std::result::Result<T, Failure>;

/// A connection.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// What a server may take and say before it counts as gone or as none of ours.
#[derive(Clone, Copy, Debug)]
struct PeerLimits {
    /// Until a connection stands.
    connect: Duration,
    /// Until an answer that needs no model is there: its state, its health.
    answer: Duration,
    /// Without a word of what needs one, until it is asked whether it is well.
    silence: Duration,
    /// How often in a row of silences it may take no connection at an address before it is given up.
    refusals: u32,
    /// Bytes of the longest answer, or line of one, that is read.
    longest: usize,
}

/// There is no limit from token to token: a long prompt on a CPU, a queue before it, or an answer that comes as one line may
/// take hours. Instead a server that was silent for five minutes is asked for its health, which it tells within
/// milliseconds, also while it computes; one that does not within half a minute hangs. Only before its first model is loaded
/// it tells nothing (the socket is there already), and five minutes are enough for 40 GB from a hard disk. A machine takes a
/// connection in far less than ten seconds, also on the other side of the earth. Embeddings of a full request are tens of
/// megabytes.
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
    /// The place that `text` names: the path of a socket, `http://HOST:PORT`, or an address. Without it the default
    /// socket.
    ///
    /// # Errors
    /// What it should be, in words.
    pub fn read(text: Option<&str>, key: Option<String>) -> std::result::Result<Self, String> {
        let Some(text) = text else {
            return listen::default_path().map(ServerAddress::Socket).map_err(|_| {
                "no server named, and XDG_RUNTIME_DIR is not set, in which the default socket is: name a socket or an \
                 address, as in /run/anneal.sock or http://127.0.0.1:8080"
                    .to_string()
            });
        };
        if text.starts_with("https://") {
            return Err(format!("{text}: anneal serve speaks no TLS; ask it without, or through a tunnel"));
        }
        let place = |authority: &str| Ok(ServerAddress::Address { authority: authority.to_string(), key });
        match text.strip_prefix("http://") {
            Some(rest) => match rest.trim_end_matches('/') {
                "" => Err(format!("{text}: there is no host in it, as in http://127.0.0.1:8080")),
                rest if rest.contains(['/', '@', '?', '#']) => {
                    Err(format!("{text}: name host and port alone, as in http://127.0.0.1:8080"))
                }
                authority
                    if authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) =>
                {
                    place(authority)
                }
                host => place(&format!("{host}:80")),
            },
            None if text.parse::<SocketAddr>().is_ok() => place(text),
            None if text.is_empty() => Err("the name of the server is empty".to_string()),
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
            Ok(connected) => connected.map_err(|why| self.gone(&why)),
            Err(_) => {
                Err(self.gone(&format_args!("it does not take a connection within {:?}", limits.connect)))
            }
        }
    }

    fn gone(&self, why: &dyn fmt::Display) -> Failure {
        Failure::Gone { place: self.to_string(), why: why.to_string() }
    }

    fn odd(&self, why: &dyn fmt::Display) -> Failure {
        Failure::Odd { place: self.to_string(), why: why.to_string() }
    }

    /// What `GET path` answers, which needs no model.
    ///
    /// # Errors
    /// Where there is no answer, or a refusal.
    pub async fn get(&self, path: &str) -> Result<Value> {
        self.get_within(path, &LIMITS).await
    }

    async fn get_within(&self, path: &str, limits: &PeerLimits) -> Result<Value> {
        let asked = self.http(Method::GET, path, Body::empty(), limits);
        // In this process nothing is answered before the model is loaded.
        if matches!(self, ServerAddress::Inside(_)) {
            return asked.await;
        }
        let late = |_| {
            let answer = limits.answer;
            Err(self.gone(&format_args!("it says nothing for {answer:?}: it hangs, or loads its model")))
        };
        timeout(limits.answer, asked).await.unwrap_or_else(late)
    }

    /// What `POST path` with `body` answers.
    ///
    /// # Errors
    /// Where there is no answer, or a refusal.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.post_within(path, body, &LIMITS).await
    }

    async fn post_within(&self, path: &str, body: &Value, limits: &PeerLimits) -> Result<Value> {
        let asked = self.http(Method::POST, path, Body::from(body.to_string()), limits);
        self.while_it_is_well(limits, asked).await
    }

    /// Waits for `work`, which the server does, until that hangs.
    async fn while_it_is_well<T>(
        &self,
        limits: &PeerLimits,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        // What is in this process lives as long as it does.
        if matches!(self, ServerAddress::Inside(_)) {
            return work.await;
        }
        let mut work = std::pin::pin!(work);
        let mut refused = 0;
        loop {
            if let Ok(done) = timeout(limits.silence, &mut work).await {
                return done;
            }
            // A machine that takes no connection says nothing, either.
            let patient = PeerLimits { connect: 2 * limits.answer, ..*limits };
            let health = timeout(limits.answer, self.http(Method::GET, "/health", Body::empty(), &patient));
            tokio::select! {
                biased;
                done = &mut work => return done,
                // Any answer will do, and nobody there as well for a while: a server that is told to end takes nothing new, and
                // ends what it has. A machine that was started anew knows nothing of this connection, and never says so.
                asked = health => {
                    // An answer that refuses is one.
                    refused = if matches!(asked, Ok(Err(Failure::Gone { .. }))) { refused + 1 } else { 0 };
                    let is_gone = refused >= limits.refusals && matches!(self, ServerAddress::Address { .. });
                    let (silence, answer) = (limits.silence, limits.answer);
                    if asked.is_err() {
                        return Err(self.gone(&format_args!(
                            "it says nothing for {silence:?}, and asked for /health nothing for {answer:?}: it hangs, or \
                             loads its model"
                        )));
                    }
                    if is_gone {
                        return Err(self.gone(&format_args!(
                            "it says nothing for {:?}, and takes no connection any more",
                            silence * refused
                        )));
                    }
                },
            }
        }
    }

    async fn http(&self, method: Method, path: &str, body: Body, limits: &PeerLimits) -> Result<Value> {
        let (host, key) = match self {
            ServerAddress::Address { authority, key } => (authority.as_str(), key.as_deref()),
            _ => ("localhost", None),
        };
        let mut request = Request::builder().method(method).uri(path).header(HOST, host);
        request = request.header(CONTENT_TYPE, "application/json");
        if let Some(key) = key {
            request = request.header(AUTHORIZATION, format!("Bearer {key}"));
        }
        let request = request.body(body).map_err(|why| self.odd(&why))?;
        let stream = self.connect(limits).await?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|why| self.gone(&why))?;
        let answered = async {
            let response = sender.send_request(request).await.map_err(|why| self.gone(&why))?;
            let status = response.status();
            let bytes = to_bytes(Body::new(response.into_body()), limits.longest).await;
            Ok((status, bytes.map_err(|why| self.gone(&why))?))
        };
        let (status, bytes) = drive(answered, connection).await?;
        let value: Value =
            serde_json::from_slice(&bytes).map_err(|_| self.odd(&format_args!("{status}, without JSON")))?;
        // 503 of /health is an answer like any other; what is refused says so.
        match value.get("error") {
            Some(error) => Err(refused(error)),
            None => Ok(value),
        }
    }

    /// Sends `request` as a line of JSON. What comes back are the lines of its answer; who drops these ends the request.
    ///
    /// # Errors
    /// Where nobody takes it.
    pub async fn lines(&self, request: &Value) -> Result<Lines> {
        self.lines_within(request, &LIMITS).await
    }

    async fn lines_within(&self, request: &Value, limits: &PeerLimits) -> Result<Lines> {
        let mut stream = self.connect(limits).await?;
        let mut line = request.to_string();
        line.push('\n');
        let sending = async {
            // A server that refuses a long line may close before it has read all of it, and its answer says why.
            let _ = stream.write_all(line.as_bytes()).await;
            Ok(())
        };
        self.while_it_is_well(limits, sending).await?;
        Ok(Lines { reader: BufReader::new(stream), place: self.clone(), limits: *limits })
    }
}

/// A connection to the server behind `door`.
fn enter(door: &Door) -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    let over = |_| io::Error::new(io::ErrorKind::NotConnected, "it is shutting down");
    door.send(theirs.into_std()?).map_err(over)?;
    Ok(ours)
}

/// Waits for `answered`, for which `connection` has to be kept going.
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

/// The lines of an answer.
pub struct Lines {
    reader: BufReader<Box<dyn Io>>,
    place: ServerAddress,
    limits: PeerLimits,
}

impl Lines {
    /// The next one.
    ///
    /// # Errors
    /// Where it is a refusal, or there is none.
    pub async fn next(&mut self) -> Result<Value> {
        let Lines { reader, place, limits } = self;
        let mut line = Vec::new();
        let mut bounded = reader.take(limits.longest as u64);
        let reading = async { bounded.read_until(b'\n', &mut line).await.map_err(|why| place.gone(&why)) };
        place.while_it_is_well(limits, reading).await?;
        if line.is_empty() {
            return Err(place.gone(&"it closed the connection"));
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

    /// What `ServerAddress::get` says of a server that answers `response`.
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
            (b"HTTP/1.1 404 No\r\nContent-Length: 4\r\n\r\nnope", "does not understand: 404 Not Found, without JSON"),
            (b"220 mail.example ESMTP\r\n", "there is no answer from"),
            (b"", "there is no answer from"),
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
        assert!(error.to_string().starts_with("there is no answer from /nowhere/a.sock: "), "{error}");
        let (door, receiver) = mpsc::unbounded_channel();
        drop(receiver);
        let error = block_on(ServerAddress::Inside(door).get("/status")).expect_err("nobody");
        assert!(error.to_string().contains("it is shutting down"), "{error}");
    }

    /// Limits that a test can wait for; connecting is to something that listens.
    const SHORT: PeerLimits = PeerLimits {
        connect: Duration::from_secs(10),
        answer: Duration::from_millis(50),
        silence: Duration::from_millis(20),
        refusals: 3,
        longest: 4096,
    };

    /// What `ask` comes to at a socket where `serve` has each connection, with its number.
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

    /// Holds a connection, and says nothing.
    async fn hang(stream: UnixStream, _: usize) {
        let _held = stream;
        std::future::pending().await
    }

    #[test]
    fn a_server_that_takes_connections_and_says_nothing_is_given_up() {
        let request = serde_json::json!({ "prompt": "x" });
        let state = asked_of(hang, async |place| place.get_within("/status", &SHORT).await);
        let error = state.expect_err("it hangs").to_string();
        assert!(error.contains("it says nothing for 50ms: it hangs"), "{error}");
        let posted = asked_of(hang, async |place| place.post_within("/tokenize", &request, &SHORT).await);
        // More than the kernel takes for a server that reads nothing.
        let long = serde_json::json!({ "prompt": "x".repeat(8 << 20) });
        let sent = asked_of(hang, async |place| place.lines_within(&long, &SHORT).await.map(|_| Value::Null));
        let read = asked_of(hang, async |place| place.lines_within(&request, &SHORT).await?.next().await);
        for answer in [posted, sent, read] {
            let error = answer.expect_err("it hangs").to_string();
            assert!(error.contains("nothing for 20ms, and asked for /health nothing for 50ms"), "{error}");
        }
    }

    #[test]
    fn a_server_that_is_well_may_take_its_time() {
        let line = asked_of(
            async |mut stream, number| {
                if number > 0 {
                    // Its health; the last answer ends the long work.
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
                // Held, as by a machine that is gone; and nobody listens any more.
                drop(listener);
                taken
            });
            let answer = lines.expect("sent").next().await;
            drop(taken);
            answer.expect_err("gone")
        });
        assert!(error.to_string().contains("takes no connection any more"), "{error}");
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
                // More often than one that takes no connection is waited for.
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
        assert!(error.contains("does not understand: a line of more than 4096 bytes"), "{error}");
    }
}
