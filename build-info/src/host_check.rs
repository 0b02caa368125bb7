//! Validation of a hand-written host description: impossible values are reported before they are used.

use std::collections::BTreeSet;

use crate::host::Host;
use crate::units::Bytes;
use crate::words::printable;

/// Known values of `std::env::consts::ARCH`.
const ARCHITECTURES: [&str; 20] = [
    "x86",
    "x86_64",
    "arm",
    "aarch64",
    "m68k",
    "mips",
    "mips32r6",
    "mips64",
    "mips64r6",
    "csky",
    "powerpc",
    "powerpc64",
    "riscv32",
    "riscv64",
    "s390x",
    "sparc",
    "sparc64",
    "hexagon",
    "loongarch32",
    "loongarch64",
];

/// Reason why a description is impossible: the field, its value, and the expected value.
#[derive(Debug, thiserror::Error)]
#[error("impossible host description: {0}")]
pub struct Impossible(String);

impl Host {
    /// Validates the description and escapes control characters in its names, which could manipulate a terminal.
    ///
    /// # Errors
    /// If a field has an impossible value; the error names the first such field.
    pub fn checked(mut self) -> Result<Self, Impossible> {
        self.clean();
        let found = self.impossible_name().or_else(|| self.impossible_cpus());
        found.or_else(|| self.impossible_amount()).map_or(Ok(self), |why| Err(Impossible(why)))
    }

    fn impossible_name(&self) -> Option<String> {
        if !ARCHITECTURES.contains(&self.arch.as_str()) {
            let arch = &self.arch;
            return Some(format!("arch is {arch:?}\nhint: use a name such as x86_64 or aarch64"));
        }
        match self.cpu.x86_64_level {
            Some(level) if self.arch != "x86_64" => {
                Some(format!("cpu.x86_64_level is {level}, but arch is {}\nhint: omit the level", self.arch))
            }
            Some(level) if !(1..=4).contains(&level) => {
                Some(format!("cpu.x86_64_level is {level}\nhint: use 1 to 4"))
            }
            _ => None,
        }
    }

    fn impossible_cpus(&self) -> Option<String> {
        let cores = &self.topology.cores;
        if cores.is_empty() || cores.iter().any(|core| core.cpus.is_empty()) {
            return Some("topology.cores has no core, or a core without a CPU".to_string());
        }
        let of_cores = cores.iter().flat_map(|core| &core.cpus);
        let of_nodes = self.topology.nodes.iter().flat_map(|node| &node.cpus);
        twice("topology.cores", of_cores)
            .or_else(|| twice("topology.nodes", of_nodes))
            .or_else(|| twice("limits.affinity", self.limits.affinity.iter()))
    }

    fn impossible_amount(&self) -> Option<String> {
        let (memory, limits) = (self.memory, &self.limits);
        if memory.total == Bytes(0) || limits.memory == Some(Bytes(0)) {
            return Some("memory.total or limits.memory is 0".to_string());
        }
        if memory.available > memory.total {
            return Some(format!(
                "memory.available is {}, which is more than memory.total, {}",
                memory.available, memory.total
            ));
        }
        let quota = limits.cpu_quota.filter(|quota| !(quota.is_finite() && *quota > 0.0))?;
        Some(format!("limits.cpu_quota is {quota}\nhint: use a number of cores above 0, or omit the quota"))
    }

    /// Escapes control characters in all strings.
    fn clean(&mut self) {
        let clean = |text: &mut String| *text = printable(text).into_owned();
        let Self { arch, hostname, os, cpu, gpus, .. } = self;
        [arch, &mut os.family, &mut cpu.vendor, &mut cpu.name].into_iter().for_each(clean);
        let maybe = [hostname, &mut os.distribution, &mut os.version, &mut os.kernel, &mut os.hypervisor];
        maybe.into_iter().flatten().for_each(clean);
        for gpu in gpus {
            [&mut gpu.name, &mut gpu.compute_capability, &mut gpu.driver].into_iter().for_each(clean);
        }
        for features in [&mut cpu.features, &mut cpu.disabled_features] {
            *features = features.iter().map(|name| printable(name).into_owned()).collect();
        }
    }
}

/// Returns a message if a CPU is listed twice in `field`.
fn twice<'a>(field: &str, cpus: impl Iterator<Item = &'a u32>) -> Option<String> {
    let mut seen = BTreeSet::new();
    let again = cpus.into_iter().find(|cpu| !seen.insert(**cpu))?;
    Some(format!("{field} lists CPU {again} twice"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;

    fn fixtures() -> Vec<Value> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/hosts");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        files.map(|path| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()).collect()
    }

    #[test]
    fn real_machines_pass_as_they_are() {
        let hosts = fixtures();
        assert!(hosts.len() > 5);
        for host in hosts {
            let host: Host = serde_json::from_value(host).unwrap();
            assert_eq!(host.clone().checked().unwrap(), host);
        }
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_field() {
        let good = fixtures().into_iter().find(|host| host["arch"] == "x86_64").unwrap();
        let cases = [
            ("/arch", json!("riscv128"), "arch is \"riscv128\""),
            ("/arch", json!("aarch64"), "x86_64_level"),
            ("/cpu/x86_64_level", json!(9), "use 1 to 4"),
            ("/limits/cpu_quota", json!(-3), "cpu_quota is -3"),
            ("/limits/cpu_quota", json!(0), "cpu_quota is 0"),
            ("/limits/memory", json!(0), "is 0"),
            ("/limits/affinity", json!([0, 1, 1]), "limits.affinity lists CPU 1 twice"),
            ("/memory/total", json!(0), "memory.total"),
            ("/memory/total", json!(1), "memory.available is"),
            ("/topology/cores", json!([]), "no core"),
            ("/topology/cores", json!([{ "package": 0, "cpus": [] }]), "without a CPU"),
            ("/topology/cores", json!([{"package": 0, "cpus": [7, 7]}]), "topology.cores lists CPU 7 twice"),
            (
                "/topology/nodes",
                json!([{"id": 0, "cpus": [3, 3], "memory": 1}]),
                "topology.nodes lists CPU 3",
            ),
        ];
        for (place, value, expected) in cases {
            let mut host = good.clone();
            let (parent, key) = place.rsplit_once('/').unwrap();
            host.pointer_mut(parent).unwrap()[key] = value;
            let host: Host = serde_json::from_value(host).unwrap();
            let error = host.checked().unwrap_err().to_string();
            assert!(error.contains(expected), "{place}: {error}");
        }
    }

    #[test]
    fn names_do_nothing_to_a_terminal() {
        let mut host = fixtures().swap_remove(0);
        for place in ["/cpu/name", "/cpu/vendor", "/os/family", "/os/kernel", "/hostname"] {
            let (parent, key) = place.rsplit_once('/').unwrap();
            host.pointer_mut(parent).unwrap()[key] = json!("a\u{1b}[2J\nb");
        }
        host["gpus"] = json!([{"name": "\u{1b}", "compute_capability": "8.9", "memory": 1, "driver": "\r"}]);
        let host: Host = serde_json::from_value(host).unwrap();
        let host = host.checked().unwrap();
        assert_eq!(host.cpu.name, "a\\u{1b}[2J\\nb");
        assert_eq!((host.gpus[0].name.as_str(), host.gpus[0].driver.as_str()), ("\\u{1b}", "\\r"));
        for text in [&host.cpu.vendor, &host.os.family, &host.os.kernel.unwrap(), &host.hostname.unwrap()] {
            assert_eq!(*text, host.cpu.name);
        }
    }
}
