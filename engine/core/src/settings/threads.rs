//! Number of threads, and the CPUs on which they run.

use build_info::{Policy, ThreadBudget, threads};
use llama::MAX_THREADS;
use llama::error::Result;
use llama::numa::NumaPlacement;
use llama::options::Affinity;

use super::options::Requested;
use super::source::{Setting, Source};
use crate::asked_threads::{self, Asked};
use crate::numa;
use crate::runtime_host::RuntimeHost;

/// Resolved settings of the threads.
pub(super) struct Threads {
    pub policy: Setting<Policy>,
    pub decode: Setting<u32>,
    pub prefill: Setting<u32>,
    pub affinity: Setting<Affinity>,
    pub cpus: Setting<Vec<u32>>,
    /// Description of the limit on the number of threads.
    pub bound_by: String,
}

/// Resolves the threads of both phases from the request if there is one, otherwise from a measurement, otherwise from
/// the machine.
///
/// # Errors
/// If `ANNEAL_THREADS` is invalid.
pub(super) fn resolve(
    requested: &Requested,
    tuned: &Requested,
    runtime_host: &RuntimeHost,
    warnings: &mut Vec<String>,
) -> Result<Threads> {
    // A requested policy or number of threads overrides the environment.
    let asked_threads = asked_threads::read(runtime_host.environment.threads.as_deref())?
        .filter(|_| requested.policy.is_none() && requested.decode_threads.is_none());
    let policy = match asked_threads {
        Some(Asked::Share(policy)) => Setting::new(policy, Source::Environment),
        _ => Setting::or_default(requested.asked("policy", requested.policy), Policy::default()),
    };
    let (budget, budget_source) = budget(runtime_host, policy.value);
    let (decode, prefill, record) = match recorded_threads(runtime_host, policy.value, &budget) {
        Some((decode, prefill)) => (decode, prefill, Source::BuildInfo),
        None => (budget.decode, budget.prefill, budget_source),
    };
    // More threads than CPUs would only wait for each other.
    let room = requested.cpus.as_ref().map_or(MAX_THREADS, |cpus| cpus.len().max(1) as u32);
    let (decode, prefill) = (decode.min(room), prefill.min(room));
    // A requested policy is treated as a requested number of threads.
    let tuned_threads = |threads: Option<u32>| {
        let is_free = requested.policy.is_none() && policy.source != Source::Environment;
        threads.filter(|_| is_free).map(|threads| threads.min(room))
    };
    let (number, source) = match asked_threads {
        Some(Asked::Number(threads)) => (Some(threads), Source::Environment),
        _ => (None, requested.source("threads")),
    };
    let decode_threads = match (requested.decode_threads.or(number), tuned_threads(tuned.decode_threads)) {
        (Some(threads), _) => Setting::new(threads, source),
        (None, Some(threads)) => Setting::new(threads, Source::TuningRecord),
        (None, None) => Setting::new(decode, record),
    };
    // As in llama.cpp, a single number of threads applies to both phases.
    let asked = requested.prefill_threads.or(requested.decode_threads);
    let source = match (requested.prefill_threads, requested.decode_threads) {
        (Some(_), _) => requested.source("threads-batch"),
        (None, Some(_)) => requested.source("threads"),
        (None, None) => source,
    };
    let prefill_threads = match (asked.or(number), tuned_threads(tuned.prefill_threads)) {
        (Some(threads), _) => Setting::new(threads, source),
        (None, Some(threads)) => Setting::new(threads, Source::TuningRecord),
        (None, None) => Setting::new(prefill, record),
    };
    let spreads = requested.numa == Some(NumaPlacement::Spread);
    let cpus = match (&requested.cpus, &runtime_host.host) {
        (Some(cpus), _) => Setting::new(cpus.clone(), requested.source("cpu-list")),
        (None, Some(host)) if spreads => {
            Setting::new(numa::spread(&budget.cpus, &host.topology.nodes), requested.source("numa"))
        }
        _ => Setting::new(budget.cpus, budget_source),
    };
    // A list of CPUs implies that threads are bound to these CPUs.
    let affinity = match (requested.affinity, &requested.cpus) {
        (None, Some(_)) => Setting::new(Affinity::On, requested.source("cpu-list")),
        (None, None) if spreads => Setting::new(Affinity::On, requested.source("numa")),
        (asked, _) => Setting::pick(requested.asked("affinity", asked), tuned.affinity, Affinity::default()),
    };
    // More threads than cores are accepted if they were measured to be faster.
    let unmeasured = [&decode_threads, &prefill_threads];
    let unmeasured = unmeasured.iter().filter(|threads| threads.source != Source::TuningRecord);
    let most = unmeasured.map(|threads| threads.value).max().unwrap_or(0);
    if most > budget.cores {
        warnings.push(format!(
            "{most} threads on {} usable cores ({}): with more threads than cores, a run can be many times slower",
            budget.cores, budget.bound_by
        ));
    }
    Ok(Threads {
        policy,
        decode: decode_threads,
        prefill: prefill_threads,
        affinity,
        cpus,
        bound_by: budget.bound_by,
    })
}

/// Returns the thread budget of the live host, or of the build host if the live host is unknown, or one thread if
/// both are unknown.
fn budget(runtime_host: &RuntimeHost, policy: Policy) -> (ThreadBudget, Source) {
    match (&runtime_host.host, &runtime_host.build) {
        (Some(host), _) => (threads::budget(host, policy), Source::LiveHost),
        (None, Some((_, build))) => (threads::budget(&build.host, policy), Source::BuildInfo),
        (None, None) => {
            let bound_by = "missing information about the machine".to_string();
            (ThreadBudget { prefill: 1, decode: 1, cores: 1, cpus: vec![0], bound_by }, Source::Default)
        }
    }
}

/// Returns the numbers of threads that `build_info.json` recommends for decode and prefill, up to the live budget.
/// Returns `None` if the record describes another machine, another state of this machine, or another policy.
fn recorded_threads(runtime_host: &RuntimeHost, policy: Policy, budget: &ThreadBudget) -> Option<(u32, u32)> {
    let (_, build) = runtime_host.build.as_ref()?;
    if policy != Policy::Balanced || !(runtime_host.is_build_host() || runtime_host.host.is_none()) {
        return None;
    }
    let within = |threads: u32| threads.clamp(1, budget.cores.max(1));
    Some((within(build.optimal_threads), within(build.threads.prefill)))
}
