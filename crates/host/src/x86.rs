//! Processor and caches from CPUID.

use build_info::Bytes;
use build_info::host::{Cache, Cpu};
use raw_cpuid::{CpuId, Hypervisor};

use crate::cpuid::Leaves;
use crate::features;

pub(crate) fn cpu(leaves: &Leaves) -> Cpu {
    let signature = leaves.get(1, 0).map(|leaf| signature(leaf.eax));
    let features = features::read(leaves);
    Cpu {
        vendor: vendor(leaves),
        name: name(leaves),
        family: signature.map(|(family, _, _)| family),
        model: signature.map(|(_, model, _)| model),
        stepping: signature.map(|(_, _, stepping)| stepping),
        x86_64_level: features::x86_64_level(&features.usable),
        features: features.usable,
        disabled_features: features.disabled,
    }
}

fn vendor(leaves: &Leaves) -> String {
    leaves.get(0, 0).map(|leaf| text(&[leaf.ebx, leaf.edx, leaf.ecx])).unwrap_or_default()
}

fn name(leaves: &Leaves) -> String {
    let parts = [0x8000_0002, 0x8000_0003, 0x8000_0004].map(|leaf| leaves.get(leaf, 0));
    let registers: Vec<u32> =
        parts.into_iter().flatten().flat_map(|part| [part.eax, part.ebx, part.ecx, part.edx]).collect();
    text(&registers)
}

/// Returns the characters in `registers` up to the first NUL, without the leading spaces of some names.
fn text(registers: &[u32]) -> String {
    let bytes: Vec<u8> = registers.iter().flat_map(|register| register.to_le_bytes()).collect();
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).trim().to_string()
}

/// Returns the display family, display model and stepping (Intel SDM volume 2A, CPUID leaf 1). AMD's rule gives the
/// same result for every existing family.
fn signature(eax: u32) -> (u32, u32, u32) {
    let (family, model, stepping) = (eax >> 8 & 0xf, eax >> 4 & 0xf, eax & 0xf);
    let (extended_family, extended_model) = (eax >> 20 & 0xff, eax >> 16 & 0xf);
    let display_family = if family == 0xf { family + extended_family } else { family };
    let display_model = if matches!(family, 0x6 | 0xf) { extended_model << 4 | model } else { model };
    (display_family, display_model, stepping)
}

/// Returns the name of the hypervisor if this machine is a guest.
pub(crate) fn hypervisor(leaves: &Leaves) -> Option<String> {
    let info = CpuId::with_cpuid_reader(leaves.reader()).get_hypervisor_info()?;
    Some(match info.identify() {
        Hypervisor::Xen => "Xen".to_string(),
        Hypervisor::VMware => "VMware".to_string(),
        Hypervisor::HyperV => "Hyper-V".to_string(),
        Hypervisor::KVM => "KVM".to_string(),
        Hypervisor::QEMU => "QEMU".to_string(),
        Hypervisor::Bhyve => "bhyve".to_string(),
        Hypervisor::QNX => "QNX".to_string(),
        Hypervisor::ACRN => "ACRN".to_string(),
        Hypervisor::Unknown(ebx, ecx, edx) => text(&[ebx, ecx, edx]),
    })
}

/// Returns the data caches of levels 1, 2 and 3 of the CPU that runs this code. For the CPUs that share a cache,
/// CPUID reports the number of reserved APIC IDs. On Intel this number may exceed the number of CPUs, so `shared_by`
/// is capped at `logical_cpus`.
pub(crate) fn caches(leaves: &Leaves, logical_cpus: u32) -> [Option<Cache>; 3] {
    const INSTRUCTION: u32 = 2;
    let leaf = if leaves.get(0x8000_001d, 0).is_some_and(|first| first.eax != 0) { 0x8000_001d } else { 4 };
    let mut found = [None; 3];
    // No CPU has more than 16 caches, and a faulty hypervisor might never end the list.
    for subleaf in 0..16 {
        let Some(cache) = leaves.get(leaf, subleaf) else { break };
        let (kind, level) = (cache.eax & 0x1f, (cache.eax >> 5 & 0x7) as usize);
        if kind == 0 {
            break;
        }
        if kind == INSTRUCTION || !(1..=3).contains(&level) {
            continue;
        }
        let line = u64::from(cache.ebx & 0xfff) + 1;
        let partitions = u64::from(cache.ebx >> 12 & 0x3ff) + 1;
        let ways = u64::from(cache.ebx >> 22) + 1;
        let sets = u64::from(cache.ecx) + 1;
        let shared_by = ((cache.eax >> 14 & 0xfff) + 1).min(logical_cpus.max(1));
        found[level - 1] = Some(Cache { size: Bytes(line * partitions * ways * sets), shared_by });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn family_and_model_take_their_extensions() {
        let cases = [
            (0x000506e3, (6, 94, 3)),     // Skylake
            (0x000206d7, (6, 45, 7)),     // Sandy Bridge-EP
            (0x00a60f12, (25, 97, 2)),    // Raphael
            (0x00b00f21, (26, 2, 1)),     // Turin
            (0x00000f4a, (15, 4, 10)),    // K8
            (0x0fff0fff, (270, 255, 15)), // all ones
        ];
        for (eax, expected) in cases {
            assert_eq!(signature(eax), expected, "{eax:#010x}");
        }
    }
}
