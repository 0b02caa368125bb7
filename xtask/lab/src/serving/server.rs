//! Server process: start, wait until ready, query and stop.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use base::TempDir;
use base::exit;
use build::compare::CandidateBuild;
use build::process::{self, Running};
use build::workspace::Workspace;
use load::answer::fetch;
use load::request::http;
use load::{Address, Drive, Interface, LoadPlan};

/// Time limit for a server to load its model.
const PATIENCE: Duration = Duration::from_secs(600);

/// Interval between queries until the server is ready.
const LOOK: Duration = Duration::from_millis(2);

/// Time limit for a server to end.
const END: Duration = Duration::from_secs(20);

/// Number of lines of a failed server's output that an error shows.
const TAIL: usize = 15;

/// Kind of server program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerKind {
    /// The `anneal serve` command.
    Anneal,
    /// The `llama-server` program of llama.cpp.
    LlamaServer,
}

/// Server to measure.
#[derive(Clone, Debug)]
pub struct MeasuredServer {
    /// Program of the server, with its build.
    pub build: CandidateBuild,
    /// Kind of the server.
    pub kind: ServerKind,
}

impl MeasuredServer {
    /// Finds the server that `text` specifies: a profile, the path of a build folder or of a program, or LABEL=PATH.
    pub fn named(workspace: &Workspace, text: &str) -> Result<Self> {
        let build = CandidateBuild::named(workspace, text)?;
        let name = build.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let kind = match name.as_str() {
            "llama-bench" => {
                return Err(exit::usage(format!(
                    "{text}: llama-bench is not a server\nhint: use llama-server or a build of anneal"
                )));
            }
            name if name.starts_with("llama-server") => ServerKind::LlamaServer,
            _ => ServerKind::Anneal,
        };
        Ok(Self { build, kind })
    }

    /// Returns the name that figures and errors use.
    pub fn name(&self) -> &str {
        &self.build.name
    }
}

/// Settings for starting a server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Path of the model.
    pub model: PathBuf,
    /// Number of threads of both phases.
    pub threads: u32,
    /// Number of concurrent requests.
    pub slots: u32,
    /// Number of concurrent clients.
    pub clients: u32,
    /// Context size in tokens, for all slots together.
    pub context: u32,
    /// True if prompts may reuse a prefix from the cache of an earlier prompt.
    pub reuse: bool,
    /// Path of a configuration file for `anneal serve`.
    pub config: Option<PathBuf>,
}

/// Returns the command-line arguments for a server of this `kind`.
pub fn arguments(kind: ServerKind, settings: &Settings, port: u16, socket: &Path) -> Vec<String> {
    let Settings { model, threads, slots, clients, context, reuse, config } = settings;
    let mut words: Vec<String> = Vec::new();
    let mut add = |word: &str, value: String| words.extend([word.to_string(), value]);
    let text = |path: &Path| path.to_string_lossy().into_owned();
    match kind {
        ServerKind::Anneal => {
            add("-m", text(model));
            add("--listen", format!("127.0.0.1:{port}"));
            add("--socket", text(socket));
            add("--slots", slots.to_string());
            // No request should be rejected because the queue is full.
            add("--queue", clients.max(&64).to_string());
            if let Some(config) = config {
                add("--config", text(config));
            }
        }
        ServerKind::LlamaServer => {
            add("-m", text(model));
            add("--host", "127.0.0.1".to_string());
            add("--port", port.to_string());
            add("--parallel", slots.to_string());
            // One thread per connection, and some for health checks.
            add("--threads-http", (clients + 4).to_string());
            // Warnings and errors only, like `anneal serve`.
            add("--log-verbosity", "2".to_string());
            if !reuse {
                // Disable the cache in memory, because prompts are not repeated.
                add("--cache-ram", "0".to_string());
            }
        }
    }
    add("--ctx-size", context.to_string());
    add("--batch-size", "2048".to_string());
    add("--ubatch-size", "512".to_string());
    add("--threads", threads.to_string());
    add("--threads-batch", threads.to_string());
    match kind {
        ServerKind::Anneal => {
            words.insert(0, "serve".to_string());
            words.push("--no-tuning".to_string());
        }
        ServerKind::LlamaServer => words.push("--no-ui".to_string()),
    }
    words
}

/// Private folder for a socket or a configuration file. Dropping the value removes the folder.
pub struct ServerFolder(TempDir);

impl ServerFolder {
    /// Creates the folder.
    pub fn new() -> Result<Self> {
        base::scratch("anneal-load").map(Self).context("cannot create a temporary folder")
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

/// Last lines of output from a server.
type Tail = Arc<Mutex<VecDeque<String>>>;

/// Running server.
pub struct Server {
    running: Running,
    line: String,
    /// Address of the server's HTTP interface.
    pub http: Address,
    /// Address of the server's socket for JSON lines; `None` for llama-server.
    pub socket: Option<Address>,
    /// Milliseconds from the server's start until it was ready.
    pub ready_ms: f64,
    tail: Tail,
    ended: bool,
    _place: ServerFolder,
}

impl Server {
    /// Starts `subject` and waits until it is ready.
    pub fn start(subject: &MeasuredServer, settings: &Settings) -> Result<Self> {
        process::check_interrupted()?;
        let place = ServerFolder::new()?;
        let socket = place.path().join("s.sock");
        let port = free_port()?;
        let mut command = Command::new(&subject.build.path);
        command.args(arguments(subject.kind, settings, port, &socket));
        let line = process::line(&command);
        let started = Instant::now();
        let mut running = Running::start(&mut command)?;
        let tail = Tail::default();
        for stream in [
            running.child.stdout.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>),
            running.child.stderr.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>),
        ] {
            keep_tail(stream, &tail);
        }
        let mut server = Server {
            running,
            line,
            http: Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
            socket: (subject.kind == ServerKind::Anneal).then_some(Address::Unix(socket)),
            ready_ms: 0.0,
            tail,
            ended: false,
            _place: place,
        };
        server.wait(started).with_context(|| format!("{} did not become ready", subject.name()))?;
        Ok(server)
    }

    fn wait(&mut self, started: Instant) -> Result<()> {
        let request = http("GET", "/health", b"");
        loop {
            process::check_interrupted()?;
            if fetch(&self.http, &request, PATIENCE).is_ok_and(|(status, _)| status == 200) {
                self.ready_ms = started.elapsed().as_secs_f64() * 1e3;
                return Ok(());
            }
            self.check()?;
            if started.elapsed() > PATIENCE {
                bail!("{} was not ready after {} s{}", self.line, PATIENCE.as_secs(), self.said());
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Returns an error if the server has ended.
    pub fn check(&mut self) -> Result<()> {
        let line = &self.line;
        if let Some(status) =
            self.running.child.try_wait().with_context(|| format!("cannot wait for {line}"))?
        {
            self.ended = true;
            // The last output of the server may still be in the pipe.
            std::thread::sleep(Duration::from_millis(50));
            bail!("{} ended with {status}{}", self.line, self.said());
        }
        Ok(())
    }

    fn said(&self) -> String {
        let lines = self.tail.lock().map(|lines| lines.clone()).unwrap_or_default();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        process::last_lines(&lines, TAIL)
    }

    /// Returns the command line of the server.
    pub fn line(&self) -> &str {
        &self.line
    }

    /// Returns the process id of the server.
    pub fn pid(&self) -> u32 {
        self.running.child.id()
    }

    /// Returns the address for `interface`, and the interface that is used; llama-server does not support JSON lines.
    pub fn address(&self, interface: Interface) -> (Address, Interface) {
        match (interface, &self.socket) {
            (Interface::Lines, Some(socket)) => (socket.clone(), Interface::Lines),
            _ => (self.http.clone(), Interface::Http),
        }
    }

    /// Runs the clients of `plan`. Ctrl-C kills the server, which also ends the requests.
    pub fn drive(&mut self, plan: &LoadPlan) -> Result<Drive> {
        let over = AtomicBool::new(false);
        let child = &self.running.child;
        let drive = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    if process::interrupted() {
                        process::stop(child, true);
                        return;
                    }
                    std::thread::park_timeout(Duration::from_millis(100));
                }
            });
            let drive = load::drive(plan, &process::interrupted);
            over.store(true, Ordering::Relaxed);
            drive
        });
        process::check_interrupted()?;
        self.check()?;
        Ok(drive)
    }

    /// Sends a GET request for `path` and returns the body.
    pub fn get(&self, path: &str) -> Result<String> {
        let (status, body) = fetch(&self.http, &http("GET", path, b""), Duration::from_secs(30))
            .map_err(anyhow::Error::msg)
            .with_context(|| format!("GET {path}"))?;
        if status != 200 {
            bail!("GET {path}: status {status}");
        }
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// Asks the server to end, and waits.
    ///
    /// # Errors
    /// If the server does not end in time, in which case it is killed.
    pub fn stop(mut self) -> Result<ExitStatus> {
        self.ended = true;
        process::stop(&self.running.child, false);
        let asked = Instant::now();
        while asked.elapsed() < END {
            if let Some(status) = self.running.child.try_wait().context("cannot wait for the server")? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        process::stop(&self.running.child, true);
        let _ = self.running.child.wait();
        bail!("{} did not end within {} s of SIGTERM", self.line, END.as_secs())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.ended {
            process::stop(&self.running.child, true);
            let _ = self.running.child.wait();
        }
    }
}

/// Returns a port that is currently free.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .context("cannot find a free port on the loopback interface")?;
    Ok(listener.local_addr().context("cannot find a free port on the loopback interface")?.port())
}

/// Reads the output continuously, because a full pipe would block the server.
fn keep_tail(stream: Option<Box<dyn Read + Send>>, tail: &Tail) {
    let (Some(stream), tail) = (stream, Arc::clone(tail)) else { return };
    std::thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n') {
            let (Ok(line), Ok(mut tail)) = (line, tail.lock()) else { return };
            if tail.len() == TAIL {
                tail.pop_front();
            }
            tail.push_back(String::from_utf8_lossy(&line).chars().take(400).collect());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_given_the_same_threads_context_batch_and_slots() {
        let settings = Settings {
            model: "m.gguf".into(),
            threads: 2,
            slots: 4,
            clients: 16,
            context: 4096,
            reuse: false,
            config: None,
        };
        let line = |kind, settings: &Settings| arguments(kind, settings, 7, Path::new("/t/s.sock")).join(" ");
        let ours = line(ServerKind::Anneal, &settings);
        let theirs = line(ServerKind::LlamaServer, &settings);
        for words in ["-m m.gguf", "--threads 2", "--threads-batch 2", "--ctx-size 4096", "--ubatch-size 512"]
        {
            assert!(ours.contains(words) && theirs.contains(words), "{words}: {ours} | {theirs}");
        }
        assert!(ours.starts_with("serve ") && ours.contains("--slots 4 --queue 64"), "{ours}");
        assert!(
            theirs.contains("--parallel 4 --threads-http 20") && theirs.contains("--cache-ram 0"),
            "{theirs}"
        );
        let warm = Settings { reuse: true, ..settings };
        assert!(!line(ServerKind::LlamaServer, &warm).contains("--cache-ram"));
    }

    #[test]
    fn a_program_that_ends_is_told_with_its_last_words() {
        let build = CandidateBuild {
            name: "odd".to_string(),
            path: "/bin/false".into(),
            program: build::compare::candidate::MeasuredProgram::Anneal,
            record: None,
        };
        let subject = MeasuredServer { build, kind: ServerKind::Anneal };
        let settings = Settings {
            model: "m.gguf".into(),
            threads: 1,
            slots: 1,
            clients: 1,
            context: 256,
            reuse: false,
            config: None,
        };
        let error = format!("{:#}", Server::start(&subject, &settings).err().unwrap());
        for words in ["odd did not become ready", "exit status: 1", "printed nothing"] {
            assert!(error.contains(words), "{words} is not in: {error}");
        }
    }
}
