//! What a program holds for NVIDIA's GPUs.

use std::collections::BTreeSet;

use audit::{DeviceCode, Program, Rules};
use build_info::Bytes;
use build_info::audit::{DeviceArchitecture, DeviceAudit};

/// What is in `programs`; nothing where no code for GPUs is.
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
        // One address may have several names, of equal functions: each is a kernel.
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

/// Those of `architectures` that have no code in `programs`.
pub fn lacking(programs: &[Program], architectures: &[String]) -> Vec<String> {
    let found: BTreeSet<String> =
        programs.iter().flat_map(|program| &program.device).map(DeviceCode::name).collect();
    architectures.iter().filter(|name| !found.contains(*name)).cloned().collect()
}
