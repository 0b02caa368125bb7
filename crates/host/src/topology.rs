//! Cores, SMT siblings, caches and NUMA nodes, from `/sys/devices/system`.

use std::collections::{BTreeMap, BTreeSet};

use build_info::Bytes;
use build_info::host::{Cache, Core, CoreKind, NumaNode, Topology};

use crate::cpuid::Leaves;
use crate::cpuinfo::Lazy;
use crate::root::Root;
use crate::{cpulist, system, x86};

const CPUS: &str = "/sys/devices/system/cpu";
const NODES: &str = "/sys/devices/system/node";

/// Returns the online CPUs, ascending: from `/sys`, otherwise from `/proc/cpuinfo`, otherwise from the affinity mask.
pub(crate) fn online(
    root: &Root,
    cpuinfo: &Lazy,
    allowed: Option<&[u32]>,
    warnings: &mut Vec<String>,
) -> Vec<u32> {
    if let Some(cpus) = list(root, &format!("{CPUS}/online"), warnings).filter(|cpus| !cpus.is_empty()) {
        return cpus;
    }
    let listed: BTreeSet<u32> = cpuinfo.get().cpus().map(|(cpu, _)| cpu).collect();
    if !listed.is_empty() {
        return listed.into_iter().collect();
    }
    warnings.push(format!(
        "cannot determine the online CPUs: neither {CPUS}/online nor /proc/cpuinfo lists them"
    ));
    allowed.map(<[u32]>::to_vec).unwrap_or_default()
}

/// Reads how the CPUs in `online` (ascending) are arranged in cores and nodes.
pub(crate) fn read(
    root: &Root,
    online: &[u32],
    cpuinfo: &Lazy,
    leaves: Option<&Leaves>,
    warnings: &mut Vec<String>,
) -> Topology {
    let nodes = nodes(root, online, warnings);
    let mut cores = cores(root, online, warnings);
    if cores.is_empty() {
        cores = cores_of_cpuinfo(online, cpuinfo, warnings);
    }
    set_kinds(root, &mut cores, leaves, warnings);
    set_caches(root, &mut cores, leaves, online);
    for core in &mut cores {
        let node = nodes.iter().find(|node| node.cpus.contains(&core.cpus[0]));
        core.node = node.map_or(0, |node| node.id);
    }
    Topology { cores, nodes }
}

/// Returns the list in the file at `path`; `None` if it is missing or invalid.
fn list(root: &Root, path: &str, warnings: &mut Vec<String>) -> Option<Vec<u32>> {
    match cpulist::parse(&root.read(path)?) {
        Ok(cpus) => Some(cpus),
        Err(why) => {
            warnings.push(format!("cannot read {path}: {why}"));
            None
        }
    }
}

fn core(package: u32, cpus: Vec<u32>) -> Core {
    Core { package, node: 0, kind: CoreKind::default(), cpus, l1d: None, l2: None, l3: None }
}

/// Returns the cores from `/sys`; empty if `/sys` has no information about the first CPU.
fn cores(root: &Root, online: &[u32], warnings: &mut Vec<String>) -> Vec<Core> {
    let mut cores = Vec::new();
    let mut seen: BTreeSet<u32> = BTreeSet::new();
    for &cpu in online {
        // The files of a core's first CPU also apply to its siblings.
        if seen.contains(&cpu) {
            continue;
        }
        let topology = format!("{CPUS}/cpu{cpu}/topology");
        // Before Linux 5.3, the file was called `thread_siblings_list`.
        let siblings = list(root, &format!("{topology}/core_cpus_list"), warnings)
            .or_else(|| list(root, &format!("{topology}/thread_siblings_list"), warnings));
        let Some(siblings) = siblings else {
            if cores.is_empty() {
                return cores;
            }
            warnings.push(format!(
                "cannot read the siblings of CPU {cpu} in {topology}, so the CPU is treated as a \
                 separate core"
            ));
            cores.push(core(0, vec![cpu]));
            continue;
        };
        let is_new = |sibling: &u32| online.binary_search(sibling).is_ok() && !seen.contains(sibling);
        let mut cpus: BTreeSet<u32> = siblings.into_iter().filter(is_new).collect();
        cpus.insert(cpu);
        seen.extend(&cpus);
        // The value is -1 if the firmware does not report it (some ARM boards).
        let package = root.number(&format!("{topology}/physical_package_id")).unwrap_or(0);
        cores.push(core(package, cpus.into_iter().collect()));
    }
    cores
}

fn cores_of_cpuinfo(online: &[u32], cpuinfo: &Lazy, warnings: &mut Vec<String>) -> Vec<Core> {
    let told: BTreeMap<u32, (u32, u32)> =
        cpuinfo.get().cpus().filter_map(|(cpu, place)| Some((cpu, place?))).collect();
    let mut cores: Vec<Core> = Vec::new();
    let mut index = BTreeMap::new();
    for &cpu in online {
        match told.get(&cpu) {
            Some(&(package, id)) => {
                let at = *index.entry((package, id)).or_insert(cores.len());
                match cores.get_mut(at) {
                    Some(core) => core.cpus.push(cpu),
                    None => cores.push(core(package, vec![cpu])),
                }
            }
            None => cores.push(core(0, vec![cpu])),
        }
    }
    if cores.iter().any(|core| !told.contains_key(&core.cpus[0])) {
        warnings.push(format!(
            "cannot tell cores from SMT siblings: neither {CPUS} nor /proc/cpuinfo says which CPUs share a \
             core, so each CPU is treated as a core"
        ));
    }
    cores
}

/// Marks efficiency cores: on Intel from the kernel's event sources, on other CPUs from the capacity.
fn set_kinds(root: &Root, cores: &mut [Core], leaves: Option<&Leaves>, warnings: &mut Vec<String>) {
    let mut efficiency: BTreeSet<u32> = BTreeSet::new();
    // `cpu_lowpower` is the low-power island of Arrow Lake-H and later.
    for name in ["cpu_atom", "cpu_lowpower"] {
        efficiency.extend(list(root, &format!("/sys/devices/{name}/cpus"), warnings).unwrap_or_default());
    }
    if efficiency.is_empty() {
        efficiency = weak_cpus(root, cores);
    }
    for core in cores.iter_mut().filter(|core| efficiency.contains(&core.cpus[0])) {
        core.kind = CoreKind::Efficiency;
    }
    const HYBRID: u32 = 1 << 15;
    let says_hybrid = leaves.and_then(|leaves| leaves.get(7, 0)).is_some_and(|leaf| leaf.edx & HYBRID != 0);
    // A guest may have only one kind of core. The kernel then lists the performance cores.
    if says_hybrid && efficiency.is_empty() && !root.exists("/sys/devices/cpu_core/cpus") {
        warnings.push(
            "the CPU is hybrid, but the system does not distinguish performance and efficiency \
             cores, so all cores are treated as performance cores"
                .to_string(),
        );
    }
}

/// Returns CPUs with less than two thirds of the highest capacity (1024). The big cores of one chip have different
/// clock frequencies, so their capacities differ by up to a fifth; little cores have half the capacity or less.
/// Dense cores (Zen 5c) are not weak cores.
fn weak_cpus(root: &Root, cores: &[Core]) -> BTreeSet<u32> {
    let capacity = |cpu: u32| root.number::<u32>(&format!("{CPUS}/cpu{cpu}/cpu_capacity"));
    let Some(first) = cores.first() else { return BTreeSet::new() };
    if capacity(first.cpus[0]).is_none() {
        return BTreeSet::new();
    }
    let capacities: Vec<(u32, u32)> =
        cores.iter().filter_map(|core| Some((core.cpus[0], capacity(core.cpus[0])?))).collect();
    let strongest = capacities.iter().map(|&(_, capacity)| capacity).max().unwrap_or(0);
    let is_weak = |capacity: u32| u64::from(capacity) * 3 < u64::from(strongest) * 2;
    capacities.into_iter().filter(|&(_, capacity)| is_weak(capacity)).map(|(cpu, _)| cpu).collect()
}

fn set_caches(root: &Root, cores: &mut [Core], leaves: Option<&Leaves>, online: &[u32]) {
    for core in cores.iter_mut() {
        [core.l1d, core.l2, core.l3] = caches(root, core);
    }
    let none_told = cores.iter().all(|core| core.l1d.is_none() && core.l2.is_none());
    let one_kind = cores.iter().all(|core| core.kind == CoreKind::Performance);
    // CPUID describes the core that runs this code. The result applies to the other cores only if all cores are alike.
    if let Some(leaves) = leaves.filter(|_| none_told && one_kind) {
        let told = x86::caches(leaves, u32::try_from(online.len()).unwrap_or(u32::MAX));
        for core in cores.iter_mut() {
            [core.l1d, core.l2, core.l3] = told;
        }
    }
}

/// Returns the data caches of levels 1, 2 and 3 from `/sys`.
fn caches(root: &Root, core: &Core) -> [Option<Cache>; 3] {
    let mut found = [None; 3];
    for index in 0..8 {
        let folder = format!("{CPUS}/cpu{}/cache/index{index}", core.cpus[0]);
        let Some(kind) = root.value(&format!("{folder}/type")) else { break };
        if kind == "Instruction" {
            continue;
        }
        let level = root.number::<usize>(&format!("{folder}/level"));
        let Some(slot) = level.and_then(|level| found.get_mut(level.checked_sub(1)?)) else { continue };
        let size = root.value(&format!("{folder}/size")).and_then(|text| cache_size(&text));
        // An unreadable list causes no warning, because the number of sharers only refines a choice.
        let shared =
            root.read(&format!("{folder}/shared_cpu_list")).and_then(|text| cpulist::parse(&text).ok());
        let shared_by = shared.map_or(core.cpus.len(), |cpus| cpus.len().max(1));
        let shared_by = u32::try_from(shared_by).unwrap_or(u32::MAX);
        *slot = size.map(|size| Cache { size, shared_by });
    }
    found
}

/// Parses a cache size: `32K`, `1280K`, `32M`.
fn cache_size(text: &str) -> Option<Bytes> {
    let (digits, unit) = match text.char_indices().find(|(_, letter)| !letter.is_ascii_digit()) {
        Some((at, _)) => text.split_at(at),
        None => (text, ""),
    };
    let shift = match unit {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return None,
    };
    let number: u64 = digits.parse().ok()?;
    (number > 0).then_some(())?;
    number.checked_mul(1 << shift).map(Bytes)
}

fn nodes(root: &Root, online: &[u32], warnings: &mut Vec<String>) -> Vec<NumaNode> {
    let Some(ids) = list(root, &format!("{NODES}/online"), warnings) else { return Vec::new() };
    let node = |id: u32| {
        let mut cpus = list(root, &format!("{NODES}/node{id}/cpulist"), warnings).unwrap_or_default();
        cpus.retain(|cpu| online.binary_search(cpu).is_ok());
        let meminfo = root.read(&format!("{NODES}/node{id}/meminfo")).unwrap_or_default();
        NumaNode { id, cpus, memory: system::kib_field(&meminfo, "MemTotal:").unwrap_or_default() }
    };
    let is_used = |node: &NumaNode| !node.cpus.is_empty() || node.memory > Bytes(0);
    ids.into_iter().map(node).filter(is_used).collect()
}
