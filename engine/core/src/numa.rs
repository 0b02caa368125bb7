//! Placement of the process on NUMA nodes, for `--numa`.

use build_info::host::NumaNode;
use llama::error::{Error, Result};
use llama::numa::{NumaPlacement, bind_memory, interleave_memory};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::runtime_host::RuntimeHost;

/// Applies `placement` to this thread and its future threads. Call this function before the process allocates memory for
/// a model. Returns the machine as the process may use it from now on.
///
/// # Errors
/// If the machine has no such node, or if the kernel refuses the placement.
pub fn place(placement: NumaPlacement, runtime_host: RuntimeHost) -> Result<RuntimeHost> {
    let failed = |why: String| Error::Usage(format!("--numa {placement}: {why}"));
    let host = runtime_host.host.as_ref();
    let nodes = host.map(|host| host.topology.nodes.as_slice()).unwrap_or_default();
    if nodes.is_empty() {
        return Err(failed("the NUMA nodes of this machine are unknown\nhint: omit --numa".to_string()));
    }
    match placement {
        NumaPlacement::Node(id) => {
            let allowed = host.map(|host| host.limits.affinity.as_slice()).unwrap_or_default();
            let cpus = cpus_of(id, nodes, allowed).map_err(failed)?;
            let mut set = CpuSet::new();
            cpus.iter()
                .filter(|cpu| (**cpu as usize) < CpuSet::MAX_CPU)
                .for_each(|cpu| set.set(*cpu as usize));
            sched_setaffinity(None, &set).map_err(|why| failed(format!("cannot bind the threads: {why}")))?;
            bind_memory(id).map_err(|why| failed(format!("cannot bind the memory: {why}")))?;
            let mut runtime_host = runtime_host;
            if let Some(host) = &mut runtime_host.host {
                host.limits.affinity = cpus;
            }
            Ok(runtime_host)
        }
        NumaPlacement::Interleave => {
            let with_memory: Vec<u32> =
                nodes.iter().filter(|node| node.memory.0 > 0).map(|node| node.id).collect();
            interleave_memory(&with_memory)
                .map_err(|why| failed(format!("cannot distribute the memory: {why}")))?;
            Ok(runtime_host)
        }
        // The settings bind the threads.
        NumaPlacement::Spread => Ok(runtime_host),
    }
}

/// Returns the CPUs of the node `id` that are in `allowed`; an empty list allows all CPUs.
fn cpus_of(id: u32, nodes: &[NumaNode], allowed: &[u32]) -> std::result::Result<Vec<u32>, String> {
    let Some(node) = nodes.iter().find(|node| node.id == id) else {
        let ids: Vec<String> = nodes.iter().map(|node| node.id.to_string()).collect();
        return Err(format!(
            "this machine has no node {id}\nhint: choose from the nodes of this machine: {}",
            ids.join(", ")
        ));
    };
    let is_allowed = |cpu: &u32| allowed.is_empty() || allowed.contains(cpu);
    let cpus: Vec<u32> = node.cpus.iter().copied().filter(is_allowed).collect();
    match cpus.is_empty() {
        true => Err(format!(
            "this process may use none of the CPUs of node {id}\nhint: choose another node, or change the affinity of \
             the process"
        )),
        false => Ok(cpus),
    }
}

/// Returns `cpus` in an order that takes a CPU of each of the `nodes` in turn. CPUs without a node come last.
pub fn spread(cpus: &[u32], nodes: &[NumaNode]) -> Vec<u32> {
    let mut left: Vec<Vec<u32>> = Vec::new();
    for node in nodes {
        left.push(cpus.iter().copied().filter(|cpu| node.cpus.contains(cpu)).rev().collect());
    }
    let mut order = Vec::with_capacity(cpus.len());
    while left.iter().any(|cpus| !cpus.is_empty()) {
        order.extend(left.iter_mut().filter_map(Vec::pop));
    }
    let rest: Vec<u32> = cpus.iter().copied().filter(|cpu| !order.contains(cpu)).collect();
    order.extend(rest);
    order
}

#[cfg(test)]
mod tests {
    use build_info::Bytes;

    use super::*;

    fn nodes() -> Vec<NumaNode> {
        let node = |id, cpus| NumaNode { id, cpus, memory: Bytes(1) };
        vec![node(0, vec![0, 1, 4, 5]), node(2, vec![2, 3, 6, 7]), node(3, Vec::new())]
    }

    #[test]
    fn cpus_are_taken_from_each_node_in_turn() {
        for (cpus, expected) in [
            (vec![0, 1, 2, 3], vec![0, 2, 1, 3]),
            (vec![0, 1, 4, 2], vec![0, 2, 1, 4]),
            (vec![0, 9, 1], vec![0, 1, 9]),
            (vec![], vec![]),
        ] {
            assert_eq!(spread(&cpus, &nodes()), expected, "{cpus:?}");
        }
        assert_eq!(spread(&[3, 1], &[]), [3, 1]);
    }

    #[test]
    fn a_node_has_usable_cpus_or_is_refused() {
        assert_eq!(cpus_of(2, &nodes(), &[]), Ok(vec![2, 3, 6, 7]));
        assert_eq!(cpus_of(2, &nodes(), &[0, 3]), Ok(vec![3]));
        let refused = |id, allowed: &[u32]| cpus_of(id, &nodes(), allowed).expect_err("refused");
        assert!(refused(1, &[]).ends_with("hint: choose from the nodes of this machine: 0, 2, 3"));
        assert!(refused(0, &[2]).contains("none of the CPUs of node 0"));
        assert!(refused(3, &[]).contains("none of the CPUs of node 3"));
    }
}
