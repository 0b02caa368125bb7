//! What the server counts, for `/metrics`.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine_core::runtime_host::RuntimeHost;

use super::done::Done;
use super::finish_reason::FinishReason;
use super::slot_status::SlotSnapshots;

/// A number that grows, or goes up and down.
#[derive(Debug, Default)]
pub struct Number(AtomicU64);

impl Number {
    /// Adds `more`.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Takes one away.
    pub fn sub_one(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Is `to` where it was `from`, beside what others have added.
    pub fn change(&self, from: u64, to: u64) {
        self.0.fetch_add(to.wrapping_sub(from), Ordering::Relaxed);
    }

    /// Adds a time.
    pub fn add_time(&self, time: Duration) {
        self.add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Is `value` now.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Every number. Times are in nanoseconds.
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
    pub memory_limit: Number,
    pub slot_snapshots: SlotSnapshots,
}

/// Every end there is, and its name.
const FINISH_REASONS: [(FinishReason, &str); 6] = [
    (FinishReason::End, "end"),
    (FinishReason::StopString, "stop_string"),
    (FinishReason::Length, "length"),
    (FinishReason::ContextFull, "context_full"),
    (FinishReason::Deadline, "deadline"),
    (FinishReason::Shutdown, "shutdown"),
];

/// Names of the bounds for which connections are refused, in the order of `Full`.
const REFUSED: [&str; 2] = ["total", "address"];
/// Names of the reasons for which connections are closed in favour of others, in the order of `Evicted`.
const EVICTED: [&str; 3] = ["unauthenticated", "idle", "reserve"];
/// Names of the times that clients did not keep, in the order of `Late`.
const LATE: [&str; 4] = ["head", "body", "idle", "write"];

impl Metrics {
    /// Counts a request that ended so.
    pub fn count_end(&self, end: FinishReason) {
        if let Some(at) = FINISH_REASONS.iter().position(|(finish, _)| *finish == end) {
            self.finished[at].add(1);
        }
    }

    /// Counts a request that was refused with this status of HTTP, for what it is; those that are too many are counted
    /// elsewhere.
    pub fn count_refusal(&self, status: u16) {
        if (400..500).contains(&status) && status != 429 {
            self.invalid.add(1);
        }
    }

    /// Counts a request that ended.
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

    /// Its model is not loaded any more: nothing runs, nothing waits.
    pub fn let_go(&self) {
        let now = [
            &self.slots,
            &self.slots_busy,
            &self.waiting,
            &self.embedding_waiting,
            &self.embedding_cache,
            &self.decode_threads,
            &self.prefill_threads,
        ];
        now.into_iter().for_each(|number| number.set(0));
        self.slot_snapshots.clear();
    }

    /// Notes what the machine has to give.
    pub fn note(&self, runtime_host: &RuntimeHost) {
        let host = runtime_host.host.as_ref();
        let limit = host.map(|host| host.limits.memory.unwrap_or(host.memory.total));
        self.memory_limit.set(limit.map_or(0, |limit| limit.0));
    }

    /// Requests that ran to an end of their own.
    pub fn finished(&self) -> u64 {
        self.finished.iter().map(Number::get).sum()
    }

    /// In the text format of Prometheus.
    pub fn to_prometheus(&self) -> String {
        written(&self.families())
    }

    /// Every number under its name.
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
        head("requests_total", "counter", "Requests by how they ended.", &ends);
        let by_reason = |names: &[&str], numbers: &[Number]| -> Vec<(String, String)> {
            let value = |(name, number): (&&str, &Number)| {
                (format!("{{reason=\"{name}\"}}"), number.get().to_string())
            };
            names.iter().zip(numbers).map(value).collect()
        };
        for (name, help, values) in [
            (
                "connections_refused_total",
                "Connections that were refused, by the bound that was reached.",
                by_reason(&REFUSED, &self.connections_refused),
            ),
            (
                "connections_evicted_total",
                "Connections that were closed in favour of others, by the reason.",
                by_reason(&EVICTED, &self.connections_evicted),
            ),
            (
                "connections_timed_out_total",
                "Connections that were closed because their client was too late, by what was late.",
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
                "Times that a request left its slot for want of cells.",
                &self.preempted,
            ),
            ("panics_total", "Panics of a part of the server; what was asked of it failed.", &self.panics),
            ("prompt_tokens_total", "Tokens of prompts.", &self.prompt_tokens),
            ("prompt_tokens_cached_total", "Tokens of prompts found in the cache.", &self.cached_tokens),
            ("generated_tokens_total", "Tokens generated.", &self.generated_tokens),
            ("batches_total", "Batches evaluated.", &self.batches),
            ("batch_tokens_total", "Tokens in these batches.", &self.batch_tokens),
            ("prefill_tokens_total", "Tokens of prompts evaluated, as it goes.", &self.prefill_tokens),
            ("decode_tokens_total", "Tokens chosen, as it goes.", &self.decode_tokens),
            ("drafted_tokens_total", "Tokens that were drafted.", &self.drafted_tokens),
            ("accepted_tokens_total", "Of these, tokens that were chosen.", &self.accepted_tokens),
            (
                "drafts_turned_off_total",
                "Times that drafts lost against steps without, and were left out from then on.",
                &self.drafts_turned_off,
            ),
            ("device_tokens_total", "Of the tokens chosen, those that a device chose.", &self.device_tokens),
            ("embeddings_total", "Texts that embeddings were made of.", &self.embeddings),
            ("embedding_tokens_total", "Tokens of these texts.", &self.embedding_tokens),
            ("first_tokens_total", "Requests that got a first token.", &self.first_tokens),
            ("prompt_cache_lookups_total", "Prompts that were looked for on the disk.", &self.cache_lookups),
            ("prompt_cache_hits_total", "Prompts that began with what was read.", &self.cache_hits),
            ("prompt_cache_tokens_total", "Tokens of prompts that were read.", &self.cache_tokens),
            ("prompt_cache_read_bytes_total", "Bytes read.", &self.cache_read_bytes),
            ("prompt_cache_writes_total", "Prompts written to the disk.", &self.cache_writes),
            ("prompt_cache_written_bytes_total", "Bytes written.", &self.cache_written_bytes),
            (
                "prompt_cache_failures_total",
                "Files that were damaged or could not be written.",
                &self.cache_failures,
            ),
            (
                "prompt_cache_dropped_total",
                "Prompts not written because too many waited.",
                &self.cache_dropped,
            ),
        ];
        for (name, help, number) in counters {
            head(name, "counter", help, &one(number.get()));
        }
        let times = [
            ("batch_seconds_total", "Time in which batches were evaluated.", &self.batch_time),
            ("queue_seconds_total", "Time that requests waited for a slot.", &self.queue_time),
            ("first_token_seconds_total", "Time from arrival to first token.", &self.first_token_time),
            ("decode_seconds_total", "Time from first token to last, of all requests.", &self.decode_time),
        ];
        for (name, help, number) in times {
            head(name, "counter", help, &seconds(number));
        }
        let gauges = [
            ("slots", "Slots.", &self.slots),
            ("slots_busy", "Slots with a request.", &self.slots_busy),
            ("requests_waiting", "Requests in the queue.", &self.waiting),
            (
                "embedding_requests_waiting",
                "Requests for embeddings in their queue.",
                &self.embedding_waiting,
            ),
            (
                "embedding_cache_bytes",
                "Keys and values of the context for embeddings; 0 while there is none.",
                &self.embedding_cache,
            ),
            ("connections", "Open connections.", &self.connections),
            (
                "waiting_request_bytes",
                "Bytes of requests that wait for their body, a model or a slot.",
                &self.waiting_bytes,
            ),
            ("decode_threads", "Threads that generate.", &self.decode_threads),
            ("prefill_threads", "Threads that evaluate prompts.", &self.prefill_threads),
        ];
        for (name, help, number) in gauges {
            head(name, "gauge", help, &one(number.get()));
        }
        families
    }
}

/// Numbers of one name.
#[derive(Clone, Debug)]
pub struct Family {
    /// The name, without the program's.
    pub name: String,
    /// `counter` or `gauge`.
    pub kind: &'static str,
    /// What it is.
    pub help: String,
    /// Labels, with their braces, and value.
    pub values: Vec<(String, String)>,
}

impl Family {
    /// Says of every value which model's it is.
    pub fn label(&mut self, model: &str) {
        let model = model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        for (labels, _) in &mut self.values {
            let rest = labels.strip_prefix('{').map_or("}".to_string(), |rest| format!(",{rest}"));
            *labels = format!("{{model=\"{model}\"{rest}");
        }
    }
}

/// `families` in the text format of Prometheus; those of the same name are told together.
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
