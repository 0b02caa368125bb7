//! What is validated: a build, and the flags it is run with.

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

/// Flags that a validation gives itself: on one side only they would change what is compared.
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

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Side {
    /// What there is.
    A,
    /// What is to replace it.
    B,
}

impl Side {
    /// Both, in the order of every array.
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

/// A build with its flags.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Which one it is.
    pub side: Side,
    /// The build.
    pub build: CandidateBuild,
    /// Flags of every run of it.
    pub flags: Vec<String>,
}

/// A subject, for the record.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct About {
    /// The build.
    #[serde(flatten)]
    pub build: Contender,
    /// Its flags.
    pub flags: Vec<String>,
    /// Devices other than the CPU that it finds; absent where the engine tells none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Vec<String>>,
}

/// What of `anneal info --json` is read.
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
    /// What it is; older engines have it for its name.
    description: Option<String>,
}

/// `text` as a shell would split it.
pub fn flags(text: &str) -> Result<Vec<String>> {
    shlex::split(text)
        .ok_or_else(|| exit::usage(format!("the flags {text:?} cannot be split into words: a quote is open")))
}

impl Subject {
    /// The build that `text` names as `bench compare` does, with flags.
    pub fn named(workspace: &Workspace, side: Side, text: &str, flags: Vec<String>) -> Result<Self> {
        Self::new(side, CandidateBuild::named(workspace, text)?, flags)
    }

    /// `build` with `flags`.
    pub fn new(side: Side, build: CandidateBuild, flags: Vec<String>) -> Result<Self> {
        if build.program == MeasuredProgram::LlamaBench {
            return Err(exit::usage(format!(
                "{side}: {} is llama-bench, which generates no text: validate takes engines (`anneal`)",
                build.name
            )));
        }
        if let Some(own) = flags.iter().find(|flag| is_own(flag)) {
            return Err(exit::usage(format!(
                "{side}: {own} is validate's own to give: prompt, sampling and sizes are the same on both sides"
            )));
        }
        if let Some(drafts) = flags.iter().find(|flag| is_of_drafts(flag)) {
            return Err(exit::usage(format!(
                "{side}: {drafts}: speculative decoding is not validated: how fast it is depends on the text, and what is \
                 compared here are builds and settings; measure it on your own text with anneal run"
            )));
        }
        Ok(Self { side, build, flags })
    }

    /// Whether both are the same program with the same flags.
    pub fn is_same(&self, other: &Self) -> bool {
        self.build.path == other.build.path && self.flags == other.flags
    }

    /// Its name, with what it is run with: `native --no-repack`.
    pub fn title(&self) -> String {
        let words = std::iter::once(self.build.name.as_str()).chain(self.flags.iter().map(String::as_str));
        words.collect::<Vec<_>>().join(" ")
    }

    /// Asks the engine what it finds, which also tells whether it starts and understands the flags.
    pub fn look(&self) -> Result<About> {
        let arguments: Vec<OsString> = ["info", "--json"].map(OsString::from).into();
        let ended = engine::run(self, arguments, Stay::forever(), &mut |_, _| {}).map_err(wrong_flags)?;
        let info: Info = serde_json::from_slice(&ended.stdout).with_context(|| {
            format!("{}: {} info printed no JSON that can be read", self.side, self.build.name)
        })?;
        let gpus = match info.devices {
            Some(devices) => {
                let gpus = devices.into_iter().filter(|device| device.kind == "gpu");
                Some(gpus.map(|device| device.description.unwrap_or(device.name)).collect())
            }
            // An older engine names what it was linked with, but not what that found.
            None if info.backends.iter().any(|name| !["CPU", "BLAS"].contains(&name.as_str())) => None,
            None => Some(Vec::new()),
        };
        let build = Contender::new(&self.build.name, self.build.record.as_ref());
        Ok(About { build, flags: self.flags.clone(), gpus })
    }

    /// The program.
    pub fn program(&self) -> &PathBuf {
        &self.build.path
    }
}

/// An engine that does not understand what it is asked is no worse for it: the flags are wrong.
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

/// Whether `flag` asks for speculative decoding.
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
