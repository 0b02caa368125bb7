//! Tests of downloads from a server in the test, which can also misbehave.

mod common;

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use common::{BOTH, Installer, archives, name, runs};

/// Response of the server.
#[derive(Clone)]
struct Answer {
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn of(status: &str, headers: &str, body: &[u8]) -> Self {
        let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\n{headers}");
        Self { head, body: body.to_vec() }
    }

    fn whole(body: &[u8]) -> Self {
        Self::of("200 OK", &format!("Content-Length: {}\r\n", body.len()), body)
    }
}

/// Server that runs as long as the test.
struct Server {
    port: u16,
    answers: Arc<Mutex<HashMap<String, Answer>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let answers: Arc<Mutex<HashMap<String, Answer>>> = Arc::default();
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let (all, heard) = (Arc::clone(&answers), Arc::clone(&asked));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = serve(stream, &all, &heard);
            }
        });
        Self { port, answers, asked }
    }

    /// Starts a server for the files of `folder`.
    fn with(folder: &Path) -> Self {
        let server = Self::start();
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            server.set(&name, Answer::whole(&fs::read(entry.path()).unwrap()));
        }
        server
    }

    fn set(&self, name: &str, answer: Answer) {
        self.answers.lock().unwrap().insert(format!("/dist/{name}"), answer);
    }

    fn remove(&self, name: &str) {
        self.answers.lock().unwrap().remove(&format!("/dist/{name}"));
    }

    fn url(&self, name: &str) -> String {
        format!("http://127.0.0.1:{}/dist/{name}", self.port)
    }
}

fn serve(
    stream: TcpStream,
    answers: &Mutex<HashMap<String, Answer>>,
    asked: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(&stream).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let path = request.split(' ').nth(1).unwrap_or_default().to_string();
    let found = answers.lock().unwrap().get(&path).cloned();
    asked.lock().unwrap().push(path);
    let answer = found.unwrap_or_else(|| Answer::of("404 Not Found", "Content-Length: 0\r\n", b""));
    let mut stream = &stream;
    stream.write_all(format!("{}\r\n", answer.head).as_bytes())?;
    stream.write_all(&answer.body)
}

fn file(version: &str) -> String {
    format!("{}.tar.zst", name(version))
}

fn install(installer: Installer, url: &str, prefix: &Path) -> common::InstallerEnd {
    installer.install_with(url, prefix, &[])
}

fn prepared(temp: &Path) -> (PathBuf, PathBuf) {
    (archives(temp, &["0.1.0", "0.2.0"]), temp.join("prefix"))
}

#[test]
fn an_archive_comes_by_its_url_and_by_that_of_its_folder() {
    let temp = tempfile::tempdir().unwrap();
    let (dist, prefix) = prepared(temp.path());
    let server = Server::with(&dist);
    for installer in BOTH {
        let (code, words) = install(installer, &server.url(&file("0.1.0")), &prefix);
        assert_eq!(code, 0, "{installer:?}: {words}");
        assert!(words.contains("is not encrypted"), "{installer:?}: {words}");
        assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.1.0"));
        let (code, words) = installer.uninstall(&prefix, true);
        assert_eq!(code, 0, "{installer:?}: {words}");
    }
    let (code, words) = install(Installer::Program, &server.url(""), &prefix);
    assert_eq!(code, 0, "{words}");
    assert!(words.contains("is not encrypted"), "{words}");
    assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.2.0"));
    // Only the installed version is left.
    let left: Vec<_> = fs::read_dir(prefix.join("lib/anneal")).unwrap().flatten().collect();
    assert!(left.iter().all(|entry| !entry.file_name().to_string_lossy().contains("staging")), "{left:?}");

    // A dry run does not download the archive.
    server.asked.lock().unwrap().clear();
    let (code, words) =
        Installer::Program.install_with(&server.url(""), &temp.path().join("other"), &["--dry-run"]);
    assert_eq!(code, 0, "{words}");
    assert_eq!(*server.asked.lock().unwrap(), ["/dist/index.json"]);
}

#[test]
fn a_redirect_is_followed_to_its_end_and_not_for_ever() {
    let temp = tempfile::tempdir().unwrap();
    let (dist, prefix) = prepared(temp.path());
    let server = Server::with(&dist);
    let whole = Answer::whole(&fs::read(dist.join(file("0.1.0"))).unwrap());
    server.set("elsewhere", whole);
    let lead = |to: &str| Answer::of("302 Found", &format!("Location: {to}\r\nContent-Length: 0\r\n"), b"");
    for to in ["/dist/elsewhere", "elsewhere", &server.url("elsewhere")] {
        server.set(&file("0.1.0"), lead(to));
        for installer in BOTH {
            let prefix = tempfile::tempdir_in(temp.path()).unwrap();
            let (code, words) = install(installer, &server.url(&file("0.1.0")), prefix.path());
            assert_eq!(code, 0, "{installer:?} {to}: {words}");
        }
    }
    server.set(&file("0.1.0"), lead(&server.url(&file("0.1.0"))));
    server.set(&file("0.2.0"), lead("file:///etc/passwd"));
    for installer in BOTH {
        for version in ["0.1.0", "0.2.0"] {
            let (code, words) = install(installer, &server.url(&file(version)), &prefix);
            assert_ne!(code, 0, "{installer:?}: {words}");
            assert!(runs(&prefix).is_none());
        }
    }
}

/// Some stores answer 403 for a missing file, so a signature is only requested if there is a key.
#[test]
fn a_signature_is_asked_for_where_there_is_a_key() {
    let temp = tempfile::tempdir().unwrap();
    let (dist, prefix) = prepared(temp.path());
    let server = Server::with(&dist);
    let signature = format!("{}.minisig", file("0.1.0"));
    server.set(&signature, Answer::of("403 Forbidden", "Content-Length: 0\r\n", b""));
    for installer in BOTH {
        server.asked.lock().unwrap().clear();
        let (code, words) = install(installer, &server.url(&file("0.1.0")), &prefix);
        assert_eq!(code, 0, "{installer:?}: {words}");
        let asked = server.asked.lock().unwrap().clone();
        assert!(!asked.iter().any(|path| path.ends_with(".minisig")), "{installer:?}: {asked:?}");

        // Public minisign keys have this form. An archive without a signature is refused before the key is used.
        let key = "RWQBAQEBAQEBAYqI49336KkQzd9oD9gPM+p9U4BxBG+nQZfRIwXRQqBu";
        let (code, words) = installer.install_with(&server.url(&file("0.1.0")), &prefix, &["--key", key]);
        assert_ne!(code, 0, "{installer:?}: {words}");
        let asked = server.asked.lock().unwrap().clone();
        assert!(asked.iter().any(|path| path.ends_with(".minisig")), "{installer:?}: {asked:?}");
    }
}

/// wget's exit code does not depend on the server's response.
#[test]
fn without_curl_wget_tells_what_the_server_said() {
    let temp = tempfile::tempdir().unwrap();
    let (dist, prefix) = prepared(temp.path());
    let bin = common::tools(temp.path(), &["curl"]);
    if !bin.join("wget").exists() {
        return skipped::for_want_of("wget", "install wget");
    }
    let of = |status: &str| Some(Answer::of(status, "Content-Length: 0\r\n", b""));
    let lead = Answer::of("302 Found", "Location: /dist/elsewhere\r\nContent-Length: 0\r\n", b"");
    let short = Answer::of("200 OK", "Content-Length: 100000\r\n", b"short");
    let (archive, list) = (file("0.1.0"), format!("{}.sha256", file("0.1.0")));
    type Case<'a> = (&'a str, Option<Answer>, i32, &'a str);
    let cases: [Case; 9] = [
        (&archive, None, 1, "cannot find"),
        (&list, None, 1, "does not exist"),
        (&archive, of("410 Gone"), 1, "cannot find"),
        (&list, of("503 Busy"), 75, "try again"),
        (&archive, of("503 Busy"), 75, "try again"),
        (&list, of("403 Forbidden"), 1, "status 403"),
        (&archive, of("403 Forbidden"), 1, "status 403"),
        (&archive, Some(lead), 1, "install curl"),
        (&archive, Some(short), 75, "cannot download"),
    ];
    for (what, answer, expected, part) in cases {
        let server = Server::with(&dist);
        match answer {
            Some(answer) => server.set(what, answer),
            None => server.remove(what),
        }
        let (code, words) = common::script_with(&bin, &["--from", &server.url(&archive)], &prefix);
        assert_eq!(code, expected, "{what}, {part}: {words}");
        assert!(words.contains(part), "{what}, {part}: {words}");
        assert!(!prefix.exists(), "{what}, {part}");
    }
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let nobody = format!("http://127.0.0.1:{port}/{archive}");
    let (code, words) = common::script_with(&bin, &["--from", &nobody], &prefix);
    assert_eq!(code, 75, "{words}");
    let server = Server::with(&dist);
    let (code, words) = common::script_with(&bin, &["--from", &server.url(&archive)], &prefix);
    assert_eq!(code, 0, "{words}");
    assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.1.0"));
}

#[test]
fn a_server_that_misbehaves_installs_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let (dist, prefix) = prepared(temp.path());
    let content = fs::read(dist.join(file("0.2.0"))).unwrap();
    let list = format!("{}.sha256", file("0.2.0"));
    let mut flipped = content.clone();
    flipped[content.len() / 2] ^= 1;
    let short = format!("Content-Length: {}\r\n", content.len());
    let busy = Answer::of("503 Busy", "Content-Length: 0\r\n", b"");
    let forbidden = Answer::of("403 Forbidden", "Content-Length: 0\r\n", b"");
    let endless = Answer::of("200 OK", "Content-Length: 9999999999\r\n", &content);
    // Path, response of the server, exit code, and part of the program's message.
    type Case<'a> = (&'a str, Option<Answer>, i32, &'a str);
    let cases: [Case; 7] = [
        (&list, None, 1, "does not exist"),
        (&file("0.2.0"), None, 1, "does not exist"),
        (&file("0.2.0"), Some(Answer::whole(&flipped)), 1, "checksum mismatch"),
        (&file("0.2.0"), Some(Answer::of("200 OK", &short, &content[..100])), 75, "try again"),
        (&file("0.2.0"), Some(endless), 1, "larger than"),
        (&file("0.2.0"), Some(busy), 75, "try again"),
        (&file("0.2.0"), Some(forbidden), 1, "403"),
    ];
    for installer in BOTH {
        let (code, words) = installer.install(&dist.join(file("0.1.0")), &prefix);
        assert_eq!(code, 0, "{words}");
        for (what, answer, expected, part) in &cases {
            let server = Server::with(&dist);
            match answer {
                Some(answer) => server.set(what, answer.clone()),
                None => server.remove(what),
            }
            let (code, words) = install(installer, &server.url(&file("0.2.0")), &prefix);
            if installer == Installer::Program {
                assert_eq!(code, *expected, "{part}: {words}");
                assert!(words.contains(part), "{part}: {words}");
            }
            assert_ne!(code, 0, "{installer:?} {part}: {words}");
            assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.1.0"), "{installer:?} {part}");
            let staged = fs::read_dir(prefix.join("lib/anneal")).unwrap().flatten();
            let left: Vec<_> =
                staged.filter(|entry| entry.file_name().to_string_lossy().contains("staging")).collect();
            assert!(left.is_empty(), "{installer:?} {part}: {left:?}");
        }
        let (code, words) = installer.uninstall(&prefix, true);
        assert_eq!(code, 0, "{words}");
    }
    // No server listens on this port.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for installer in BOTH {
        let (code, words) =
            install(installer, &format!("http://127.0.0.1:{port}/{}", file("0.2.0")), &prefix);
        assert_eq!(code, 75, "{installer:?}: {words}");
    }
}
