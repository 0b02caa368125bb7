//! Choice of the number of threads, for the orchestrator's record and for the engine at run time.

use std::collections::BTreeSet;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::host::{CoreKind, Host};

/// Thread policy: it determines what share of the usable cores decode uses. Prefill always uses all usable cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// All cores.
    Max,
    /// Three quarters of the cores, rounded half up: all of one or two cores, N - 1 of three or four cores.
    #[default]
    Balanced,
    /// Half of the cores, rounded up.
    Shared,
    /// One thread, for prefill as well.
    Debug,
}

impl Policy {
    /// Returns the number of decode threads out of `cores` usable cores; at least 1.
    pub fn decode_threads(self, cores: u32) -> u32 {
        let threads = match self {
            Policy::Max => cores,
            Policy::Balanced => (3 * cores + 2) / 4,
            Policy::Shared => cores.div_ceil(2),
            Policy::Debug => 1,
        };
        threads.max(1)
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "max" => Policy::Max,
            "balanced" => Policy::Balanced,
            "shared" => Policy::Shared,
            "debug" => Policy::Debug,
            _ => {
                return Err(format!(
                    "unknown thread policy {text:?}\nhint: use max, balanced, shared or debug"
                ));
            }
        })
    }
}

/// Number of threads for the two phases, and the limit that determined it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadBudget {
    /// Number of threads that evaluate a prompt.
    pub prefill: u32,
    /// Number of threads that generate tokens.
    pub decode: u32,
    /// Number of cores that the process may use: the smallest of the limits in [`budget`].
    pub cores: u32,
    /// One logical CPU of each usable core, in the order in which threads should be placed.
    pub cpus: Vec<u32>,
    /// Limit that determined `cores`, in words.
    pub bound_by: String,
}

/// Assumed speed of an efficiency core relative to a performance core. A thread on an efficiency core makes the
/// threads on performance cores wait at each barrier, so efficiency cores are used only if they provide most of
/// the machine's speed.
const EFFICIENCY_SPEED: f64 = 0.5;

/// Returns the thread budget of `host` under `policy`.
///
/// The number of cores is the minimum of two limits:
/// - the physical cores with a CPU in the affinity mask; on a hybrid CPU, only the performance cores, unless the
///   efficiency cores together compute more ([`EFFICIENCY_SPEED`])
/// - the tightest CPU quota, rounded down, but at least 1
///
/// Two SMT siblings count as one core, because one thread of llama.cpp's kernels saturates a core's vector units and
/// its share of the memory bandwidth.
pub fn budget(host: &Host, policy: Policy) -> ThreadBudget {
    let affinity: BTreeSet<u32> = host.limits.affinity.iter().copied().collect();
    let cpu_of = |core: &crate::host::Core| core.cpus.iter().copied().find(|cpu| affinity.contains(cpu));
    let all: Vec<u32> = host.topology.cores.iter().filter_map(cpu_of).collect();
    let performance: Vec<u32> = host
        .topology
        .cores
        .iter()
        .filter(|core| core.kind == CoreKind::Performance)
        .filter_map(cpu_of)
        .collect();

    let (mut cpus, mut bound_by) = if all.is_empty() {
        // If the topology could not be read, only the affinity mask is known.
        (host.limits.affinity.clone(), "affinity mask".to_string())
    } else if !performance.is_empty() && performance.len() < all.len() {
        let others: Vec<u32> = all.iter().copied().filter(|cpu| !performance.contains(cpu)).collect();
        match others.len() as f64 * EFFICIENCY_SPEED > performance.len() as f64 {
            true => ([performance, others].concat(), "performance and efficiency cores".to_string()),
            false => (performance, "performance cores".to_string()),
        }
    } else if all.len() < host.topology.cores.len() {
        (all, "affinity mask".to_string())
    } else {
        (all, "physical cores".to_string())
    };
    if cpus.is_empty() {
        (cpus, bound_by) = (vec![0], "missing information about the machine".to_string());
    }
    let mut cores = u32::try_from(cpus.len()).unwrap_or(u32::MAX);
    if let Some(quota) = host.limits.cpu_quota {
        // `as` saturates; a quota below one core still needs one thread.
        let whole = (quota.floor() as u32).max(1);
        if whole < cores {
            cores = whole;
            bound_by = format!("CPU quota of {quota} cores");
        }
    }
    let prefill = if policy == Policy::Debug { 1 } else { cores };
    ThreadBudget { prefill, decode: policy.decode_threads(cores), cores, cpus, bound_by }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_takes_the_policys_share() {
        // Cores; then decode threads under max, balanced, shared and debug.
        let cases = [
            (1, [1, 1, 1, 1]),
            (2, [2, 2, 1, 1]),
            (3, [3, 2, 2, 1]),
            (4, [4, 3, 2, 1]),
            (6, [6, 5, 3, 1]),
            (8, [8, 6, 4, 1]),
            (16, [16, 12, 8, 1]),
            (128, [128, 96, 64, 1]),
        ];
        for (cores, expected) in cases {
            let policies = [Policy::Max, Policy::Balanced, Policy::Shared, Policy::Debug];
            assert_eq!(policies.map(|policy| policy.decode_threads(cores)), expected, "{cores} cores");
        }
    }
}
