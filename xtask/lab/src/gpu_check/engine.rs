//! Programs that are checked, and their command lines.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

use super::bench::{self, Output};
use super::child::{self, EndedChild};
use super::report::{Placement, Wait};

/// Path of a tuning record that does not exist. With this path, the engine uses no tuning and does not mention tuning.
const NO_TUNING: &str = "/nonexistent/anneal-tuning.json";

/// Environment variable of the engine that selects the method of waiting for the GPU.
pub const WAIT: &str = "ANNEAL_CUDA_WAIT";

/// Prompt of every generation. The prompt is so short that cuBLAS never multiplies F16 weights.
const PROMPT: &str = "hello";

/// Time limit for a program to print its flags.
const HELP: Duration = Duration::from_secs(20);

/// Numbers of tokens to evaluate and to generate.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Number of prompt tokens of a prefill test.
    pub prompt: u32,
    /// Number of generated tokens of a decode test.
    pub generate: u32,
    /// Number of tokens in the context before the second test of prefill and of decode.
    pub depth: u32,
    /// Number of repetitions of a test in one run.
    pub repetitions: u32,
    /// Number of tokens in each of the two runs whose tokens must be equal.
    pub determinism: u32,
    /// Number of tokens of a steady decode.
    pub decode: u32,
    /// Number of tokens of the long run.
    pub long: u32,
    /// Maximum number of rounds of a model.
    pub rounds: u32,
}

impl Sizes {
    /// Sizes for which the goals are defined.
    pub const FULL: Self = Self {
        prompt: 512,
        generate: 128,
        depth: 4096,
        repetitions: 2,
        determinism: 256,
        decode: 512,
        long: 10_000,
        rounds: super::plan::ROUNDS,
    };

    /// Sizes of a rehearsal on the CPU, which shows that every step works but measures nothing.
    pub const REHEARSAL: Self = Self {
        prompt: 16,
        generate: 8,
        depth: 96,
        repetitions: 1,
        determinism: 16,
        decode: 64,
        long: 200,
        rounds: 2,
    };

    /// Returns the number of tokens of a short prompt, after which decode starts at the beginning of the context.
    pub fn short_prompt(&self) -> u32 {
        if self.prompt == 0 { 8 } else { self.prompt.min(16) }
    }

    /// Returns the same sizes without long prompts.
    pub fn without_prompts(&self) -> Self {
        Self { prompt: 0, depth: 0, ..*self }
    }

    /// Returns the number of tokens that one program generates in a round. The prompts of a round have about as many
    /// tokens in total.
    pub fn round(&self) -> u32 {
        self.repetitions.saturating_mul(3 * self.generate)
    }
}

/// Features for which this `anneal` has flags.
#[derive(Clone, Copy, Debug, Default)]
pub struct Supports {
    /// True if `anneal` has `--require-gpu=full`.
    pub require_gpu: bool,
    /// True if `anneal` has `info --placement`.
    pub placement: bool,
    /// True if `anneal` has `--device-sampling`.
    pub device_sampling: bool,
    /// True if `anneal` has `info --copy-bandwidth`.
    pub copy_bandwidth: bool,
    /// True if `anneal` has `run --gpu-layers`, `--n-cpu-moe`, `--kv-offload` and `--op-offload`.
    pub placing: bool,
}

/// `anneal` program that is checked.
#[derive(Clone, Debug)]
pub struct Engine {
    /// Path of the program.
    pub path: PathBuf,
    /// Flags that the program has.
    pub supports: Supports,
    /// True for a rehearsal, in which the engine may use the CPU.
    pub allow_cpu: bool,
}

/// Fields of the output of `anneal run --json` that the check uses.
#[derive(Deserialize)]
struct Generated {
    tokens: Vec<u32>,
}

/// Settings of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GenerationVariant {
    /// True if the device chooses the tokens.
    pub device_sampling: bool,
    /// True if CUDA graphs are used.
    pub graphs: bool,
    /// Method by which the host waits for the GPU; `None` for the engine's default.
    pub wait: Option<Wait>,
}

impl Engine {
    /// Opens the program at `path` and determines its flags.
    ///
    /// # Errors
    /// If the program does not run on this machine, because it was built for a different architecture, a newer glibc or
    /// a different CPU.
    pub fn open(path: &Path, allow_cpu: bool) -> Result<Self> {
        let help = |words: &[&str]| -> Result<String> {
            let mut command = Command::new(path);
            command.args(words).arg("--help");
            let ended = child::run(command, HELP, &mut |_, _| {})?.check()?;
            Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
        };
        let shown = path.display();
        let run = help(&["run"]).with_context(|| format!("{shown} does not run on this machine"))?;
        let info = help(&["info"])?;
        let supports = Supports {
            require_gpu: run.contains("--require-gpu"),
            placement: info.contains("--placement"),
            device_sampling: run.contains("--device-sampling"),
            copy_bandwidth: info.contains("--copy-bandwidth"),
            placing: run.contains("--op-offload"),
        };
        Ok(Self { path: path.to_path_buf(), supports, allow_cpu })
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command.args(words).env("ANNEAL_TUNING", NO_TUNING);
        command
    }

    /// Returns a command that computes with `model` on the GPU only.
    fn computing(&self, words: &[&str], model: &Path) -> Command {
        let mut command = self.command(words);
        command.arg("-m").arg(model);
        match self.allow_cpu {
            // On the machines that run these tests, several threads would only wait for each other.
            true => command.args(["-t", "1"]),
            false if self.supports.require_gpu => command.arg("--require-gpu=full"),
            false => &mut command,
        };
        // Override the profile's defaults, so that everything is checked on the GPU.
        if !self.allow_cpu && self.supports.placing {
            command.args(["--gpu-layers", "all", "--n-cpu-moe", "0", "--kv-offload", "--op-offload"]);
        }
        command
    }

    /// Returns the output of `anneal info --json` without folders and without parts that the report already contains.
    /// If the program measures the GPUs' copy bandwidth, the output contains it.
    pub fn info(&self, limit: Duration) -> Result<Value> {
        let mut command = self.command(&["info", "--json"]);
        if self.supports.copy_bandwidth {
            command.arg("--copy-bandwidth");
        }
        let ended = child::run(command, limit, &mut |_, _| {})?.check()?;
        let mut value = json(&ended)?;
        if let Some(fields) = value.as_object_mut() {
            fields.retain(|name, _| !["build", "build_info", "host"].contains(&name.as_str()));
        }
        Ok(value)
    }

    /// Returns the devices that store and compute `model`: the part `placement` of the output of `anneal info
    /// --placement`.
    pub fn placement(&self, model: &Path, limit: Duration) -> Result<Placement> {
        let command = self.computing(&["info", "--placement", "--json"], model);
        let ended = child::run(command, limit, &mut |_, _| {})?.check()?;
        placement(json(&ended)?["placement"].take())
    }

    /// Returns the tokens that follow the prompt, choosing the most likely token each time.
    pub fn tokens(&self, model: &Path, count: u32, limit: Duration) -> Result<Vec<u32>> {
        let mut command = self.computing(&["run"], model);
        command.args(["-p", PROMPT, "-n", &count.to_string(), "--greedy", "--ignore-eos", "--json"]);
        let ended = child::run(command, limit, &mut |_, _| {})?.check()?;
        let generated: Generated =
            serde_json::from_slice(&ended.stdout).context("`anneal run --json` reported no tokens")?;
        Ok(generated.tokens)
    }

    /// Returns the command for a generation of `count` tokens that prints text as it is generated.
    pub fn generation(&self, model: &Path, variant: GenerationVariant, count: u32) -> Command {
        let mut command = self.computing(&["run"], model);
        command.args(["-p", PROMPT, "-n", &count.to_string(), "--greedy", "--ignore-eos"]);
        // llama.cpp rounds context sizes up to multiples of 256 tokens.
        command.args(["-c", &(count + 64).next_multiple_of(256).max(1024).to_string()]);
        // Always pass the flag, because its default on a GPU differs from its default on the CPU.
        if self.supports.device_sampling {
            command.arg(format!("--device-sampling={}", if variant.device_sampling { "on" } else { "off" }));
        }
        if !variant.graphs {
            command.env("GGML_CUDA_DISABLE_GRAPHS", "1");
        }
        if let Some(wait) = variant.wait {
            command.env(WAIT, wait.name());
        }
        command
    }

    /// Runs llama-bench's tests with llama-bench's method.
    pub fn kernel(&self, model: &Path, sizes: &Sizes, limit: Duration) -> Result<Output> {
        let mut command = self.computing(&["bench"], model);
        tests(&mut command, sizes);
        if !self.allow_cpu {
            command.args(["-t", "1"]);
        }
        output(command, limit)
    }

    /// Runs tests from text to text with sampling: decode at the beginning of the context, and after a long prompt.
    pub fn end_to_end(&self, model: &Path, sizes: &Sizes, limit: Duration) -> Result<Output> {
        let mut command = self.computing(&["bench"], model);
        let behind = |prompt: u32| format!("{prompt},{}", sizes.generate);
        command.args(["--end-to-end", "-p", "0", "-n", "0", "--prompt-gen", &behind(sizes.short_prompt())]);
        if sizes.depth > 0 {
            command.args(["--prompt-gen", &behind(sizes.depth)]);
        }
        command.args(["-r", &sizes.repetitions.to_string(), "-o", "json"]);
        if !self.allow_cpu {
            command.args(["-t", "1"]);
        }
        output(command, limit)
    }

    /// Generates one token with default settings while CUDA reports no GPU. Returns the ended program.
    pub fn without_gpu(&self, model: &Path, limit: Duration) -> Result<EndedChild> {
        let mut command = self.command(&["run", "-p", PROMPT, "-n", "1", "--greedy", "-m"]);
        command.arg(model).env("CUDA_VISIBLE_DEVICES", "");
        child::run(command, limit, &mut |_, _| {})
    }

    /// Quantises `half` to `quant` and writes the result to `out`.
    pub fn quantise(&self, half: &Path, out: &Path, quant: &str, limit: Duration) -> Result<()> {
        let mut command = self.command(&["quantize"]);
        command.arg(half).arg(out).arg(quant);
        child::run(command, limit, &mut |_, _| {})?.check().map(drop)
    }
}

/// Runs the same tests with llama-bench.
pub fn llama_bench(program: &Path, model: &Path, sizes: &Sizes, limit: Duration) -> Result<Output> {
    let mut command = Command::new(program);
    command.arg("-m").arg(model).args(["-t", "1"]);
    tests(&mut command, sizes);
    output(command, limit)
}

fn tests(command: &mut Command, sizes: &Sizes) {
    command.args(["-p", &sizes.prompt.to_string(), "-n", &sizes.generate.to_string()]);
    let depths = if sizes.depth > 0 { format!("0,{}", sizes.depth) } else { "0".to_string() };
    command.args(["-d", &depths, "-r", &sizes.repetitions.to_string(), "-o", "json"]);
}

fn output(command: Command, limit: Duration) -> Result<Output> {
    let name = command.get_program().to_string_lossy().rsplit('/').next().unwrap_or_default().to_string();
    let ended = child::run(command, limit, &mut |_, _| {})?.check()?;
    bench::read(&ended.stdout).with_context(|| format!("cannot parse the output of {name}"))
}

/// Parses the engine's report of a placement, with the faults found by the engine.
fn placement(told: Value) -> Result<Placement> {
    #[derive(Deserialize)]
    struct Fault {
        what: String,
    }
    let faults = Vec::<Fault>::deserialize(&told["faults"])
        .context("`anneal info --placement --json` reported no list of faults")?;
    let faults: Vec<String> = faults.into_iter().map(|fault| fault.what).collect();
    Ok(Placement { full: faults.is_empty(), faults, told })
}

fn json(ended: &EndedChild) -> Result<Value> {
    serde_json::from_slice(&ended.stdout).context("`anneal info --json` did not print JSON")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_placement_is_judged_by_what_the_engine_finds() {
        let of = |faults: Value| placement(json!({ "devices": ["CUDA0 (NVIDIA H100)"], "faults": faults }));
        assert!(of(json!([])).unwrap().full);
        let split = of(json!([{ "what": "2 MiB of weights lie on the host", "mend": "" }])).unwrap();
        assert_eq!(
            (split.full, &split.faults[..]),
            (false, &["2 MiB of weights lie on the host".to_string()][..])
        );
        // A report without a list of faults is invalid.
        assert!(placement(json!({ "devices": [] })).is_err() && placement(Value::Null).is_err());
    }
}
