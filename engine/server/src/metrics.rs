//! Counters and gauges of the server, for `/metrics`.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine_core::runtime_host::RuntimeHost;

use super::done::Done;
use super::finish_reason::FinishReason;
use super::slot_status::SlotSnapshots;

/// Counter or gauge.
#[derive(Debug, Default)]
pub struct Number(AtomicU64);

impl Number {
    /// Adds `more`.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Subtracts one.
    pub fn sub_one(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Changes the caller's contribution to the value from `from` to `to`.
    pub fn change(&self, from: u64, to: u64) {
        self.0.fetch_add(to.wrapping_sub(from), Ordering::Relaxed);
    }

    /// Adds a time, in nanoseconds.
    pub fn add_time(&self, time: Duration) {
        self.add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Sets the value.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Returns the value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// All counters and gauges. Times are in nanoseconds.
#[derive(Debug, Default)]
#[expect(missing_docs, reason = "each is explained in `to_prometheus`")]
pub struct Metrics {
    pub finished: [Number; FINISH_REASONS.len()],
    pub abandoned: Number,
    pub failed: Number,
    pub refused: Number,
    pub invalid: Number,
    pub preempted: Number,
    pub panics: Number,
    pub prompt_tokens: Number,
    pub cached_tokens: Number,
    pub generated_tokens: Number,
    pub batches: Number,
    pub batch_tokens: Number,
    pub batch_time: Number,
    pub drafted_tokens: Number,
    pub accepted_tokens: Number,
    pub drafts_turned_off: Number,
    pub device_tokens: Number,
    pub queue_time: Number,
    pub first_token_time: Number,
    pub first_tokens: Number,
    pub decode_time: Number,
    pub embeddings: Number,
    pub embedding_tokens: Number,
    pub embedding_waiting: Number,
    pub embedding_cache: Number,
    pub slots: Number,
    pub slots_busy: Number,
    pub waiting: Number,
    pub connections: Number,
    pub connections_refused: [Number; REFUSED.len()],
    pub connections_evicted: [Number; EVICTED.len()],
    pub connections_timed_out: [Number; LATE.len()],
    pub waiting_bytes: Number,
    pub checkpoints: Number,
    pub checkpoint_bytes: Number,
    pub checkpoints_saved: Number,
    pub checkpoints_restored: Number,
    pub checkpoints_dropped: Number,
    pub cache_lookups: Number,
    pub cache_hits: Number,
    pub cache_tokens: Number,
    pub cache_read_bytes: Number,
    pub cache_writes: Number,
    pub cache_written_bytes: Number,
    pub cache_failures: Number,
    pub cache_dropped: Number,
    pub prefill_tokens: Number,
    pub decode_tokens: Number,
    pub decode_threads: Number,
    pub prefill_threads: Number,
    pub batch_invariant: Number,
    pub memory_limit: Number,
    pub slot_snapshots: SlotSnapshots,
}

/// All finish reasons, with their names.
const FINISH_REASONS: [(FinishReason, &str); 6] = [
    (FinishReason::End, "end"),
    (FinishReason::StopString, "stop_string"),
    (FinishReason::Length, "length"),
    (FinishReason::ContextFull, "context_full"),
    (FinishReason::Deadline, "deadline"),
    (FinishReason::Shutdown, "shutdown"),
];

/// Names of the limits that refuse connections, in the order of `Full`.
const REFUSED: [&str; 2] = ["total", "address"];
/// Names of the reasons why connections are evicted, in the order of `Evicted`.
const EVICTED: [&str; 3] = ["unauthenticated", "idle", "reserve"];
/// Names of the time limits that clients exceeded, in the order of `Late`.
const LATE: [&str; 4] = ["head", "body", "idle", "write"];

impl Metrics {
    /// Counts a request that ended for the reason `end`.
    pub fn count_end(&self, end: FinishReason) {
        if let Some(at) = FINISH_REASONS.iter().position(|(finish, _)| *finish == end) {
            self.finished[at].add(1);
        }
    }

    /// Counts a request that was refused as invalid, with the HTTP status `status`. Does not count refusals because
    /// of a full queue (429), which are counted elsewhere.
    pub fn count_refusal(&self, status: u16) {
        if (400..500).contains(&status) && status != 429 {
            self.invalid.add(1);
        }
    }

    /// Counts a finished request, with its tokens and times.
    pub fn count(&self, done: &Done) {
        self.count_end(done.finish);
        self.prompt_tokens.add(u64::from(done.usage.prompt_tokens));
        self.cached_tokens.add(u64::from(done.usage.cached_tokens));
        self.generated_tokens.add(u64::from(done.usage.completion_tokens));
        self.queue_time.add_time(done.timings.queued);
        self.decode_time.add_time(done.timings.decode);
        if let Some(time) = done.timings.first_token {
            self.first_tokens.add(1);
            self.first_token_time.add_time(time);
        }
    }

    /// Resets the gauges after the model was unloaded.
    pub fn let_go(&self) {
        let now = [
            &self.slots,
            &self.slots_busy,
            &self.waiting,
            &self.embedding_waiting,
            &self.embedding_cache,
            &self.decode_threads,
            &self.prefill_threads,
            &self.batch_invariant,
            &self.checkpoints,
            &self.checkpoint_bytes,
        ];
        now.into_iter().for_each(|number| number.set(0));
        self.slot_snapshots.clear();
    }

    /// Records the memory limit of the machine.
    pub fn note(&self, runtime_host: &RuntimeHost) {
        let host = runtime_host.host.as_ref();
        let limit = host.map(|host| host.limits.memory.unwrap_or(host.memory.total));
        self.memory_limit.set(limit.map_or(0, |limit| limit.0));
    }

    /// Returns the number of requests that ended with a finish reason.
    pub fn finished(&self) -> u64 {
        self.finished.iter().map(Number::get).sum()
    }

    /// Returns the metrics in the Prometheus text format.
    pub fn to_prometheus(&self) -> String {
        written(&self.families())
    }

    /// Returns all metrics with their names.
    pub fn families(&self) -> Vec<Family> {
        let mut families = Vec::new();
        let mut head = |name: &str, kind: &'static str, help: &str, values: &[(String, String)]| {
            families.push(Family {
                name: name.to_string(),
                kind,
                help: help.to_string(),
                values: values.to_vec(),
            });
        };
        let label = |end: &str, number: &Number| (format!("{{end=\"{end}\"}}"), number.get().to_string());
        let mut ends: Vec<(String, String)> = FINISH_REASONS
            .iter()
            .zip(&self.finished)
            .map(|((_, name), number)| label(name, number))
            .collect();
        ends.push(label("abandoned", &self.abandoned));
        ends.push(label("failed", &self.failed));
        ends.push(label("refused", &self.refused));
        ends.push(label("invalid", &self.invalid));
        head("requests_total", "counter", "Requests, by outcome.", &ends);
        let by_reason = |names: &[&str], numbers: &[Number]| -> Vec<(String, String)> {
            let value = |(name, number): (&&str, &Number)| {
                (format!("{{reason=\"{name}\"}}"), number.get().to_string())
            };
            names.iter().zip(numbers).map(value).collect()
        };
        for (name, help, values) in [
            (
                "connections_refused_total",
                "Refused connections, by the limit that was reached.",
                by_reason(&REFUSED, &self.connections_refused),
            ),
            (
                "connections_evicted_total",
                "Connections closed to make room for others, by reason.",
                by_reason(&EVICTED, &self.connections_evicted),
            ),
            (
                "connections_timed_out_total",
                "Connections closed because their client was too slow, by phase.",
                by_reason(&LATE, &self.connections_timed_out),
            ),
        ] {
            head(name, "counter", help, &values);
        }
        let one = |value: u64| [(String::new(), value.to_string())];
        let seconds = |number: &Number| [(String::new(), format!("{}", number.get() as f64 / 1e9))];
        let counters = [
            (
                "requests_parked_total",
                "Preemptions: requests that left their slot because the context ran out of cells.",
                &self.preempted,
            ),
            ("panics_total", "Panics in a part of the server; the affected requests failed.", &self.panics),
            ("prompt_tokens_total", "Prompt tokens of ended requests.", &self.prompt_tokens),
            ("prompt_tokens_cached_total", "Prompt tokens found in the cache.", &self.cached_tokens),
            ("generated_tokens_total", "Generated tokens of ended requests.", &self.generated_tokens),
            ("batches_total", "Evaluated batches.", &self.batches),
            ("batch_tokens_total", "Tokens in evaluated batches.", &self.batch_tokens),
            (
                "prefill_tokens_total",
                "Evaluated prompt tokens, including running requests.",
                &self.prefill_tokens,
            ),
            ("decode_tokens_total", "Sampled tokens, including running requests.", &self.decode_tokens),
            ("drafted_tokens_total", "Drafted tokens.", &self.drafted_tokens),
            ("accepted_tokens_total", "Drafted tokens that were accepted.", &self.accepted_tokens),
            (
                "drafts_turned_off_total",
                "Number of times that drafting was turned off because it was slower than decoding without drafts.",
                &self.drafts_turned_off,
            ),
            ("device_tokens_total", "Tokens sampled by a device.", &self.device_tokens),
            ("embeddings_total", "Texts whose embeddings were computed.", &self.embeddings),
            (
                "embedding_tokens_total",
                "Tokens of texts whose embeddings were computed.",
                &self.embedding_tokens,
            ),
            ("first_tokens_total", "Requests that got a first token.", &self.first_tokens),
            (
                "checkpoints_saved_total",
                "Checkpoints of prompts saved in memory, including those read from the disk cache; 0 for models that do not \
                 need checkpoints.",
                &self.checkpoints_saved,
            ),
            (
                "checkpoints_restored_total",
                "Prompts that started from a checkpoint.",
                &self.checkpoints_restored,
            ),
            (
                "checkpoints_dropped_total",
                "Checkpoints dropped because `checkpoint_memory` was full.",
                &self.checkpoints_dropped,
            ),
            ("prompt_cache_lookups_total", "Prompts looked up in the disk cache.", &self.cache_lookups),
            (
                "prompt_cache_hits_total",
                "Prompts that started from a state in the disk cache.",
                &self.cache_hits,
            ),
            ("prompt_cache_tokens_total", "Prompt tokens read from the disk cache.", &self.cache_tokens),
            ("prompt_cache_read_bytes_total", "Bytes read from the disk cache.", &self.cache_read_bytes),
            ("prompt_cache_writes_total", "Prompts written to the disk cache.", &self.cache_writes),
            (
                "prompt_cache_written_bytes_total",
                "Bytes written to the disk cache.",
                &self.cache_written_bytes,
            ),
            (
                "prompt_cache_failures_total",
                "Files of the disk cache that were damaged or could not be written.",
                &self.cache_failures,
            ),
            (
                "prompt_cache_dropped_total",
                "Prompts not written to the disk cache because too many were waiting.",
                &self.cache_dropped,
            ),
        ];
        for (name, help, number) in counters {
            head(name, "counter", help, &one(number.get()));
        }
        let times = [
            ("batch_seconds_total", "Time spent evaluating batches.", &self.batch_time),
            ("queue_seconds_total", "Time that requests spent waiting for a slot.", &self.queue_time),
            (
                "first_token_seconds_total",
                "Time from arrival to first token, summed over requests.",
                &self.first_token_time,
            ),
            (
                "decode_seconds_total",
                "Time from first to last token, summed over requests.",
                &self.decode_time,
            ),
        ];
        for (name, help, number) in times {
            head(name, "counter", help, &seconds(number));
        }
        let gauges = [
            ("slots", "Number of slots.", &self.slots),
            ("slots_busy", "Slots with a running request.", &self.slots_busy),
            ("requests_waiting", "Requests in the queue.", &self.waiting),
            ("embedding_requests_waiting", "Requests in the queue for embeddings.", &self.embedding_waiting),
            (
                "embedding_cache_bytes",
                "KV cache size of the embedding context; 0 if no such context exists.",
                &self.embedding_cache,
            ),
            ("connections", "Open connections.", &self.connections),
            (
                "waiting_request_bytes",
                "Size of requests that wait for the rest of their body, a model or a slot.",
                &self.waiting_bytes,
            ),
            ("checkpoints", "Number of checkpoints of prompts in memory.", &self.checkpoints),
            ("checkpoint_bytes", "Size of the checkpoints of prompts.", &self.checkpoint_bytes),
            ("decode_threads", "Number of threads for decode.", &self.decode_threads),
            ("prefill_threads", "Number of threads for prefill.", &self.prefill_threads),
            (
                "batch_invariant",
                "1 if all results so far are bit-identical to evaluating each token alone, else 0.",
                &self.batch_invariant,
            ),
        ];
        for (name, help, number) in gauges {
            head(name, "gauge", help, &one(number.get()));
        }
        families
    }
}

/// Metric with all its values.
#[derive(Clone, Debug)]
pub struct Family {
    /// Name, without the prefix `anneal_`.
    pub name: String,
    /// `counter` or `gauge`.
    pub kind: &'static str,
    /// Help text.
    pub help: String,
    /// Values, each with its labels as text in braces (`{end="…"}`, or empty).
    pub values: Vec<(String, String)>,
}

impl Family {
    /// Adds the label `model` to every value.
    pub fn label(&mut self, model: &str) {
        let model = model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        for (labels, _) in &mut self.values {
            let rest = labels.strip_prefix('{').map_or("}".to_string(), |rest| format!(",{rest}"));
            *labels = format!("{{model=\"{model}\"{rest}");
        }
    }
}

/// Formats `families` in the Prometheus text format. Families with the same name are merged.
pub fn written(families: &[Family]) -> String {
    let mut text = String::new();
    let mut names: Vec<&str> = Vec::new();
    for family in families {
        let Family { name, kind, help, .. } = family;
        if names.contains(&name.as_str()) {
            continue;
        }
        names.push(name);
        let _ = writeln!(text, "# HELP anneal_{name} {help}\n# TYPE anneal_{name} {kind}");
        for (labels, value) in
            families.iter().filter(|other| other.name == *name).flat_map(|other| &other.values)
        {
            let _ = writeln!(text, "anneal_{name}{labels} {value}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_told_apart_by_a_label() {
        let (one, other) = (Metrics::default(), Metrics::default());
        one.slots.set(4);
        let mut families = one.families();
        families.iter_mut().for_each(|family| family.label("a \"b\""));
        families.extend(other.families().into_iter().map(|mut family| {
            family.label("c");
            family
        }));
        let text = written(&families);
        let expected =
            "# TYPE anneal_slots gauge\nanneal_slots{model=\"a \\\"b\\\"\"} 4\nanneal_slots{model=\"c\"} 0\n";
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("anneal_requests_total{model=\"c\",end=\"length\"} 0\n"), "{text}");
        assert_eq!(text.matches("# HELP anneal_slots ").count(), 1);
    }

    #[test]
    fn every_line_is_a_comment_or_a_number() {
        let metrics = Metrics::default();
        metrics.batch_time.add_time(Duration::from_millis(1500));
        metrics.finished[2].add(3);
        let text = metrics.to_prometheus();
        assert!(text.contains("anneal_requests_total{end=\"length\"} 3\n"), "{text}");
        assert!(text.contains("anneal_batch_seconds_total 1.5\n"), "{text}");
        for line in text.lines() {
            let number = line.rsplit(' ').next().and_then(|word| word.parse::<f64>().ok());
            assert!(line.starts_with("# ") || number.is_some(), "{line}");
        }
    }
}
