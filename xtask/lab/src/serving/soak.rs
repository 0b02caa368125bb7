//! Soak test of one server with many requests of all kinds, valid and invalid. The test checks that answers stay
//! correct, slots become free and memory does not grow.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use build::compare::Provenance;
use build::process;
use build::ui::Ui;
use build_info::Bytes;
use build_info::words::count;
use serde::{Deserialize, Serialize};

use super::prompts::{Prompts, Random};
use super::sample::{memory, metric};
use super::server::{MeasuredServer, Server, ServerFolder, Settings};

mod abuse;
mod known;
mod talk;
mod visit;

use abuse::LONGEST;
use known::{Deviation, Known, SampledAnswer};
use talk::Talks;
use visit::Visit;

/// Maximum growth of memory after the warm-up, as a fraction.
const GROWTH: f64 = 0.05;

/// Time limit for slots to become free at the end of the soak.
const SETTLE: Duration = Duration::from_secs(15);

/// Maximum number of wrong answers that are recorded as text.
const KEPT: usize = 20;

/// Settings of a soak.
#[derive(Clone, Debug)]
pub struct Soak {
    /// Server to soak.
    pub subject: MeasuredServer,
    /// Path of the model.
    pub model: PathBuf,
    /// Total number of requests.
    pub requests: u64,
    /// Number of concurrent clients.
    pub clients: u32,
    /// Number of threads of the server.
    pub threads: u32,
    /// Provenance for the result.
    pub provenance: Provenance,
}

/// Result of a soak.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Soaked {
    /// Date, command and machine of the soak.
    #[serde(flatten)]
    pub provenance: Provenance,
    /// Name of the model's file.
    pub model: String,
    /// Number of requests that were sent.
    pub requests: u64,
    /// Number of concurrent clients.
    pub clients: u32,
    /// Seconds that the soak took.
    pub seconds: f64,
    /// Number of requests of each kind.
    pub kinds: BTreeMap<String, u64>,
    /// Number of correct answers to prompts with known answers.
    pub right: u64,
    /// Number of correct answers in which another token with nearly the same probability replaced the most likely one.
    pub near_ties: u64,
    /// Number of answers in conversations that differ from the known answers. If results are bit-identical in every
    /// batch, such an answer counts as wrong instead.
    #[serde(default)]
    pub unlike: u64,
    /// True if the server reported that results are bit-identical in every batch. In this case, near ties are errors.
    #[serde(default)]
    pub batch_invariant: bool,
    /// Largest difference in log probability (natural logarithm) between a replacing token and the most likely token.
    /// The difference is measured when the server has no other clients.
    #[serde(default)]
    pub widest_tie: f64,
    /// Number of requests that the server refused because it was busy.
    pub busy: u64,
    /// First wrong answers.
    pub wrong: Vec<String>,
    /// Number of wrong answers.
    pub wrong_count: u64,
    /// Resident memory after a tenth of the requests, in bytes.
    pub warm_bytes: u64,
    /// Resident memory at the end, in bytes.
    pub end_bytes: u64,
    /// Readings of memory: the number of requests sent so far, and the resident memory in bytes.
    pub memory: Vec<(u64, u64)>,
    /// Number of slots that were still busy after all clients had ended.
    pub stuck_slots: f64,
    /// Number of requests that were still waiting after all clients had ended.
    pub waiting: f64,
    /// Number of connections that were still open after all clients had ended, except the connection that asked for
    /// this number.
    pub connections: f64,
    /// Exit code or signal with which the server ended.
    pub end: String,
    /// Problems found by the soak; empty if there are none.
    pub complaints: Vec<String>,
}

/// State that the clients share.
struct Shared<'a> {
    server: &'a Server,
    known: &'a [Known],
    talks: &'a Talks,
    requests: u64,
    begun: AtomicU64,
    stop: AtomicBool,
    tally: Mutex<Tally>,
}

/// Readings of memory: the number of requests sent so far, and the resident memory in bytes.
type MemoryReading = Vec<(u64, u64)>;

#[derive(Default)]
struct Tally {
    kinds: BTreeMap<String, u64>,
    right: u64,
    busy: u64,
    wrong: Vec<String>,
    wrong_count: u64,
    /// Answers that differ from the known answers. The answers are judged when the server is idle.
    doubtful: Vec<(usize, SampledAnswer)>,
    /// Number of answers in conversations that differ from the known answers, and examples.
    unlike: (u64, Vec<String>),
}

impl Soak {
    /// Runs the soak.
    pub fn run(&self, ui: &Ui) -> Result<Soaked> {
        let place = ServerFolder::new()?;
        let config = place.path().join("server_config.toml");
        let template = place.path().join("template.jinja");
        build::fs::write_atomically(&template, talk::TEMPLATE.as_bytes())?;
        let text = format!("max_request_bytes = {LONGEST}\nchat_template = {template:?}\n");
        build::fs::write_atomically(&config, text.as_bytes())?;
        let settings = Settings {
            model: self.model.clone(),
            threads: self.threads,
            slots: 4,
            clients: self.clients,
            context: 2048,
            reuse: true,
            config: Some(config),
        };
        let mut server = Server::start(&self.subject, &settings)?;
        let known = known::learn(&server, &Prompts::of(&self.model, 40, false)?)?;
        let talks = Talks::learn(&server)?;
        let begun = Instant::now();
        let (tally, memory, requests) = self.visits(&mut server, &known, &talks, ui)?;
        let seconds = begun.elapsed().as_secs_f64();
        let mut soaked = self.look(&server, tally, memory, &known)?;
        (soaked.seconds, soaked.requests) = (seconds, requests);
        soaked.end = match server.stop() {
            Ok(status) if status.success() => "exit code 0".to_string(),
            Ok(status) => status.to_string(),
            Err(error) => format!("{error:#}"),
        };
        soaked.complaints = complaints(&soaked);
        Ok(soaked)
    }

    /// Runs the clients. Returns their results, the readings of memory, and the number of requests.
    fn visits(
        &self,
        server: &mut Server,
        known: &[Known],
        talks: &Talks,
        ui: &Ui,
    ) -> Result<(Tally, MemoryReading, u64)> {
        let (mut samples, mut progress) = (Vec::new(), ui.progress("soak"));
        let shared = Shared {
            server,
            known,
            talks,
            requests: self.requests,
            begun: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            tally: Mutex::default(),
        };
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..u64::from(self.clients))
                .map(|client| {
                    let shared = &shared;
                    scope.spawn(move || client_loop(shared, client))
                })
                .collect();
            while clients.iter().any(|client| !client.is_finished()) {
                std::thread::sleep(Duration::from_millis(100));
                let done = shared.begun.load(Ordering::Relaxed).min(self.requests);
                progress.step(done, self.requests, "requests");
                match memory(shared.server.pid()) {
                    Some((resident, _)) if resident > 0 => samples.push((done, resident)),
                    // The server has ended.
                    _ => shared.stop.store(true, Ordering::Relaxed),
                }
                if process::interrupted() {
                    shared.stop.store(true, Ordering::Relaxed);
                }
            }
        });
        progress.finish();
        let begun = shared.begun.load(Ordering::Relaxed).min(self.requests);
        let tally = shared.tally.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        process::check_interrupted()?;
        server.check().context("the server ended during the soak")?;
        Ok((tally, thinned(samples), begun))
    }

    /// Collects the remaining results from the idle server.
    fn look(
        &self,
        server: &Server,
        mut tally: Tally,
        mut samples: Vec<(u64, u64)>,
        known: &[Known],
    ) -> Result<Soaked> {
        let (stuck_slots, waiting, connections) = settle(server)?;
        let end_bytes = memory(server.pid()).map_or(0, |(resident, _)| resident);
        samples.push((self.requests, end_bytes));
        let warm_bytes = warm(&samples, self.requests);
        let batch_invariant = metric(&server.get("/metrics")?, "anneal_batch_invariant") == Some(1.0);
        let (mut unlike, examples) = std::mem::take(&mut tally.unlike);
        if batch_invariant {
            tally.wrong_count += std::mem::take(&mut unlike);
            tally.wrong.extend(examples);
            tally.wrong.truncate(KEPT);
        }
        let (mut near_ties, mut widest_tie) = (0, 0.0_f64);
        for (number, answer) in std::mem::take(&mut tally.doubtful) {
            match known[number].judge(server, &answer)? {
                Deviation::Tie(less) => (near_ties, widest_tie) = (near_ties + 1, widest_tie.max(less)),
                Deviation::Wrong(why) => {
                    let known = &known[number].tokens;
                    tally.blame(format!(
                        "prompt {number}: {why}; received the tokens {:?} instead of {known:?}",
                        answer.tokens
                    ));
                }
            }
        }
        Ok(Soaked {
            provenance: self.provenance.clone(),
            model: self.model.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            requests: 0,
            clients: self.clients,
            seconds: 0.0,
            kinds: tally.kinds,
            right: tally.right,
            near_ties,
            unlike,
            batch_invariant,
            widest_tie,
            busy: tally.busy,
            wrong: tally.wrong,
            wrong_count: tally.wrong_count,
            warm_bytes,
            end_bytes,
            memory: samples,
            stuck_slots,
            waiting,
            connections,
            end: String::new(),
            complaints: Vec::new(),
        })
    }
}

impl Tally {
    fn blame(&mut self, words: String) {
        self.wrong_count += 1;
        if self.wrong.len() < KEPT {
            self.wrong.push(words.chars().take(600).collect());
        }
    }
}

fn client_loop(shared: &Shared<'_>, client: u64) {
    let mut random = Random(client.wrapping_mul(0x9e37_79b9) + 1);
    while !shared.stop.load(Ordering::Relaxed) {
        if shared.begun.fetch_add(1, Ordering::Relaxed) >= shared.requests {
            return;
        }
        let (kind, visit) = visit::visit(shared.server, shared.known, shared.talks, &mut random);
        let mut tally = shared.tally.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *tally.kinds.entry(kind.to_string()).or_default() += 1;
        match visit {
            Visit::Right => tally.right += 1,
            Visit::Nothing => {}
            Visit::Busy => tally.busy += 1,
            Visit::Doubtful(number, answer) => tally.doubtful.push((number, answer)),
            Visit::Unlike(words) => {
                let (count, examples) = &mut tally.unlike;
                *count += 1;
                if examples.len() < KEPT {
                    examples.push(format!("{kind}: {words}"));
                }
            }
            Visit::Wrong(words) => tally.blame(format!("{kind}: {words}")),
        }
    }
}

/// Waits until no request runs. Returns the numbers of busy slots, waiting requests and open connections.
fn settle(server: &Server) -> Result<(f64, f64, f64)> {
    let begun = Instant::now();
    loop {
        let page = server.get("/metrics").context("the server did not respond after the last request")?;
        let value = |name: &str| metric(&page, name).unwrap_or(f64::NAN);
        let (busy, waiting) = (value("anneal_slots_busy"), value("anneal_requests_waiting"));
        let connections = value("anneal_connections") - 1.0;
        if (busy == 0.0 && waiting == 0.0 && connections <= 0.0) || begun.elapsed() > SETTLE {
            return Ok((busy, waiting, connections.max(0.0)));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the resident memory after a tenth of the requests, in bytes.
fn warm(samples: &[(u64, u64)], requests: u64) -> u64 {
    let warm = samples.iter().find(|(done, _)| *done >= requests / 10);
    warm.or(samples.last()).map_or(0, |(_, resident)| *resident)
}

/// Reduces the number of samples to about 500 or fewer.
fn thinned(samples: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    let step = samples.len().div_ceil(500).max(1);
    samples.into_iter().step_by(step).collect()
}

fn complaints(soaked: &Soaked) -> Vec<String> {
    let mut complaints = Vec::new();
    if soaked.wrong_count > 0 {
        complaints.push(format!("the server gave {}", count(soaked.wrong_count, "wrong answer")));
    }
    if soaked.right == 0 {
        complaints.push("no answer was correct".to_string());
    }
    if soaked.batch_invariant && soaked.near_ties > 0 {
        complaints.push(format!(
            "{} from the answer without other clients, although the server reported bit-identical results",
            match soaked.near_ties {
                1 => "1 answer differs".to_string(),
                many => format!("{} differ", count(many, "answer")),
            }
        ));
    }
    // A missing metric is NaN. NaN differs from 0, so it is reported as a problem.
    if soaked.stuck_slots != 0.0 || soaked.waiting != 0.0 {
        complaints.push(format!(
            "after all clients had ended, the server still had {} and {}",
            count(soaked.stuck_slots, "busy slot"),
            count(soaked.waiting, "waiting request")
        ));
    }
    if soaked.connections > 0.0 {
        complaints.push(format!(
            "after all clients had ended, the server still had {}",
            count(soaked.connections, "open connection")
        ));
    }
    let growth = soaked.growth();
    if growth.is_nan() {
        complaints.push("the growth of the memory after the warm-up is unknown".to_string());
    }
    if growth > GROWTH {
        complaints.push(format!("memory grew by {:.1} % after the warm-up", 100.0 * growth));
    }
    if soaked.end != "exit code 0" {
        complaints.push(format!("after SIGTERM, the server ended with {}", soaked.end));
    }
    complaints
}

impl Soaked {
    /// Returns the growth of memory after the warm-up, as a fraction.
    pub fn growth(&self) -> f64 {
        self.end_bytes as f64 / self.warm_bytes as f64 - 1.0
    }

    /// Formats the result for users.
    pub fn text(&self) -> String {
        let kinds: Vec<String> = self.kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        let mut text = format!(
            "{} by {} in {:.1} s: {}\n{} right, {} of them with near ties between tokens (at most {:.4} \
             apart), {} wrong, {} refused as busy\nmemory {} after the warm-up, {} at the end ({:+.1} %); \
             {} stuck; {}",
            count(self.requests, "request"),
            count(self.clients, "client"),
            self.seconds,
            kinds.join(", "),
            count(self.right + self.near_ties, "answer"),
            self.near_ties,
            self.widest_tie,
            self.wrong_count,
            self.busy,
            Bytes(self.warm_bytes),
            Bytes(self.end_bytes),
            100.0 * self.growth(),
            count(self.stuck_slots, "slot"),
            self.end
        );
        for words in self.wrong.iter().take(5) {
            text.push_str(&format!("\n  {words}"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soaked() -> Soaked {
        Soaked {
            provenance: Provenance {
                date: "2026-11-22".to_string(),
                command: "test".to_string(),
                machine: "none".to_string(),
            },
            model: "m.gguf".to_string(),
            requests: 100,
            clients: 8,
            seconds: 1.0,
            kinds: BTreeMap::from([("malformed".to_string(), 7)]),
            right: 50,
            near_ties: 1,
            unlike: 0,
            batch_invariant: false,
            widest_tie: 0.002,
            busy: 0,
            wrong: Vec::new(),
            wrong_count: 0,
            warm_bytes: 100 << 20,
            end_bytes: 104 << 20,
            memory: Vec::new(),
            stuck_slots: 0.0,
            waiting: 0.0,
            connections: 0.0,
            end: "exit code 0".to_string(),
            complaints: Vec::new(),
        }
    }

    #[test]
    fn each_fault_is_a_complaint_and_none_is_none() {
        assert_eq!(complaints(&soaked()), Vec::<String>::new());
        let cases: [(Soaked, &str); 9] = [
            (
                Soaked { batch_invariant: true, ..soaked() },
                "1 answer differs from the answer without other clients",
            ),
            (Soaked { wrong_count: 2, ..soaked() }, "the server gave 2 wrong answers"),
            (Soaked { right: 0, ..soaked() }, "no answer was correct"),
            (Soaked { stuck_slots: 1.0, ..soaked() }, "still had 1 busy slot and 0 waiting requests"),
            (Soaked { waiting: f64::NAN, ..soaked() }, "0 busy slots and NaN waiting requests"),
            (Soaked { connections: 3.0, ..soaked() }, "3 open connections"),
            (Soaked { end_bytes: 106 << 20, ..soaked() }, "grew by 6.0 %"),
            (
                Soaked { warm_bytes: 0, end_bytes: 0, ..soaked() },
                "the growth of the memory after the warm-up is unknown",
            ),
            (Soaked { end: "signal: 6".to_string(), ..soaked() }, "ended with signal: 6"),
        ];
        for (soaked, words) in cases {
            let found = complaints(&soaked);
            assert!(found.len() == 1 && found[0].contains(words), "{words}: {found:?}");
        }
        assert!(
            soaked().text().contains("51 answers right, 1 of them")
                && soaked().text().contains("7 malformed")
        );
    }

    #[test]
    fn memory_is_warm_after_a_tenth() {
        let samples = [(0, 10), (5, 20), (10, 30), (60, 40), (100, 50)];
        assert_eq!(warm(&samples, 100), 30);
        assert_eq!(warm(&[], 100), 0);
        assert_eq!(thinned((0..2000).map(|n| (n, n)).collect()).len(), 500);
    }
}
