//! Causes imposed by the system: throttling, priority, tracing.

use build_info::diagnosis::SlowPhase;

use super::finding::{Finding, Rule, Slowdown, of_lost_time, percent};
use crate::observation::Observation;

/// A CPU quota stops the process.
pub const THROTTLED: Rule = Rule { id: "throttled", explains: &["busy-neighbours"], judge: throttled };
/// Other processes have a higher priority.
pub const NICED: Rule = Rule { id: "niced", explains: &["busy-neighbours"], judge: niced };
/// A debugger or a tracer watches the process.
pub const TRACED: Rule = Rule { id: "traced", explains: &[], judge: traced };

/// Number of the policy `SCHED_IDLE`.
const IDLE: u32 = 5;

fn throttled(o: &Observation) -> Option<Finding> {
    const SHARE: f64 = 0.1;
    let share = o.throttled.filter(|share| *share > SHARE && o.is_working())?;
    let quota = o.host.limits.cpu_quota;
    let mut evidence =
        vec![format!("the kernel throttled its control group in {} of the quota's periods", percent(share))];
    evidence.extend(
        quota.map(|quota| format!("the CPU quota is {quota} cores, and it used {:.1} cores", o.cores_used())),
    );
    Some(Finding {
        title: "its CPU quota stops it repeatedly".to_string(),
        phase: SlowPhase::Both,
        slowdown: o.wait_share().map_or(Slowdown::Unknown, of_lost_time),
        evidence,
        change: "raise the quota (cpu.max, docker --cpus, or resources.limits.cpu), or move other processes out of its \
                 control group"
            .to_string(),
    })
}

/// True if other processes make a process of low priority wait.
pub fn is_held_up(o: &Observation) -> bool {
    const WAITS: f64 = 0.05;
    const CORES: f64 = 0.3;
    let is_low = |nice: i32, policy: u32| nice > 0 || policy == IDLE;
    o.team().any(|thread| is_low(thread.nice, thread.policy))
        && o.wait_share().is_some_and(|share| share > WAITS)
        && o.neighbour_cores() >= CORES
}

fn niced(o: &Observation) -> Option<Finding> {
    let share = o.wait_share().filter(|_| is_held_up(o))?;
    let slow = o.team().max_by_key(|thread| (thread.policy == IDLE, thread.nice))?;
    let level = match slow.policy {
        IDLE => "its scheduling policy is idle".to_string(),
        _ => format!("its nice value is {}", slow.nice),
    };
    Some(Finding {
        title: "other processes have a higher priority".to_string(),
        phase: SlowPhase::Both,
        slowdown: of_lost_time(share),
        evidence: vec![
            level,
            o.busiest_neighbour(),
            format!("its threads were ready to run but had no CPU for {} of their time", percent(share)),
        ],
        change: format!("start it without nice, or as root: renice -n 0 -p {}", o.pid),
    })
}

fn traced(o: &Observation) -> Option<Finding> {
    let tracer = o.tracer?;
    Some(Finding {
        title: "a tracer or a debugger is attached to it".to_string(),
        phase: SlowPhase::Both,
        slowdown: Slowdown::Unknown,
        evidence: vec![format!("process {tracer} traces it (TracerPid)")],
        change: format!("detach or end process {tracer}"),
    })
}
