//! What the engine finds at start: the machine it runs on, and the record of the build it is.

use std::path::PathBuf;

use build_info::{BuildInfo, Bytes, Defaults, Host};
use llama::options::CudaWait;
use serde::Serialize;

/// The machine, the record, and what was wrong with either.
#[derive(Debug, Default)]
pub struct RuntimeHost {
    /// The machine; `None` where not even its cores could be read.
    pub host: Option<Host>,
    /// The record beside the executable, and where it lies.
    pub build: Option<(PathBuf, BuildInfo)>,
    /// The BLAS library that is linked, if one is.
    pub blas: Option<Blas>,
    /// Variables of the environment that settings depend on.
    pub environment: Environment,
    /// What ggml's own variables say of what the record has defaults for.
    pub variables: Defaults,
    /// One sentence for each thing that could not be read.
    pub warnings: Vec<String>,
}

/// Variables of the environment that settings depend on, as they were at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// `ANNEAL_CPU_VARIANT`: the kernels to load.
    pub cpu_variant: Option<String>,
    /// `GGML_CPU_TILED_MM`: whether ggml's tiled kernels run.
    pub tiled: Option<String>,
    /// `ANNEAL_CUDA_WAIT`: how a thread waits for a GPU.
    pub cuda_wait: Option<String>,
    /// `ANNEAL_THREADS`: number of threads, see [`crate::asked_threads`].
    pub threads: Option<String>,
}

impl Environment {
    /// Reads the variables of this process.
    pub fn read() -> Self {
        Self {
            cpu_variant: llama::kernels::of_environment(),
            tiled: std::env::var(llama::TILED).ok(),
            cuda_wait: std::env::var(CudaWait::VARIABLE).ok(),
            // What is no text is refused by its replacement characters.
            threads: std::env::var_os(crate::asked_threads::VARIABLE)
                .map(|value| value.to_string_lossy().into_owned()),
        }
    }
}

/// A linked BLAS library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Blas {
    /// What it calls itself.
    pub library: String,
    /// Whether its threads can be set; else it uses as many as llama.cpp.
    pub threads_obeyed: bool,
}

impl RuntimeHost {
    /// Looks at the machine and beside the running executable. Nothing here stops the engine.
    pub fn read() -> Self {
        // GPUs are llama.cpp's business, and asking the driver can take seconds: see `ask_for_gpus`.
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
                    runtime_host.warnings.push(format!("{error}; going on with what the live host tells"));
                }
            }
        }
        runtime_host
    }

    /// Sets ggml's variables for CUDA as the build's profile and the user want them: see [`llama::switch_cuda`], whose
    /// condition holds here too.
    pub fn switch_cuda(&self) {
        llama::switch_cuda(self.defaults().unwrap_or(&Defaults::default()), &self.variables);
    }

    /// The defaults that the build's profile wants; those of a build for GPUs also where none is there.
    pub fn defaults(&self) -> Option<&Defaults> {
        self.build.as_ref().map(|(_, build)| &build.defaults)
    }

    /// Asks the NVIDIA driver, if one is loaded, for its GPUs, for whoever shows the machine.
    pub fn ask_for_gpus(&mut self) {
        let (gpus, warnings) = host::gpus(&host::Root::live());
        if let Some(host) = &mut self.host {
            host.gpus = gpus;
        }
        self.warnings.extend(warnings);
    }

    /// Memory that this process may use: what the control group allows, at most what is available.
    pub fn memory(&self) -> Option<Bytes> {
        self.host.as_ref()?.usable_memory()
    }

    /// Whether this is the machine, as this process may use it, that the build was made on.
    pub fn is_build_host(&self) -> bool {
        let (Some(host), Some((_, build))) = (&self.host, &self.build) else { return false };
        host.cpu == build.host.cpu
            && host.topology.cores == build.host.topology.cores
            && host.limits.affinity == build.host.limits.affinity
            && host.limits.cpu_quota == build.host.limits.cpu_quota
    }
}
