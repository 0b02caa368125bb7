//! Workers whose CPUs are devices for their clients. Tests of devices use workers instead of GPUs.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use super::{anneal, parts};

/// True if the build has RPC. Otherwise, the running test is reported as skipped.
pub fn has_rpc() -> bool {
    static INFO: OnceLock<Value> = OnceLock::new();
    let info = INFO.get_or_init(|| {
        let (code, stdout, stderr) = parts(&anneal(["info", "--json"]));
        assert_eq!(code, Some(0), "{stderr}");
        serde_json::from_str(&stdout).expect("JSON")
    });
    let has = info["backends"].as_array().is_some_and(|all| all.iter().any(|name| name == "RPC"));
    if !has {
        skipped::because("this build has no RPC (`rpc = true` in its profile)");
    }
    has
}

/// Process `anneal worker` on one thread, with its own port.
pub struct Worker {
    /// Child process.
    pub child: Child,
    /// Address on which the worker listens.
    pub address: String,
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a port that was free when the function checked it.
pub fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}

impl Worker {
    /// Starts a worker and waits until it listens.
    pub fn start() -> Self {
        let address = format!("127.0.0.1:{}", port());
        let mut child = super::command()
            .args(["worker", "-t", "1", "--devices", "CPU", "--listen", &address])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the executable runs");
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        let mut all = String::new();
        while !all.contains("worker listens at") {
            let read = stderr.read_line(&mut all).expect("a line");
            assert!(read > 0, "it did not start: {all}");
        }
        assert!(all.contains(&format!("worker listens at {address} with CPU (")), "{all}");
        // Later output must not fill the pipe.
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
        Worker { child, address }
    }

    /// Sends a signal to the worker.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
    }
}
