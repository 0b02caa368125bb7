//! Output of `anneal bench -o json` and `llama-bench -o json`: the fields of both programs, and the additional fields
//! of `anneal`.

use anyhow::{Context, Result, bail};
use build_info::BenchRow;
use measure::GpuUse;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Settings of a test that must be equal in both programs.
const SETTINGS: [&str; 11] = [
    "n_batch",
    "n_ubatch",
    "n_threads",
    "type_k",
    "type_v",
    "n_gpu_layers",
    "flash_attn",
    "no_kv_offload",
    "split_mode",
    "embeddings",
    "no_op_offload",
];

/// One test in the output of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuBenchRow {
    /// llama-bench's name of the test: `pp512`, `tg128 @ d4096`.
    pub test: String,
    /// Number of prompt tokens.
    pub n_prompt: u32,
    /// Number of generated tokens.
    pub n_gen: u32,
    /// Number of tokens in the context before the test.
    pub n_depth: u32,
    /// True if the test went from text to text, with sampling. False for llama-bench's method with random tokens.
    pub end_to_end: bool,
    /// Tokens per second of each repetition. An end-to-end test only counts the tokens after the first one.
    pub samples: Vec<f64>,
    /// Use of each GPU. Only `anneal` reports GPU use, and only if a driver is loaded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuUse>,
}

/// Output of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Tests of the run.
    pub rows: Vec<GpuBenchRow>,
    /// Settings of the run that both programs report, by name.
    pub settings: serde_json::Map<String, Value>,
    /// Names of ggml's backends, such as `CUDA`.
    pub backends: String,
}

/// Parses the output of either program.
///
/// # Errors
/// If the text is not JSON of these programs, or contains no test.
pub fn read(text: &[u8]) -> Result<Output> {
    let values: Vec<Value> = serde_json::from_slice(text)
        .with_context(|| format!("expected a JSON list of tests, found {:?}", beginning(text)))?;
    let tests: Vec<BenchRow> = values
        .into_iter()
        .map(serde_json::from_value)
        .collect::<Result<_, _>>()
        .context("a test lacks fields that llama-bench writes")?;
    let Some(first) = tests.first() else { bail!("the list of tests is empty") };
    let first = serde_json::to_value(first)?;
    let told = SETTINGS.iter().map(|name| (name.to_string(), plain(&first[*name])));
    let settings = told.filter(|(_, value)| !value.is_null()).collect();
    let mut output = Output { rows: Vec::new(), settings, backends: String::new() };
    for test in tests {
        output.backends = test.backends.clone().unwrap_or_default();
        output.rows.push(row(test).context("a test lacks fields that llama-bench writes")?);
    }
    Ok(output)
}

/// Normalises a switch, which may be `false` or `0`.
fn plain(value: &Value) -> Value {
    match value {
        Value::Bool(on) => Value::from(i32::from(*on)),
        other => other.clone(),
    }
}

/// Converts a test. Returns `None` if a size or the samples are missing.
fn row(test: BenchRow) -> Option<GpuBenchRow> {
    let (n_prompt, n_gen) = (test.n_prompt?, test.n_gen?);
    let end_to_end = test.is_end_to_end();
    let name = test.test();
    let samples_ns = test.samples_ns?;
    let first = test.samples_time_to_first_token_ns.unwrap_or_default();
    let samples = match end_to_end && first.len() == samples_ns.len() && n_gen > 1 {
        // The prompt's evaluation produces the first token.
        true => {
            let rest = samples_ns.iter().zip(first).map(|(all, first)| all.saturating_sub(first));
            rest.map(|ns| 1e9 * f64::from(n_gen - 1) / ns.max(1) as f64).collect()
        }
        false => test.samples_ts?,
    };
    Some(GpuBenchRow {
        test: name,
        n_prompt,
        n_gen,
        n_depth: test.n_depth.unwrap_or_default(),
        end_to_end,
        samples,
        gpus: test.gpu.map(|gpu| gpu.gpus).unwrap_or_default(),
    })
}

fn beginning(text: &[u8]) -> String {
    String::from_utf8_lossy(text).trim().chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of a CPU build for the tiny model.
    const KERNEL: &[u8] = include_bytes!("../../tests/fixtures/gpu-check/anneal-kernel.json");
    const END_TO_END: &[u8] = include_bytes!("../../tests/fixtures/gpu-check/anneal-end-to-end.json");

    #[test]
    fn our_own_output_is_read() {
        let output = read(KERNEL).unwrap();
        let tests: Vec<&str> = output.rows.iter().map(|row| row.test.as_str()).collect();
        assert_eq!(tests, ["pp32", "tg16", "pp32 @ d64", "tg16 @ d64"]);
        assert!(output.rows.iter().all(|row| !row.end_to_end && row.samples.len() == 2));
        let value: Vec<Value> = serde_json::from_slice(KERNEL).unwrap();
        assert_eq!(output.rows[0].samples[1], value[0]["samples_ts"][1].as_f64().unwrap());
        assert_eq!(output.backends, "CPU");
        assert_eq!(
            (&output.settings["n_batch"], &output.settings["no_kv_offload"]),
            (&2048.into(), &0.into())
        );
    }

    #[test]
    fn end_to_end_the_first_token_is_the_prompts() {
        let output = read(END_TO_END).unwrap();
        assert_eq!((output.rows[0].test.as_str(), output.rows[0].end_to_end), ("pp16+tg16", true));
        let value: Vec<Value> = serde_json::from_slice(END_TO_END).unwrap();
        let number = |name: &str| value[0][name][0].as_f64().unwrap();
        let expected = 15.0 / ((number("samples_ns") - number("samples_time_to_first_token_ns")) / 1e9);
        assert!((output.rows[0].samples[0] / expected - 1.0).abs() < 1e-9, "{:?}", output.rows[0]);
    }

    #[test]
    fn llama_benchs_output_is_read_by_the_same_names() {
        // Remove the fields that only `anneal` writes, and write a switch as a number.
        let mut values: Vec<Value> = serde_json::from_slice(KERNEL).unwrap();
        for value in &mut values {
            let fields = value.as_object_mut().unwrap();
            fields.retain(|name, _| {
                !name.starts_with("anneal") && !name.starts_with("gpu") && name != "backends"
            });
            fields.insert("no_kv_offload".to_string(), 0.into());
        }
        let theirs = read(&serde_json::to_vec(&values).unwrap()).unwrap();
        let ours = read(KERNEL).unwrap();
        assert_eq!((theirs.rows, theirs.settings), (ours.rows, ours.settings));
    }

    #[test]
    fn what_is_no_output_is_told() {
        for (text, expected) in [
            ("error: no such model", "expected a JSON list of tests, found \"error: no such model\""),
            ("[]", "the list of tests is empty"),
            ("[{\"n_prompt\": 1}]", "lacks fields that llama-bench writes"),
        ] {
            let error = format!("{:#}", read(text.as_bytes()).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }
}
