//! The builds that take part in a comparison, and how they are named.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use base::exit;
use build_info::BuildInfo;
use build_info::record::ReadError;

use crate::stages;
use crate::workspace::Workspace;

/// A build to measure.
#[derive(Clone, Debug)]
pub struct CandidateBuild {
    /// As figures and errors name it.
    pub name: String,
    /// Its program.
    pub path: PathBuf,
    /// What the program is.
    pub program: MeasuredProgram,
    /// What is known of it.
    pub record: Option<BuildInfo>,
}

/// A program that measures itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasuredProgram {
    /// The engine.
    Anneal,
    /// llama.cpp's own.
    LlamaBench,
}

impl CandidateBuild {
    /// The one that `text` names: `LABEL=PATH`, the path of a build folder or of a program, or a profile, whose
    /// current build it is.
    pub fn named(workspace: &Workspace, text: &str) -> Result<Self> {
        if let Some((label, path)) = text.split_once('=') {
            if label.is_empty() || path.is_empty() {
                return Err(exit::usage(format!("{text:?} names no build: write it as LABEL=PATH")));
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

    /// The build in the folder `path`, or of the program `path`.
    pub fn at(name: &str, path: &Path) -> Result<Self> {
        let program = if path.is_dir() { path.join("bin/anneal") } else { path.to_path_buf() };
        if !program.is_file() {
            bail!(
                "{name}: there is no {}: name a finished build's folder, or a program anneal or llama-bench",
                program.display()
            );
        }
        // Links resolved once: a build that is finished meanwhile is another one.
        let program =
            program.canonicalize().with_context(|| format!("{name}: cannot find {}", program.display()))?;
        let kind = match program.file_name() {
            Some(file) if file == "llama-bench" => MeasuredProgram::LlamaBench,
            _ => MeasuredProgram::Anneal,
        };
        // bin/anneal and cmake/bin/llama-bench.
        let records = program.ancestors().skip(2).take(2).map(|folder| folder.join("build_info.json"));
        let record = match records.into_iter().find(|path| path.is_file()) {
            Some(path) => Some(BuildInfo::read(&path).map_err(|error: ReadError| {
                anyhow::Error::from(error)
                    .context(format!("{name}: its record cannot be read; build it again"))
            })?),
            None => None,
        };
        if let Some(emulated) = record.as_ref().and_then(|record| record.emulated.as_ref()) {
            bail!(
                "{name} is for another machine than this one, and {} says nothing of its speed: measure it where it runs",
                emulated.emulator
            );
        }
        Ok(Self { name: name.to_string(), path: program, program: kind, record })
    }
}
