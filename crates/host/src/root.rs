//! Sources of readings: the live machine, a folder, or a snapshot.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::cpuid::Cpuid;
use crate::nvml::LibrarySource;
use crate::snapshot::{self, SnapshotError};

/// Source of all readings.
#[derive(Clone, Debug)]
pub struct Root {
    files: Files,
    arch: String,
    os: String,
    cpuid: Option<Cpuid>,
    nvidia_smi: NvidiaSmi,
    nvml: Option<LibrarySource>,
    cuda: CudaEnvironment,
    is_live: bool,
}

/// Environment variables that select CUDA devices.
#[derive(Clone, Debug, Default)]
pub(crate) struct CudaEnvironment {
    /// Value of `CUDA_VISIBLE_DEVICES`.
    pub visible: Option<String>,
    /// Value of `CUDA_DEVICE_ORDER`.
    pub order: Option<String>,
}

#[derive(Clone, Debug)]
enum Files {
    /// Files below this folder.
    Below(PathBuf),
    /// Files by absolute path, with their content.
    Listed(BTreeMap<String, String>),
}

/// Use of the program `nvidia-smi`.
#[derive(Clone, Debug)]
pub(crate) enum NvidiaSmi {
    /// The program is never run.
    Never,
    /// The program is searched for in these folders (in the syntax of `PATH`) and run.
    OnPath(OsString),
    /// The output was recorded on another machine.
    Recorded(String),
}

impl Root {
    /// Returns the machine that this process runs on.
    pub fn live() -> Self {
        Self {
            files: Files::Below(PathBuf::from("/")),
            arch: std::env::consts::ARCH.to_string(),
            os: std::env::consts::OS.to_string(),
            cpuid: Cpuid::live(),
            nvidia_smi: NvidiaSmi::OnPath(std::env::var_os("PATH").unwrap_or_default()),
            nvml: Some(LibrarySource::System),
            cuda: CudaEnvironment {
                visible: variable("CUDA_VISIBLE_DEVICES"),
                order: variable("CUDA_DEVICE_ORDER"),
            },
            is_live: true,
        }
    }

    /// Returns a Linux machine of architecture `arch` whose `/proc`, `/sys`, `/dev` and `/etc` are below `folder`. The
    /// machine has neither CPUID nor programs until the caller adds them.
    pub fn at(folder: impl Into<PathBuf>, arch: &str) -> Self {
        Self::recorded(Files::Below(folder.into()), arch)
    }

    /// Returns the machine recorded in `text`, in the format of `fixtures/roots`.
    ///
    /// # Errors
    /// If a line of the text is invalid.
    pub fn from_snapshot(text: &str) -> Result<Self, SnapshotError> {
        let snapshot = snapshot::parse(text)?;
        let mut root = Self::recorded(Files::Listed(snapshot.files), &snapshot.arch);
        root.cpuid = snapshot.cpuid;
        if let Some(output) = snapshot.nvidia_smi {
            root.nvidia_smi = NvidiaSmi::Recorded(output);
        }
        Ok(root)
    }

    fn recorded(files: Files, arch: &str) -> Self {
        Self {
            files,
            arch: arch.to_string(),
            os: "linux".to_string(),
            cpuid: None,
            nvidia_smi: NvidiaSmi::Never,
            nvml: None,
            cuda: CudaEnvironment::default(),
            is_live: false,
        }
    }

    /// Uses `cpuid` for CPUID and XCR0.
    pub fn with_cpuid(mut self, cpuid: Cpuid) -> Self {
        self.cpuid = Some(cpuid);
        self
    }

    /// Searches for programs in the folders of `path` (in the syntax of `PATH`).
    pub fn with_path(mut self, path: impl Into<OsString>) -> Self {
        self.nvidia_smi = NvidiaSmi::OnPath(path.into());
        self
    }

    /// Queries the driver through the library at `place`.
    pub fn with_nvml(mut self, place: LibrarySource) -> Self {
        self.nvml = Some(place);
        self
    }

    /// Sets `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER`.
    pub fn with_cuda(mut self, visible: Option<&str>, order: Option<&str>) -> Self {
        self.cuda =
            CudaEnvironment { visible: visible.map(str::to_string), order: order.map(str::to_string) };
        self
    }

    /// Disables the detection of GPUs, for a caller that cannot wait for the driver. The driver may take seconds.
    pub fn without_gpus(mut self) -> Self {
        self.nvidia_smi = NvidiaSmi::Never;
        self.nvml = None;
        self
    }

    pub(crate) fn arch(&self) -> &str {
        &self.arch
    }

    pub(crate) fn os(&self) -> &str {
        &self.os
    }

    pub(crate) fn cpuid(&self) -> Option<&Cpuid> {
        self.cpuid.as_ref()
    }

    pub(crate) fn nvidia_smi(&self) -> &NvidiaSmi {
        &self.nvidia_smi
    }

    pub(crate) fn nvml(&self) -> Option<&LibrarySource> {
        self.nvml.as_ref()
    }

    /// True if GPUs are detected.
    pub(crate) fn asks_for_gpus(&self) -> bool {
        self.nvml.is_some() || !matches!(self.nvidia_smi, NvidiaSmi::Never)
    }

    pub(crate) fn cuda(&self) -> &CudaEnvironment {
        &self.cuda
    }

    /// True if the standard library's system queries refer to this machine.
    pub(crate) fn is_live(&self) -> bool {
        self.is_live
    }

    /// Returns the content of the file at the absolute path `path`; `None` if it cannot be read.
    pub(crate) fn read(&self, path: &str) -> Option<String> {
        match &self.files {
            Files::Below(folder) => {
                let bytes = std::fs::read(inside(folder, path)).ok()?;
                Some(String::from_utf8_lossy(&bytes).into_owned())
            }
            Files::Listed(files) => files.get(path).cloned(),
        }
    }

    /// Returns the content of a file with a single value, without the line end; `None` if it is missing or empty.
    pub(crate) fn value(&self, path: &str) -> Option<String> {
        let text = self.read(path)?;
        let value = text.trim();
        (!value.is_empty()).then(|| value.to_string())
    }

    /// Returns the number in a file with a single number.
    pub(crate) fn number<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.value(path)?.parse().ok()
    }

    /// True if a file or folder exists at `path`.
    pub(crate) fn exists(&self, path: &str) -> bool {
        match &self.files {
            Files::Below(folder) => inside(folder, path).exists(),
            Files::Listed(files) => files.contains_key(path),
        }
    }
}

fn variable(name: &str) -> Option<String> {
    Some(std::env::var_os(name)?.to_string_lossy().into_owned())
}

fn inside(folder: &Path, path: &str) -> PathBuf {
    folder.join(path.trim_start_matches('/'))
}
