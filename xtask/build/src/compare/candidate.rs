//! Builds that take part in a comparison, and the parser of their command-line notation.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use base::exit;
use build_info::BuildInfo;
use build_info::record::ReadError;

use crate::stages;
use crate::workspace::Workspace;

/// Build to measure.
#[derive(Clone, Debug)]
pub struct CandidateBuild {
    /// Name of the build in figures and errors.
    pub name: String,
    /// Path of the build's program, with symbolic links resolved.
    pub path: PathBuf,
    /// Kind of the program.
    pub program: MeasuredProgram,
    /// Record of the build; `None` if the build has no record.
    pub record: Option<BuildInfo>,
}

/// Program that can measure itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasuredProgram {
    /// Anneal's engine.
    Anneal,
    /// llama.cpp's `llama-bench`.
    LlamaBench,
}

impl CandidateBuild {
    /// Returns the build that `text` specifies. `text` is `LABEL=PATH`, the path of a build folder or a program, or the
    /// name of a profile, which stands for the profile's current build.
    ///
    /// # Errors
    /// If `text` does not specify a build, or the build's program or record cannot be read.
    pub fn named(workspace: &Workspace, text: &str) -> Result<Self> {
        if let Some((label, path)) = text.split_once('=') {
            if label.is_empty() || path.is_empty() {
                return Err(exit::usage(format!(
                    "{text:?} does not specify a build\nhint: use the form LABEL=PATH"
                )));
            }
            return Self::at(label, Path::new(path));
        }
        if text.contains('/') {
            let path = Path::new(text);
            let name =
                path.file_name().map_or_else(|| text.to_string(), |name| name.to_string_lossy().into_owned());
            return Self::at(&name, path);
        }
        Self::at(text, &stages::named(workspace, text)?)
    }

    /// Returns the build in the folder `path`, or the build whose program is `path`.
    ///
    /// # Errors
    /// If there is no program, the build's record cannot be read, or the build is for another machine.
    pub fn at(name: &str, path: &Path) -> Result<Self> {
        let program = if path.is_dir() { path.join("bin/anneal") } else { path.to_path_buf() };
        if !program.is_file() {
            bail!(
                "{name}: {} does not exist\nhint: give the folder of a finished build, or the path of a program \
                 (anneal or llama-bench)",
                program.display()
            );
        }
        // Links are resolved only once, so that the measured build stays the same even if a new build becomes current
        // during the comparison.
        let program =
            program.canonicalize().with_context(|| format!("{name}: cannot find {}", program.display()))?;
        let kind = match program.file_name() {
            Some(file) if file == "llama-bench" => MeasuredProgram::LlamaBench,
            _ => MeasuredProgram::Anneal,
        };
        // The record is two levels above bin/anneal and three levels above cmake/bin/llama-bench.
        let records = program.ancestors().skip(2).take(2).map(|folder| folder.join("build_info.json"));
        let record = match records.into_iter().find(|path| path.is_file()) {
            Some(path) => Some(BuildInfo::read(&path).map_err(|error: ReadError| {
                anyhow::Error::from(error)
                    .context(format!("{name}: cannot read the build's record\nhint: build it again"))
            })?),
            None => None,
        };
        if let Some(reason) = record.as_ref().and_then(|record| record.not_run.as_ref()) {
            bail!("{name} cannot be run here: {reason}\nhint: measure the build on the CPU that it targets");
        }
        if let Some(emulated) = record.as_ref().and_then(|record| record.emulated.as_ref()) {
            bail!(
                "{name} is for another machine, and {} cannot measure its speed\nhint: measure the build on \
                 that machine",
                emulated.emulator
            );
        }
        Ok(Self { name: name.to_string(), path: program, program: kind, record })
    }
}
