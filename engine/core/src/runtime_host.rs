//! State of the machine and of the build at start-up.

use std::path::PathBuf;

use build_info::{BuildInfo, Bytes, Defaults, Host, words};
use llama::options::CudaWait;
use llama::own_kernels;
use serde::Serialize;

/// Machine and build record, with warnings about properties that could not be read.
#[derive(Debug, Default)]
pub struct RuntimeHost {
    /// Machine; `None` if not even its cores were detected.
    pub host: Option<Host>,
    /// Path and content of the build record next to the executable.
    pub build: Option<(PathBuf, BuildInfo)>,
    /// Linked BLAS library, if any.
    pub blas: Option<Blas>,
    /// Environment variables that settings depend on.
    pub environment: Environment,
    /// Values of ggml's own variables, for settings that have defaults in the build record.
    pub variables: Defaults,
    /// Warnings, one for each property that could not be read.
    pub warnings: Vec<String>,
}

/// Environment variables that settings depend on, as they were at start-up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// `ANNEAL_CPU_VARIANT`: name of the kernels to load.
    pub cpu_variant: Option<String>,
    /// `ANNEAL_KERNELS`: kernels for products and attention.
    pub kernels: Option<String>,
    /// `GGML_CPU_TILED_MM`: use of ggml's tiled kernels.
    pub tiled: Option<String>,
    /// `ANNEAL_CUDA_WAIT`: method of waiting for a GPU.
    pub cuda_wait: Option<String>,
    /// `ANNEAL_THREADS`: number of threads, see [`crate::asked_threads`].
    pub threads: Option<String>,
}

impl Environment {
    /// Reads the variables of this process.
    pub fn read() -> Self {
        Self {
            cpu_variant: llama::kernels::of_environment(),
            kernels: std::env::var(own_kernels::VARIABLE).ok().filter(|name| !name.is_empty()),
            tiled: std::env::var(llama::TILED).ok(),
            cuda_wait: std::env::var(CudaWait::VARIABLE).ok(),
            // Invalid UTF-8 becomes replacement characters, which are refused later.
            threads: std::env::var_os(crate::asked_threads::VARIABLE)
                .map(|value| value.to_string_lossy().into_owned()),
        }
    }
}

/// Linked BLAS library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Blas {
    /// Name that the library reports.
    pub library: String,
    /// True if the library's number of threads can be set. Otherwise, the library uses as many threads as llama.cpp.
    pub threads_obeyed: bool,
}

impl RuntimeHost {
    /// Reads the machine and the build record. Failures become warnings.
    pub fn read() -> Self {
        // The driver is not queried, because llama.cpp detects the GPUs and a query can take seconds: see
        // `ask_for_gpus`.
        let detected = host::detect(&host::Root::live().without_gpus());
        let readable = !detected.host.limits.affinity.is_empty() || !detected.host.topology.cores.is_empty();
        let blas = llama::blas_library()
            .map(|library| Blas { library, threads_obeyed: llama::blas_threads_obeyed() });
        let variables = llama::cuda_variables();
        let host = readable.then_some(detected.host);
        let environment = Environment::read();
        let mut runtime_host = RuntimeHost { host, blas, environment, variables, ..RuntimeHost::default() };
        if runtime_host.host.is_none() {
            runtime_host.warnings.extend(detected.warnings);
        }
        if let Some(path) = llama::record::path() {
            match BuildInfo::read(&path) {
                Ok(build) => {
                    if let Some(cuda) = &build.cuda {
                        llama::made_for(cuda);
                    }
                    runtime_host.build = Some((path, build));
                }
                Err(error) => {
                    let why = words::with_inline_hint(&error.to_string());
                    runtime_host
                        .warnings
                        .push(format!("{why}; using the properties of the live host instead"));
                }
            }
        }
        runtime_host
    }

    /// Sets ggml's CUDA variables to the values that the build's profile and the user specify. The precondition of
    /// [`llama::switch_cuda`] applies.
    pub fn switch_cuda(&self) {
        llama::switch_cuda(self.defaults().unwrap_or(&Defaults::default()), &self.variables);
    }

    /// Returns the defaults of the build's profile, even if a GPU build runs on a machine without a GPU.
    pub fn defaults(&self) -> Option<&Defaults> {
        self.build.as_ref().map(|(_, build)| &build.defaults)
    }

    /// Queries the NVIDIA driver, if it is loaded, for its GPUs. Used by commands that display information about the
    /// machine.
    pub fn ask_for_gpus(&mut self) {
        let (gpus, warnings) = host::gpus(&host::Root::live());
        if let Some(host) = &mut self.host {
            host.gpus = gpus;
        }
        self.warnings.extend(warnings);
    }

    /// Returns the memory that this process may use: the available memory, up to the limit of the control group.
    pub fn memory(&self) -> Option<Bytes> {
        self.host.as_ref()?.usable_memory()
    }

    /// True if this machine has the same CPU, cores and process limits as the machine that made the build.
    pub fn is_build_host(&self) -> bool {
        let (Some(host), Some((_, build))) = (&self.host, &self.build) else { return false };
        host.cpu == build.host.cpu
            && host.topology.cores == build.host.topology.cores
            && host.limits.affinity == build.host.limits.affinity
            && host.limits.cpu_quota == build.host.limits.cpu_quota
    }
}
