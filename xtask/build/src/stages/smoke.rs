//! Smoke test: runs greedy generation twice on a tiny model with random weights and expects equal tokens.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use build_info::record::Smoke;
use gguf::synth::{self, Preset};
use serde::Deserialize;

use super::cuda;
use super::state::Build;
use crate::ui::Progress;

/// Number of tokens generated in each run.
const TOKENS: u32 = 64;
/// Prompt, long enough to give every matrix kernel more than one row.
const PROMPT: &str = "The quick brown fox jumps over the lazy dog, and the five boxing wizards jump quickly.";

/// Fields of `anneal run --json` that are read.
#[derive(Debug, Deserialize)]
struct RunJson {
    tokens: Vec<i32>,
    timings: Timings,
}

#[derive(Debug, Deserialize)]
struct Timings {
    prefill_tokens_per_second: f64,
    decode_tokens_per_second: f64,
}

/// Returns the inputs of the stage other than the plan.
pub fn input(build: &Build) -> String {
    build.input_of_run(&build.engine_source)
}

/// Generates twice with the candidate and compares the tokens. Does nothing if this machine cannot run the candidate.
///
/// # Errors
/// If a run fails or the tokens differ.
pub fn smoke(build: &Build, progress: &mut Progress) -> Result<()> {
    if build.not_run()?.is_some() {
        let _ = std::fs::remove_file(result_path(build));
        return Ok(());
    }
    let anneal = build.folder.engine()?;
    smoke_of(build, &anneal, progress)
}

/// Generates twice with the program `anneal` and compares the tokens.
///
/// # Errors
/// If a run fails or the tokens differ.
pub fn smoke_of(build: &Build, anneal: &Path, progress: &mut Progress) -> Result<()> {
    let folder = build.folder.smoke();
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let model = model(build);
    progress.message("writing a tiny model");
    synth::write(&model, &synth::SynthOptions::new(Preset::Tiny))
        .context("cannot write the smoke test's model")?;
    progress.message("generating");
    let first = generate_with(build, anneal, &model)?;
    let second = generate_with(build, anneal, &model)?;
    if first.tokens.len() != TOKENS as usize {
        bail!("{TOKENS} tokens were requested, but {} were generated", first.tokens.len());
    }
    if first.tokens != second.tokens {
        let at = first.tokens.iter().zip(&second.tokens).take_while(|(a, b)| a == b).count();
        bail!(
            "two greedy runs of the same model differ from token {at} onwards: miscompilation or faulty \
             memory\nhint: try another compiler, and report the problem"
        );
    }
    let smoke = Smoke {
        model: "tiny".to_string(),
        tokens: TOKENS,
        prefill_tokens_per_second: first.timings.prefill_tokens_per_second,
        decode_tokens_per_second: first.timings.decode_tokens_per_second,
    };
    crate::fs::write_atomically(&result_path(build), &serde_json::to_vec(&smoke)?)
}

/// Checks that the candidate generates the same tokens as `other`, a program with the same compiled code in another
/// layout.
///
/// # Errors
/// If a run fails or the tokens differ.
pub fn same_tokens(build: &Build, other: &Path) -> Result<()> {
    let model = model(build);
    let ours = generate(build, &model)?.tokens;
    let theirs = generate_with(build, other, &model)?.tokens;
    if ours != theirs {
        let at = ours.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
        bail!(
            "the program generates different tokens than {} from token {at} onwards, although only the code \
             layout differs: llvm-bolt broke the program",
            other.display()
        );
    }
    Ok(())
}

/// Returns the measurements of the smoke test. Returns `None` under emulation, because the speed of an emulator says
/// nothing about a CPU.
pub fn result(build: &Build) -> Option<Smoke> {
    if build.plan.emulator().is_some() {
        return None;
    }
    serde_json::from_slice(&std::fs::read(result_path(build)).ok()?).ok()
}

/// Returns the path of the smoke test's model.
fn model(build: &Build) -> PathBuf {
    build.folder.smoke().join("tiny.gguf")
}

fn result_path(build: &Build) -> PathBuf {
    build.folder.smoke().join("result.json")
}

fn generate(build: &Build, model: &Path) -> Result<RunJson> {
    let anneal = build.folder.engine()?;
    generate_with(build, &anneal, model)
}

fn generate_with(build: &Build, anneal: &Path, model: &Path) -> Result<RunJson> {
    let manner = cuda::manner(build.plan);
    let output = build
        .executable(anneal)
        .run(&build.log)
        .env(crate::pgo::profdata::VARIABLE, "/dev/null")
        .args(["run", "--greedy", "--ignore-eos", "--json", "-n", &TOKENS.to_string(), "-p", PROMPT, "-m"])
        .args([model])
        .args(manner.flags)
        .envs(&manner.variables)
        .output()?;
    serde_json::from_str(&output).with_context(|| format!("cannot parse the output of anneal: {output}"))
}
