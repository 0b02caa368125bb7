//! Causes related to the storage of the model.

use build_info::diagnosis::{ProcessActivity, SlowPhase};

use super::finding::{Finding, Rule, Slowdown, percent};
use crate::file_system::is_remote;
use crate::observation::Observation;

/// The model is loaded from a slow file system.
pub const SLOW_STORAGE: Rule =
    Rule { id: "slow-storage", explains: &["evicted-weights"], judge: slow_storage };

fn slow_storage(o: &Observation) -> Option<Finding> {
    let model = o.model.as_ref()?;
    let kind = model.file_system.as_deref().filter(|kind| is_remote(kind))?;
    // The kernel counts reads of most network file systems only as bytes of files.
    let rates = [o.memory.read_bytes_per_s, o.memory.file_bytes_per_s];
    let rate = rates.into_iter().flatten().find(|rate| *rate > 0.0);
    let is_loading = o.activity() == ProcessActivity::Loading;
    let is_paging = o.is_working() && o.reads_pages();
    if !is_loading && !is_paging {
        return None;
    }
    let mut evidence = vec![format!("{} is on a file system of the type {kind}", model.path.display())];
    evidence.extend(rate.map(|rate| format!("it read {:.0} MB/s", rate / 1e6)));
    let blocked = o.blocked_share();
    if blocked > 0.05 {
        evidence.push(format!("a thread waited for the file system in {} of the samples", percent(blocked)));
    }
    Some(Finding {
        title: "the model comes over the network".to_string(),
        phase: if is_loading { SlowPhase::Load } else { SlowPhase::Both },
        slowdown: Slowdown::Unknown,
        evidence,
        change: "copy the model to a local disk, and load it from there".to_string(),
    })
}
