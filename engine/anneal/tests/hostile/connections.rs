//! Tests of connections that stay open, stall or flood a server.

mod bounds;
mod flood;
mod memory;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use crate::client::{self, PATIENCE, Server};

/// Key of the server that [`keyed`] starts, as a header.
const KEY: &str = "Authorization: Bearer a-key-of-the-hostile-tests";

/// Starts a server of the tiny model with a socket, a TCP address, an address for health checks, a key, and the
/// settings `config`.
fn keyed(config: &str) -> Server {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let keys = folder.path().join("api-keys.txt");
    std::fs::write(&keys, "a-key-of-the-hostile-tests\n").expect("written");
    std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o600)).expect("a mode");
    with(folder, &["--api-key-file", keys.to_str().expect("UTF-8")], config)
}

/// Starts a server like [`keyed`], but without a key.
fn open(config: &str) -> Server {
    with(tempfile::tempdir().expect("a temporary folder"), &[], config)
}

fn with(folder: tempfile::TempDir, more: &[&str], config: &str) -> Server {
    let path = folder.path().join("server_config.toml");
    std::fs::write(&path, config).expect("written");
    let mut command = client::command(&["--listen", "127.0.0.1:0", "--health-listen", "127.0.0.1:0"]);
    command.arg("--config").arg(&path).arg("--socket").arg(folder.path().join("a.sock")).args(more);
    Server::with(command, folder)
}

/// Returns the address for health checks of `server`.
fn health_address(server: &Server) -> String {
    let address = server.ready["health"].as_str().expect("an address for probes");
    address.trim_start_matches("http://").to_string()
}

/// Connects to `address`. Reads time out after [`PATIENCE`].
fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    stream
}

/// Requests `path` at `address` and returns the status of the answer.
fn get(address: &str, path: &str, headers: &[&str]) -> (u16, String, String) {
    client::http(connect(address), "GET", path, headers, b"")
}

/// Requests `path` and leaves the connection open. Returns the status.
fn ask_and_stay(stream: &mut TcpStream, path: &str, headers: &[&str]) -> u16 {
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n").expect("sent");
    let mut head = [0; 12];
    stream.read_exact(&mut head).expect("an answer");
    // The rest of the answer is short and available at once.
    let mut rest = [0; 65_536];
    let _ = stream.set_read_timeout(Some(Duration::from_millis(50)));
    let _ = stream.read(&mut rest);
    let _ = stream.set_read_timeout(Some(PATIENCE));
    std::str::from_utf8(&head[9..]).ok().and_then(|status| status.parse().ok()).expect("a status")
}
