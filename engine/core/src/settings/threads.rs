//! How many threads work, on which CPUs.

use build_info::{Policy, ThreadBudget, threads};
use llama::MAX_THREADS;
use llama::error::Result;
use llama::options::Affinity;

use super::options::Requested;
use super::source::{Setting, Source};
use crate::asked_threads::{self, Asked};
use crate::runtime_host::RuntimeHost;

/// What was found of threads.
pub(super) struct Threads {
    pub policy: Setting<Policy>,
    pub decode: Setting<u32>,
    pub prefill: Setting<u32>,
    pub affinity: Setting<Affinity>,
    pub cpus: Setting<Vec<u32>>,
    /// What bounded them, in words.
    pub bound_by: String,
}

/// Threads of both phases, as they were asked for, measured, or fit the machine.
///
/// # Errors
/// When `ANNEAL_THREADS` cannot be meant.
pub(super) fn resolve(
    requested: &Requested,
    tuned: &Requested,
    runtime_host: &RuntimeHost,
    warnings: &mut Vec<String>,
) -> Result<Threads> {
    // A policy or a number that was asked for goes before the environment.
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
    // More threads than CPUs to run on would only wait for each other.
    let room = requested.cpus.as_ref().map_or(MAX_THREADS, |cpus| cpus.len().max(1) as u32);
    let (decode, prefill) = (decode.min(room), prefill.min(room));
    // A policy that was asked for is a number of threads that was asked for.
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
    // As in llama.cpp, one number of threads counts for both phases.
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
    let cpus = match &requested.cpus {
        Some(cpus) => Setting::new(cpus.clone(), requested.source("cpu-list")),
        None => Setting::new(budget.cpus, budget_source),
    };
    // A list of CPUs says that threads shall be bound to them.
    let affinity = match (requested.affinity, &requested.cpus) {
        (None, Some(_)) => Setting::new(Affinity::On, requested.source("cpu-list")),
        (asked, _) => Setting::pick(requested.asked("affinity", asked), tuned.affinity, Affinity::default()),
    };
    // More threads than cores that were measured to be faster are no mistake.
    let unmeasured = [&decode_threads, &prefill_threads];
    let unmeasured = unmeasured.iter().filter(|threads| threads.source != Source::TuningRecord);
    let most = unmeasured.map(|threads| threads.value).max().unwrap_or(0);
    if most > budget.cores {
        warnings.push(format!(
            "{most} threads on {} usable cores ({}): they will wait for each other and may be many times slower",
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

/// The thread budget of the live host; without one, of the build host; without either, one thread.
fn budget(runtime_host: &RuntimeHost, policy: Policy) -> (ThreadBudget, Source) {
    match (&runtime_host.host, &runtime_host.build) {
        (Some(host), _) => (threads::budget(host, policy), Source::LiveHost),
        (None, Some((_, build))) => (threads::budget(&build.host, policy), Source::BuildInfo),
        (None, None) => {
            let bound_by = "nothing could be read".to_string();
            (ThreadBudget { prefill: 1, decode: 1, cores: 1, cpus: vec![0], bound_by }, Source::Default)
        }
    }
}

/// The threads that `build_info.json` recommends for decode and prefill, where it speaks of this machine as it
/// is now and of this policy; never more than the live budget.
fn recorded_threads(runtime_host: &RuntimeHost, policy: Policy, budget: &ThreadBudget) -> Option<(u32, u32)> {
    let (_, build) = runtime_host.build.as_ref()?;
    if policy != Policy::Balanced || !(runtime_host.is_build_host() || runtime_host.host.is_none()) {
        return None;
    }
    let within = |threads: u32| threads.clamp(1, budget.cores.max(1));
    Some((within(build.optimal_threads), within(build.threads.prefill)))
}
