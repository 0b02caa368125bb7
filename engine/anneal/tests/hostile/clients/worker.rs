//! Tests of a worker on a port that every user of the machine can reach.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::client::PATIENCE;
use crate::common;
use crate::common::worker::{has_rpc, port};
use crate::effort;

/// ID of another user.
const OTHER: u32 = 54_321;

/// Size of a greeting in ggml's RPC protocol, in bytes.
const HELLO: usize = 33;

/// Size of the answer to a greeting, in bytes.
const ANSWER: usize = 36;

struct Worker {
    child: Child,
    port: u16,
    /// Lines of the worker's stderr, as they arrive.
    said: Receiver<String>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Worker {
    fn start(more: &[&str]) -> Self {
        let port = port();
        let mut child = common::command()
            .args(["worker", "-t", "1", "--devices", "CPU", "--listen", &format!("127.0.0.1:{port}")])
            .args(more)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the executable runs");
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let (say, said) = channel();
        std::thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| say.send(line)));
        let worker = Worker { child, port, said };
        worker.wait_for("worker listens at");
        worker
    }

    /// Waits for a line with `words`. Returns this line and all lines before it.
    fn wait_for(&self, words: &str) -> String {
        let mut all = String::new();
        while !all.contains(words) {
            let line = self.said.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no {words:?} in {all:?}"));
            all.push_str(&line);
            all.push('\n');
        }
        all
    }

    /// Returns the number of bytes in the worker's answer to a greeting of this user.
    fn greet(&self) -> usize {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        let hello = [&[14][..], &24_u64.to_le_bytes(), &[0; 24]].concat();
        assert_eq!(hello.len(), HELLO);
        stream.write_all(&hello).expect("sent");
        let mut answer = vec![0; ANSWER];
        stream.read_exact(&mut answer).map_or(0, |()| ANSWER)
    }

    /// Returns the number of bytes in the worker's answer to a greeting of another user. The other user waits for the
    /// answer or disconnects immediately.
    fn greet_as_another(&self, waits: bool) -> usize {
        let hello = r"\x0e\x18\x00\x00\x00\x00\x00\x00\x00".to_string() + &r"\x00".repeat(24);
        let rest = if waits { format!("head -c {ANSWER} <&3 | wc -c") } else { "echo 0".to_string() };
        let script = format!("exec 3<>/dev/tcp/127.0.0.1/{} && printf '{hello}' >&3; {rest}", self.port);
        let mut bash = Command::new("bash");
        bash.args(["-c", &script]).current_dir("/").uid(OTHER).gid(OTHER).stderr(Stdio::null());
        let output = bash.output().expect("bash runs");
        String::from_utf8_lossy(&output.stdout).trim().parse().unwrap_or(0)
    }
}

#[test]
fn a_worker_serves_no_other_user_of_its_machine() {
    if !has_rpc() {
        return;
    }
    let worker = Worker::start(&[]);
    assert_eq!(worker.greet(), ANSWER);
    if !rustix::process::geteuid().is_root() {
        skipped::because("connecting to a worker as another user needs root");
        return;
    }
    for waits in [true, false].repeat(effort::choose(2, 50)) {
        assert_eq!(worker.greet_as_another(waits), 0);
        worker.wait_for("a client");
        assert_eq!(worker.greet(), ANSWER, "its own user is served afterwards");
    }
    let worker = Worker::start(&["--trust-users"]);
    assert_eq!((worker.greet_as_another(true), worker.greet()), (ANSWER, ANSWER));
}

#[test]
fn a_worker_for_all_users_is_warned_of() {
    if !has_rpc() {
        return;
    }
    let port = port();
    let mut child = common::command()
        .args([
            "worker",
            "-t",
            "1",
            "--devices",
            "CPU",
            "--trust-users",
            "--listen",
            &format!("127.0.0.1:{port}"),
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the executable runs");
    let mut line = String::new();
    let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
    stderr.read_line(&mut line).expect("a line");
    let _ = child.kill();
    let _ = child.wait();
    assert!(line.contains("every user on this machine can reach"), "{line}");
}
