//! Causes outside the process: other processes, and other guests of the hypervisor.

use build_info::diagnosis::SlowPhase;

use super::finding::{Finding, Rule, of_lost_time, percent};
use crate::observation::Observation;

/// Other processes use the same CPUs.
pub const BUSY: Rule = Rule { id: "busy-neighbours", explains: &[], judge: busy };
/// The hypervisor gives CPU time to other guests.
pub const STOLEN: Rule = Rule { id: "stolen-cpu-time", explains: &[], judge: stolen };

fn busy(o: &Observation) -> Option<Finding> {
    const CORES: f64 = 0.3;
    const WAITS: f64 = 0.1;
    let share = o.wait_share().filter(|share| *share >= WAITS && o.is_working())?;
    // Threads beyond the number of CPUs wait even without neighbours.
    let is_crowded = o.team_size().is_some_and(|(threads, _)| threads as usize > o.allowed().len());
    if o.neighbour_cores() < CORES || is_crowded {
        return None;
    }
    Some(Finding {
        title: "other processes use its CPUs".to_string(),
        phase: SlowPhase::Both,
        slowdown: of_lost_time(share),
        evidence: vec![
            o.busiest_neighbour(),
            format!("its threads were ready to run but had no CPU for {} of their time", percent(share)),
        ],
        change: "end or move the other processes, lower their priority, or give this process fewer threads"
            .to_string(),
    })
}

fn stolen(o: &Observation) -> Option<Finding> {
    const SHARE: f64 = 0.1;
    let share = o.stolen.filter(|share| *share > SHARE && o.is_working())?;
    Some(Finding {
        title: "the hypervisor gives CPU time to other machines".to_string(),
        phase: SlowPhase::Both,
        slowdown: of_lost_time(share),
        evidence: vec![format!("{} of the CPU time was stolen (steal in /proc/stat)", percent(share))],
        change: "use a machine with dedicated cores, or move the other guests".to_string(),
    })
}
