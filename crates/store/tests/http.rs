//! Tests of a store behind a web server: Python's server, and a misbehaving server in the test.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::*;
use store::Answer;

/// Python's web server, which knows nothing about stores.
struct Python(Child, u16);

impl Python {
    fn serving(folder: &Path) -> Self {
        let mut child = Command::new("python3")
            .args(["-u", "-m", "http.server", "--bind", "127.0.0.1", "0", "--directory"])
            .arg(folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("python3 is there");
        // `Serving HTTP on 127.0.0.1 port 40001 (…) …`
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.split_whitespace().skip_while(|word| *word != "port").nth(1).unwrap();
        let port = port.parse().unwrap();
        Self(child, port)
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_plain_web_server_is_a_store_to_read() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("store");
    let order = publish(&temp.path().join("build"), root.to_str().unwrap(), "a", 2_000_000);
    done(give(&order));
    let local = build_info::Sha256::of(b"local plan");
    let record = tuned(local.as_str(), "chat", "2026-01-01T00:00:00Z");
    done(give(&tune(root.to_str().unwrap(), "a", record, "local plan")));
    let server = Python::serving(temp.path());
    let url = format!("http://127.0.0.1:{}/store/", server.1);
    let Answer::Taken(Some(taken)) = done(give(&take(&url, "a", &temp.path().join("into")))) else {
        panic!()
    };
    let program = fs::read(taken.folder.join("bin/anneal")).unwrap();
    assert_eq!(program, fs::read(temp.path().join("build/anneal")).unwrap());
    assert_eq!(taken.tuning.unwrap().entries.len(), 1);
    assert!(matches!(done(give(&take(&url, "b", &temp.path().join("none")))), Answer::Taken(None)));
    let Answer::Chosen(chosen) = done(give(&choose(&url, &[&kind().id()], "2.36", None))) else { panic!() };
    assert_eq!(chosen.entry, taken.entry);
    let (code, words) = said(give(&choose(&url, &["riscv64-any"], "2.36", None)));
    // A web server cannot list kinds.
    assert!(code == 69 && words.contains("riscv64-any\nhint: run `cargo xtask publish"), "{words}");

    let (code, words) = said(give(&publish(&temp.path().join("build"), &url, "new", 1000)));
    assert!(code == 2 && words.contains("is read-only"), "{code}: {words}");

    // Endless content is also treated as damaged: only as many bytes are read as the entry states.
    let object = tree_object(&root);
    let whole = fs::read(&object).unwrap();
    fs::write(&object, [whole.as_slice(), &[0; 5000]].concat()).unwrap();
    let (code, words) = said(give(&take(&url, "a", &temp.path().join("more"))));
    assert!(code == 1 && words.contains("larger than"), "{code}: {words}");
    assert_eq!(files(&temp.path().join("more")), Vec::<String>::new());
    fs::write(&object, &whole).unwrap();

    // Damage in transit is detected.
    let half = fs::read(&object).unwrap().len() / 2;
    fs::File::options().write(true).open(&object).unwrap().set_len(half as u64).unwrap();
    let (code, words) = said(give(&take(&url, "a", &temp.path().join("half"))));
    assert!(code == 1 && words.contains("is damaged"), "{code}: {words}");
    assert_eq!(files(&temp.path().join("half")), Vec::<String>::new());
}

/// Starts a server that reads a request, writes `answer` and then sends nothing until the test ends.
fn odd(answer: &'static str, closes: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer.as_bytes());
            if !closes {
                kept.push(stream);
            }
        }
    });
    format!("http://127.0.0.1:{port}")
}

#[test]
fn a_server_that_fails_is_told_of_and_may_be_tried_again() {
    let temp = tempfile::tempdir().unwrap();
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let cases = [
        (odd("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n", true), 75, "500"),
        (odd("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", true), 1, "403"),
        (odd("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", true), 75, "try again"),
        (odd("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", true), 1, "damaged"),
        (odd("what?\r\n\r\n", true), 75, "cannot download"),
        (closed, 75, "cannot download"),
    ];
    for (url, expected, words) in cases {
        let (code, told) = said(give(&take(&url, "a", &temp.path().join("into"))));
        assert_eq!(code, expected, "{told}");
        assert!(told.contains(words) && told.contains(&url), "{told}");
    }
}

/// Starts a server that answers each request with `head` and then one byte per second.
fn dripping(head: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(head.as_bytes());
            for _ in 0..300 {
                if stream.write_all(b" ").is_err() {
                    break;
                }
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    });
    format!("http://127.0.0.1:{port}")
}

#[test]
fn a_server_that_sends_a_byte_per_second_is_given_up() {
    let temp = tempfile::tempdir().unwrap();
    let begun = Instant::now();
    let url = dripping("HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n");
    let (code, words) = said(give(&take(&url, "a", &temp.path().join("into"))));
    let took = begun.elapsed().as_secs();
    assert!(code == 75 && words.contains("bytes per second"), "{code}: {words}");
    assert!((25..280).contains(&took), "{took} s: {words}");
}

#[test]
fn a_server_that_never_answers_is_not_waited_for_without_end() {
    let temp = tempfile::tempdir().unwrap();
    let begun = Instant::now();
    let (code, words) = said(give(&take(&odd("", false), "a", &temp.path().join("into"))));
    let took = begun.elapsed().as_secs();
    assert_eq!(code, 75, "{words}");
    assert!((25..300).contains(&took), "{took} s: {words}");
}
