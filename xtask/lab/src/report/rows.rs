//! Rows of `anneal bench -o json`. They contain llama-bench's fields, of which only a few are needed, and Anneal's
//! own fields. Older programs do not write all fields; missing fields are not shown.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};
use build_info::BenchRow;
use serde_json::Value;

/// Test in a row of `anneal bench`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TestRow {
    /// Name of the model's file, without folder and extension.
    pub model: String,
    /// Numbers of prompt tokens, generated tokens, and tokens in the context before the test.
    pub case: (u64, u64, u64),
    /// True if the test went from text to text.
    pub end_to_end: bool,
    /// Number of threads of the test.
    pub threads: u64,
    /// Number of threads of prefill.
    pub prefill_threads: u64,
    /// Type of float weights, such as `F16`; empty for quantised weights.
    pub floats: &'static str,
    /// Maximum number of tokens in one graph.
    pub ubatch: u64,
    /// Mean and standard deviation of tokens per second.
    pub speed: (f64, f64),
    /// Number of repetitions.
    pub samples: usize,
    /// Number of parameters, and size of all weights in bytes.
    pub size: (f64, f64),
    /// Name of the CPU.
    pub cpu: String,
    /// Fraction of the limit that the test reached, and kind of the limit: `memory` or `compute`.
    pub roof: Option<(f64, String)>,
    /// Times to the first token, in nanoseconds.
    pub first_token: Vec<f64>,
    /// Percentiles 50, 95 and 99 of the time of a token, and the standard deviation, in nanoseconds.
    pub token_times: Option<[f64; 4]>,
    /// Settings in which rows may differ, with their names.
    pub settings: Vec<(&'static str, String)>,
    /// Date of the measurement.
    pub date: String,
}

/// Name of the setting for the build, if several builds were interleaved.
pub const BUILD: &str = "build";

/// Fields in which two rows of one test may differ, with their names on the page.
const SETTINGS: [(&str, &str); 15] = [
    // `cargo xtask bench --builds` adds this field.
    ("build", BUILD),
    ("build_commit", "llama.cpp"),
    ("n_batch", "batch"),
    ("n_ubatch", "ubatch"),
    ("n_threads_batch", "prefill threads"),
    ("cpu_mask", "CPUs"),
    ("poll", "poll"),
    ("type_k", "K"),
    ("type_v", "V"),
    ("flash_attn", "flash attention"),
    ("load_mode", "load mode"),
    ("repack", "repack"),
    ("n_gpu_layers", "GPU layers"),
    ("cpu_info", "CPU"),
    ("anneal_path", "path"),
];

impl TestRow {
    /// Parses a row from JSON.
    pub fn take(value: Value) -> Result<Self> {
        let row: BenchRow = serde_json::from_value(value).context("cannot parse a row of anneal bench")?;
        let Some(speed) = row.avg_ts else { bail!("a row of anneal bench lacks the number `avg_ts`") };
        let Some(threads) = row.n_threads.map(u64::from) else {
            bail!("a row of anneal bench lacks the number `n_threads`")
        };
        let fields = serde_json::to_value(&row)?;
        let whole = |number: Option<u32>| number.map_or(0, u64::from);
        let float = |number: Option<u64>| number.map(|number| number as f64);
        let end_to_end = row.is_end_to_end();
        let first = row.samples_time_to_first_token_ns.unwrap_or_default();
        let times = [row.tpot_p50_ns, row.tpot_p95_ns, row.tpot_p99_ns, row.tpot_jitter_ns].map(float);
        Ok(Self {
            model: stem(&row.model_filename.unwrap_or_default()),
            case: (whole(row.n_prompt), whole(row.n_gen), whole(row.n_depth)),
            end_to_end,
            threads,
            prefill_threads: row.n_threads_batch.map(u64::from).filter(|n| *n > 0).unwrap_or(threads),
            floats: floats(&row.model_type.unwrap_or_default()),
            ubatch: whole(row.n_ubatch),
            speed: (speed, row.stddev_ts.unwrap_or(0.0)),
            samples: row.samples_ts.map_or(0, |samples| samples.len()),
            size: (float(row.model_n_params).unwrap_or(0.0), float(row.model_size).unwrap_or(0.0)),
            cpu: row.cpu_info.unwrap_or_default(),
            roof: row.roof_share.map(|share| (share, row.roof_bound.unwrap_or_default())),
            first_token: first.into_iter().map(|ns| ns as f64).collect(),
            token_times: match times {
                [Some(p50), Some(p95), Some(p99), Some(jitter)] => Some([p50, p95, p99, jitter]),
                _ => None,
            },
            settings: SETTINGS.iter().map(|(field, name)| (*name, said(&fields[*field]))).collect(),
            date: row.test_time.unwrap_or_default(),
        })
    }

    /// Returns the name of the test: `prefill 512`, `decode 128 @ 4096`, `512 + 128`.
    pub fn test(&self) -> String {
        let (prompt, generate, depth) = self.case;
        let depth = if depth > 0 { format!(" @ {depth}") } else { String::new() };
        let name = match (prompt, generate) {
            (prompt, 0) => format!("prefill {prompt}"),
            (0, generate) => format!("decode {generate}"),
            (prompt, generate) => format!("{prompt} + {generate}"),
        };
        format!("{name}{depth}{}", if self.end_to_end { ", text to text" } else { "" })
    }

    /// Returns the kind of the test; tests of one kind share a plot.
    pub fn kind(&self) -> &'static str {
        match self.case {
            _ if self.end_to_end => "text to text",
            (_, 0, _) => "prefill",
            (0, _, _) => "decode",
            _ => "prompt and answer",
        }
    }

    /// Returns, as text, the row's settings that differ between `rows`, except the settings listed in `but`.
    pub fn apart(&self, rows: &[&TestRow], but: &[&str]) -> String {
        let names = SETTINGS.iter().map(|(_, name)| name).filter(|name| !but.contains(name));
        let differing = names.filter_map(|name| Some((name, self.differing(name, rows)?)));
        let words: Vec<String> = differing.map(|(name, value)| format!("{name} {value}")).collect();
        words.join(", ")
    }

    /// Returns the value of a setting if it differs between `rows`.
    pub fn differing(&self, name: &str, rows: &[&TestRow]) -> Option<&str> {
        let values: BTreeSet<&str> = rows.iter().filter_map(|row| row.setting(name)).collect();
        self.setting(name).filter(|value| !value.is_empty() && values.len() > 1)
    }

    /// Returns the name of the build, or an empty string if the row does not contain one.
    pub fn build(&self) -> &str {
        self.setting(BUILD).unwrap_or_default()
    }

    fn setting(&self, name: &str) -> Option<&str> {
        self.settings.iter().find(|(own, _)| *own == name).map(|(_, value)| value.as_str())
    }
}

/// Returns the float type in llama.cpp's description of a model: `F16` for `llama 1B F16`, and empty for `llama 1B
/// Q4_K - Medium`.
fn floats(name: &str) -> &'static str {
    let kinds = ["BF16", "F16", "F32"];
    kinds.into_iter().find(|kind| name.split_whitespace().any(|word| word == *kind)).unwrap_or_default()
}

/// Returns a file's name without folder and extension.
fn stem(path: &str) -> String {
    let name = path.rsplit(['/', '\\']).next().unwrap_or_default();
    name.strip_suffix(".gguf").unwrap_or(name).to_string()
}

fn said(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Bool(on) => if *on { "on" } else { "off" }.to_string(),
        Value::Number(number) => number.to_string(),
        other => other.to_string(),
    }
}
