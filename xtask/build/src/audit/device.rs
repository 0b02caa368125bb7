//! Audit of a program's code for NVIDIA GPUs.

use std::collections::BTreeSet;

use audit::{DeviceCode, Program, Rules};
use build_info::Bytes;
use build_info::audit::{DeviceArchitecture, DeviceAudit};

/// Returns a summary of the GPU code in `programs`, or `None` if `programs` contain no GPU code.
pub fn audit(programs: &[Program], rules: &Rules) -> Option<DeviceAudit> {
    let pieces: Vec<&DeviceCode> = programs.iter().flat_map(|program| &program.device).collect();
    if pieces.is_empty() {
        return None;
    }
    let mut found = DeviceAudit::default();
    for piece in pieces {
        let architecture: &mut DeviceArchitecture = found.architectures.entry(piece.name()).or_default();
        architecture.pieces += 1;
        architecture.stored = Bytes(architecture.stored.0.saturating_add(piece.stored));
        architecture.unpacked = Bytes(architecture.unpacked.0.saturating_add(piece.unpacked));
    }
    for function in programs.iter().flat_map(|program| &program.functions) {
        // Several names at one address mean that identical functions were merged; each name is a kernel.
        for family in function.names.iter().filter_map(|name| rules.device_family(name)) {
            *found.kernels.entry(family.to_string()).or_default() += 1;
        }
    }
    let libraries: BTreeSet<&String> = programs
        .iter()
        .flat_map(|program| &program.dynamic.libraries)
        .filter(|name| ["libcuda", "libcublas", "libnccl"].iter().any(|stem| name.starts_with(stem)))
        .collect();
    found.libraries = libraries.into_iter().cloned().collect();
    Some(found)
}

/// Returns the entries of `architectures` for which `programs` contain no code.
pub fn lacking(programs: &[Program], architectures: &[String]) -> Vec<String> {
    let found: BTreeSet<String> =
        programs.iter().flat_map(|program| &program.device).map(DeviceCode::name).collect();
    architectures.iter().filter(|name| !found.contains(*name)).cloned().collect()
}
