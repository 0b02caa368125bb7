//! The smoke test: a tiny model with random weights, greedy generation twice, equal tokens.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use build_info::record::Smoke;
use gguf::synth::{self, Preset};
use serde::Deserialize;

use super::cuda;
use super::state::Build;
use crate::ui::Progress;

/// Tokens generated in each run.
const TOKENS: u32 = 64;
/// Long enough to be more than one row of every matrix kernel.
const PROMPT: &str = "The quick brown fox jumps over the lazy dog, and the five boxing wizards jump quickly.";

/// What `anneal run --json` tells; more than this is ignored.
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

/// Generates twice with the candidate and compares.
pub fn smoke(build: &Build, progress: &mut Progress) -> Result<()> {
    let anneal = build.folder.newest_engine().context("the build folder holds no anneal")?;
    smoke_of(build, &anneal, progress)
}

/// The same with the program `anneal`, wherever it lies.
pub fn smoke_of(build: &Build, anneal: &Path, progress: &mut Progress) -> Result<()> {
    let folder = build.folder.smoke();
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let model = model(build);
    progress.message("writing a tiny model");
    synth::write(&model, &synth::SynthOptions::new(Preset::Tiny))
        .context("cannot write the smoke test's model")?;
    progress.message("generating");
    let first = generate_with(build, anneal, &model)?;
    let second = generate_with(build, anneal, &model)?;
    if first.tokens.len() != TOKENS as usize {
        bail!("{TOKENS} tokens were asked for and {} came", first.tokens.len());
    }
    if first.tokens != second.tokens {
        let at = first.tokens.iter().zip(&second.tokens).take_while(|(a, b)| a == b).count();
        bail!(
            "two greedy runs on one model differ from token {at} on: the compiler made wrong code, or memory is \
             faulty; try another compiler and report it"
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

/// Whether the candidate generates what `other` does, a program of the same compiled code: where only its place was
/// changed, every token is the same.
pub fn same_tokens(build: &Build, other: &Path) -> Result<()> {
    let model = model(build);
    let ours = generate(build, &model)?.tokens;
    let theirs = generate_with(build, other, &model)?.tokens;
    if ours != theirs {
        let at = ours.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
        bail!(
            "the program generates other tokens than {} from token {at} on, though only the place of its code was \
             changed: llvm-bolt broke it",
            other.display()
        );
    }
    Ok(())
}

/// What the smoke test of this build measured; nothing where it was emulated, which says nothing of any machine's speed.
pub fn result(build: &Build) -> Option<Smoke> {
    if build.plan.cross.is_some() {
        return None;
    }
    serde_json::from_slice(&std::fs::read(result_path(build)).ok()?).ok()
}

/// The smoke test's model.
fn model(build: &Build) -> PathBuf {
    build.folder.smoke().join("tiny.gguf")
}

fn result_path(build: &Build) -> PathBuf {
    build.folder.smoke().join("result.json")
}

fn generate(build: &Build, model: &Path) -> Result<RunJson> {
    let anneal = build.folder.newest_engine().context("the build folder holds no anneal")?;
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
    serde_json::from_str(&output).with_context(|| format!("cannot understand what anneal printed: {output}"))
}
