//! Causes related to the placement of memory on NUMA nodes.

use std::collections::BTreeMap;

use build_info::Bytes;
use build_info::diagnosis::SlowPhase;

use super::finding::{Finding, Rule, Slowdown, percent};
use crate::observation::Observation;

/// Threads read weights from the memory of other nodes.
pub const REMOTE: Rule = Rule { id: "remote-memory", explains: &[], judge: remote };

fn remote(o: &Observation) -> Option<Finding> {
    /// Share of remote reads above which the placement is a fault. Pages that are spread evenly over two nodes give
    /// 50 %.
    const SHARE: f64 = 0.6;
    const LEAST: Bytes = Bytes::gib(1);
    let total: u64 = o.bytes_by_node.values().map(|bytes| bytes.0).fold(0, u64::saturating_add);
    let nodes = o.host.topology.nodes.iter().filter(|node| !node.cpus.is_empty()).count();
    if nodes < 2 || total < LEAST.0 || !o.is_working() || o.is_on_gpu() {
        return None;
    }
    let mut team: BTreeMap<u32, u32> = BTreeMap::new();
    for thread in o.team() {
        let core = o.host.topology.cores.iter().find(|core| core.cpus.contains(&thread.cpu))?;
        *team.entry(core.node).or_default() += 1;
    }
    let threads: u32 = team.values().sum();
    let local: f64 = team
        .iter()
        .map(|(node, count)| {
            let pages = o.bytes_by_node.get(node).map_or(0, |bytes| bytes.0);
            f64::from(*count) / f64::from(threads) * pages as f64 / total as f64
        })
        .sum();
    let remote = 1.0 - local;
    // Threads on all nodes read from all nodes, wherever the pages are. The pages must be spread as evenly as the
    // threads.
    let expected = 1.0 - 1.0 / nodes as f64;
    let worst = o.bytes_by_node.values().map(|bytes| bytes.0 as f64 / total as f64).fold(0.0, f64::max);
    let is_lopsided = team.len() > 1 && worst > 0.85;
    if threads < 2 || !(is_lopsided || remote > SHARE.max(expected + 0.1)) {
        return None;
    }
    let pages: Vec<String> =
        o.bytes_by_node.iter().map(|(node, bytes)| format!("{bytes} on node {node}")).collect();
    let runs: Vec<String> = team.iter().map(|(node, count)| format!("{count} on node {node}")).collect();
    Some(Finding {
        title: "its threads read memory of another NUMA node".to_string(),
        phase: SlowPhase::Decode,
        slowdown: Slowdown::Estimated(if is_lopsided { nodes.min(4) as f64 * 0.8 } else { 1.6 }),
        evidence: vec![
            format!("its memory: {}", pages.join(", ")),
            format!("its threads: {}", runs.join(", ")),
            format!("{} of the reads go to another node", percent(remote)),
        ],
        change:
            "drop the page cache of the model and start it with numactl --interleave=all, or bind it to one \
                 node with numactl --cpunodebind=0 --membind=0"
                .to_string(),
    })
}
