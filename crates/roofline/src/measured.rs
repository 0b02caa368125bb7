//! Measurement of a machine's read bandwidth and multiply-adds.

use build_info::host::Cache;
use build_info::roofline::Rates;
use build_info::{Bytes, Host, Policy, Roofline, ThreadBudget, threads};

use crate::error::Error;
use crate::kernel::Kernel;
use crate::passes::Passes;
use crate::{macs, read};

/// Duration of each measurement in seconds. Two thread counts take about three seconds in total.
const READ_SECONDS: f64 = 0.6;
const MACS_SECONDS: f64 = 0.15;

/// Total size of all threads' buffers, as a multiple of the size of all last-level caches.
const CACHES: u64 = 4;
/// Minimum total size of the buffers. The system may not report the size of a cache, or may report only a guest's
/// share.
const LEAST: Bytes = Bytes(256 << 20);

/// Measured roofline, with details of the measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredRoof {
    /// Fastest pass of each rate.
    pub roofline: Roofline,
    /// Median pass of each rate, in the same order as in `roofline`.
    pub medians: Vec<Rates>,
    /// Loops that measured the rates.
    pub kernels: Kernels,
}

/// Instruction set extension that measured each rate, for example `avx512_vnni`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in `Rates`")]
pub struct Kernels {
    pub read: &'static str,
    pub int8: &'static str,
    pub int8_wide: Option<&'static str>,
    pub f32: &'static str,
    pub bf16: Option<&'static str>,
}

/// Returns the thread counts to measure: 1, 2, 4, … and all cores of `budget`.
pub fn thread_counts(budget: &ThreadBudget) -> Vec<u32> {
    let doubling = std::iter::successors(Some(1u32), |threads| threads.checked_mul(2));
    doubling.take_while(|threads| *threads < budget.cores).chain([budget.cores]).collect()
}

/// Measures `host`, which must be this machine, with each number of threads. `say` receives a progress line for each
/// step. `date` is stored in the result.
///
/// # Errors
/// If a number of threads is not allowed, the memory is not sufficient, a thread cannot be bound, or a result is
/// wrong.
pub fn measure(
    host: &Host,
    thread_counts: &[u32],
    date: String,
    say: &mut dyn FnMut(&str),
) -> Result<MeasuredRoof, Error> {
    let budget = threads::budget(host, Policy::Max);
    let most = budget.cores.min(u32::try_from(budget.cpus.len()).unwrap_or(u32::MAX));
    if let Some(&threads) = thread_counts.iter().find(|threads| !(1..=most).contains(threads)) {
        return Err(Error::Threads { threads, cores: most, bound_by: budget.bound_by });
    }
    let bytes = buffer_size(host)?;
    let kernels = macs::kernels();
    let mut thread_counts = thread_counts.to_vec();
    thread_counts.sort_unstable();
    thread_counts.dedup();
    let (mut best, mut medians) = (Vec::new(), Vec::new());
    for threads in thread_counts {
        let cpus = &budget.cpus[..threads as usize];
        say(&format!("{threads} of {most} threads: reading {bytes}"));
        let read = read::measure(cpus, bytes, READ_SECONDS)?;
        let mut rate = |kernel: &Kernel| {
            say(&format!("{threads} of {most} threads: multiply-adds with {}", kernel.name));
            macs::measure(kernel, cpus, MACS_SECONDS)
        };
        let (int8, f32) = (rate(&kernels.int8)?, rate(&kernels.f32)?);
        let int8_wide = kernels.int8_wide.as_ref().map(&mut rate).transpose()?;
        let bf16 = kernels.bf16.as_ref().map(rate).transpose()?;
        let rates = |of: fn(&Passes) -> f64| Rates {
            threads,
            read_bytes: of(&read),
            int8_macs: of(&int8),
            int8_wide_macs: int8_wide.as_ref().map(of),
            f32_macs: of(&f32),
            bf16_macs: bf16.as_ref().map(of),
        };
        best.push(rates(Passes::best));
        medians.push(rates(Passes::median));
    }
    let roofline = Roofline {
        version: build_info::roofline::VERSION,
        date,
        cpu: host.cpu.name.clone(),
        affinity: host.limits.affinity.clone(),
        cpu_quota: host.limits.cpu_quota,
        rates: best,
    };
    let kernels = Kernels {
        read: read::name(),
        int8: kernels.int8.name,
        int8_wide: kernels.int8_wide.map(|kernel| kernel.name),
        f32: kernels.f32.name,
        bf16: kernels.bf16.map(|kernel| kernel.name),
    };
    Ok(MeasuredRoof { roofline, medians, kernels })
}

/// Returns the total size of the threads' buffers, which is far larger than the caches, so that no read hits a cache.
fn buffer_size(host: &Host) -> Result<Bytes, Error> {
    let needed = Bytes(last_level_caches(host).0.saturating_mul(CACHES).max(LEAST.0));
    let limits = [Some(host.memory.available).filter(|bytes| bytes.0 > 0), host.limits.memory];
    match limits.into_iter().flatten().min() {
        // Other processes also need memory, so the buffers use at most half of it.
        Some(available) if needed.0 > available.0 / 2 => Err(Error::Memory { needed, available }),
        _ => Ok(needed),
    }
}

/// Returns the total size of the last-level caches. Each core contributes its share of its cache, so that a shared
/// cache counts once. The result is at least one whole cache, because a guest may see a cache that it shares with
/// other guests.
pub fn last_level_caches(host: &Host) -> Bytes {
    let (mut total, mut largest) = (0u64, 0);
    for core in &host.topology.cores {
        let Some(Cache { size, shared_by }) = core.l3.or(core.l2) else { continue };
        let share = core.cpus.len() as u64 * size.0 / u64::from(shared_by.max(1));
        total = total.saturating_add(share);
        largest = size.0.max(largest);
    }
    Bytes(total.max(largest))
}

#[cfg(test)]
mod tests {
    use build_info::host::{Core, CoreKind, Cpu, Limits, Memory, Os, Topology};

    use super::*;

    fn host(cores: u32, l3: Option<(u64, u32)>, available: u64) -> Host {
        let core = |cpu| Core {
            package: 0,
            node: 0,
            kind: CoreKind::Performance,
            cpus: vec![cpu],
            l1d: None,
            l2: None,
            l3: l3.map(|(size, shared_by)| Cache { size: Bytes(size), shared_by }),
        };
        Host {
            arch: "x86_64".to_string(),
            hostname: None,
            os: Os::default(),
            cpu: Cpu::default(),
            topology: Topology { cores: (0..cores).map(core).collect(), nodes: Vec::new() },
            memory: Memory { total: Bytes(available), available: Bytes(available) },
            limits: Limits { affinity: (0..cores).collect(), ..Limits::default() },
            gpus: Vec::new(),
        }
    }

    #[test]
    fn buffers_are_a_multiple_of_all_caches_or_are_refused() {
        const MIB: u64 = 1 << 20;
        let cases = [
            // Cases: two cores that share a cache; a guest that sees a larger machine's cache; four cores with one
            // cache per pair.
            (2, Some((105 * MIB, 2)), Ok(420)),
            (2, Some((128 * MIB, 16)), Ok(512)),
            (8, Some((32 * MIB, 2)), Ok(512)),
            (2, Some((MIB, 2)), Ok(256)),
            (2, None, Ok(256)),
            (2, Some((600 * MIB, 2)), Err(())),
        ];
        for (cores, l3, expected) in cases {
            let found = buffer_size(&host(cores, l3, 4096 * MIB)).map(|bytes| bytes.0 / MIB);
            assert_eq!(found.map_err(drop), expected, "{cores} cores, {l3:?}");
        }
    }

    #[test]
    fn threads_double_up_to_all_cores() {
        let counts = |cores| {
            let budget = threads::budget(&host(cores, None, 0), Policy::Max);
            thread_counts(&budget)
        };
        let cases: [(u32, &[u32]); 4] = [(1, &[1]), (2, &[1, 2]), (6, &[1, 2, 4, 6]), (8, &[1, 2, 4, 8])];
        for (cores, expected) in cases {
            assert_eq!(counts(cores), expected);
        }
    }

    #[test]
    fn more_threads_than_the_process_may_use_are_refused() {
        let mut limited = host(4, None, 1 << 40);
        limited.limits.cpu_quota = Some(2.5);
        for (threads, cores) in [(0, 2), (3, 2)] {
            let measured = measure(&limited, &[1, threads], String::new(), &mut |_| ());
            let bound_by = "CPU quota of 2.5 cores".to_string();
            assert_eq!(measured, Err(Error::Threads { threads, cores, bound_by }));
        }
    }
}
