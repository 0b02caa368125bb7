//! Rows of `anneal bench -o json` and `-o jsonl`: written by the engine, read by the orchestrator.
//!
//! Every field is optional for a reader: llama-bench writes only its own fields, and an older engine does not write
//! newer fields. A field with a value of the wrong type is treated as absent.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::gpu_use::GpuUse;

/// One test and its results: llama-bench's fields in llama-bench's order, then Anneal's own. A field for a
/// llama-bench option that Anneal lacks contains a fixed value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct BenchRow {
    /// Name of the build, added by `cargo xtask bench --builds`; `anneal bench` does not write the field.
    #[serde(deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub build: Option<String>,
    /// Version of llama.cpp.
    #[serde(deserialize_with = "lenient")]
    pub build_commit: Option<String>,
    /// llama-bench's build number; 0 in Anneal.
    #[serde(deserialize_with = "lenient")]
    pub build_number: Option<u64>,
    /// Names of the CPUs.
    #[serde(deserialize_with = "lenient")]
    pub cpu_info: Option<String>,
    /// Names of the GPUs that the engine finds; empty if the engine finds none.
    #[serde(deserialize_with = "lenient")]
    pub gpu_info: Option<String>,
    /// ggml's backends, `CUDA` for example, with commas between them.
    #[serde(deserialize_with = "lenient")]
    pub backends: Option<String>,
    /// Path of the model.
    #[serde(deserialize_with = "lenient")]
    pub model_filename: Option<String>,
    /// Model type, as llama.cpp describes it.
    #[serde(deserialize_with = "lenient")]
    pub model_type: Option<String>,
    /// Total size of all tensors, in bytes.
    #[serde(deserialize_with = "lenient")]
    pub model_size: Option<u64>,
    /// Number of parameters.
    #[serde(deserialize_with = "lenient")]
    pub model_n_params: Option<u64>,
    /// Maximum number of tokens evaluated in one call.
    #[serde(deserialize_with = "lenient")]
    pub n_batch: Option<u32>,
    /// Maximum number of tokens evaluated in one graph.
    #[serde(deserialize_with = "lenient")]
    pub n_ubatch: Option<u32>,
    /// Number of threads in the test: the prefill threads if nothing is generated, otherwise the decode threads.
    #[serde(deserialize_with = "lenient")]
    pub n_threads: Option<u32>,
    /// CPUs that threads are bound to, as a hexadecimal mask; `0x0` if threads are not bound.
    #[serde(deserialize_with = "lenient")]
    pub cpu_mask: Option<String>,
    /// True if each thread is bound to one CPU.
    #[serde(deserialize_with = "lenient")]
    pub cpu_strict: Option<bool>,
    /// Polling level of waiting threads, 0 (sleep) to 100 (spin).
    #[serde(deserialize_with = "lenient")]
    pub poll: Option<u32>,
    /// Type of the K cache.
    #[serde(deserialize_with = "lenient")]
    pub type_k: Option<String>,
    /// Type of the V cache.
    #[serde(deserialize_with = "lenient")]
    pub type_v: Option<String>,
    /// Number of layers on GPUs: none if 0, all if negative.
    #[serde(deserialize_with = "lenient")]
    pub n_gpu_layers: Option<i64>,
    /// Number of layers whose experts stay on the CPU.
    #[serde(deserialize_with = "lenient")]
    pub n_cpu_moe: Option<u32>,
    /// Split mode of a model on several GPUs: `layer`, `row`, `tensor` or `none`.
    #[serde(deserialize_with = "lenient")]
    pub split_mode: Option<String>,
    /// Index of the main GPU in `devices`.
    #[serde(deserialize_with = "lenient")]
    pub main_gpu: Option<u32>,
    /// True if the KV cache stays in main memory.
    #[serde(deserialize_with = "lenient")]
    pub no_kv_offload: Option<bool>,
    /// Flash attention: -1 (auto), 0 (off) or 1 (on).
    #[serde(deserialize_with = "lenient")]
    pub flash_attn: Option<i64>,
    /// Devices that may be used: `auto`, `none`, or device names separated by slashes.
    #[serde(deserialize_with = "lenient")]
    pub devices: Option<String>,
    /// Proportion of the model for each device; `0.00` if the model is split by free memory.
    #[serde(deserialize_with = "lenient")]
    pub tensor_split: Option<String>,
    /// llama-bench's overrides of buffer types; `none` in Anneal.
    #[serde(deserialize_with = "lenient")]
    pub tensor_buft_overrides: Option<String>,
    /// Load mode of the model.
    #[serde(deserialize_with = "lenient")]
    pub load_mode: Option<String>,
    /// llama-bench's lazy mode; always `auto` in Anneal.
    #[serde(deserialize_with = "lenient")]
    pub lazy_mode: Option<String>,
    /// True if embeddings are computed; always false in Anneal.
    #[serde(deserialize_with = "lenient")]
    pub embeddings: Option<bool>,
    /// 1 if operations on tensors in main memory stay on the CPU, otherwise 0.
    #[serde(deserialize_with = "lenient")]
    pub no_op_offload: Option<u8>,
    /// llama-bench's switch for host buffers; false in Anneal.
    #[serde(deserialize_with = "lenient")]
    pub no_host: Option<bool>,
    /// True if weights are repacked for the CPU's kernels.
    #[serde(deserialize_with = "lenient")]
    pub repack: Option<bool>,
    /// Memory kept free on each device during the search for the number of layers, in MiB; 0 without a search.
    #[serde(deserialize_with = "lenient")]
    pub fit_target: Option<u64>,
    /// Minimum context size in llama-bench's search for the number of layers; always 0 in Anneal.
    #[serde(deserialize_with = "lenient")]
    pub fit_min_ctx: Option<u64>,
    /// Number of prompt tokens.
    #[serde(deserialize_with = "lenient")]
    pub n_prompt: Option<u32>,
    /// Number of generated tokens.
    #[serde(deserialize_with = "lenient")]
    pub n_gen: Option<u32>,
    /// Number of tokens in the context before the test.
    #[serde(deserialize_with = "lenient")]
    pub n_depth: Option<u32>,
    /// Start of the test, RFC 3339 in UTC.
    #[serde(deserialize_with = "lenient")]
    pub test_time: Option<String>,
    /// Mean time of a sample, in nanoseconds.
    #[serde(deserialize_with = "lenient")]
    pub avg_ns: Option<u64>,
    /// Standard deviation of the time of a sample, in nanoseconds.
    #[serde(deserialize_with = "lenient")]
    pub stddev_ns: Option<u64>,
    /// Mean speed in tokens per second.
    #[serde(deserialize_with = "lenient")]
    pub avg_ts: Option<f64>,
    /// Standard deviation of the speed, in tokens per second.
    #[serde(deserialize_with = "lenient")]
    pub stddev_ts: Option<f64>,
    /// Time of each sample, in nanoseconds.
    #[serde(deserialize_with = "lenient")]
    pub samples_ns: Option<Vec<u64>>,
    /// Speed of each sample, in tokens per second.
    #[serde(deserialize_with = "lenient")]
    pub samples_ts: Option<Vec<f64>>,
    /// `kernel` for llama-bench's method (random tokens, no sampling), or `end_to_end` for text in and text out.
    #[serde(deserialize_with = "lenient")]
    pub anneal_path: Option<String>,
    /// Number of prefill threads.
    #[serde(deserialize_with = "lenient")]
    pub n_threads_batch: Option<u32>,
    /// Peak resident memory of the process, in bytes.
    #[serde(deserialize_with = "lenient")]
    pub peak_rss_bytes: Option<u64>,
    /// Time that loading the model took, in nanoseconds.
    #[serde(deserialize_with = "lenient")]
    pub load_ns: Option<u64>,
    /// Median time per output token, in nanoseconds.
    #[serde(deserialize_with = "lenient")]
    pub tpot_p50_ns: Option<u64>,
    /// 95th percentile of the time per output token, in nanoseconds.
    #[serde(deserialize_with = "lenient")]
    pub tpot_p95_ns: Option<u64>,
    /// 99th percentile of the time per output token, in nanoseconds.
    #[serde(deserialize_with = "lenient")]
    pub tpot_p99_ns: Option<u64>,
    /// Standard deviation of the time per output token, in nanoseconds.
    #[serde(deserialize_with = "lenient")]
    pub tpot_jitter_ns: Option<u64>,
    /// Speed as a fraction of the roofline; 1 is the machine's limit.
    #[serde(deserialize_with = "lenient")]
    pub roof_share: Option<f64>,
    /// Resource that limits the test: `memory` or `compute`.
    #[serde(deserialize_with = "lenient")]
    pub roof_bound: Option<String>,
    /// Number of graphs computed for generated tokens.
    #[serde(deserialize_with = "lenient")]
    pub graphs_computed: Option<u64>,
    /// Number of graphs for generated tokens that reused the previous graph with new inputs.
    #[serde(deserialize_with = "lenient")]
    pub graphs_reused: Option<u64>,
    /// Mean time to the first token, in nanoseconds; end to end only.
    #[serde(deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub time_to_first_token_ns: Option<u64>,
    /// Time to the first token of each sample; end to end only.
    #[serde(deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub samples_time_to_first_token_ns: Option<Vec<u64>>,
    /// GPU measurements; `None` if no NVIDIA driver is loaded.
    #[serde(flatten)]
    pub gpu: Option<GpuColumns>,
}

/// GPU measurements of one row. If a driver is loaded, every column is written, so that all rows of a table have the
/// same columns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GpuColumns {
    /// Mean fraction of the time in which a kernel ran on the busiest GPU, 0 to 1.
    #[serde(default)]
    pub gpu_utilisation: Option<f64>,
    /// Peak memory in use on all GPUs together, in bytes.
    #[serde(default)]
    pub gpu_memory_bytes: Option<u64>,
    /// Mean power of all GPUs together, in watts.
    #[serde(default)]
    pub gpu_watts: Option<f64>,
    /// Energy of all GPUs together, in joules.
    #[serde(default)]
    pub gpu_joules: Option<f64>,
    /// Mean clock of the busiest GPU, in MHz.
    #[serde(default)]
    pub gpu_sm_mhz: Option<f64>,
    /// Measurements of each GPU.
    pub gpus: Vec<GpuUse>,
}

impl BenchRow {
    /// Returns llama-bench's name for the test: `pp512`, `tg128 @ d4096`.
    pub fn test(&self) -> String {
        name_of([self.n_prompt, self.n_gen, self.n_depth])
    }

    /// True if the test ran end to end, from text to text.
    pub fn is_end_to_end(&self) -> bool {
        self.anneal_path.as_deref() == Some("end_to_end")
    }
}

/// Returns llama-bench's name for a test from the fields of a row. A missing field means 0.
fn name_of(fields: [Option<u32>; 3]) -> String {
    let [prompt, generate, depth] = fields.map(Option::unwrap_or_default);
    test_name(prompt, generate, depth)
}

/// Returns llama-bench's name for a test: `pp512`, `tg128 @ d4096`.
pub fn test_name(prompt: u32, generate: u32, depth: u32) -> String {
    let name = match (prompt, generate) {
        (prompt, 0) => format!("pp{prompt}"),
        (0, generate) => format!("tg{generate}"),
        (prompt, generate) => format!("pp{prompt}+tg{generate}"),
    };
    if depth > 0 { format!("{name} @ d{depth}") } else { name }
}

/// One part of the work and its times: a row of `anneal bench --parts`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct PartRow {
    /// Version of llama.cpp.
    #[serde(deserialize_with = "lenient")]
    pub build_commit: Option<String>,
    /// Path of the model.
    #[serde(deserialize_with = "lenient")]
    pub model_filename: Option<String>,
    /// Model type, as llama.cpp describes it.
    #[serde(deserialize_with = "lenient")]
    pub model_type: Option<String>,
    /// Total size of all tensors, in bytes.
    #[serde(deserialize_with = "lenient")]
    pub model_size: Option<u64>,
    /// Number of parameters.
    #[serde(deserialize_with = "lenient")]
    pub model_n_params: Option<u64>,
    /// Number of tokens in the vocabulary.
    #[serde(deserialize_with = "lenient")]
    pub n_vocab: Option<u32>,
    /// Name of the part.
    pub part: String,
    /// Number of prompt tokens.
    #[serde(deserialize_with = "lenient")]
    pub n_prompt: Option<u32>,
    /// Number of generated tokens.
    #[serde(deserialize_with = "lenient")]
    pub n_gen: Option<u32>,
    /// Number of tokens in the context before the part runs.
    #[serde(deserialize_with = "lenient")]
    pub n_depth: Option<u32>,
    /// Number of threads; 1 if llama.cpp runs the part on one thread.
    #[serde(deserialize_with = "lenient")]
    pub n_threads: Option<u32>,
    /// Unit of `work`.
    #[serde(deserialize_with = "lenient")]
    pub unit: Option<String>,
    /// Number of units of work in each sample.
    #[serde(deserialize_with = "lenient")]
    pub work: Option<u64>,
    /// Start of the part, RFC 3339 in UTC.
    #[serde(deserialize_with = "lenient")]
    pub test_time: Option<String>,
    /// Mean time of a sample, in nanoseconds.
    #[serde(deserialize_with = "lenient")]
    pub avg_ns: Option<u64>,
    /// Standard deviation of the time of a sample, in nanoseconds.
    #[serde(deserialize_with = "lenient")]
    pub stddev_ns: Option<u64>,
    /// Mean speed in units per second.
    #[serde(deserialize_with = "lenient")]
    pub avg_per_second: Option<f64>,
    /// Standard deviation of the speed, in units per second.
    #[serde(deserialize_with = "lenient")]
    pub stddev_per_second: Option<f64>,
    /// Time of each sample, in nanoseconds.
    #[serde(deserialize_with = "lenient")]
    pub samples_ns: Option<Vec<u64>>,
    /// Peak resident memory of the process, in bytes.
    #[serde(deserialize_with = "lenient")]
    pub peak_rss_bytes: Option<u64>,
}

/// Operations of one kind in a test, and their time: a row of `anneal bench --ops`. Figures are averages per sample.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct OperationRow {
    /// Version of llama.cpp.
    #[serde(deserialize_with = "lenient")]
    pub build_commit: Option<String>,
    /// Path of the model.
    #[serde(deserialize_with = "lenient")]
    pub model_filename: Option<String>,
    /// Model type, as llama.cpp describes it.
    #[serde(deserialize_with = "lenient")]
    pub model_type: Option<String>,
    /// Number of prompt tokens.
    #[serde(deserialize_with = "lenient")]
    pub n_prompt: Option<u32>,
    /// Number of generated tokens.
    #[serde(deserialize_with = "lenient")]
    pub n_gen: Option<u32>,
    /// Number of tokens in the context before the test.
    #[serde(deserialize_with = "lenient")]
    pub n_depth: Option<u32>,
    /// Number of threads.
    #[serde(deserialize_with = "lenient")]
    pub n_threads: Option<u32>,
    /// Kernels for products and attention: `ggml`, or the instruction set of Anneal's kernels.
    #[serde(deserialize_with = "lenient")]
    pub kernels: Option<String>,
    /// Number of samples.
    #[serde(deserialize_with = "lenient")]
    pub samples: Option<u32>,
    /// Start of the test, RFC 3339 in UTC.
    #[serde(deserialize_with = "lenient")]
    pub test_time: Option<String>,
    /// Time of the whole sample, in nanoseconds.
    #[serde(deserialize_with = "lenient")]
    pub sample_ns: Option<u64>,
    /// ggml's name of the operation; `(between operations)` for the part of the sample that is outside all operations.
    /// The overhead of the measurement itself is excluded.
    pub op: String,
    /// Type of the weights, of the cache, or of the first operand.
    #[serde(deserialize_with = "lenient")]
    pub op_type: Option<String>,
    /// Products: length of a row × rows × columns. Attention: size of a head × heads × tokens × cells. Other
    /// operations: shape of the result.
    #[serde(deserialize_with = "lenient")]
    pub shape: Option<String>,
    /// Number of calls.
    #[serde(deserialize_with = "lenient")]
    pub calls: Option<f64>,
    /// Time of all calls, in nanoseconds.
    #[serde(deserialize_with = "lenient")]
    pub ns: Option<f64>,
    /// Number of bytes read. Products: the weights. Attention: the cells that a token can see. Other operations: all
    /// operands.
    #[serde(deserialize_with = "lenient")]
    pub bytes: Option<f64>,
    /// Multiply-adds of products and attention.
    #[serde(deserialize_with = "lenient")]
    pub macs: Option<f64>,
    /// Shortest possible time according to the roofline, as a fraction of `ns`; `null` if unknown.
    #[serde(deserialize_with = "lenient")]
    pub roof_share: Option<f64>,
    /// Limit that applies: `memory` or `compute`.
    #[serde(deserialize_with = "lenient")]
    pub roof_bound: Option<String>,
}

impl OperationRow {
    /// Returns llama-bench's name for the test: `pp512`, `tg128 @ d4096`.
    pub fn test(&self) -> String {
        name_of([self.n_prompt, self.n_gen, self.n_depth])
    }
}

/// Row of a test, of a part or of an operation. A row with a `part` field comes from `--parts`, and a row with an `op`
/// field from `--ops`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum MeasuredRow {
    /// Part of the work.
    Part(Box<PartRow>),
    /// Operations of a test.
    Operation(Box<OperationRow>),
    /// Test.
    Test(Box<BenchRow>),
}

impl<'de> Deserialize<'de> for MeasuredRow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let has = |name: &str| value.get(name).is_some_and(|field| !field.is_null());
        let row = match (has("part"), has("op")) {
            (true, _) => serde_json::from_value(value).map(MeasuredRow::Part),
            (_, true) => serde_json::from_value(value).map(MeasuredRow::Operation),
            _ => serde_json::from_value(value).map(MeasuredRow::Test),
        };
        row.map_err(D::Error::custom)
    }
}

/// Type that a field of a row may have.
trait Field: Sized {
    /// Returns the value if it has this type.
    fn take(value: Value) -> Option<Self>;
}

/// Deserialises a field; `None` if its value has another type.
fn lenient<'de, D: Deserializer<'de>, T: Field>(deserializer: D) -> Result<Option<T>, D::Error> {
    Value::deserialize(deserializer).map(T::take)
}

impl Field for String {
    fn take(value: Value) -> Option<Self> {
        match value {
            Value::String(text) => Some(text),
            _ => None,
        }
    }
}

impl Field for f64 {
    fn take(value: Value) -> Option<Self> {
        value.as_f64().filter(|number| number.is_finite())
    }
}

impl Field for bool {
    /// llama-bench writes some switches as numbers.
    fn take(value: Value) -> Option<Self> {
        value.as_bool().or_else(|| value.as_i64().map(|number| number != 0))
    }
}

/// Converts a JSON value to an integer. Means over several runs are written with a fraction, and switches may be
/// booleans.
fn whole(value: &Value) -> Option<i128> {
    match value {
        Value::Bool(on) => Some(i128::from(*on)),
        Value::Number(number) if number.is_f64() => {
            number.as_f64().filter(|number| number.abs() < 1e18).map(|number| number.round() as i128)
        }
        Value::Number(number) => number.as_u64().map(i128::from).or_else(|| number.as_i64().map(i128::from)),
        _ => None,
    }
}

macro_rules! whole_fields {
    ($($kind:ty),*) => {$(
        impl Field for $kind {
            fn take(value: Value) -> Option<Self> {
                whole(&value).and_then(|number| Self::try_from(number).ok())
            }
        }
    )*};
}

whole_fields!(u8, u32, u64, i64);

impl<T: Field> Field for Vec<T> {
    /// Entries of another type are skipped.
    fn take(value: Value) -> Option<Self> {
        match value {
            Value::Array(entries) => Some(entries.into_iter().filter_map(T::take).collect()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_written_as_it_was_read() {
        let text = r#"{"build_commit":"0.6.0","build_number":0,"cpu_info":"a CPU","gpu_info":"H100","backends":"CUDA","model_filename":"tiny.gguf","model_type":"llama ?B F16","model_size":6824960,"model_n_params":3410176,"n_batch":2048,"n_ubatch":512,"n_threads":1,"cpu_mask":"0x0","cpu_strict":false,"poll":50,"type_k":"f16","type_v":"f16","n_gpu_layers":-1,"n_cpu_moe":0,"split_mode":"layer","main_gpu":0,"no_kv_offload":false,"flash_attn":-1,"devices":"auto","tensor_split":"0.00","tensor_buft_overrides":"none","load_mode":"auto","lazy_mode":"auto","embeddings":false,"no_op_offload":0,"no_host":false,"repack":true,"fit_target":0,"fit_min_ctx":0,"n_prompt":32,"n_gen":16,"n_depth":0,"test_time":"2026-11-25T01:55:06Z","avg_ns":2000000,"stddev_ns":707107,"avg_ts":25600.0,"stddev_ts":9050.5,"samples_ns":[1500000,2500001],"samples_ts":[32000.0,19199.5],"anneal_path":"end_to_end","n_threads_batch":1,"peak_rss_bytes":null,"load_ns":6026898,"tpot_p50_ns":null,"tpot_p95_ns":null,"tpot_p99_ns":null,"tpot_jitter_ns":null,"roof_share":null,"roof_bound":null,"graphs_computed":0,"graphs_reused":0,"time_to_first_token_ns":500000,"samples_time_to_first_token_ns":[250000,750001],"gpu_utilisation":0.9,"gpu_memory_bytes":null,"gpu_watts":400.0,"gpu_joules":null,"gpu_sm_mhz":null,"gpus":[{"name":"","samples":0,"utilisation":0.9,"watts":400.0}]}"#;
        let row: BenchRow = serde_json::from_str(text).expect("a row");
        assert_eq!(serde_json::to_string(&row).expect("JSON"), text);
        assert_eq!((row.test().as_str(), row.is_end_to_end()), ("pp32+tg16", true));
    }

    #[test]
    fn absent_fields_and_values_of_other_types_are_not_told() {
        let text = r#"{"avg_ns": 1e9, "avg_ts": "x", "n_threads": -1, "no_op_offload": true, "flash_attn": false,
            "embeddings": 0, "tpot_p50_ns": 8e6, "samples_ns": [1, "a", 2.6], "unheard_of": []}"#;
        let row: BenchRow = serde_json::from_str(text).expect("a row");
        let expected = BenchRow {
            avg_ns: Some(1_000_000_000),
            no_op_offload: Some(1),
            flash_attn: Some(0),
            embeddings: Some(false),
            tpot_p50_ns: Some(8_000_000),
            samples_ns: Some(vec![1, 3]),
            ..BenchRow::default()
        };
        assert_eq!(row, expected);
        assert!(serde_json::from_str::<BenchRow>("7").is_err());
    }

    #[test]
    fn a_field_tells_rows_of_parts_and_of_operations_from_tests() {
        let rows: Vec<MeasuredRow> = serde_json::from_str(
            r#"[{"part": "load", "avg_ns": 12e3, "avg_per_second": 2}, {"n_prompt": 8, "avg_ts": 10},
                {"n_gen": 4, "n_depth": 16, "op": "MUL_MAT", "ns": 5}]"#,
        )
        .expect("rows");
        let [MeasuredRow::Part(part), MeasuredRow::Test(test), MeasuredRow::Operation(operation)] =
            rows.as_slice()
        else {
            panic!("{rows:?}")
        };
        assert_eq!((operation.test().as_str(), operation.ns), ("tg4 @ d16", Some(5.0)));
        assert_eq!((part.part.as_str(), part.avg_ns, part.avg_per_second), ("load", Some(12_000), Some(2.0)));
        assert_eq!((test.test().as_str(), test.avg_ts), ("pp8", Some(10.0)));
    }
}
