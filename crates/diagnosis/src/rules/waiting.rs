//! Causes related to waiting threads: OpenMP's active waiting, and BLAS threads in addition to ggml's threads.

use build_info::diagnosis::SlowPhase;

use super::finding::{Finding, Rule, Slowdown, of_lost_time, percent};
use crate::observation::{LibraryPurpose, Observation};

/// OpenMP's threads spin although others need the CPUs.
pub const SPINNING: Rule = Rule { id: "spinning-threads", explains: &["busy-neighbours"], judge: spinning };
/// The BLAS library starts its own threads.
pub const BLAS_THREADS: Rule =
    Rule { id: "blas-threads", explains: &["threads-over-cpus"], judge: blas_threads };

/// Minimum number of spins with which GNU's OpenMP hardly ever sleeps.
const SPINS: f64 = 1e7;

/// Returns the setting that makes OpenMP's threads spin.
fn spins(o: &Observation) -> Option<String> {
    o.ggmls(LibraryPurpose::OpenMp)?;
    let said =
        |name: &str| o.environment.get(name).map(|value| (format!("{name}={value}"), value.to_lowercase()));
    let (text, _) = [
        said("OMP_WAIT_POLICY").filter(|(_, value)| value == "active"),
        said("GOMP_SPINCOUNT").filter(|(_, value)| {
            value.starts_with("inf") || value.parse::<f64>().is_ok_and(|spins| spins >= SPINS)
        }),
        said("KMP_BLOCKTIME").filter(|(_, value)| value.starts_with("inf")),
    ]
    .into_iter()
    .flatten()
    .next()?;
    Some(text)
}

fn spinning(o: &Observation) -> Option<Finding> {
    const WAITS: f64 = 0.1;
    const CORES: f64 = 0.3;
    let setting = spins(o)?;
    let share = o.wait_share().filter(|share| *share > WAITS && o.is_working())?;
    if o.neighbour_cores() < CORES {
        return None;
    }
    Some(Finding {
        title: "waiting threads keep CPUs that other threads need".to_string(),
        phase: SlowPhase::Both,
        slowdown: of_lost_time(share),
        evidence: vec![
            format!("its environment has {setting}"),
            o.busiest_neighbour(),
            format!("its threads were ready to run but had no CPU for {} of their time", percent(share)),
        ],
        change: "start it without this variable, or with OMP_WAIT_POLICY=passive, and with fewer threads"
            .to_string(),
    })
}

fn blas_threads(o: &Observation) -> Option<Finding> {
    let library = o.ggmls(LibraryPurpose::Blas)?;
    let cores = o.budget().cores;
    let own = o.flags.threads.max(o.flags.threads_batch).unwrap_or(cores);
    let working = o.working();
    let variables = ["OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"];
    let set = variables.iter().find_map(|name| Some((*name, o.environment.get(*name)?.parse::<u32>().ok()?)));
    // Only threads in addition to ggml's own are BLAS threads.
    if !o.is_working() || working <= own || working as usize <= o.allowed().len() {
        return None;
    }
    let setting = match set {
        Some((name, threads)) => format!("its environment has {name}={threads}"),
        None => "no variable limits the threads of BLAS".to_string(),
    };
    Some(Finding {
        title: "BLAS computes with more threads than there are CPUs".to_string(),
        phase: SlowPhase::Prefill,
        slowdown: Slowdown::Estimated((f64::from(working) / o.allowed().len().max(1) as f64).min(4.0)),
        evidence: vec![
            format!("{working} of its threads computed at the same time, but ggml has only {own}"),
            format!("ggml uses {}", library.path.display()),
            setting,
        ],
        change: format!("set OPENBLAS_NUM_THREADS={cores}, or use a build without BLAS"),
    })
}
