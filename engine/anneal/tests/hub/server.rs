//! Fake server with the hub's protocol, which misbehaves on request.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::Duration;

/// Commit of every repository.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Recorded request.
#[derive(Clone, Debug)]
pub struct Request {
    pub path: String,
    pub headers: HashMap<String, String>,
    /// Number of earlier requests for this path.
    pub before: usize,
}

impl Request {
    pub fn is_listing(&self) -> bool {
        self.path.starts_with("/api/")
    }

    pub fn is_content(&self) -> bool {
        self.path.starts_with("/cdn/")
    }
}

/// Response of the server to a request.
#[derive(Clone, Debug)]
pub enum Act {
    /// Normal response, as from the hub.
    Well,
    /// Response with a status, additional header lines and a body.
    Status(u16, &'static str, &'static str),
    /// Disconnects after this number of bytes of the content.
    HangUp(usize),
    /// Sends pieces of this number of bytes, with a pause after each piece.
    Slowly(usize, Duration),
    /// Sends the whole file and ignores ranges.
    NoRanges,
    /// Sends different bytes.
    Others,
    /// Sends a file with this number of additional bytes.
    Longer(usize),
    /// Never responds.
    Silence,
}

type Script = dyn Fn(&Request) -> Act + Send + Sync;

struct State {
    files: Vec<(String, Vec<u8>)>,
    script: Box<Script>,
    log: Mutex<Vec<Request>>,
    address: SocketAddr,
}

/// Handle of the server, which ends with the test.
pub struct Server(Arc<State>);

pub fn sha256(bytes: &[u8]) -> String {
    build_info::Sha256::of(bytes).to_string()
}

impl Server {
    /// Serves `files` as the repository `a/b`.
    pub fn new(files: &[(&str, &[u8])], script: impl Fn(&Request) -> Act + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let state = Arc::new(State {
            files: files.iter().map(|(name, bytes)| (name.to_string(), bytes.to_vec())).collect(),
            script: Box::new(script),
            log: Mutex::default(),
            address: listener.local_addr().expect("an address"),
        });
        let shared = Arc::clone(&state);
        spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                // An error is ignored, because some tests disconnect.
                spawn(move || drop(state.serve(stream)));
            }
        });
        Server(state)
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.0.address)
    }

    /// Returns all requests so far.
    pub fn log(&self) -> Vec<Request> {
        self.0.log.lock().expect("a log").clone()
    }

    /// Returns the ranges of the content requests.
    pub fn ranges(&self) -> Vec<Option<String>> {
        let content = self.log().into_iter().filter(Request::is_content);
        content.map(|request| request.headers.get("range").cloned()).collect()
    }
}

impl State {
    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let path = line.split(' ').nth(1).unwrap_or_default().to_string();
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':') {
                headers.insert(name.to_lowercase(), value.trim().to_string());
            }
        }
        let request = {
            let mut log = self.log.lock().expect("a log");
            let before = log.iter().filter(|earlier| earlier.path == path).count();
            log.push(Request { path, headers, before });
            log.last().expect("it").clone()
        };
        self.answer(&request, &stream)?;
        stream.shutdown(Shutdown::Write)?;
        // Closing a socket with unread data would discard the response.
        let _ = reader.read_to_end(&mut Vec::new());
        Ok(())
    }

    fn answer(&self, request: &Request, mut stream: &TcpStream) -> std::io::Result<()> {
        let act = (self.script)(request);
        match act {
            Act::Status(status, lines, body) => {
                return write!(
                    stream,
                    "HTTP/1.1 {status} WatchedFetch\r\nConnection: close\r\n{lines}Content-Length: {}\r\n\r\n{body}",
                    body.len()
                );
            }
            Act::Silence => {
                sleep(Duration::from_secs(600));
                return Ok(());
            }
            _ => {}
        }
        if request.is_listing() {
            let files: Vec<String> = self.files.iter().map(|(name, bytes)| {
                let (size, digest) = (bytes.len(), sha256(bytes));
                format!(r#"{{"rfilename":"{name}","size":{size},"lfs":{{"sha256":"{digest}","size":{size},"pointerSize":134}}}}"#)
            }).collect();
            let body = format!(r#"{{"id":"a/b","sha":"{COMMIT}","siblings":[{}]}}"#, files.join(","));
            return write!(
                stream,
                "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
        }
        if let Some(name) = request.path.strip_prefix(&format!("/a/b/resolve/{COMMIT}/")) {
            // Redirects to another host: this machine under another name.
            let port = self.address.port();
            return write!(
                stream,
                "HTTP/1.1 302 LocalModel\r\nConnection: close\r\nLocation: http://localhost:{port}/cdn/{name}\r\nContent-Length: 0\r\n\r\n"
            );
        }
        let name = request.path.strip_prefix("/cdn/").unwrap_or_default();
        let Some((_, bytes)) = self.files.iter().find(|(file, _)| file == name) else {
            return write!(
                stream,
                "HTTP/1.1 404 Not LocalModel\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            );
        };
        self.content(request, bytes, &act, stream)
    }

    fn content(
        &self,
        request: &Request,
        bytes: &[u8],
        act: &Act,
        mut stream: &TcpStream,
    ) -> std::io::Result<()> {
        let mut bytes = bytes.to_vec();
        match act {
            Act::Others => bytes.iter_mut().for_each(|byte| *byte ^= 1),
            Act::Longer(more) => bytes.extend(vec![0; *more]),
            _ => {}
        }
        let range = request.headers.get("range").filter(|_| !matches!(act, Act::NoRanges));
        let from =
            range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
        let body = &bytes[from.unwrap_or(0)..];
        match from {
            Some(from) => write!(
                stream,
                "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {from}-{}/{}\r\n",
                bytes.len() - 1,
                bytes.len()
            )?,
            None => write!(stream, "HTTP/1.1 200 OK\r\n")?,
        }
        write!(stream, "Connection: close\r\nContent-Length: {}\r\n\r\n", body.len())?;
        match act {
            Act::HangUp(after) => stream.write_all(&body[..*after.min(&body.len())]),
            Act::Slowly(piece, pause) => body.chunks(*piece).try_for_each(|piece| {
                sleep(*pause);
                stream.write_all(piece)
            }),
            _ => stream.write_all(body),
        }
    }
}
