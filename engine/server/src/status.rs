//! Answer of `GET /status`: the state of a server, as `anneal top` shows it. The answer never contains texts.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use host::process::{self, Throttling};
use serde::{Deserialize, Serialize};

use super::closing::Closing;
use super::metrics::{Metrics, Number};
use super::models::{ModelRegistry, ModelSnapshot};
use super::scope::Owner;
use super::slot_status::{SlotSnapshot, SlotState};

/// State of a server. If a server of another version does not send a field, the field is 0 or empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// `ok` or `stopping`.
    pub status: String,
    /// Version of Anneal.
    pub version: String,
    /// Version of llama.cpp in the server.
    pub llama_version: String,
    /// Process ID.
    pub pid: u32,
    /// Seconds since the start.
    pub uptime_s: u64,
    /// Models and their slots.
    pub models: Vec<ModelStatus>,
    /// Waiting requests.
    pub queue: QueueStatus,
    /// Number of open connections, including the connection of this request.
    pub connections: u64,
    /// Totals since the start.
    pub totals: Totals,
    /// Thread counts.
    pub threads: ThreadStatus,
    /// Memory use.
    pub memory: MemoryStatus,
    /// CPU time.
    pub cpu: CpuStatus,
}

/// State of a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelStatus {
    /// Name of the model.
    pub id: String,
    /// `unloaded`, `loading`, `loaded`, `leaving` or `failed`.
    pub state: String,
    /// Description of the model. Empty while the model is not loaded.
    pub description: String,
    /// Number of tokens in the model's context. 0 while the model is not loaded.
    pub context: u32,
    /// State of the model's slots.
    pub slots: Vec<SlotStatus>,
}

/// State of a slot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlotStatus {
    /// Number of the slot.
    pub id: u32,
    /// Current activity.
    pub state: SlotState,
    /// Number of tokens that the slot holds. Tokens that several slots share count for each slot. 0 if the tokens
    /// belong to another client.
    pub held_tokens: u32,
    /// Number of prompt tokens of the running request. This field and the following fields are `None` if the request
    /// belongs to another client.
    pub prompt_tokens: Option<u32>,
    /// Number of prompt tokens that were in the cache.
    pub cached_tokens: Option<u32>,
    /// Number of tokens generated so far.
    pub generated_tokens: Option<u32>,
    /// Seconds since the request arrived.
    pub age_s: Option<f64>,
    /// Tokens per second since the first token.
    pub tokens_per_second: Option<f64>,
}

/// Length and limit of the queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueStatus {
    /// Number of waiting requests.
    pub waiting: u64,
    /// Maximum number of waiting requests.
    pub bound: u64,
    /// Number of waiting embedding requests, which have their own queue.
    pub embeddings_waiting: u64,
}

/// Totals since the start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Number of requests that ended with a finish reason.
    pub requests: u64,
    /// Number of requests that were refused because the queue was full.
    pub refused: u64,
    /// Number of evaluated prompt tokens, including running requests.
    pub prefill_tokens: u64,
    /// Number of sampled tokens, including running requests.
    pub decode_tokens: u64,
    /// Number of prompt tokens of ended requests.
    pub prompt_tokens: u64,
    /// Number of prompt tokens of ended requests that were in the cache.
    pub cached_tokens: u64,
    /// Number of batches.
    pub batches: u64,
    /// Seconds spent evaluating batches.
    pub batch_s: f64,
    /// Number of prompts looked up on the disk.
    pub disk_lookups: u64,
    /// Number of looked-up prompts that were found on the disk.
    pub disk_hits: u64,
}

/// Thread counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ThreadStatus {
    /// Number of threads for decode.
    pub decode: u64,
    /// Number of threads for prefill.
    pub prefill: u64,
    /// Number of all threads of the process.
    pub process: u64,
}

/// Memory use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryStatus {
    /// Resident memory of the process, including pages of the model file.
    pub resident_bytes: u64,
    /// Memory limit of the machine or of the control group. 0 if unknown.
    pub limit_bytes: u64,
}

/// CPU time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuStatus {
    /// CPU seconds used by the process.
    pub seconds: f64,
    /// Number of CPUs that the process may use.
    pub cores: u64,
    /// Number of periods in which a CPU quota throttled the control group or one of its parents, since the group was
    /// created.
    pub throttled_periods: Option<u64>,
}

impl Status {
    /// Returns the state of the server of `registry`, limited to the parts that `viewer` may see.
    pub fn of(registry: &ModelRegistry, viewer: Owner) -> Self {
        let snapshots = registry.snapshots();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let pid = std::process::id();
        // A single model shares the metrics of the server.
        let own = snapshots
            .iter()
            .map(|snapshot| &*snapshot.metrics)
            .filter(|own| !std::ptr::eq(*own, &*registry.metrics));
        let all: Vec<&Metrics> = own.chain([&*registry.metrics]).collect();
        let most = |of: fn(&Metrics) -> &Number| all.iter().map(|one| of(one).get()).max().unwrap_or(0);
        let sum = |of: fn(&Metrics) -> &Number| all.iter().map(|one| of(one).get()).sum::<u64>();
        Status {
            status: match registry.closing() {
                Closing::Open => "ok".to_string(),
                _ => "stopping".to_string(),
            },
            version: env!("CARGO_PKG_VERSION").to_string(),
            llama_version: llama::llama_version(),
            pid,
            uptime_s: now.saturating_sub(registry.created()),
            queue: QueueStatus {
                waiting: sum(|one| &one.waiting)
                    + snapshots.iter().map(|snapshot| snapshot.waiting).sum::<u64>(),
                bound: snapshots.iter().map(|snapshot| snapshot.bound).sum(),
                embeddings_waiting: sum(|one| &one.embedding_waiting),
            },
            connections: registry.metrics.connections.get(),
            totals: totals(&all),
            // Models take turns on the same cores, so their thread counts are not summed.
            threads: ThreadStatus {
                decode: most(|one| &one.decode_threads),
                prefill: most(|one| &one.prefill_threads),
                process: process::threads(pid).unwrap_or(0),
            },
            memory: MemoryStatus {
                resident_bytes: process::resident(pid).unwrap_or(0),
                limit_bytes: registry.metrics.memory_limit.get(),
            },
            cpu: cpu(),
            models: snapshots.into_iter().map(|snapshot| model(snapshot, viewer)).collect(),
        }
    }
}

/// Sums the totals of all metrics in `all`.
fn totals(all: &[&Metrics]) -> Totals {
    let sum = |of: fn(&Metrics) -> &Number| all.iter().map(|one| of(one).get()).sum::<u64>();
    Totals {
        requests: all.iter().map(|one| one.finished()).sum(),
        refused: sum(|one| &one.refused),
        prefill_tokens: sum(|one| &one.prefill_tokens),
        decode_tokens: sum(|one| &one.decode_tokens),
        prompt_tokens: sum(|one| &one.prompt_tokens),
        cached_tokens: sum(|one| &one.cached_tokens),
        batches: sum(|one| &one.batches),
        batch_s: sum(|one| &one.batch_time) as f64 / 1e9,
        disk_lookups: sum(|one| &one.cache_lookups),
        disk_hits: sum(|one| &one.cache_hits),
    }
}

fn model(snapshot: ModelSnapshot, viewer: Owner) -> ModelStatus {
    let now = Instant::now();
    let slots = snapshot.metrics.slot_snapshots.read();
    ModelStatus {
        id: snapshot.name,
        state: snapshot.state.to_string(),
        description: snapshot.description,
        context: snapshot.n_ctx,
        slots: slots.iter().zip(0..).map(|(slot, id)| shown(&seen_by(viewer, *slot), id, now)).collect(),
    }
}

/// Returns the part of `slot` that `viewer` may see. Other clients see only the slot's state, because lengths and
/// times reveal information about texts. The user who runs the server sees everything.
fn seen_by(viewer: Owner, slot: SlotSnapshot) -> SlotSnapshot {
    match viewer == Owner::Server || slot.owner == Some(viewer) || slot.owner == Some(Owner::All) {
        true => slot,
        false => SlotSnapshot { held: 0, run: None, ..slot },
    }
}

fn shown(slot: &SlotSnapshot, id: u32, now: Instant) -> SlotStatus {
    let run = slot.run.as_ref();
    let rate = run.and_then(|run| {
        // Prefill produces the first token, so it is not counted.
        let time = now.saturating_duration_since(run.first?).as_secs_f64();
        (run.generated > 1 && time > 0.0).then(|| f64::from(run.generated - 1) / time)
    });
    SlotStatus {
        id,
        state: slot.state,
        held_tokens: slot.held,
        prompt_tokens: run.map(|run| run.prompt),
        cached_tokens: run.map(|run| run.cached),
        generated_tokens: run.map(|run| run.generated),
        age_s: run.map(|run| now.saturating_duration_since(run.arrived).as_secs_f64()),
        tokens_per_second: rate,
    }
}

fn cpu() -> CpuStatus {
    CpuStatus {
        seconds: process::own_cpu_time().as_secs_f64(),
        cores: std::thread::available_parallelism().map_or(0, |cores| cores.get() as u64),
        throttled_periods: Throttling::read("/".as_ref(), "self").total(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::slot_status::RequestSnapshot;

    #[test]
    fn what_another_version_does_not_tell_is_nothing() {
        let told = r#"{"status": "ok", "models": [{"id": "m", "slots": [{"state": "dreaming", "more": 1}]}], "new": []}"#;
        let status: Status = serde_json::from_str(told).expect("a status");
        assert_eq!(status.models[0].slots[0].state, SlotState::Other);
        assert_eq!(status.queue, QueueStatus::default());
    }

    #[test]
    fn a_rate_needs_two_tokens_and_the_first_does_not_count() {
        let now = Instant::now();
        let run = |generated, first| RequestSnapshot {
            prompt: 5,
            cached: 2,
            generated,
            arrived: now - Duration::from_secs(4),
            first,
        };
        let two = Some(now - Duration::from_secs(2));
        for (run, expected) in [
            (Some(run(11, two)), Some(5.0)),
            (Some(run(1, two)), None),
            (Some(run(0, None)), None),
            (None, None),
        ] {
            let slot = shown(&SlotSnapshot { state: SlotState::Decode, held: 7, owner: None, run }, 3, now);
            assert_eq!((slot.tokens_per_second, slot.id, slot.held_tokens), (expected, 3, 7));
            assert_eq!(slot.age_s.is_some(), run.is_some());
        }
    }

    #[test]
    fn another_clients_numbers_are_not_shown() {
        let now = Instant::now();
        let run = RequestSnapshot { prompt: 5, cached: 2, generated: 1, arrived: now, first: None };
        let slot = |owner| SlotSnapshot { state: SlotState::Decode, held: 7, owner, run: Some(run) };
        let key = Owner::of_key("0123456789abcdef");
        let cases = [
            (key, Some(key), true),
            (key, Some(Owner::Server), false),
            (key, Some(Owner::of_key("fedcba9876543210")), false),
            (key, Some(Owner::All), true),
            (key, None, false),
            (Owner::Server, Some(key), true),
            (Owner::Server, None, true),
        ];
        for (viewer, owner, expected) in cases {
            let seen = shown(&seen_by(viewer, slot(owner)), 0, now);
            assert_eq!(seen.prompt_tokens.is_some(), expected, "{viewer:?} looks at {owner:?}");
            assert_eq!((seen.held_tokens > 0, seen.state), (expected, SlotState::Decode));
        }
    }
}
