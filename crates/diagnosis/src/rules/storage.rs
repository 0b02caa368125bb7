//! Causes related to the storage of the model.

use build_info::diagnosis::{ProcessActivity, SlowPhase};

use super::finding::{Finding, Rule, Slowdown};
use crate::observation::Observation;

/// The model is loaded from a slow file system.
pub const SLOW_STORAGE: Rule =
    Rule { id: "slow-storage", explains: &["evicted-weights"], judge: slow_storage };

/// Types of network file systems and of file systems that a program serves, named as in `/proc/PID/mountinfo`.
const NETWORK: [&str; 16] = [
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "coda",
    "fuse",
    "fuseblk",
    "glusterfs",
    "gpfs",
    "lustre",
    "nfs",
    "nfs4",
    "smb3",
    "smbfs",
    "virtiofs",
];

/// True if a file system of the type `name` gets its files over the network or from another program.
pub fn is_remote(name: &str) -> bool {
    NETWORK.contains(&name) || name.starts_with("fuse.")
}

fn slow_storage(o: &Observation) -> Option<Finding> {
    let model = o.model.as_ref()?;
    let kind = model.file_system.as_deref().filter(|kind| is_remote(kind))?;
    let rate = o.memory.read_bytes_per_s.filter(|rate| *rate > 0.0);
    let is_loading = o.activity() == ProcessActivity::Loading;
    let is_paging = o.is_working() && o.reads_pages();
    if !is_loading && !is_paging {
        return None;
    }
    let mut evidence = vec![format!("{} is on a file system of the type {kind}", model.path.display())];
    evidence.extend(rate.map(|rate| format!("it read {:.0} MB/s", rate / 1e6)));
    Some(Finding {
        title: "the model comes over the network".to_string(),
        phase: if is_loading { SlowPhase::Load } else { SlowPhase::Both },
        slowdown: Slowdown::Unknown,
        evidence,
        change: "copy the model to a local disk, and load it from there".to_string(),
    })
}
