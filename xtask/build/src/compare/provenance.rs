//! Provenance of figures.

use std::time::SystemTime;

use build_info::{Bytes, Host};
use serde::{Deserialize, Serialize};

/// Date, command and machine at the beginning of every measurement file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// Start of the measurement: an RFC 3339 timestamp, or only the date.
    pub date: String,
    /// Command that repeats the measurement, with file names instead of full paths.
    pub command: String,
    /// Description of the machine: CPU, cores, memory, hypervisor and operating system.
    pub machine: String,
}

impl Provenance {
    /// Creates the provenance of a measurement that starts now on `host`.
    pub fn now(host: &Host, command: String) -> Self {
        let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        Self { date, command, machine: machine(host) }
    }
}

fn machine(host: &Host) -> String {
    let cpu = &host.cpu;
    let model = match (cpu.family, cpu.model) {
        (Some(family), Some(model)) => format!(" (family {family} model {model})"),
        _ => String::new(),
    };
    let cores = build_info::threads::budget(host, build_info::Policy::Max).cores;
    let plural = if cores == 1 { "" } else { "s" };
    let memory =
        Bytes(host.limits.memory.map_or(host.memory.total.0, |limit| limit.0.min(host.memory.total.0)));
    let os = &host.os;
    let system = [os.distribution.as_deref().unwrap_or(&os.family), os.version.as_deref().unwrap_or("")];
    let mut words = vec![format!("{cores} core{plural} of {}{model}", cpu.name), memory.to_string()];
    words.extend(os.hypervisor.as_ref().map(|hypervisor| format!("{hypervisor} guest")));
    words.push(system.join(" ").trim().to_string());
    words.join(", ")
}
