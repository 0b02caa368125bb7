//! Single run of one server with a number of clients.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use host::process::{self, ProcFolder};
use load::{Drive, Interface, LoadPlan};
use measure::{Round, Watch, median, quantile};
use serde::{Deserialize, Serialize};

use super::prompts::Prompts;
use super::server::{MeasuredServer, Server, Settings};

/// Time limit of a client for the next byte.
const PATIENCE: Duration = Duration::from_secs(300);

/// Number of tokens of a warm-up request.
const WARM_UP: u32 = 8;

/// Requests of the clients.
#[derive(Clone, Copy, Debug)]
pub struct ClientLoad<'a> {
    /// Generator of the prompts.
    pub prompts: &'a Prompts,
    /// Number of the round; prompts differ between rounds.
    pub round: u64,
    /// Number of concurrent clients.
    pub clients: u32,
    /// Number of requests per client.
    pub requests: u32,
    /// Number of tokens to generate.
    pub generate: u32,
    /// Interface to use, for servers that support it.
    pub interface: Interface,
}

/// Measurements of one run. Times are in milliseconds unless the name says otherwise.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Time from the server's start until it was ready.
    pub ready_ms: f64,
    /// Resident memory when the server was ready, in bytes.
    pub idle_bytes: u64,
    /// Resident memory after the last answer, in bytes.
    pub after_bytes: u64,
    /// Peak resident memory in bytes.
    pub peak_bytes: u64,
    /// Tokens per second of all clients together. The measured time includes the evaluation of the prompts.
    pub tokens_per_second: f64,
    /// Tokens per second of a stream from its first piece to its last: the median of all streams.
    pub stream_per_second: f64,
    /// Time to the first piece: median and 99th percentile over the requests.
    pub first_ms: [f64; 2],
    /// Time between two pieces: median and 99th percentile over all pieces.
    pub between_ms: [f64; 2],
    /// Time per token during which no batch was evaluated, in microseconds; `None` if the server does not measure it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outside_us: Option<f64>,
    /// Number of cores that the clients used.
    pub client_cores: f64,
    /// Number of failed requests.
    pub failed: usize,
    /// Some of the error messages, without duplicates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
    /// Load on the machine from other processes.
    pub machine: Round,
    /// All answers.
    pub drive: Drive,
}

/// Starts a server, warms it up, runs the clients, takes readings, and stops the server.
pub fn sample(subject: &MeasuredServer, settings: &Settings, work: &ClientLoad<'_>) -> Result<Sample> {
    let mut server = Server::start(subject, settings)?;
    let idle = memory(server.pid()).map_or(0, |(resident, _)| resident);
    let (address, interface) = server.address(work.interface);
    let plan = |round: u64, requests: u32, tokens: u32| LoadPlan {
        address: address.clone(),
        interface,
        clients: work.prompts.clients(round, work.clients, requests, tokens),
        patience: PATIENCE,
    };
    // A separate round number makes the warm-up prompts, which stay in the cache, differ from the measured prompts.
    server.drive(&plan(1 << 20 | work.round, 1, WARM_UP.min(work.generate)))?;
    let batches = batch_seconds(&server);
    let (watch, cpu, began) = (Watch::start(), process::own_cpu_time(), Instant::now());
    let drive = server.drive(&plan(work.round, work.requests, work.generate))?;
    let wall = began.elapsed().as_secs_f64();
    let client_cores = (process::own_cpu_time() - cpu).as_secs_f64() / wall;
    let machine = watch.stop();
    let outside = batches.zip(batch_seconds(&server)).and_then(|(before, after)| {
        (drive.tokens() > 0).then(|| 1e6 * (drive.seconds - (after - before)) / drive.tokens() as f64)
    });
    let (after, peak) = memory(server.pid()).unwrap_or_default();
    let ready_ms = server.ready_ms;
    server.stop().with_context(|| format!("cannot stop {}", subject.name()))?;
    let (first, between) = (drive.first_ms(), drive.between_ms());
    let errors = drive.errors();
    Ok(Sample {
        ready_ms,
        idle_bytes: idle,
        after_bytes: after,
        peak_bytes: peak,
        tokens_per_second: drive.tokens_per_second(),
        stream_per_second: median(&drive.decode_speeds()),
        first_ms: [median(&first), quantile(&first, 0.99)],
        between_ms: [median(&between), quantile(&between, 0.99)],
        outside_us: outside,
        client_cores,
        failed: errors.len(),
        errors: distinct(&errors),
        machine,
        drive,
    })
}

/// Returns some of the messages, without duplicates.
fn distinct(errors: &[&str]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for error in errors {
        if found.len() < 5 && !found.iter().any(|known| known == error) {
            found.push((*error).to_string());
        }
    }
    found
}

/// Returns the seconds that `server` has spent on batches so far.
fn batch_seconds(server: &Server) -> Option<f64> {
    metric(&server.get("/metrics").ok()?, "anneal_batch_seconds_total")
}

/// Returns the value of the metric `name` in a page in Prometheus's text format.
pub fn metric(page: &str, name: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Returns the resident memory of a process and its peak, in bytes.
pub fn memory(pid: u32) -> Option<(u64, u64)> {
    Some((process::resident(pid)?, ProcFolder::of(pid).peak_resident()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_found_by_their_whole_name() {
        let page = "# HELP anneal_batch_seconds_total Time.\n# TYPE anneal_batch_seconds_total counter\n\
                    anneal_batch_seconds_total_more 7\nanneal_batch_seconds_total 1.5\nanneal_slots_busy 0\n";
        for (name, expected) in [
            ("anneal_batch_seconds_total", Some(1.5)),
            ("anneal_slots_busy", Some(0.0)),
            ("anneal_slots", None),
            ("", None),
        ] {
            assert_eq!(metric(page, name), expected, "{name}");
        }
    }

    #[test]
    fn memory_of_this_process_is_read() {
        assert!(memory(std::process::id()).is_some_and(|(now, most)| now > 0 && most >= now));
    }

    #[test]
    fn words_are_told_once() {
        assert_eq!(distinct(&["a", "b", "a", "c", "d", "e", "f"]), ["a", "b", "c", "d", "e"]);
    }
}
