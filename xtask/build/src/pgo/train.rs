//! Training: runs of an engine, instrumented by the compilers or by BOLT, on workloads.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use build_info::optimized::Training;
use build_info::{Bytes, Host, Sha256};
use gguf::{GgufFile, Scalar, Value};

use crate::models::Maker;
use crate::process::{Log, Run};
use crate::ui::Ui;
use crate::workload::{Synthetic, Workload};

/// Number of threads in training. Two threads that write counters in the same cache lines slow each other down more
/// than the second thread helps, and non-atomic counters lose counts. The spin loops of waiting threads would also
/// appear as hot code.
const THREADS: &str = "1";

/// Training runs of the engine.
#[derive(Clone, Debug)]
pub struct TrainingCourse {
    /// Names of the workloads.
    pub workloads: Vec<String>,
    /// Names and paths of the models.
    models: Vec<(String, PathBuf)>,
    /// Arguments of each run, including the model.
    runs: Vec<Vec<OsString>>,
}

impl TrainingCourse {
    /// Creates a course of `workloads`, on the user's model or on the workloads' own synthetic models. Makes missing
    /// synthetic models.
    ///
    /// # Errors
    /// If a model cannot be made.
    pub fn new(workloads: &[Workload], user_model: Option<&Path>, maker: Maker) -> Result<Self> {
        let mut course = TrainingCourse {
            workloads: workloads.iter().map(|workload| workload.name.clone()).collect(),
            models: Vec::new(),
            runs: Vec::new(),
        };
        for workload in workloads {
            let models = match user_model {
                Some(path) => {
                    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
                    vec![(name, path.to_path_buf())]
                }
                None => synthetic(&workload.models, maker)?,
            };
            for (name, path) in models {
                course.runs.extend(workload.runs.iter().map(|run| arguments(run, &path)));
                if !course.models.iter().any(|(known, _)| *known == name) {
                    course.models.push((name, path));
                }
            }
        }
        Ok(course)
    }

    /// Returns the names and paths of the models.
    pub fn models(&self) -> Vec<(String, PathBuf)> {
        self.models.clone()
    }

    /// Returns a digest of the training's inputs other than the program: the arguments and the models.
    ///
    /// # Errors
    /// If a model cannot be read.
    pub fn digest(&self) -> Result<Sha256> {
        let mut text = format!("{:?}", self.runs);
        for (_, path) in &self.models {
            text.push_str(crate::fs::digest_file(path)?.as_str());
        }
        Ok(Sha256::of(text))
    }

    /// Runs `engine` on all workloads. `env` tells the engine where to write its counts.
    ///
    /// # Errors
    /// If a run fails: the profile of a partial training would misrepresent which code is hot.
    pub fn run(&self, engine: &Path, env: &[(&str, OsString)], log: &Log, ui: &Ui) -> Result<Training> {
        let started = Instant::now();
        let mut progress = ui.progress("train");
        let total = self.runs.len();
        let done: Result<()> = self.runs.iter().enumerate().try_for_each(|(number, run)| {
            let mut command = Run::new(engine, log).args(run);
            for (name, value) in env {
                command = command.env(name, value);
            }
            command.watch(|_, _| {}).with_context(|| {
                format!(
                    "training run {} of {total} failed, so there is no profile; the current build is unchanged",
                    number + 1
                )
            })?;
            progress.step(number as u64 + 1, total as u64, "runs");
            Ok(())
        });
        progress.finish();
        crate::process::check_interrupted()?;
        done?;
        Ok(Training {
            workloads: self.workloads.clone(),
            models: self.models.iter().map(|(name, _)| name.clone()).collect(),
            runs: u32::try_from(self.runs.len()).unwrap_or(u32::MAX),
            seconds: started.elapsed().as_secs_f64(),
            counters: "single".to_string(),
        })
    }
}

fn synthetic(models: &[Synthetic], maker: Maker) -> Result<Vec<(String, PathBuf)>> {
    models.iter().map(|model| Ok((model.to_string(), maker.find_or_make(model)?))).collect()
}

/// Returns the arguments of `run` with the model, and one thread for prefill and decode.
fn arguments(run: &[String], model: &Path) -> Vec<OsString> {
    let mut all: Vec<OsString> = run.iter().map(OsString::from).collect();
    all.extend(["-m".into(), model.into(), "-t".into(), THREADS.into(), "-tb".into(), THREADS.into()]);
    all
}

/// Largest context that a workload needs, in tokens. `anneal run` uses this context length by default.
const CONTEXT: u64 = 4096;
/// Size of 32 values of the KV cache in half precision, the engine's default, in bytes.
const HALF: u64 = 64;

/// Checks that the user's model exists and fits into the memory of `host`, before long work begins.
///
/// # Errors
/// If the model cannot be read, or needs more memory than a process may have.
pub fn check_model(path: &Path, host: &Host) -> Result<()> {
    let unusable = |error| anyhow!("cannot use the model for training: {error}");
    let file = GgufFile::open(path).map_err(unusable)?;
    let weights = file.weights().map_err(unusable)?;
    let cache = file.cache_shape().map_or(Bytes(0), |shape| {
        let trained = context_length(&file).unwrap_or(CONTEXT);
        shape.bytes(CONTEXT.min(trained), HALF, HALF)
    });
    let needed = Bytes(weights.0.saturating_add(cache.0));
    match host.usable_memory() {
        Some(usable) if needed > usable => bail!(
            "the model for training does not fit into memory: {} needs {weights} for its weights and {cache} \
             for a context, but a process may use only {usable}\nhint: use a smaller model of the same \
             architecture and quantisation, or train on synthetic models (leave --model out)",
            path.display()
        ),
        _ => Ok(()),
    }
}

/// Returns the context length that the model was trained with, in tokens.
fn context_length(file: &GgufFile) -> Option<u64> {
    let Some(Value::Scalar(Scalar::String(architecture))) = file.get("general.architecture") else {
        return None;
    };
    file.u32(&format!("{architecture}.context_length")).map(u64::from)
}

#[cfg(test)]
mod tests {
    use build_info::host::Memory;

    use super::*;

    #[test]
    fn a_model_that_does_not_fit_is_refused_with_its_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        gguf::synth::write(&path, &gguf::synth::SynthOptions::new(gguf::synth::Preset::Tiny)).unwrap();
        let weights = GgufFile::open(&path).unwrap().weights().unwrap().0;
        let host = |available: u64, limit: Option<u64>| {
            let mut host = plan::testing::host("zen5-vm");
            host.memory = Memory { total: Bytes::gib(64), available: Bytes(available) };
            host.limits.memory = limit.map(Bytes);
            host
        };
        let cases = [
            (host(1 << 30, None), None),
            (host(weights, None), Some("does not fit")),
            (host(1 << 30, Some(weights)), Some("for a context, but a process may use")),
            // The memory is unknown, so the limit is unknown too.
            (host(0, None), None),
        ];
        for (host, refusal) in cases {
            match (check_model(&path, &host), refusal) {
                (Ok(()), None) => {}
                (Err(error), Some(words)) => assert!(error.to_string().contains(words), "{error}"),
                (other, _) => panic!("{:?}: {other:?}", host.memory),
            }
        }
        let none = check_model(&folder.path().join("none.gguf"), &host(1 << 30, None)).unwrap_err();
        assert!(none.to_string().starts_with("cannot use the model for training: "), "{none}");
    }
}
