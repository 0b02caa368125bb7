//! Subject of a validation: a build with its flags.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use anyhow::{Context, Result};
use base::exit;
use build::compare::CandidateBuild;
use build::compare::candidate::MeasuredProgram;
use build::compare::comparison::Contender;
use build::workspace::Workspace;
use serde::{Deserialize, Serialize};

use super::engine::{self, Broken, Stay};

/// Flags that the validation sets itself. If only one side set such a flag, the sides would not be comparable.
const OWN: [&str; 29] = [
    "-m",
    "--model",
    "-p",
    "--prompt",
    "-f",
    "--file",
    "-n",
    "--predict",
    "-c",
    "--ctx-size",
    "-r",
    "--repetitions",
    "-o",
    "--output",
    "--out",
    "-d",
    "--n-depth",
    "--n-prompt",
    "--n-gen",
    "--json",
    "--greedy",
    "--temp",
    "--top-k",
    "--top-p",
    "--min-p",
    "--seed",
    "--ignore-eos",
    "--ignore-eog",
    "--tokens",
];

/// Side of a validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Side {
    /// The baseline.
    A,
    /// The candidate to replace A.
    B,
}

impl Side {
    /// Both sides, in the order of every array.
    pub const BOTH: [Side; 2] = [Side::A, Side::B];
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Side::A => "A",
            Side::B => "B",
        })
    }
}

/// Build with its flags.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Side of the subject.
    pub side: Side,
    /// Build to validate.
    pub build: CandidateBuild,
    /// Flags of every run.
    pub flags: Vec<String>,
}

/// Description of a subject for the record.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct About {
    /// Description of the build.
    #[serde(flatten)]
    pub build: Contender,
    /// Flags of every run.
    pub flags: Vec<String>,
    /// Devices other than the CPU that the engine finds; `None` if the engine does not report its devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Vec<String>>,
}

/// Fields of the output of `anneal info --json` that the validation uses.
#[derive(Deserialize)]
struct Info {
    #[serde(default)]
    backends: Vec<String>,
    devices: Option<Vec<Device>>,
}

#[derive(Deserialize)]
struct Device {
    kind: String,
    name: String,
    /// Description of the device. Older engines put it into the name.
    description: Option<String>,
}

/// Splits `text` into flags as a shell would.
pub fn flags(text: &str) -> Result<Vec<String>> {
    shlex::split(text).ok_or_else(|| {
        exit::usage(format!("cannot split the flags {text:?} into words: a quote is not closed"))
    })
}

impl Subject {
    /// Finds the build that `text` specifies, as in `bench compare`, and adds the flags.
    pub fn named(workspace: &Workspace, side: Side, text: &str, flags: Vec<String>) -> Result<Self> {
        Self::new(side, CandidateBuild::named(workspace, text)?, flags)
    }

    /// Creates a subject of `build` with `flags`.
    pub fn new(side: Side, build: CandidateBuild, flags: Vec<String>) -> Result<Self> {
        if build.program == MeasuredProgram::LlamaBench {
            return Err(exit::usage(format!(
                "{side}: {} is llama-bench, which generates no text\nhint: use an engine (`anneal`)",
                build.name
            )));
        }
        if let Some(own) = flags.iter().find(|flag| is_own(flag)) {
            return Err(exit::usage(format!(
                "{side}: validate sets {own} itself, so that A and B use the same prompt, sampling and sizes"
            )));
        }
        if let Some(drafts) = flags.iter().find(|flag| is_of_drafts(flag)) {
            return Err(exit::usage(format!(
                "{side}: {drafts}: speculative decoding cannot be validated, because its speed depends on the \
                 text\nhint: measure it on your own text with `anneal run`"
            )));
        }
        Ok(Self { side, build, flags })
    }

    /// True if both subjects are the same program with the same flags.
    pub fn is_same(&self, other: &Self) -> bool {
        self.build.path == other.build.path && self.flags == other.flags
    }

    /// Returns the build's name with the flags: `native --no-repack`.
    pub fn title(&self) -> String {
        let words = std::iter::once(self.build.name.as_str()).chain(self.flags.iter().map(String::as_str));
        words.collect::<Vec<_>>().join(" ")
    }

    /// Asks the engine for its devices. The query also shows that the engine starts and accepts the flags.
    pub fn look(&self) -> Result<About> {
        let arguments: Vec<OsString> = ["info", "--json"].map(OsString::from).into();
        let ended = engine::run(self, arguments, Stay::forever(), &mut |_, _| {}).map_err(wrong_flags)?;
        let info: Info = serde_json::from_slice(&ended.stdout)
            .with_context(|| format!("{}: cannot parse the output of {} info", self.side, self.build.name))?;
        let gpus = match info.devices {
            Some(devices) => {
                let gpus = devices.into_iter().filter(|device| device.kind == "gpu");
                Some(gpus.map(|device| device.description.unwrap_or(device.name)).collect())
            }
            // An older engine reports its backends, but not the backends' devices.
            None if info.backends.iter().any(|name| !["CPU", "BLAS"].contains(&name.as_str())) => None,
            None => Some(Vec::new()),
        };
        let build = Contender::new(&self.build.name, self.build.record.as_ref());
        Ok(About { build, flags: self.flags.clone(), gpus })
    }

    /// Returns the path of the program.
    pub fn program(&self) -> &PathBuf {
        &self.build.path
    }
}

/// Turns the error of an engine that rejects its arguments into a usage error, because the flags are wrong, not the
/// engine.
pub(super) fn wrong_flags(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<Broken>() {
        Some(broken) if broken.is_usage() => exit::usage(error.to_string()),
        _ => error,
    }
}

fn is_own(flag: &str) -> bool {
    let name = flag.split_once('=').map_or(flag, |(name, _)| name);
    OWN.contains(&name)
}

/// True if `flag` enables speculative decoding.
fn is_of_drafts(flag: &str) -> bool {
    ["--speculative", "--draft-", "--model-draft"].iter().any(|start| flag.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_are_known_by_their_flags() {
        for flag in
            ["--speculative", "--speculative=lookup", "--draft-model", "--draft-near", "--model-draft=x"]
        {
            assert!(is_of_drafts(flag), "{flag}");
        }
        for flag in ["-t", "--no-repack", "lookup", "--drain"] {
            assert!(!is_of_drafts(flag), "{flag}");
        }
    }

    #[test]
    fn what_is_compared_is_not_changed_by_flags() {
        for flag in ["-n", "--seed=3", "--temp", "-c", "--json"] {
            assert!(is_own(flag), "{flag}");
        }
        for flag in ["-t", "--no-repack", "-nope", "-ctk", "--ubatch-size=64", "2"] {
            assert!(!is_own(flag), "{flag}");
        }
        assert_eq!(flags("-t 2  --cpu-list '0-1'").unwrap(), ["-t", "2", "--cpu-list", "0-1"]);
        assert_eq!(exit::code_of(&flags("-t '2").unwrap_err()), exit::USAGE);
    }
}
