//! Origins of settings.

use std::fmt;

use serde::Serialize;

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Given on the command line.
    Flag,
    /// Set in the configuration file.
    ConfigFile,
    /// What `anneal tune` found for this model on this machine.
    TuningRecord,
    /// `build_info.json`.
    BuildInfo,
    /// A variable of the environment.
    Environment,
    /// Computed from the machine as it is now.
    LiveHost,
    /// All layers and the output are on devices: the host only hands them their work.
    AllLayersOnDevices,
    /// Built in.
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Source::Flag => "flag",
            Source::ConfigFile => "config file",
            Source::TuningRecord => "tuning record",
            Source::BuildInfo => "build info",
            Source::Environment => "environment",
            Source::LiveHost => "live host",
            Source::AllLayersOnDevices => "all layers on the device",
            Source::Default => "default",
        })
    }
}

impl Source {
    /// True if the user asked for the value: by a flag, in the configuration file, or in the environment.
    pub fn is_asked(self) -> bool {
        matches!(self, Source::Flag | Source::ConfigFile | Source::Environment)
    }
}

/// A value and where it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Where it came from.
    pub source: Source,
}

impl<T> Setting<T> {
    pub(super) fn new(value: T, source: Source) -> Self {
        Self { value, source }
    }

    /// What the build's profile wants, where nothing but the default counts.
    pub(super) fn or_profile(self, wanted: Option<T>) -> Self {
        match (self.source, wanted) {
            (Source::Default, Some(value)) => Self::new(value, Source::BuildInfo),
            _ => self,
        }
    }

    /// What a variable of the environment says, if it says something.
    pub(super) fn unless(self, variable: Option<T>) -> Self {
        variable.map_or(self, |value| Self::new(value, Source::Environment))
    }

    /// The value that was asked for, else `default`.
    pub(super) fn or_default(asked: Option<Self>, default: T) -> Self {
        asked.unwrap_or(Self::new(default, Source::Default))
    }

    /// The value that was asked for, else the tuning record's value, else `default`.
    pub(super) fn pick(asked: Option<Self>, tuned: Option<T>, default: T) -> Self {
        match (asked, tuned) {
            (None, Some(value)) => Self::new(value, Source::TuningRecord),
            (asked, _) => Self::or_default(asked, default),
        }
    }
}
