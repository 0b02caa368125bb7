//! Section about the machines that were measured.

use std::collections::BTreeSet;

use build_info::words::count;
use build_info::{Host, Policy, threads};
use report::{Block, Table};

use super::inputs::Inputs;

/// Returns one sentence on the inputs of the page.
pub fn lead(inputs: &Inputs) -> String {
    let parts = [
        (inputs.builds.len(), "build"),
        (inputs.comparisons.len(), "comparison"),
        (inputs.servers.len(), "comparison of servers"),
        (inputs.rows.len(), "row of anneal bench"),
        (inputs.rooflines.len(), "roofline"),
        (inputs.tunings.len(), "tuning"),
        (inputs.others.len(), "other result"),
    ];
    let said = parts.into_iter().filter(|(number, _)| *number > 0).map(|(number, one)| match one {
        "row of anneal bench" if number > 1 => format!("{number} rows of anneal bench"),
        "comparison of servers" if number > 1 => format!("{number} comparisons of servers"),
        one => count(number, one),
    });
    let said: Vec<String> = said.collect();
    let made = match said.split_last() {
        None => "a machine".to_string(),
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
    };
    format!(
        "Made from {made}, read from {}. No measurement was repeated for this page.",
        count(inputs.files.len(), "file")
    )
}

/// Returns the hosts of builds and of `detect`, and the machines that measurements mention.
pub fn blocks(inputs: &Inputs, hostname: bool) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut shown: Vec<Vec<Vec<String>>> = Vec::new();
    let hosts = inputs.hosts.iter().map(|host| (host, None));
    let built = inputs.builds.iter().map(|info| (&info.host, info.hostname.as_deref()));
    for (host, name) in hosts.chain(built) {
        let rows = facts(host, name, hostname);
        // Hosts that only differ in free memory at the time of a build are the same machine.
        if !shown.contains(&rows) {
            let header = vec!["of the machine".to_string(), String::new()];
            blocks.push(Block::Table(Table { header, rows: rows.clone() }));
            shown.push(rows);
        }
    }
    let machines = machines(inputs);
    if machines.len() > 1 {
        let more = "The figures come from more than one machine; do not compare them with each other:";
        blocks.push(Block::Text(more.to_string()));
    }
    if !machines.is_empty() {
        let rows = machines.into_iter().map(|(machine, whose)| vec![machine, whose]).collect();
        let header = vec!["measured on".to_string(), "what".to_string()];
        blocks.push(Block::Table(Table { header, rows }));
    }
    blocks
}

/// Returns the descriptions of machines, each with the measurements made on it. Some files contain only the name of
/// the CPU, and others contain a longer description of the same machine. The longer description is used.
fn machines(inputs: &Inputs) -> Vec<(String, String)> {
    let mut all: Vec<(String, BTreeSet<String>)> = Vec::new();
    let mut add = |machine: &str, what: String| {
        if machine.is_empty() {
            return;
        }
        match all.iter_mut().find(|(known, _)| known.contains(machine) || machine.contains(known.as_str())) {
            Some((known, whose)) => {
                if machine.len() > known.len() {
                    *known = machine.to_string();
                }
                whose.insert(what);
            }
            None => all.push((machine.to_string(), BTreeSet::from([what]))),
        }
    };
    for (name, comparison) in &inputs.comparisons {
        add(&comparison.provenance.machine, name.clone());
    }
    for (name, served) in &inputs.servers {
        add(&served.provenance.machine, name.clone());
    }
    for (name, other) in &inputs.others {
        add(other.value()["machine"].as_str().unwrap_or_default(), name.clone());
    }
    inputs.rows.iter().for_each(|row| add(&row.cpu, "anneal bench".to_string()));
    inputs.rooflines.iter().for_each(|roofline| add(&roofline.cpu, "roofline".to_string()));
    for entry in &inputs.tunings {
        add(entry["key"]["cpu"]["name"].as_str().unwrap_or_default(), "tuning".to_string());
    }
    all.into_iter().map(|(machine, whose)| (machine, Vec::from_iter(whose).join(", "))).collect()
}

fn facts(host: &Host, name: Option<&str>, hostname: bool) -> Vec<Vec<String>> {
    let (cpu, os, limits) = (&host.cpu, &host.os, &host.limits);
    let budget = threads::budget(host, Policy::Max);
    let level = cpu.x86_64_level.map_or(String::new(), |level| format!(", x86-64-v{level}"));
    let cores = format!(
        "{} of {}, {}; {} for threads, limited by {}",
        count(host.topology.cores.len(), "core"),
        count(host.topology.packages(), "package"),
        count(host.topology.logical_cpus(), "logical CPU"),
        budget.cores,
        budget.bound_by
    );
    let cache = host.topology.cores.first().map(|core| {
        let caches = [("L1d", &core.l1d), ("L2", &core.l2), ("L3", &core.l3)];
        let said = caches.into_iter().filter_map(|(name, cache)| Some((name, cache.as_ref()?)));
        said.map(|(name, cache)| format!("{name} {}", cache.size)).collect::<Vec<_>>().join(", ")
    });
    let quota = limits.cpu_quota.map(|quota| count(quota, "core"));
    let system = [
        os.distribution.as_deref().unwrap_or(&os.family),
        os.version.as_deref().unwrap_or_default(),
        os.kernel.as_deref().unwrap_or_default(),
    ];
    let gpus: Vec<String> = host.gpus.iter().map(|gpu| format!("{}, {}", gpu.name, gpu.memory)).collect();
    let facts = [
        ("name", hostname.then(|| name.or(host.hostname.as_deref()).map(str::to_string)).flatten()),
        ("CPU", Some(format!("{}{level}", cpu.name))),
        ("cores", Some(cores)),
        ("caches", cache.filter(|cache| !cache.is_empty())),
        ("quota", quota),
        ("memory", Some(host.memory.total.to_string())),
        ("memory limit", limits.memory.map(|limit| limit.to_string())),
        ("system", Some(system.join(" ").trim().to_string())),
        ("hypervisor", os.hypervisor.clone()),
        ("GPU", (!gpus.is_empty()).then(|| gpus.join("; "))),
    ];
    facts.into_iter().filter_map(|(name, fact)| Some(vec![name.to_string(), fact?])).collect()
}
