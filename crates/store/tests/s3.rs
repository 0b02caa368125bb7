//! Tests of a store in S3, against moto's server, an independent implementation.
//!
//! Without moto these tests are skipped with a message; in continuous integration, which installs moto, they fail.
#![cfg(feature = "s3")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::*;
use store::Answer;

/// S3 server with an empty bucket.
struct Moto {
    child: Child,
    variables: Variables,
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the command of moto_server: the program that `cargo xtask test --yes` installs, or the program on `PATH`.
fn moto_server() -> Command {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/anneal/tools/moto");
    if !own.is_dir() {
        return Command::new("moto_server");
    }
    let mut command = Command::new("python3");
    command.args(["-m", "moto.server"]).env("PYTHONPATH", own);
    command
}

impl Moto {
    /// Starts the server; returns `None` with a message if moto is missing.
    fn start() -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let started = moto_server()
            .args(["-H", "127.0.0.1", "-p", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = match started {
            Ok(child) => child,
            Err(error) => {
                let how = "python3 -m pip install --require-hashes -r xtask/python/moto.txt --target target/anneal/tools/moto";
                skipped::for_want_of(format_args!("moto_server ({error})"), how);
                return None;
            }
        };
        let mut variables = Variables::new();
        for (name, value) in [
            ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}")),
            ("AWS_ACCESS_KEY_ID", "AKIATEST".to_string()),
            ("AWS_SECRET_ACCESS_KEY", "a very secret word".to_string()),
            ("AWS_REGION", "us-east-1".to_string()),
        ] {
            variables.insert(name.to_string(), value);
        }
        let moto = Self { child, variables };
        let deadline = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "moto_server has not begun to listen within a minute");
            std::thread::sleep(Duration::from_millis(50));
        }
        moto.request("PUT", "");
        Some(moto)
    }

    fn url(&self) -> &str {
        &self.variables["AWS_ENDPOINT_URL"]
    }

    /// Requests `path` in the bucket. moto requires a signature but does not verify it.
    fn request(&self, method: &str, path: &str) -> String {
        let host = self.url().strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(host).unwrap();
        let signature = "AWS4-HMAC-SHA256 Credential=AKIATEST/20260101/us-east-1/s3/aws4_request, \
                         SignedHeaders=host, Signature=0";
        let head = format!(
            "{method} /builds{path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: {signature}\r\nContent-Length: \
             0\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer
    }
}

/// Proxy for one request between the program and moto: may change the head, or answer in moto's place.
type Act = dyn Fn(&mut String) -> Option<&'static str> + Send + Sync;

/// Returns the environment for a server that passes requests through `act` to moto.
fn behind(
    moto: &Moto,
    act: impl Fn(&mut String) -> Option<&'static str> + Send + Sync + 'static,
) -> Variables {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut variables = moto.variables.clone();
    let url = format!("http://{}", listener.local_addr().unwrap());
    variables.insert("AWS_ENDPOINT_URL".to_string(), url);
    let (act, server): (Arc<Act>, _) = (Arc::new(act), moto.url().replace("http://", ""));
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let (act, server) = (Arc::clone(&act), server.clone());
            // Broken connections are expected in some tests.
            std::thread::spawn(move || drop(pass(client, &server, &*act)));
        }
    });
    variables
}

/// Passes one request and its response on, then closes the connection.
fn pass(mut client: TcpStream, server: &str, act: &Act) -> io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        value.trim().parse().ok().filter(|_| name.eq_ignore_ascii_case("content-length"))
    });
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body)?;
    if let Some(answer) = act(&mut head) {
        return client.write_all(answer.as_bytes());
    }
    let mut server = TcpStream::connect(server)?;
    server.write_all(head.replacen("\r\n", "\r\nConnection: close\r\n", 1).as_bytes())?;
    server.write_all(&body)?;
    io::copy(&mut server, &mut client).map(drop)
}

type Variables = BTreeMap<String, String>;

const STORE: &str = "s3://builds/a/fleet";

#[test]
fn a_bucket_keeps_what_a_folder_does() {
    let Some(moto) = Moto::start() else { return };
    let temp = tempfile::tempdir().unwrap();
    // The upload has several parts.
    let order = publish(&temp.path().join("build"), STORE, "a", 20_000_000);
    let Answer::Published(first) = done(give_with(&order, &moto.variables)) else { panic!() };
    assert!(!first.was_there);
    let Answer::Published(second) = done(give_with(&order, &moto.variables)) else { panic!() };
    assert_eq!((second.was_there, &second.entry), (true, &first.entry));
    assert!(moto.request("GET", "?prefix=a/fleet/v1/objects").contains("a/fleet/v1/objects/"));

    let into = temp.path().join("into");
    let Answer::Taken(Some(taken)) = done(give_with(&take(STORE, "a", &into), &moto.variables)) else {
        panic!()
    };
    let program = fs::read(taken.folder.join("bin/anneal")).unwrap();
    assert!(program == fs::read(temp.path().join("build/anneal")).unwrap());
    let missing = take(STORE, "b", &temp.path().join("none"));
    assert!(matches!(done(give_with(&missing, &moto.variables)), Answer::Taken(None)));

    let local = build_info::Sha256::of(b"local plan");
    for (objective, expected) in [("chat", 1), ("rag", 1), ("chat", 0)] {
        let record = tuned(local.as_str(), objective, "2026-01-01T00:00:00Z");
        let order = tune(STORE, "a", record, "local plan");
        let Answer::Tuned(tuned) = done(give_with(&order, &moto.variables)) else { panic!() };
        assert_eq!(tuned.entries, expected, "{objective}");
    }
    let order = choose(STORE, &[&kind().id()], "2.36", Some(into.clone()));
    let Answer::Chosen(chosen) = done(give_with(&order, &moto.variables)) else { panic!() };
    assert_eq!(chosen.tuning.unwrap().entries.len(), 2);
    assert!(chosen.archive.unwrap().is_file());
    let (code, words) = said(give_with(&choose(STORE, &["riscv64-any"], "2.36", None), &moto.variables));
    assert!(code == 69 && words.contains(&format!("it has builds for {}", kind().id())), "{code}: {words}");

    let checked = || {
        let Answer::Checked(Some(found)) =
            done(give_with(&check(STORE, "a", false, temp.path()), &moto.variables))
        else {
            panic!()
        };
        found
    };
    let whole = checked();
    assert!(whole.listed && whole.damaged.is_empty(), "{whole:?}");

    // Other content is stored under the name of an object.
    let sha256 = &first.entry.tree.as_ref().unwrap().sha256;
    moto.request("PUT", &format!("/a/fleet/v1/objects/{sha256}.tar.zst"));
    let found = checked();
    assert!(matches!(&found.damaged[..], [one] if one.contains(sha256.as_str())), "{found:?}");
    let (code, words) = said(give_with(&take(STORE, "a", &temp.path().join("bad")), &moto.variables));
    assert!(code == 1 && words.contains("is damaged"), "{code}: {words}");
    let order = forced(publish(&temp.path().join("build"), STORE, "a", 20_000_000));
    done(give_with(&order, &moto.variables));
    let again = take(STORE, "a", &temp.path().join("again"));
    assert!(matches!(done(give_with(&again, &moto.variables)), Answer::Taken(Some(_))));
}

#[test]
fn of_many_publishers_one_is_first_and_no_list_is_lost() {
    let Some(moto) = Moto::start() else { return };
    let temp = tempfile::tempdir().unwrap();
    let orders: Vec<_> = (0..8)
        .map(|at| {
            let engine = if at % 2 == 0 { "same".to_string() } else { format!("own {at}") };
            publish(&temp.path().join(format!("build-{at}")), STORE, &engine, 1000)
        })
        .collect();
    let published: Vec<_> = std::thread::scope(|scope| {
        let give = |order| done(give_with(order, &moto.variables));
        let running: Vec<_> = orders.iter().map(|order| scope.spawn(move || give(order))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let firsts =
        published.iter().filter(|answer| matches!(answer, Answer::Published(made) if !made.was_there));
    assert_eq!(firsts.count(), 5);
    let list = moto.request("GET", &format!("/a/fleet/v1/kinds/{}/native.json", kind().id()));
    let newest = store::entry::Newest::parse(list.split("\r\n\r\n").nth(1).unwrap().as_bytes()).unwrap();
    assert_eq!(newest.builds.len(), 5, "{list}");
}

#[test]
fn what_is_wrong_is_told_and_no_secret_is() {
    let Some(moto) = Moto::start() else { return };
    let temp = tempfile::tempdir().unwrap();
    let (code, words) = said(give_with(&take("s3://another", "a", &temp.path().join("a")), &moto.variables));
    assert!(code == 1 && words.contains("the bucket does not exist"), "{code}: {words}");
    let mut variables = moto.variables.clone();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    variables.insert("AWS_ENDPOINT_URL".to_string(), format!("http://{closed}"));
    let begun = Instant::now();
    let (code, down) = said(give_with(&take(STORE, "a", &temp.path().join("a")), &variables));
    assert_eq!(code, 75, "{down}");
    assert!(begun.elapsed() < Duration::from_secs(300), "{:?}", begun.elapsed());
    for words in [words, down] {
        assert!(!words.contains("secret word") && !words.contains("AKIATEST"), "{words}");
    }
}

#[test]
fn a_server_that_cannot_do_it_now_may_be_tried_again() {
    let Some(moto) = Moto::start() else { return };
    let temp = tempfile::tempdir().unwrap();
    let answers = [
        ("HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 75),
        ("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 75),
        // Repeating the request cannot help after a client error.
        ("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 1),
    ];
    for (answer, expected) in answers {
        let variables = behind(&moto, move |_| Some(answer));
        let (code, words) = said(give_with(&take(STORE, "a", &temp.path().join("a")), &variables));
        assert_eq!(code, expected, "{words}");
    }
}

#[test]
fn who_may_not_list_is_told_which_right_is_missing_and_finds_what_is_there() {
    let Some(moto) = Moto::start() else { return };
    let temp = tempfile::tempdir().unwrap();
    done(give_with(&publish(&temp.path().join("build"), STORE, "a", 1000), &moto.variables));
    // S3 sends this response for a missing object if listing is not permitted.
    let variables = behind(&moto, |head| {
        let forbidden = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        head.contains("riscv64-any").then_some(forbidden)
    });
    let order = choose(STORE, &["riscv64-any", &kind().id()], "2.36", None);
    let Answer::Chosen(chosen) = done(give_with(&order, &variables)) else { panic!() };
    assert!(chosen.notes.len() == 1 && chosen.notes[0].contains("s3:ListBucket"), "{:?}", chosen.notes);
    let (code, words) = said(give_with(&choose(STORE, &["riscv64-any"], "2.36", None), &variables));
    assert!(code == 1 && words.contains("s3:ListBucket"), "{code}: {words}");
}

#[test]
fn a_server_without_conditional_writes_is_seen_before_anything_is_sent() {
    let Some(moto) = Moto::start() else { return };
    let temp = tempfile::tempdir().unwrap();
    let order = publish(&temp.path().join("build"), STORE, "a", 1000);
    for ignored in [&["if-none-match:", "if-match:"][..], &["if-match:"]] {
        let variables = behind(&moto, move |head| {
            let kept = |line: &&str| !ignored.iter().any(|name| line.to_ascii_lowercase().starts_with(name));
            *head = head.split_inclusive("\r\n").filter(kept).collect();
            None
        });
        let (code, words) = said(give_with(&order, &variables));
        assert!(code == 1 && words.contains("not support conditional writes"), "{code}: {words}");
    }
    assert!(!moto.request("GET", "?prefix=a/fleet").contains("v1/objects"));
    // The probe that the failed publishers left is harmless.
    done(give_with(&order, &moto.variables));
}

#[test]
fn a_conflict_with_nobody_is_tried_again() {
    let Some(moto) = Moto::start() else { return };
    let temp = tempfile::tempdir().unwrap();
    let answered = AtomicBool::new(false);
    let variables = behind(&moto, move |head| {
        let first = head.starts_with("PUT ") && head.contains("/v1/builds/");
        let conflict = "HTTP/1.1 409 Conflict\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        (first && !answered.swap(true, Ordering::SeqCst)).then_some(conflict)
    });
    let order = publish(&temp.path().join("build"), STORE, "a", 1000);
    let Answer::Published(published) = done(give_with(&order, &variables)) else { panic!() };
    assert!(!published.was_there);
}

#[test]
fn whoever_is_asked_to_stop_ends_and_takes_away_what_was_sent() {
    let Some(moto) = Moto::start() else { return };
    let temp = tempfile::tempdir().unwrap();
    // The second part is held back until the signal has arrived.
    let stopped = Arc::new(AtomicBool::new(false));
    let (held, seen) = (Arc::clone(&stopped), Arc::new(AtomicBool::new(false)));
    let seen_there = Arc::clone(&seen);
    let variables = behind(&moto, move |head| {
        if head.starts_with("PUT ") && head.contains("partNumber=2") {
            seen_there.store(true, Ordering::SeqCst);
            while !held.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        None
    });
    let order = publish(&temp.path().join("build"), STORE, "a", 12 << 20);
    let mut child = command(&variables).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&serde_json::to_vec(&order).unwrap()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !seen.load(Ordering::SeqCst) {
        assert!(Instant::now() < deadline, "no second part was sent");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(moto.request("GET", "?uploads").contains("<Upload>"));
    let process = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    let (code, words) = said(ended(&child.wait_with_output().unwrap()));
    stopped.store(true, Ordering::SeqCst);
    assert_eq!(code, 130, "{words}");
    assert!(!moto.request("GET", "?uploads").contains("<Upload>"));
}
