//! Result of one test, with llama-bench's field names.

use std::time::{SystemTime, UNIX_EPOCH};

use build_info::bench_row::{BenchRow, GpuColumns, test_name};
use engine_core::settings::Settings;
use llama::offload::{CpuMoe, GpuLayers};
use llama::{DeviceKind, Model};
use measure::GpuUse;
use measure::gpu::together;
use serde::{Serialize, Serializer};

use super::case::{Case, Path, Samples};
use super::latency::{Spread, spread};
use super::work::Share;

/// Table columns in addition to llama-bench's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// True to show the load time, the time to the first token and the times per token.
    pub latency: bool,
    /// True to show the fraction of the roofline.
    pub roof: bool,
}

/// Measured values of one test. Serialises to its [`BenchRow`].
#[derive(Clone, Debug)]
pub struct BenchRecord {
    /// Path that was measured.
    pub path: Path,
    /// Sizes of the test.
    pub case: Case,
    /// Model type, in llama.cpp's words.
    pub model_type: String,
    /// Size of all tensors in bytes.
    pub model_size: u64,
    /// Number of parameters.
    pub model_n_params: u64,
    /// Number of threads of the test: for prefill if nothing is generated, otherwise for decode.
    pub n_threads: u32,
    /// Time to load the model in nanoseconds.
    pub load_ns: Option<u64>,
    /// Speed as a fraction of the machine's limit; `None` if the limit is unknown.
    pub share: Option<Share>,
    /// Additional columns of a table.
    pub columns: Columns,
    model_filename: String,
    build_commit: String,
    settings: Settings,
    /// Memory, in MiB, that the automatic choice of layers leaves free on each device; 0 if the layers are not chosen
    /// automatically.
    fit_target: u64,
    samples: Samples,
    peak_rss: Option<u64>,
}

impl BenchRecord {
    /// Creates the record of `samples`.
    pub fn new(
        path: Path,
        case: Case,
        model: &Model,
        build_commit: &str,
        settings: &Settings,
        samples: Samples,
    ) -> Self {
        let threads = if case.n_gen == 0 { &settings.prefill_threads } else { &settings.decode_threads };
        BenchRecord {
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

    /// Returns llama-bench's name for the test, such as `pp512` or `tg128 @ d4096`.
    pub fn test(&self) -> String {
        let Case { n_prompt, n_gen, n_depth } = self.case;
        test_name(n_prompt, n_gen, n_depth)
    }

    /// Returns the tokens per second of each sample.
    pub fn tokens_per_second(&self) -> Vec<f64> {
        let tokens = f64::from(self.case.n_prompt) + f64::from(self.case.n_gen);
        self.samples.ns.iter().map(|ns| 1e9 * tokens / *ns as f64).collect()
    }

    /// Returns the mean and the standard deviation of [`tokens_per_second`](Self::tokens_per_second).
    pub fn speed(&self) -> (f64, f64) {
        mean_and_deviation(&self.tokens_per_second())
    }

    /// Returns the mean time of a sample in seconds.
    pub fn seconds(&self) -> f64 {
        let seconds: Vec<f64> = self.samples.ns.iter().map(|ns| *ns as f64 / 1e9).collect();
        mean_and_deviation(&seconds).0
    }

    /// Returns the distribution of the times per output token; `None` if no token was generated.
    pub fn token_times(&self) -> Option<Spread> {
        spread(&self.samples.token_ns)
    }

    /// Returns the settings of the measurement.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the path of the model's file.
    pub fn model_filename(&self) -> &str {
        &self.model_filename
    }

    /// Returns the mean time to the first token in milliseconds; 0 on the kernel path, which does not measure this
    /// time.
    pub fn first_token_ms(&self) -> f64 {
        let first: Vec<f64> = self.samples.first_token_ns.iter().map(|ns| *ns as f64 / 1e6).collect();
        mean_and_deviation(&first).0
    }

    /// Returns the combined utilisation of all GPUs; `None` if no driver is loaded.
    pub fn gpu(&self) -> Option<GpuUse> {
        self.samples.gpus.as_deref().map(|gpus| together(gpus).unwrap_or_default())
    }

    /// Returns the machine-readable row.
    pub fn row(&self) -> BenchRow {
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
        let end_to_end = self.path == Path::EndToEnd;
        BenchRow {
            build: None,
            build_commit: Some(self.build_commit.clone()),
            build_number: Some(0),
            cpu_info: Some(devices(DeviceKind::Cpu)),
            gpu_info: Some(devices(DeviceKind::Gpu)),
            backends: Some(if backends.is_empty() { "CPU".to_string() } else { backends.join(",") }),
            model_filename: Some(self.model_filename.clone()),
            model_type: Some(self.model_type.clone()),
            model_size: Some(self.model_size),
            model_n_params: Some(self.model_n_params),
            n_batch: Some(settings.n_batch.value),
            n_ubatch: Some(settings.n_ubatch.value),
            n_threads: Some(self.n_threads),
            cpu_mask: Some(cpu_mask(settings)),
            cpu_strict: Some(settings.affinity.value == llama::options::Affinity::On),
            poll: Some(settings.poll.value),
            type_k: Some(settings.type_k.value.name().to_string()),
            type_v: Some(settings.type_v.value.name().to_string()),
            n_gpu_layers: Some(i64::from(settings.gpu_layers.value.number())),
            n_cpu_moe: Some(settings.n_cpu_moe.value.of(u32::MAX)),
            split_mode: Some(settings.split_mode.value.name().to_string()),
            main_gpu: Some(settings.main_gpu.value),
            no_kv_offload: Some(!settings.kv_offload.value),
            flash_attn: Some(flash_attention),
            devices: Some(settings.devices.value.to_string().replace(',', "/")),
            tensor_split: Some(tensor_split(settings)),
            tensor_buft_overrides: Some("none".to_string()),
            load_mode: Some(settings.load_mode.value.name().to_string()),
            lazy_mode: Some("auto".to_string()),
            embeddings: Some(false),
            no_op_offload: Some(u8::from(!settings.op_offload.value)),
            no_host: Some(false),
            repack: Some(settings.repack.value),
            fit_target: Some(self.fit_target),
            fit_min_ctx: Some(0),
            n_prompt: Some(self.case.n_prompt),
            n_gen: Some(self.case.n_gen),
            n_depth: Some(self.case.n_depth),
            test_time: Some(self.samples.time.clone()),
            avg_ns: Some(avg_ns as u64),
            stddev_ns: Some(stddev_ns as u64),
            avg_ts: Some(avg_ts),
            stddev_ts: Some(stddev_ts),
            samples_ns: Some(self.samples.ns.clone()),
            samples_ts: Some(self.tokens_per_second()),
            anneal_path: Some(self.path.name().to_string()),
            n_threads_batch: Some(settings.prefill_threads.value),
            peak_rss_bytes: self.peak_rss,
            load_ns: self.load_ns,
            tpot_p50_ns: times.map(|times| times.p50),
            tpot_p95_ns: times.map(|times| times.p95),
            tpot_p99_ns: times.map(|times| times.p99),
            tpot_jitter_ns: times.map(|times| times.jitter),
            roof_share: self.share.map(|share| share.of_roof),
            roof_bound: self.share.map(|share| share.bound.name().to_string()),
            graphs_computed: Some(self.samples.graphs.computed),
            graphs_reused: Some(self.samples.graphs.reused),
            time_to_first_token_ns: end_to_end.then(|| (self.first_token_ms() * 1e6) as u64),
            samples_time_to_first_token_ns: end_to_end.then(|| self.samples.first_token_ns.clone()),
            gpu: gpu_columns(self.samples.gpus.as_deref()),
        }
    }
}

/// Returns the columns for all GPUs together and for each GPU; `None` if no driver is loaded.
fn gpu_columns(gpus: Option<&[GpuUse]>) -> Option<GpuColumns> {
    let gpus = gpus?;
    let all = together(gpus).unwrap_or_default();
    Some(GpuColumns {
        gpu_utilisation: all.utilisation,
        gpu_memory_bytes: all.memory_peak,
        gpu_watts: all.watts,
        gpu_joules: all.joules,
        gpu_sm_mhz: all.sm_mhz,
        gpus: gpus.to_vec(),
    })
}

/// Returns `settings` with the values that were chosen automatically for `model`.
fn found(settings: &Settings, model: &Model) -> Settings {
    let mut settings = settings.clone();
    if let Some(plan) = model.plan() {
        settings.gpu_layers.value = GpuLayers::Some(plan.layers);
        settings.n_cpu_moe.value = CpuMoe::Some(plan.n_cpu_moe);
    }
    settings.n_cpu_moe.value = CpuMoe::Some(settings.n_cpu_moe.value.of(model.n_layer()));
    settings
}

impl Serialize for BenchRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.row().serialize(serializer)
    }
}

/// Returns the mean and the sample standard deviation. An undefined value is 0.
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

/// Formats the proportions of the split across devices, like llama-bench. `0.00` means in proportion to the devices'
/// memory.
fn tensor_split(settings: &Settings) -> String {
    let shares: Vec<String> =
        settings.tensor_split.value.0.iter().map(|share| format!("{share:.2}")).collect();
    if shares.is_empty() { "0.00".to_string() } else { shares.join("/") }
}

/// Formats the mask of the CPUs that threads are bound to, like llama-bench. `0x0` means that threads are not bound.
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

/// Returns the peak resident memory of this process in bytes, as counted by the kernel.
pub(super) fn peak_rss() -> Option<u64> {
    host::process::ProcFolder::this().peak_resident()
}

/// Formats `time` as RFC 3339 in UTC, with a resolution of one second.
pub fn utc(time: SystemTime) -> String {
    build_info::time::rfc3339(time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

#[cfg(test)]
mod tests {

    use engine_core::runtime_host::RuntimeHost;
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
        assert_eq!(gpu_columns(None), None);
        let names = |gpus: &[GpuUse]| -> Vec<_> {
            let value = serde_json::to_value(gpu_columns(Some(gpus))).expect("JSON");
            let fields = value.as_object().expect("an object").clone();
            fields.into_iter().map(|(name, value)| (name, value.is_null())).collect()
        };
        // The fields are the same with and without values from a GPU, because a table has only one header.
        let nothing = names(&[]);
        assert_eq!(nothing.iter().filter(|(_, is_null)| *is_null).count(), 5);
        let gpu = GpuUse { utilisation: Some(0.9), watts: Some(400.0), ..GpuUse::default() };
        let told = names(&[gpu]);
        assert!(told.iter().zip(&nothing).all(|(a, b)| a.0 == b.0));
        assert!(told.contains(&("gpu_utilisation".to_string(), false)), "{told:?}");
    }

    #[test]
    fn a_cpu_mask_is_hexadecimal() {
        let cases = [(vec![0], "0x1"), (vec![0, 2, 3, 4], "0x1d"), (vec![63], "0x8000000000000000")];
        for (cpus, expected) in cases {
            let requested = Requested { cpus: Some(cpus), ..Requested::default() };
            let settings = Settings::resolve(&requested, &RuntimeHost::default()).expect("valid");
            assert_eq!(cpu_mask(&settings), expected);
        }
    }

    /// Creates a record of one sample, without the values of this machine's driver.
    fn record(path: Path, case: Case, gpus: Option<Vec<GpuUse>>) -> BenchRecord {
        let settings = Settings::resolve(&Requested::default(), &RuntimeHost::default()).expect("valid");
        let first_token_ns = if path == Path::EndToEnd { vec![250_000, 750_001] } else { Vec::new() };
        let samples = Samples {
            ns: vec![1_500_000, 2_500_001],
            first_token_ns,
            token_ns: if case.n_gen > 0 { vec![100, 300] } else { Vec::new() },
            time: "2026-11-25T01:55:06Z".to_string(),
            gpus,
            ..Samples::default()
        };
        BenchRecord {
            path,
            case,
            model_type: "llama ?B F16".to_string(),
            model_size: 6_824_960,
            model_n_params: 3_410_176,
            n_threads: 1,
            load_ns: (case.n_gen > 0).then_some(6_026_898),
            share: (case.n_gen > 0)
                .then_some(Share { of_roof: 0.625, bound: super::super::work::Bound::Memory }),
            columns: Columns::default(),
            model_filename: "tiny.gguf".to_string(),
            build_commit: "0.6.0".to_string(),
            settings,
            fit_target: 0,
            samples,
            peak_rss: (case.n_gen > 0).then_some(32_575_488),
        }
    }

    /// Returns the JSON of `record` without the fields that depend on this machine.
    fn portable(record: &impl Serialize) -> String {
        let text = serde_json::to_string(record).expect("JSON");
        let (before, rest) = text.split_once("\"cpu_info\"").unwrap_or_else(|| panic!("{text}"));
        let (_, after) = rest.split_once("\"model_filename\"").unwrap_or_else(|| panic!("{text}"));
        let (after, rest) = after.split_once("\"n_threads\"").unwrap_or_else(|| panic!("{text}"));
        let (_, rest) = rest.split_once("\"cpu_mask\"").unwrap_or_else(|| panic!("{text}"));
        let (middle, rest) = rest.split_once("\"n_threads_batch\"").unwrap_or_else(|| panic!("{text}"));
        let (_, end) = rest.split_once("\"peak_rss_bytes\"").unwrap_or_else(|| panic!("{text}"));
        [before, "\"model_filename\"", after, "\"cpu_mask\"", middle, "\"peak_rss_bytes\"", end].concat()
    }

    /// Scripts read these fields in this order, with numbers in this format.
    #[test]
    fn rows_are_written_byte_by_byte_as_ever() {
        let gpu = GpuUse { utilisation: Some(0.9), watts: Some(400.0), ..GpuUse::default() };
        let cases = [
            (Path::Kernel, Case { n_prompt: 32, n_gen: 0, n_depth: 64 }, None),
            (Path::EndToEnd, Case { n_prompt: 32, n_gen: 16, n_depth: 0 }, Some(vec![gpu])),
            (Path::Kernel, Case { n_prompt: 0, n_gen: 16, n_depth: 0 }, Some(Vec::new())),
        ];
        let expected = include_str!("../../fixtures/rows.jsonl").lines();
        for ((path, case, gpus), expected) in cases.into_iter().zip(expected) {
            assert_eq!(portable(&record(path, case, gpus)), expected);
        }
    }
}
