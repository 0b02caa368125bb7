//! Tests that the server runs in one process, without child processes or listeners that were not requested.

use std::collections::BTreeSet;
use std::fs;

use crate::client::{Server, greedy};

/// Returns the child processes of all threads of the process `pid`.
fn children(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
    let read = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap_or_default();
    tasks
        .map(|task| read(task.expect("a thread")))
        .flat_map(|list| list.split_whitespace().map(str::to_string).collect::<Vec<_>>())
        .collect()
}

/// Returns the inodes of the open sockets of the process `pid`.
fn sockets(pid: u32) -> BTreeSet<String> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).expect("files");
    let links = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    links
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_string()))
        .collect()
}

/// Returns the TCP and UDP addresses on which the process `pid` listens, and the paths of its Unix sockets.
fn listeners(pid: u32) -> Vec<String> {
    let own = sockets(pid);
    let mut found = Vec::new();
    for table in ["tcp", "tcp6", "udp", "udp6"] {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            // The state 0A is LISTEN; UDP has no such state.
            let listens = table.starts_with("udp") || words.get(3) == Some(&"0A");
            if listens && words.get(9).is_some_and(|inode| own.contains(*inode)) {
                found.push(format!("{table} {}", words[1]));
            }
        }
    }
    let unix = fs::read_to_string(format!("/proc/{pid}/net/unix")).unwrap_or_default();
    for line in unix.lines().skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        // This is the flag __SO_ACCEPTCON.
        let listens = words.get(3).is_some_and(|flags| *flags == "00010000");
        if listens && words.get(6).is_some_and(|inode| own.contains(*inode)) {
            found.push(format!("unix {}", words.get(7).unwrap_or(&"")));
        }
    }
    found
}

/// Returns the internet sockets of the process `pid`, in any state.
fn internet(pid: u32) -> Vec<String> {
    let own = sockets(pid);
    let rows = ["tcp", "tcp6", "udp", "udp6"].map(|table| {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        text.lines().skip(1).map(str::to_string).collect::<Vec<_>>()
    });
    let is_own = |row: &String| row.split_whitespace().nth(9).is_some_and(|inode| own.contains(inode));
    rows.into_iter().flatten().filter(is_own).collect()
}

#[test]
fn there_is_one_process_and_it_listens_where_it_was_asked_to() {
    let server = Server::start(&[]);
    let socket = format!("unix {}", server.socket().display());
    server.ask(&greedy("hello", 4));
    let pid = server.child.id();
    assert_eq!((children(pid), listeners(pid)), (vec![], vec![socket.clone()]));

    let both = Server::start(&["--listen", "127.0.0.1:0"]);
    let socket = format!("unix {}", both.socket().display());
    both.ask(&greedy("hello", 4));
    let pid = both.child.id();
    let port: u16 = both.address().rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let expected = vec![format!("tcp 0100007F:{port:04X}"), socket];
    assert_eq!((children(pid), listeners(pid)), (vec![], expected));
}

#[test]
fn run_listens_nowhere() {
    let mut child = crate::common::command()
        .args(["run", "-t", "1", "-p", "a", "-n", "-1", "-c", "65536", "--ignore-eos", "-m"])
        .arg(crate::common::tiny())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("it runs");
    let mut first = [0];
    std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut first).expect("some text");
    let found = (children(child.id()), listeners(child.id()), sockets(child.id()));
    child.kill().and_then(|()| child.wait()).expect("it ends");
    assert_eq!(found, (vec![], vec![], BTreeSet::new()));
}

#[test]
fn mcp_listens_nowhere_and_starts_nothing() {
    let mut child = crate::common::command()
        .args(["mcp", "-t", "1", "-m"])
        .arg(crate::common::tiny())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("it runs");
    let call = |id: u32, prompt: &str| {
        let arguments = serde_json::json!({ "prompt": prompt, "max_tokens": 4 });
        serde_json::json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": "generate", "arguments": arguments } })
    };
    let hello = serde_json::json!({
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" },
    });
    let hello = serde_json::json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello });
    let ready = serde_json::json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    let mut stdin = child.stdin.take().expect("piped");
    std::io::Write::write_all(&mut stdin, format!("{hello}\n{ready}\n{}\n", call(1, "a")).as_bytes())
        .expect("it reads");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().expect("piped")));
    let answered = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("\"id\":1")));
    let found = (children(child.id()), listeners(child.id()));
    let internet = internet(child.id());
    drop(stdin);
    assert!(child.wait().expect("it ends").success());
    assert!(answered.is_some_and(|line| line.is_ok_and(|line| line.contains("\"isError\":false"))));
    assert_eq!((found, internet), ((vec![], vec![]), vec![]));
}

#[test]
fn top_only_asks() {
    let server = Server::start(&[]);
    let mut child = crate::common::command()
        .args(["top", "--json", "--interval", "0.1"])
        .arg(server.socket())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().expect("piped")));
    let seen =
        lines.by_ref().take(3).filter(|line| line.as_ref().is_ok_and(|line| line.contains("\"ok\""))).count();
    let found = (children(child.id()), listeners(child.id()), internet(child.id()));
    child.kill().and_then(|()| child.wait()).expect("it ends");
    assert_eq!((seen, found), (3, (vec![], vec![], vec![])));
}
