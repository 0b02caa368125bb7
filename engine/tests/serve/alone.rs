//! In process, shown: no other process, no listener that was not asked for.

use std::collections::BTreeSet;
use std::fs;

use crate::client::{Server, greedy};

/// Children of all threads of process `pid`.
fn children(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
    let read = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap_or_default();
    tasks
        .map(|task| read(task.expect("a thread")))
        .flat_map(|list| list.split_whitespace().map(str::to_string).collect::<Vec<_>>())
        .collect()
}

/// Inodes of its open sockets.
fn sockets(pid: u32) -> BTreeSet<String> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).expect("files");
    let links = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    links
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_string()))
        .collect()
}

/// Addresses at which it listens for TCP and UDP, and the paths of its Unix sockets.
fn listeners(pid: u32) -> Vec<String> {
    let own = sockets(pid);
    let mut found = Vec::new();
    for table in ["tcp", "tcp6", "udp", "udp6"] {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            // 0A is LISTEN; UDP has no such state.
            let listens = table.starts_with("udp") || words.get(3) == Some(&"0A");
            if listens && words.get(9).is_some_and(|inode| own.contains(*inode)) {
                found.push(format!("{table} {}", words[1]));
            }
        }
    }
    let unix = fs::read_to_string(format!("/proc/{pid}/net/unix")).unwrap_or_default();
    for line in unix.lines().skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        // The flag __SO_ACCEPTCON.
        let listens = words.get(3).is_some_and(|flags| *flags == "00010000");
        if listens && words.get(6).is_some_and(|inode| own.contains(*inode)) {
            found.push(format!("unix {}", words.get(7).unwrap_or(&"")));
        }
    }
    found
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
    let mut child = std::process::Command::new(crate::common::ANNEAL)
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
