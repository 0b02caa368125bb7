//! Causes related to the number of threads and the CPUs that they run on.

use build_info::diagnosis::SlowPhase;
use build_info::{Policy, threads, words};

use super::finding::{Finding, Rule, Slowdown, percent};
use crate::observation::Observation;

/// Share of the team's time without a CPU above which the team has too few CPUs.
const WAITS: f64 = 0.1;
/// Share of throttled periods above which a quota holds the process back.
const THROTTLED: f64 = 0.05;
/// Highest assumed slowdown of threads that wait for each other.
const WORST: f64 = 20.0;

/// More threads than the CPU quota allows.
pub const OVER_QUOTA: Rule = Rule {
    id: "threads-over-quota",
    explains: &["throttled", "threads-over-cpus", "threads-on-siblings"],
    judge: over_quota,
};
/// More threads than CPUs in the affinity mask.
pub const OVER_AFFINITY: Rule = Rule {
    id: "threads-over-affinity",
    explains: &["threads-over-cpus", "threads-on-siblings"],
    judge: over_affinity,
};
/// More threads than CPUs.
pub const OVER_CPUS: Rule = Rule {
    id: "threads-over-cpus",
    explains: &["threads-on-siblings", "threads-on-efficiency-cores"],
    judge: over_cpus,
};
/// More threads than physical cores.
pub const ON_SIBLINGS: Rule = Rule { id: "threads-on-siblings", explains: &[], judge: on_siblings };
/// Threads on performance and efficiency cores.
pub const ON_EFFICIENCY_CORES: Rule = Rule {
    id: "threads-on-efficiency-cores",
    explains: &["threads-on-siblings"],
    judge: on_efficiency_cores,
};
/// One thread on a machine with several cores.
pub const SINGLE: Rule = Rule { id: "single-thread", explains: &["few-threads"], judge: single };
/// Fewer threads than are needed to use the memory bandwidth.
pub const FEW: Rule = Rule { id: "few-threads", explains: &[], judge: few };

/// Returns the number of threads and its evidence, if CPU threads do the work.
fn team(o: &Observation) -> Option<(u32, String)> {
    o.team_size().filter(|_| !o.is_on_gpu())
}

/// Returns the slowdown of `threads` threads on `cores` cores. The threads wait for each other several hundred times
/// per token, and a waiting thread keeps its CPU, so the loss grows faster than the number of threads: on two Zen 4
/// cores, llama-server decoded a model of 0.98 GB at 26.7 t/s, but with `-t 8` it did not decode a single token in 1.5
/// s.
fn crowded(threads: u32, cores: f64) -> Slowdown {
    let ratio = f64::from(threads) / cores.max(1.0);
    Slowdown::Estimated((ratio * ratio).clamp(1.0, WORST))
}

/// Returns the change to the number of threads that the machine can use well.
fn use_budget(o: &Observation) -> String {
    o.kind.threads_option(o.budget().cores)
}

/// True if the process works and its threads never lack a CPU. Their number then does no harm.
fn never_waits(o: &Observation) -> bool {
    o.is_working() && o.wait_share().is_some_and(|share| share < WAITS)
}

fn over_quota(o: &Observation) -> Option<Finding> {
    let quota = o.host.limits.cpu_quota?;
    let (threads, seen) = team(o)?;
    let is_throttled = o.throttled.map(|share| share >= THROTTLED);
    let is_harmless = o.is_working() && is_throttled == Some(false);
    // More threads than CPUs are harmful for another reason.
    if f64::from(threads) <= quota.floor().max(1.0) || is_harmless {
        return None;
    }
    let mut evidence = vec![seen, format!("the CPU quota of its control group is {quota} cores")];
    if let Some(share) = o.throttled.filter(|share| o.is_working() && *share > 0.0) {
        evidence.push(format!("the kernel throttled it in {} of the quota's periods", percent(share)));
    }
    Some(Finding {
        title: format!("{} share a CPU quota of {quota} cores", words::count(threads, "thread")),
        phase: SlowPhase::Both,
        slowdown: crowded(threads, quota),
        evidence,
        change: format!("{}, or raise the quota", use_budget(o)),
    })
}

fn over_affinity(o: &Observation) -> Option<Finding> {
    let (allowed, all) = (o.allowed().len(), o.host.topology.logical_cpus());
    let (threads, seen) = team(o)?;
    let cpus = u32::try_from(allowed).ok()?;
    if cpus == 0 || allowed >= all || threads <= cpus || never_waits(o) {
        return None;
    }
    let mask: Vec<String> = o.allowed().iter().take(16).map(u32::to_string).collect();
    let mut evidence =
        vec![seen, format!("its affinity mask contains {cpus} of {all} CPUs: {}", mask.join(","))];
    evidence.extend(waits(o));
    Some(Finding {
        title: format!(
            "{} share the {} of its affinity mask",
            words::count(threads, "thread"),
            words::count(cpus, "CPU")
        ),
        phase: SlowPhase::Both,
        slowdown: crowded(threads, f64::from(cpus)),
        evidence,
        change: format!("{}, or widen the mask (taskset -cp, or the container's cpuset)", use_budget(o)),
    })
}

fn over_cpus(o: &Observation) -> Option<Finding> {
    let (threads, seen) = team(o)?;
    let all = u32::try_from(o.host.topology.logical_cpus()).ok()?;
    let cpus = u32::try_from(o.allowed().len()).ok()?;
    if cpus == 0 || cpus < all || threads <= cpus || never_waits(o) {
        return None;
    }
    let mut evidence = vec![seen, format!("the machine has {}", words::count(cpus, "CPU"))];
    evidence.extend(waits(o));
    Some(Finding {
        title: format!("{} share {}", words::count(threads, "thread"), words::count(cpus, "CPU")),
        phase: SlowPhase::Both,
        slowdown: crowded(threads, f64::from(cpus)),
        evidence,
        change: use_budget(o),
    })
}

/// Returns evidence that the threads lack CPUs, and other processes that take CPUs.
fn waits(o: &Observation) -> Vec<String> {
    let share = o.wait_share().filter(|share| o.is_working() && *share > 0.0);
    let waits = share.map(|share| {
        format!("its threads were ready to run but had no CPU for {} of their time", percent(share))
    });
    let others = waits.as_ref().filter(|_| o.neighbour_cores() >= 0.3).map(|_| o.busiest_neighbour());
    waits.into_iter().chain(others).collect()
}

fn on_siblings(o: &Observation) -> Option<Finding> {
    /// Typical loss for decode, which is memory-bound.
    const LOSS: f64 = 1.1;
    let (threads, seen) = team(o)?;
    let (budget, allowed) = (o.budget(), o.allowed());
    let cores = o.host.topology.cores.iter();
    let cores = cores.filter(|core| core.cpus.iter().any(|cpu| allowed.contains(cpu))).count();
    let cores = u32::try_from(cores).ok()?;
    if cores == 0 || threads <= cores || threads as usize > allowed.len() || budget.cores < cores {
        return None;
    }
    Some(Finding {
        title: format!(
            "{threads} threads run on {}: two threads share a core",
            words::count(cores, "physical core")
        ),
        phase: SlowPhase::Decode,
        slowdown: Slowdown::Estimated(LOSS),
        evidence: vec![seen, format!("its {} CPUs are SMT siblings of {cores} cores", allowed.len())],
        change: use_budget(o),
    })
}

fn on_efficiency_cores(o: &Observation) -> Option<Finding> {
    /// Speed of an efficiency core relative to a performance core, as in `build_info::threads`.
    const SPEED: f64 = 0.5;
    let (threads, seen) = team(o)?;
    let performance = o.performance_cores()?;
    // If the efficiency cores together are faster, using all cores is right.
    let is_meant = threads::budget(&o.host, Policy::Max).cores > performance;
    if performance == 0 || threads <= performance || is_meant {
        return None;
    }
    let slowdown = f64::from(performance) / (f64::from(threads) * SPEED);
    let used = o.team().filter(|thread| is_efficiency(o, thread.cpu)).count();
    let mut evidence = vec![seen, format!("it may use {performance} performance cores")];
    if o.is_working() {
        if used == 0 {
            return None;
        }
        evidence.push(format!("{used} of its threads ran on efficiency cores"));
    }
    Some(Finding {
        title: "performance cores wait for threads on efficiency cores".to_string(),
        phase: SlowPhase::Both,
        slowdown: Slowdown::Estimated(slowdown.max(1.1)),
        evidence,
        change: format!("{}, and bind it to the performance cores (taskset)", use_budget(o)),
    })
}

fn is_efficiency(o: &Observation, cpu: u32) -> bool {
    let core = o.host.topology.cores.iter().find(|core| core.cpus.contains(&cpu));
    core.is_some_and(|core| core.kind == build_info::host::CoreKind::Efficiency)
}

fn single(o: &Observation) -> Option<Finding> {
    /// Loss of a single thread beyond its share of the bandwidth: it computes and reads in turn. On two Zen 4 cores,
    /// one thread decoded 1.4 times slower than two, although it read memory only 1.1 times slower.
    const ALONE: f64 = 1.25;
    let cores = o.budget().cores;
    let (threads, seen) = team(o)?;
    // A single busy thread may also be loading the model or evaluating a prompt, so the rule needs evidence: the flag,
    // or an observed decode speed.
    let is_sure = o.flags.threads == Some(1) || (o.speed.is_current && o.speed.decode.is_some());
    let is_busy = !o.is_working() || o.team().any(|thread| thread.busy > 0.8);
    if threads != 1 || cores < 2 || !is_sure || !is_busy {
        return None;
    }
    let gain = gain(o, 1, cores);
    let mut evidence = vec![seen, format!("{cores} cores are usable, limited by: {}", o.budget().bound_by)];
    evidence.extend(gain.map(|gain| format!("they read memory {gain:.1} times as fast as one core")));
    Some(Finding {
        title: format!("one thread computes, but {cores} cores are usable"),
        // Only decode is memory-bound; prefill gains from every core.
        phase: if gain.is_some() { SlowPhase::Decode } else { SlowPhase::Both },
        slowdown: Slowdown::Estimated(
            gain.map_or(f64::from(cores.min(4)), |gain| (gain * ALONE).min(f64::from(cores))),
        ),
        evidence,
        change: use_budget(o),
    })
}

fn few(o: &Observation) -> Option<Finding> {
    const GAIN: f64 = 1.3;
    let cores = o.budget().cores;
    let (threads, seen) = team(o)?;
    if threads * 2 > cores || o.flags.threads != Some(threads) {
        return None;
    }
    let gain = gain(o, threads, cores).filter(|gain| *gain > GAIN)?;
    Some(Finding {
        title: format!("{threads} threads cannot use the memory bandwidth of {cores} cores"),
        phase: SlowPhase::Decode,
        slowdown: Slowdown::Measured(gain),
        evidence: vec![seen, format!("{cores} cores read memory {gain:.1} times as fast as {threads}")],
        change: use_budget(o),
    })
}

/// Returns the measured gain in read bandwidth from `few` to `many` threads.
fn gain(o: &Observation, few: u32, many: u32) -> Option<f64> {
    let roofline = o.roofline.as_ref()?;
    let (few, many) = (roofline.exactly(few)?, roofline.exactly(many)?);
    Some(many.read_bytes / few.read_bytes)
}
