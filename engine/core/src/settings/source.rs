//! Sources of settings.

use std::fmt;

use serde::Serialize;

/// Source of a setting's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Given on the command line.
    Flag,
    /// Set in the configuration file.
    ConfigFile,
    /// Found by `anneal tune` for this model on this machine.
    TuningRecord,
    /// Recorded in `build_info.json`.
    BuildInfo,
    /// Set by an environment variable.
    Environment,
    /// Computed from the live host.
    LiveHost,
    /// Follows from the placement: all layers and the output are on devices, so the host only starts their work.
    AllLayersOnDevices,
    /// Follows from the model's file system, on which a mapped file can lose pages.
    FileSystem,
    /// Built-in default.
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
            Source::FileSystem => "the model's file system",
            Source::Default => "default",
        })
    }
}

impl Source {
    /// True if the user set the value with a flag, in the configuration file, or in the environment.
    pub fn is_asked(self) -> bool {
        matches!(self, Source::Flag | Source::ConfigFile | Source::Environment)
    }
}

/// Value of a setting with its source.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting<T> {
    /// Value that is used.
    pub value: T,
    /// Source of the value.
    pub source: Source,
}

impl<T> Setting<T> {
    pub(super) fn new(value: T, source: Source) -> Self {
        Self { value, source }
    }

    /// Returns the value of the build's profile, if the profile has a value and the current value is only the
    /// default.
    pub(super) fn or_profile(self, wanted: Option<T>) -> Self {
        match (self.source, wanted) {
            (Source::Default, Some(value)) => Self::new(value, Source::BuildInfo),
            _ => self,
        }
    }

    /// Returns the value of an environment variable if it is set, otherwise the current value.
    pub(super) fn unless(self, variable: Option<T>) -> Self {
        variable.map_or(self, |value| Self::new(value, Source::Environment))
    }

    /// Returns the requested value, otherwise `default`.
    pub(super) fn or_default(asked: Option<Self>, default: T) -> Self {
        asked.unwrap_or(Self::new(default, Source::Default))
    }

    /// Returns the requested value, otherwise the value of the tuning record, otherwise `default`.
    pub(super) fn pick(asked: Option<Self>, tuned: Option<T>, default: T) -> Self {
        match (asked, tuned) {
            (None, Some(value)) => Self::new(value, Source::TuningRecord),
            (asked, _) => Self::or_default(asked, default),
        }
    }
}
