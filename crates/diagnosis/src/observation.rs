//! Observation of a process: everything that the rules may use as evidence. It is plain data.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use build_info::diagnosis::ProcessActivity;
use build_info::host::CoreKind;
use build_info::{Bytes, Host, Policy, Roofline, ThreadBudget, threads, words};
use host::process::ProcessMemory;
use serde::{Deserialize, Serialize};

use crate::command_line::Flags;
use crate::file_system::is_remote;
use crate::program::ProgramKind;

/// CPU use in cores above which a thread counts as working.
const BUSY: f64 = 0.05;
/// CPU use of a thread, relative to the busiest thread, above which the thread belongs to the team that computes.
const TEAM: f64 = 0.25;

/// Observation of one process on one machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Observation {
    /// Process ID.
    pub pid: u32,
    /// Kind of the program.
    pub kind: ProgramKind,
    /// File name of the program.
    pub program: String,
    /// Machine, with the limits of the observed process.
    pub host: Host,
    /// Size in bytes above which the kernel reclaims the memory of the process's control group.
    pub memory_high: Option<Bytes>,
    /// Settings from the command line and the environment.
    pub flags: Flags,
    /// Variables of the environment that affect the speed.
    pub environment: BTreeMap<String, String>,
    /// Seconds since the process started.
    pub uptime_s: Option<f64>,
    /// ID of the process, such as a debugger, that traces the observed process.
    pub tracer: Option<u32>,
    /// Length of the observation, in seconds.
    pub window_s: f64,
    /// Threads.
    pub threads: Vec<ThreadFacts>,
    /// Share of the CPU quota's periods in which the process was throttled, from 0 to 1.
    pub throttled: Option<f64>,
    /// Share of the machine's CPU time that the hypervisor gave to other guests, from 0 to 1.
    pub stolen: Option<f64>,
    /// Memory of the process.
    pub memory: ObservedMemory,
    /// Other processes that used the CPUs of the process, the busiest first.
    pub neighbours: Vec<Neighbour>,
    /// Clocks of the CPUs that computed.
    pub clocks: Option<ClockFacts>,
    /// True if this user may not read the mapped files.
    pub is_map_hidden: bool,
    /// Mapped libraries that matter.
    pub libraries: Vec<LibraryFacts>,
    /// ggml's CPU kernels.
    pub kernels: Option<KernelFacts>,
    /// Model that the process serves.
    pub model: Option<ServedModel>,
    /// GPUs.
    pub gpu: GpuFacts,
    /// Resident bytes of the process on each NUMA node; empty if the machine has only one node.
    pub bytes_by_node: BTreeMap<u32, Bytes>,
    /// Measured limits of this machine.
    pub roofline: Option<Roofline>,
    /// Reason why there is no roofline.
    pub no_roofline: Option<String>,
    /// Observed speed.
    pub speed: SeenSpeed,
    /// Readings that failed.
    pub unread: Vec<String>,
}

impl Observation {
    /// True if the process maps neither a model nor a library of ggml, as far as this user may see.
    pub fn maps_nothing(&self) -> bool {
        !self.is_map_hidden && self.model.is_none() && self.kernels.is_none() && self.libraries.is_empty()
    }

    /// True if the process is no known program that runs llama.cpp, and maps nothing of it.
    pub fn is_stranger(&self) -> bool {
        self.kind == ProgramKind::Other && self.maps_nothing()
    }
}

/// Thread during the observation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ThreadFacts {
    /// ID of the thread.
    pub tid: u32,
    /// CPU use in cores, from 0 to 1.
    pub busy: f64,
    /// Share of the time in which the thread was ready to run but had no CPU; `None` if the kernel does not report it.
    pub waited: Option<f64>,
    /// Share of the samples in which the thread waited for a disk.
    pub blocked: f64,
    /// CPU that the thread ran on last.
    pub cpu: u32,
    /// Nice value.
    pub nice: i32,
    /// Scheduling policy; 5 is idle.
    pub policy: u32,
}

/// Memory during the observation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ObservedMemory {
    /// Resident memory.
    pub resident: Bytes,
    /// Resident memory without a file.
    pub anonymous: Bytes,
    /// Resident pages of files.
    pub file: Bytes,
    /// Memory in swap.
    pub swapped: Bytes,
    /// Anonymous memory in huge pages; `None` if the kernel does not report it.
    pub huge: Option<Bytes>,
    /// True if the kernel gives huge pages to no process.
    pub huge_pages_off: bool,
    /// True if huge pages were disabled for this process.
    pub huge_pages_denied: bool,
    /// Page faults per second that a disk served.
    pub major_faults_per_s: f64,
    /// Bytes read from disks per second; `None` if this user may not read the figure.
    pub read_bytes_per_s: Option<f64>,
    /// Bytes per second that the process read from any file system, or by which its resident memory grew, whichever is
    /// more; `None` if this user may not read the figures.
    pub file_bytes_per_s: Option<f64>,
}

impl From<ProcessMemory> for ObservedMemory {
    fn from(memory: ProcessMemory) -> Self {
        let ProcessMemory { resident, anonymous, file, swapped } = memory;
        Self { resident, anonymous, file, swapped, ..Self::default() }
    }
}

/// Other process that used the same CPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Neighbour {
    /// Process ID.
    pub pid: u32,
    /// Name.
    pub name: String,
    /// CPU use in cores.
    pub cores: f64,
}

/// Clocks of the CPUs that computed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClockFacts {
    /// Frequency governor.
    pub governor: Option<String>,
    /// Mean frequency in MHz.
    pub mhz: f64,
    /// Highest frequency in MHz.
    pub most_mhz: f64,
    /// Number of times that heat throttled the CPU during the observation.
    pub heat_events: u64,
}

/// Mapped library.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LibraryFacts {
    /// Path in the process's file system.
    pub path: PathBuf,
    /// Purpose.
    pub purpose: LibraryPurpose,
    /// True if ggml needs the library. Python maps libraries for other modules, such as numpy's OpenBLAS.
    pub is_ggmls: bool,
}

/// Purpose of a library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LibraryPurpose {
    /// ggml's CPU backend, or a program that contains it.
    Cpu,
    /// Backend or driver of a GPU.
    Gpu,
    /// OpenMP runtime.
    OpenMp,
    /// BLAS.
    Blas,
    /// Runtime of a sanitizer, such as AddressSanitizer.
    Sanitizer,
    /// Other part of ggml or llama.cpp.
    #[default]
    Other,
}

/// ggml's CPU kernels.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KernelFacts {
    /// File that contains the kernels.
    pub path: PathBuf,
    /// Number of kernels that were found.
    pub found: usize,
    /// Number of kernels that are narrower than the CPU allows.
    pub narrow: usize,
    /// Number of instructions of each instruction set.
    pub instruction_sets: BTreeMap<String, u64>,
    /// Share of the vectorised kernels that were compiled without optimisation, from 0 to 1.
    pub unoptimised: f64,
}

/// Model that a process serves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServedModel {
    /// Path in the process's file system.
    pub path: PathBuf,
    /// Architecture, such as `llama`.
    pub architecture: Option<String>,
    /// Quantisation, such as `Q4_K_M`.
    pub quantisation: Option<String>,
    /// Size of the weights.
    pub weights: Bytes,
    /// Bytes of weights that a generated token reads; `None` if unknown.
    pub bytes_per_token: Option<u64>,
    /// Size of the KV cache for the context of the process; `None` if unknown.
    pub cache: Option<Bytes>,
    /// Size of the context in tokens, if it is known.
    pub context: Option<u32>,
    /// Number of layers.
    pub layers: Option<u32>,
    /// Size of the file's mappings; 0 if the file was read.
    pub mapped: Bytes,
    /// Resident part of the mappings.
    pub resident: Option<Bytes>,
    /// Type of the file system, such as `ext4` or `nfs4`.
    pub file_system: Option<String>,
}

/// GPUs of the machine, and their use by the process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuFacts {
    /// Number of GPUs that a driver shows.
    pub devices: u32,
    /// True if the process has opened a GPU.
    pub is_open: bool,
}

/// Observed speed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SeenSpeed {
    /// Decode speed in tokens per second.
    pub decode: Option<f64>,
    /// Prefill speed in tokens per second.
    pub prefill: Option<f64>,
    /// True if the speeds are of this observation, not averages since the start of the process.
    pub is_current: bool,
    /// True if the decode speed is of one request, while the server answered other requests.
    pub is_shared: bool,
    /// Source of the speeds, or the reason why they are unknown.
    pub source: String,
}

/// Returns the threads that compute among `threads`: the busiest thread, and all threads that are nearly as busy.
pub(crate) fn team(threads: &[ThreadFacts]) -> impl Iterator<Item = &ThreadFacts> {
    let most = threads.iter().map(|thread| thread.busy).fold(0.0, f64::max);
    threads.iter().filter(move |thread| thread.busy >= BUSY && thread.busy >= TEAM * most)
}

impl Observation {
    /// Returns the threads that compute.
    pub fn team(&self) -> impl Iterator<Item = &ThreadFacts> {
        team(&self.threads)
    }

    /// Returns the number of threads that compute.
    pub fn working(&self) -> u32 {
        u32::try_from(self.team().count()).unwrap_or(u32::MAX)
    }

    /// Returns the CPU use in cores.
    pub fn cores_used(&self) -> f64 {
        self.threads.iter().map(|thread| thread.busy).sum()
    }

    /// Returns the activity of the process.
    pub fn activity(&self) -> ProcessActivity {
        const YOUNG_S: f64 = 120.0;
        let is_young = self.uptime_s.is_some_and(|age| age < YOUNG_S);
        // If a model does not fit into memory, its weights are read from the disk again and again.
        let fits = match (&self.model, self.memory_limit()) {
            (Some(model), Some((limit, _))) => model.weights < limit,
            _ => true,
        };
        // One thread loads a model, but several threads generate text.
        let is_alone = self.working() <= 1;
        if self.reads_pages() && is_young && fits && is_alone && self.speed.decode.is_none() {
            return ProcessActivity::Loading;
        }
        let is_blocked = self.threads.iter().any(|thread| thread.blocked > 0.2);
        match self.cores_used() > 0.1 || is_blocked {
            true => ProcessActivity::Working,
            false => ProcessActivity::Idle,
        }
    }

    /// True if the process reads many pages from a disk. One page fault may read several megabytes, so the bytes count
    /// as well as the faults.
    pub fn reads_pages(&self) -> bool {
        const FAULTS: f64 = 20.0;
        const BYTES: f64 = 8e6;
        self.memory.major_faults_per_s >= FAULTS
            || self.memory.read_bytes_per_s.is_some_and(|bytes| bytes >= BYTES)
            || self.waits_for_network()
    }

    /// True if the process waits for a model on a network file system. The kernel does not count such reads as reads
    /// from a disk, and one page fault may bring in many pages.
    fn waits_for_network(&self) -> bool {
        const BLOCKED: f64 = 0.2;
        const BYTES: f64 = 1e6;
        let is_remote =
            self.model.as_ref().and_then(|model| model.file_system.as_deref()).is_some_and(is_remote);
        let has_reads = self.memory.major_faults_per_s >= 1.0
            || self.memory.file_bytes_per_s.is_some_and(|bytes| bytes >= BYTES);
        is_remote && has_reads && self.blocked_share() > BLOCKED
    }

    /// True if the process computes.
    pub fn is_working(&self) -> bool {
        self.activity() == ProcessActivity::Working
    }

    /// True if a GPU does the work. Rules about CPU threads then do not apply.
    pub fn is_on_gpu(&self) -> bool {
        self.gpu.is_open && self.has(LibraryPurpose::Gpu) && self.flags.gpu_layers != Some(0)
    }

    /// True if a library with this purpose is mapped.
    pub fn has(&self, purpose: LibraryPurpose) -> bool {
        self.libraries.iter().any(|library| library.purpose == purpose)
    }

    /// Returns a library with this purpose that ggml uses.
    pub fn ggmls(&self, purpose: LibraryPurpose) -> Option<&LibraryFacts> {
        self.libraries.iter().find(|library| library.purpose == purpose && library.is_ggmls)
    }

    /// Returns the number of threads that the process computes with, and the evidence. `None` for an idle process
    /// without settings.
    pub fn team_size(&self) -> Option<(u32, String)> {
        let asked = self.flags.threads.max(self.flags.threads_batch);
        let working = self.working();
        match asked {
            Some(asked) if asked >= working => {
                Some((asked, format!("its settings request {}", words::count(asked, "thread"))))
            }
            _ if self.is_working() && working > 0 => {
                Some((working, format!("{working} of its threads computed at the same time")))
            }
            _ => None,
        }
    }

    /// Returns the cores that the process can use well.
    pub fn budget(&self) -> ThreadBudget {
        threads::budget(&self.host, Policy::Max)
    }

    /// Returns the online CPUs of the affinity mask.
    pub fn allowed(&self) -> BTreeSet<u32> {
        let mask: BTreeSet<u32> = self.host.limits.affinity.iter().copied().collect();
        let online: BTreeSet<u32> =
            self.host.topology.cores.iter().flat_map(|core| core.cpus.iter().copied()).collect();
        if online.is_empty() { mask } else { mask.intersection(&online).copied().collect() }
    }

    /// Returns the number of performance cores with an allowed CPU; `None` if the CPU is not hybrid.
    pub fn performance_cores(&self) -> Option<u32> {
        let allowed = self.allowed();
        let cores = self.host.topology.cores.iter().filter(|core| core.kind == CoreKind::Performance);
        let usable = cores.filter(|core| core.cpus.iter().any(|cpu| allowed.contains(cpu))).count();
        self.host.topology.is_hybrid().then_some(u32::try_from(usable).unwrap_or(u32::MAX))
    }

    /// Returns the share of the team's time in which its threads were ready to run but had no CPU. `None` if the kernel
    /// does not report it, or if no thread works.
    pub fn wait_share(&self) -> Option<f64> {
        let (mut ran, mut waited) = (0.0, 0.0);
        for thread in self.team() {
            ran += thread.busy;
            waited += thread.waited?;
        }
        (ran + waited > 0.0).then(|| waited / (ran + waited))
    }

    /// Returns the highest share of the samples in which a thread waited for a disk.
    pub fn blocked_share(&self) -> f64 {
        self.threads.iter().map(|thread| thread.blocked).fold(0.0, f64::max)
    }

    /// Returns the CPU use of other processes on the allowed CPUs, in cores.
    pub fn neighbour_cores(&self) -> f64 {
        self.neighbours.iter().map(|neighbour| neighbour.cores).sum()
    }

    /// Describes the CPU use of other processes, and names the busiest.
    pub fn busiest_neighbour(&self) -> String {
        let all = self.neighbour_cores();
        match self.neighbours.first() {
            Some(first) => format!(
                "other processes used {all:.1} cores; the busiest was {} (process {}) with {:.1}",
                first.name, first.pid, first.cores
            ),
            None => format!("other processes used {all:.1} cores"),
        }
    }

    /// Returns the tightest memory limit of the process: the limit of its control group, the size from which the kernel
    /// reclaims its memory, or the memory of the machine.
    pub fn memory_limit(&self) -> Option<(Bytes, &'static str)> {
        let total = Some(self.host.memory.total).filter(|total| total.0 > 0);
        let limits = [
            (self.memory_high, "its control group's memory.high"),
            (self.host.limits.memory, "its control group's memory limit"),
            (total, "the machine's memory"),
        ];
        limits.into_iter().filter_map(|(limit, name)| Some((limit?, name))).min_by_key(|(limit, _)| *limit)
    }
}
