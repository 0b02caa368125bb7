//! `GET /status`: how a server is, for people who look (`anneal top`). Never what was asked or answered.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use host::process::{self, Throttling};
use serde::{Deserialize, Serialize};

use super::closing::Closing;
use super::metrics::{Metrics, Number};
use super::models::{ModelRegistry, ModelSnapshot};
use super::scope::Owner;
use super::slot_status::{SlotSnapshot, SlotState};

/// All of it. What another version does not tell is 0 or nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// `ok`, or `stopping`.
    pub status: String,
    /// Of anneal.
    pub version: String,
    /// Of llama.cpp in it.
    pub llama_version: String,
    /// The process.
    pub pid: u32,
    /// Seconds since it was started.
    pub uptime_s: u64,
    /// The models and their slots.
    pub models: Vec<ModelStatus>,
    /// Who waits.
    pub queue: QueueStatus,
    /// Open connections, that of whoever asks among them.
    pub connections: u64,
    /// Counted since the start.
    pub totals: Totals,
    /// Threads.
    pub threads: ThreadStatus,
    /// Memory.
    pub memory: MemoryStatus,
    /// Processor time.
    pub cpu: CpuStatus,
}

/// A model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelStatus {
    /// Its name.
    pub id: String,
    /// `unloaded`, `loading`, `loaded`, `leaving` or `failed`.
    pub state: String,
    /// What it is; nothing while it is not loaded.
    pub description: String,
    /// Tokens of its context; 0 while it is not loaded.
    pub context: u32,
    /// Its slots.
    pub slots: Vec<SlotStatus>,
}

/// A slot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlotStatus {
    /// Its number.
    pub id: u32,
    /// What it does.
    pub state: SlotState,
    /// Tokens in the context; what is shared counts for each. 0 where they are another client's.
    pub held_tokens: u32,
    /// Of its request: tokens of the prompt. This and what follows is nothing where it is another client's.
    pub prompt_tokens: Option<u32>,
    /// Of these, found in the cache.
    pub cached_tokens: Option<u32>,
    /// Generated so far.
    pub generated_tokens: Option<u32>,
    /// Seconds since it came.
    pub age_s: Option<f64>,
    /// Tokens a second since its first.
    pub tokens_per_second: Option<f64>,
}

/// Who waits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueStatus {
    /// Requests.
    pub waiting: u64,
    /// Most that may wait.
    pub bound: u64,
    /// Requests for embeddings, which have a queue of their own.
    pub embeddings_waiting: u64,
}

/// Counted since the start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Requests that came to an end of their own.
    pub requests: u64,
    /// Refused because too many waited.
    pub refused: u64,
    /// Tokens of prompts evaluated, as it goes.
    pub prefill_tokens: u64,
    /// Tokens chosen, as it goes.
    pub decode_tokens: u64,
    /// Tokens of the prompts of requests that ended.
    pub prompt_tokens: u64,
    /// Of these, found in the cache.
    pub cached_tokens: u64,
    /// Batches.
    pub batches: u64,
    /// Seconds in which batches were evaluated.
    pub batch_s: f64,
    /// Prompts looked for on the disk.
    pub disk_lookups: u64,
    /// Of these, found.
    pub disk_hits: u64,
}

/// Threads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ThreadStatus {
    /// That generate.
    pub decode: u64,
    /// That evaluate prompts.
    pub prefill: u64,
    /// Of the process, all in all.
    pub process: u64,
}

/// Memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryStatus {
    /// In use by the process, pages of the model's file included.
    pub resident_bytes: u64,
    /// What it may use: the machine's, or its control group's limit. 0 where nobody knows.
    pub limit_bytes: u64,
}

/// Processor time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuStatus {
    /// Seconds used by the process so far.
    pub seconds: f64,
    /// Processors that it may use.
    pub cores: u64,
    /// Periods in which a quota held its control group, or one above it, back, since that was made.
    pub throttled_periods: Option<u64>,
}

impl Status {
    /// Returns the state of the server of `registry`, as far as `viewer` may see it.
    pub fn of(registry: &ModelRegistry, viewer: Owner) -> Self {
        let snapshots = registry.snapshots();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let pid = std::process::id();
        // Of one model alone they are the server's.
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
            // Models take turns on the same cores.
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

/// What is counted in `all` together.
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

/// Returns the part of `slot` that `viewer` may see. Lengths and times tell something about texts, so other clients see
/// only the state of the slot. The user who runs the server sees everything.
fn seen_by(viewer: Owner, slot: SlotSnapshot) -> SlotSnapshot {
    match viewer == Owner::Server || slot.owner == Some(viewer) || slot.owner == Some(Owner::All) {
        true => slot,
        false => SlotSnapshot { held: 0, run: None, ..slot },
    }
}

fn shown(slot: &SlotSnapshot, id: u32, now: Instant) -> SlotStatus {
    let run = slot.run.as_ref();
    let rate = run.and_then(|run| {
        // The first one comes out of the prompt.
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
