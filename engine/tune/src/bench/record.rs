//! The result of one test, under the names that llama-bench gives to the fields.

use std::time::{SystemTime, UNIX_EPOCH};

use engine_core::settings::Settings;
use llama::offload::{CpuMoe, GpuLayers};
use llama::{DeviceKind, Model};
use measure::GpuUse;
use measure::gpu::together;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::case::{Case, Path, Samples};
use super::latency::{Spread, spread};
use super::work::Share;

/// Columns that a table has besides llama-bench's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// Loading, first token and times per token.
    pub latency: bool,
    /// The share of the roof.
    pub roof: bool,
}

/// One test and what it measured. Serialises to llama-bench's fields in llama-bench's order, with Anneal's own
/// after them; options of llama-bench that this program does not have stand there with the value they have.
#[derive(Clone, Debug)]
pub struct Record {
    /// The path.
    pub path: Path,
    /// The test.
    pub case: Case,
    /// Model type, as llama.cpp words it.
    pub model_type: String,
    /// Bytes of all tensors.
    pub model_size: u64,
    /// Number of parameters.
    pub model_n_params: u64,
    /// Threads that the test used: prefill's where nothing is generated, else decode's.
    pub n_threads: u32,
    /// How long loading the model took, in nanoseconds.
    pub load_ns: Option<u64>,
    /// Speed as a share of what the machine can do at most, where that is known.
    pub share: Option<Share>,
    /// Columns of a table.
    pub columns: Columns,
    model_filename: String,
    build_commit: String,
    settings: Settings,
    /// MiB that stayed free on each device where the number of layers was found; 0 where it was not.
    fit_target: u64,
    samples: Samples,
    peak_rss: Option<u64>,
}

impl Record {
    /// The record of `samples`.
    pub fn new(
        path: Path,
        case: Case,
        model: &Model,
        build_commit: &str,
        settings: &Settings,
        samples: Samples,
    ) -> Self {
        let threads = if case.n_gen == 0 { &settings.prefill_threads } else { &settings.decode_threads };
        Record {
            path,
            case,
            model_type: model.description(),
            model_size: model.size(),
            model_n_params: model.n_params(),
            n_threads: threads.value,
            load_ns: None,
            share: None,
            columns: Columns::default(),
            model_filename: model.path().to_string_lossy().into_owned(),
            build_commit: build_commit.to_string(),
            settings: found(settings, model),
            fit_target: model.plan().map_or(0, |plan| plan.kept.0 >> 20),
            samples,
            peak_rss: peak_rss(),
        }
    }

    /// llama-bench's name of the test: `pp512`, `tg128 @ d4096`.
    pub fn test(&self) -> String {
        let Case { n_prompt, n_gen, n_depth } = self.case;
        let name = match (n_prompt, n_gen) {
            (prompt, 0) => format!("pp{prompt}"),
            (0, gen_) => format!("tg{gen_}"),
            (prompt, gen_) => format!("pp{prompt}+tg{gen_}"),
        };
        if n_depth > 0 { format!("{name} @ d{n_depth}") } else { name }
    }

    /// Tokens per second of each sample.
    pub fn tokens_per_second(&self) -> Vec<f64> {
        let tokens = f64::from(self.case.n_prompt) + f64::from(self.case.n_gen);
        self.samples.ns.iter().map(|ns| 1e9 * tokens / *ns as f64).collect()
    }

    /// Mean and standard deviation of [`tokens_per_second`](Self::tokens_per_second).
    pub fn speed(&self) -> (f64, f64) {
        mean_and_deviation(&self.tokens_per_second())
    }

    /// Mean time of a sample in seconds.
    pub fn seconds(&self) -> f64 {
        let seconds: Vec<f64> = self.samples.ns.iter().map(|ns| *ns as f64 / 1e9).collect();
        mean_and_deviation(&seconds).0
    }

    /// How the times per output token are spread; `None` where none was generated.
    pub fn token_times(&self) -> Option<Spread> {
        spread(&self.samples.token_ns)
    }

    /// The settings that it was measured under.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The file.
    pub fn model_filename(&self) -> &str {
        &self.model_filename
    }

    /// Mean time to the first token in milliseconds; 0 on the kernel path, which has none.
    pub fn first_token_ms(&self) -> f64 {
        let first: Vec<f64> = self.samples.first_token_ns.iter().map(|ns| *ns as f64 / 1e6).collect();
        mean_and_deviation(&first).0
    }

    /// What the GPUs did together; `None` where no driver is loaded.
    pub fn gpu(&self) -> Option<GpuUse> {
        self.samples.gpus.as_deref().map(|gpus| together(gpus).unwrap_or_default())
    }

    /// Every field with its value, in order.
    pub fn fields(&self) -> Vec<(&'static str, Value)> {
        let settings = &self.settings;
        let devices = |wanted| {
            let of_kind = |device: llama::Device| (device.kind == wanted).then_some(device.description);
            llama::devices().into_iter().filter_map(of_kind).collect::<Vec<_>>().join(", ")
        };
        let backends: Vec<String> = llama::backends().into_iter().filter(|name| name != "CPU").collect();
        let ns: Vec<f64> = self.samples.ns.iter().map(|ns| *ns as f64).collect();
        let (avg_ns, stddev_ns) = mean_and_deviation(&ns);
        let (avg_ts, stddev_ts) = self.speed();
        let flash_attention = match settings.flash_attention.value {
            llama::options::FlashAttention::Auto => -1,
            llama::options::FlashAttention::Off => 0,
            llama::options::FlashAttention::On => 1,
        };
        let times = self.token_times();
        let mut fields = vec![
            ("build_commit", json!(self.build_commit)),
            ("build_number", json!(0)),
            ("cpu_info", json!(devices(DeviceKind::Cpu))),
            ("gpu_info", json!(devices(DeviceKind::Gpu))),
            ("backends", json!(if backends.is_empty() { "CPU".to_string() } else { backends.join(",") })),
            ("model_filename", json!(self.model_filename)),
            ("model_type", json!(self.model_type)),
            ("model_size", json!(self.model_size)),
            ("model_n_params", json!(self.model_n_params)),
            ("n_batch", json!(settings.n_batch.value)),
            ("n_ubatch", json!(settings.n_ubatch.value)),
            ("n_threads", json!(self.n_threads)),
            ("cpu_mask", json!(cpu_mask(settings))),
            ("cpu_strict", json!(settings.affinity.value == llama::options::Affinity::On)),
            ("poll", json!(settings.poll.value)),
            ("type_k", json!(settings.type_k.value.name())),
            ("type_v", json!(settings.type_v.value.name())),
            ("n_gpu_layers", json!(settings.gpu_layers.value.number())),
            ("n_cpu_moe", json!(settings.n_cpu_moe.value.of(u32::MAX))),
            ("split_mode", json!(settings.split_mode.value.name())),
            ("main_gpu", json!(settings.main_gpu.value)),
            ("no_kv_offload", json!(!settings.kv_offload.value)),
            ("flash_attn", json!(flash_attention)),
            ("devices", json!(settings.devices.value.to_string().replace(',', "/"))),
            ("tensor_split", json!(tensor_split(settings))),
            ("tensor_buft_overrides", json!("none")),
            ("load_mode", json!(settings.load_mode.value.name())),
            ("lazy_mode", json!("auto")),
            ("embeddings", json!(false)),
            ("no_op_offload", json!(u8::from(!settings.op_offload.value))),
            ("no_host", json!(false)),
            ("repack", json!(settings.repack.value)),
            ("fit_target", json!(self.fit_target)),
            ("fit_min_ctx", json!(0)),
            ("n_prompt", json!(self.case.n_prompt)),
            ("n_gen", json!(self.case.n_gen)),
            ("n_depth", json!(self.case.n_depth)),
            ("test_time", json!(self.samples.time)),
            ("avg_ns", json!(avg_ns as u64)),
            ("stddev_ns", json!(stddev_ns as u64)),
            ("avg_ts", json!(avg_ts)),
            ("stddev_ts", json!(stddev_ts)),
            ("samples_ns", json!(self.samples.ns)),
            ("samples_ts", json!(self.tokens_per_second())),
            ("anneal_path", json!(self.path.name())),
            ("n_threads_batch", json!(settings.prefill_threads.value)),
            ("peak_rss_bytes", json!(self.peak_rss)),
            ("split_layout", json!(self.samples.split)),
            ("samples_hand_over_ns", json!(self.samples.hand_over_ns)),
            ("load_ns", json!(self.load_ns)),
            ("tpot_p50_ns", json!(times.map(|times| times.p50))),
            ("tpot_p95_ns", json!(times.map(|times| times.p95))),
            ("tpot_p99_ns", json!(times.map(|times| times.p99))),
            ("tpot_jitter_ns", json!(times.map(|times| times.jitter))),
            ("roof_share", json!(self.share.map(|share| share.of_roof))),
            ("roof_bound", json!(self.share.map(|share| share.bound.name()))),
            ("graphs_computed", json!(self.samples.graphs.computed)),
            ("graphs_reused", json!(self.samples.graphs.reused)),
        ];
        if self.path == Path::EndToEnd {
            fields.push(("time_to_first_token_ns", json!((self.first_token_ms() * 1e6) as u64)));
            fields.push(("samples_time_to_first_token_ns", json!(self.samples.first_token_ns)));
        }
        fields.extend(gpu_fields(self.samples.gpus.as_deref()));
        fields
    }
}

/// What the GPUs did, where a driver is loaded: all together, and in JSON each.
fn gpu_fields(gpus: Option<&[GpuUse]>) -> Vec<(&'static str, Value)> {
    let Some(gpus) = gpus else { return Vec::new() };
    let all = together(gpus).unwrap_or_default();
    vec![
        ("gpu_utilisation", json!(all.utilisation)),
        ("gpu_memory_bytes", json!(all.memory_peak)),
        ("gpu_watts", json!(all.watts)),
        ("gpu_joules", json!(all.joules)),
        ("gpu_sm_mhz", json!(all.sm_mhz)),
        ("gpus", json!(gpus)),
    ]
}

/// `settings` with what was found of `model` in place of what was left open.
fn found(settings: &Settings, model: &Model) -> Settings {
    let mut settings = settings.clone();
    if let Some(plan) = model.plan() {
        settings.gpu_layers.value = GpuLayers::Some(plan.layers);
        settings.n_cpu_moe.value = CpuMoe::Some(plan.n_cpu_moe);
    }
    settings.n_cpu_moe.value = CpuMoe::Some(settings.n_cpu_moe.value.of(model.n_layer()));
    settings
}

impl Serialize for Record {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.fields())
    }
}

/// Mean and sample standard deviation; 0 where there is none.
pub(super) fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    if values.is_empty() {
        return (0.0, 0.0);
    }
    let mean = values.iter().sum::<f64>() / n;
    if values.len() == 1 {
        return (mean, 0.0);
    }
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (n - 1.0)).sqrt())
}

/// The proportion of devices, as llama-bench writes it; `0.00` is by their memory.
fn tensor_split(settings: &Settings) -> String {
    let shares: Vec<String> =
        settings.tensor_split.value.0.iter().map(|share| format!("{share:.2}")).collect();
    if shares.is_empty() { "0.00".to_string() } else { shares.join("/") }
}

/// The CPUs that threads are bound to, as llama-bench writes them; `0x0` is no binding.
fn cpu_mask(settings: &Settings) -> String {
    if settings.affinity.value != llama::options::Affinity::On {
        return "0x0".to_string();
    }
    let cpus = &settings.cpus.value;
    let digits = cpus.iter().max().map_or(1, |cpu| cpu / 4 + 1);
    let digit = |at: u32| {
        let bits = cpus.iter().filter(|cpu| *cpu / 4 == at).fold(0u32, |bits, cpu| bits | 1 << (cpu % 4));
        char::from_digit(bits, 16).unwrap_or('0')
    };
    format!("0x{}", (0..digits).rev().map(digit).collect::<String>())
}

/// The most memory this process has had resident, in bytes, as the kernel counts it.
pub(super) fn peak_rss() -> Option<u64> {
    host::process::ProcFolder::this().peak_resident()
}

/// `time` as RFC 3339 in UTC, to the second.
pub fn utc(time: SystemTime) -> String {
    build_info::time::rfc3339(time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

#[cfg(test)]
mod tests {

    use engine_core::live::Live;
    use engine_core::settings::Requested;

    use super::*;

    #[test]
    fn deviation_is_the_samples() {
        let cases: [(&[f64], (f64, f64)); 3] = [
            (&[], (0.0, 0.0)),
            (&[5.0], (5.0, 0.0)),
            (&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0], (5.0, 2.138)),
        ];
        for (values, (mean, deviation)) in cases {
            let found = mean_and_deviation(values);
            assert!(
                (found.0 - mean).abs() < 1e-3 && (found.1 - deviation).abs() < 1e-3,
                "{values:?}: {found:?}"
            );
        }
    }

    #[test]
    fn gpus_have_fields_where_there_is_a_driver_and_else_none() {
        assert_eq!(gpu_fields(None), []);
        let names = |gpus: &[GpuUse]| -> Vec<_> {
            gpu_fields(Some(gpus)).into_iter().map(|(name, value)| (name, value.is_null())).collect()
        };
        // The same fields whether it told something or not: a table of rows has one head.
        let nothing = names(&[]);
        assert_eq!(nothing.iter().filter(|(_, is_null)| *is_null).count(), 5);
        let gpu = GpuUse { utilisation: Some(0.9), watts: Some(400.0), ..GpuUse::default() };
        let told = names(&[gpu]);
        assert!(told.iter().zip(&nothing).all(|(a, b)| a.0 == b.0));
        assert_eq!(told[0], ("gpu_utilisation", false));
    }

    #[test]
    fn a_cpu_mask_is_hexadecimal() {
        let cases = [(vec![0], "0x1"), (vec![0, 2, 3, 4], "0x1d"), (vec![63], "0x8000000000000000")];
        for (cpus, expected) in cases {
            let requested = Requested { cpus: Some(cpus), ..Requested::default() };
            let settings = Settings::resolve(&requested, &Live::default()).expect("valid");
            assert_eq!(cpu_mask(&settings), expected);
        }
    }
}
