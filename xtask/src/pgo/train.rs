//! Training: the engine, instrumented by compilers or by BOLT, is run on workloads.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use build_info::optimized::Training;

use crate::models::Maker;
use crate::process::{Log, Run};
use crate::ui::Ui;
use crate::workload::{Synthetic, Workload};

/// One thread trains. With two, threads that count in the same cache lines slow each other down by more than the
/// second one brings, and counters that are not atomic lose counts; besides, what waiting threads do in their spin
/// loops would count as hot.
const THREADS: &str = "1";

/// What the engine is run on.
#[derive(Clone, Debug)]
pub struct Course {
    /// Names of the workloads.
    pub workloads: Vec<String>,
    /// Names and files of the models.
    models: Vec<(String, PathBuf)>,
    /// Arguments of each run, the model among them.
    runs: Vec<Vec<OsString>>,
}

impl Course {
    /// `workloads` on their own synthetic models, which are made where they are missing, or on the user's.
    pub fn new(workloads: &[Workload], user_model: Option<&Path>, maker: Maker) -> Result<Self> {
        let mut course = Course {
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

    /// Names and files of the models.
    pub fn models(&self) -> Vec<(String, PathBuf)> {
        self.models.clone()
    }

    /// What the profile of a training depends on beside the program.
    ///
    /// # Errors
    /// When a model cannot be read.
    pub fn digest(&self) -> Result<build_info::Sha256> {
        let mut text = format!("{:?}", self.runs);
        for (_, path) in &self.models {
            text.push_str(crate::fs::digest_file(path)?.as_str());
        }
        Ok(crate::fs::digest(text.as_bytes()))
    }

    /// Runs `engine` on all of it, with the variables that tell it where counts go.
    ///
    /// # Errors
    /// When one run fails: a profile of half a training says wrong things about what is hot.
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
                    "training run {} of {total} failed, so there is no profile, and what is current stays",
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

/// `run` with the model and one thread for both phases.
fn arguments(run: &[String], model: &Path) -> Vec<OsString> {
    let mut all: Vec<OsString> = run.iter().map(OsString::from).collect();
    all.extend(["-m".into(), model.into(), "-t".into(), THREADS.into(), "-tb".into(), THREADS.into()]);
    all
}

/// The user's model, seen to be there before anything long begins.
pub fn check_model(path: &Path) -> Result<()> {
    match gguf::GgufFile::open(path) {
        Ok(_) => Ok(()),
        Err(error) => bail!("the model to train on cannot be used: {error}"),
    }
}
