//! Causes related to the CPU's clocks.

use build_info::diagnosis::SlowPhase;

use super::finding::{Finding, Rule, Slowdown};
use crate::observation::Observation;

/// The CPU runs far below its highest frequency while it computes.
pub const LOW: Rule = Rule { id: "low-clocks", explains: &[], judge: low };

/// Share of the highest frequency below which the clocks are low. With all cores busy, a CPU runs at 70 % of the
/// frequency that a single core reaches.
const SHARE: f64 = 0.55;

fn low(o: &Observation) -> Option<Finding> {
    let clocks = o.clocks.as_ref().filter(|_| o.is_working() && !o.is_on_gpu())?;
    // A governor raises the frequency of busy CPUs only.
    let is_busy = o.team().any(|thread| thread.busy > 0.6);
    let share = clocks.mhz / clocks.most_mhz;
    if !is_busy || !share.is_finite() || share <= 0.0 || share > SHARE {
        return None;
    }
    let mut evidence =
        vec![format!("the CPUs that computed ran at {:.0} of {:.0} MHz", clocks.mhz, clocks.most_mhz)];
    evidence.extend(clocks.governor.as_ref().map(|governor| format!("the frequency governor is {governor}")));
    if clocks.heat_events > 0 {
        evidence.push(format!("heat throttled the CPU {} times during the observation", clocks.heat_events));
    }
    let change = match (clocks.heat_events > 0, clocks.governor.as_deref()) {
        (true, _) => "improve the cooling (check the fans, remove dust), or raise the power limit",
        (false, Some("powersave" | "conservative")) => "as root: cpupower frequency-set -g performance",
        (false, _) => "check the power limit and the energy profile of the machine (powerprofilesctl, BIOS)",
    };
    Some(Finding {
        title: "the CPU runs at a low frequency".to_string(),
        phase: SlowPhase::Both,
        slowdown: Slowdown::Estimated(1.0 / share),
        evidence,
        change: change.to_string(),
    })
}
