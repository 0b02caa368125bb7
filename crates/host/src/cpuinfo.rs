//! Contents of `/proc/cpuinfo`: the processor of an architecture without CPUID, and the cores if `/sys` is missing.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use build_info::host::Cpu;

use crate::root::Root;

/// File that is read on first use.
pub(crate) struct Lazy<'a> {
    root: &'a Root,
    info: OnceCell<CpuInfo>,
}

impl<'a> Lazy<'a> {
    pub(crate) fn new(root: &'a Root) -> Self {
        Self { root, info: OnceCell::new() }
    }

    pub(crate) fn get(&self) -> &CpuInfo {
        self.info.get_or_init(|| CpuInfo::parse(&self.root.read("/proc/cpuinfo").unwrap_or_default()))
    }
}

/// Parsed file, one block of `name: value` for each processor.
pub(crate) struct CpuInfo {
    processors: Vec<BTreeMap<String, String>>,
}

impl CpuInfo {
    fn parse(text: &str) -> Self {
        let block = |block: &str| -> BTreeMap<String, String> {
            let fields = block.lines().filter_map(|line| line.split_once(':'));
            fields.map(|(name, value)| (name.trim().to_string(), value.trim().to_string())).collect()
        };
        // Other blocks (`Hardware` on ARM, `timebase` on POWER) contain no relevant data.
        let processors =
            text.split("\n\n").map(block).filter(|block| block.contains_key("processor")).collect();
        Self { processors }
    }

    /// Returns the number of every processor, and its package and core if the file states both.
    pub(crate) fn cpus(&self) -> impl Iterator<Item = (u32, Option<(u32, u32)>)> {
        self.processors.iter().filter_map(|block| {
            let number = |name: &str| block.get(name)?.parse::<u32>().ok();
            Some((number("processor")?, number("physical id").zip(number("core id"))))
        })
    }

    /// Returns the processor's description.
    pub(crate) fn cpu(&self, arch: &str, warnings: &mut Vec<String>) -> Cpu {
        let Some(first) = self.processors.first() else {
            warnings.push("cannot identify the CPU: /proc/cpuinfo lists no processor".to_string());
            return Cpu::default();
        };
        if first.contains_key("CPU implementer") { self.arm() } else { other(first, arch) }
    }

    fn arm(&self) -> Cpu {
        let kinds: BTreeSet<ArmCore> = self.processors.iter().filter_map(ArmCore::of).collect();
        let names: BTreeSet<String> = kinds.iter().map(ArmCore::name).collect();
        let common = |of: fn(&ArmCore) -> u32| {
            let values: BTreeSet<u32> = kinds.iter().map(of).collect();
            values.first().copied().filter(|_| values.len() == 1)
        };
        // A thread may move to any core, so only instruction sets that all cores support are usable.
        let features = self
            .processors
            .iter()
            .map(|block| words(block.get("Features").map_or("", String::as_str)))
            .reduce(|all, these| &all & &these)
            .unwrap_or_default();
        Cpu {
            vendor: common(|kind| kind.implementer).map(vendor).unwrap_or_default(),
            name: names.into_iter().collect::<Vec<_>>().join(" + "),
            model: common(|kind| kind.part),
            stepping: common(|kind| kind.revision),
            features,
            ..Cpu::default()
        }
    }
}

/// Identification of an ARM core (MIDR_EL1).
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct ArmCore {
    implementer: u32,
    part: u32,
    revision: u32,
}

impl ArmCore {
    fn of(block: &BTreeMap<String, String>) -> Option<Self> {
        let number = |name: &str| {
            let text = block.get(name)?;
            match text.strip_prefix("0x") {
                Some(hexadecimal) => u32::from_str_radix(hexadecimal, 16).ok(),
                None => text.parse().ok(),
            }
        };
        Some(Self {
            implementer: number("CPU implementer")?,
            part: number("CPU part")?,
            revision: number("CPU revision").unwrap_or(0),
        })
    }

    fn name(&self) -> String {
        let known = PARTS
            .iter()
            .find(|(implementer, part, _)| (*implementer, *part) == (self.implementer, self.part));
        match known {
            Some((_, _, name)) => (*name).to_string(),
            None => format!("{} part {:#05x}", vendor(self.implementer), self.part),
        }
    }
}

/// Returns the vendor for an implementer code of MIDR_EL1 (Arm ARM, D23.2.122).
fn vendor(implementer: u32) -> String {
    let name = match implementer {
        0x41 => "ARM",
        0x42 => "Broadcom",
        0x43 => "Cavium",
        0x46 => "Fujitsu",
        0x48 => "HiSilicon",
        0x4e => "NVIDIA",
        0x50 => "APM",
        0x51 => "Qualcomm",
        0x53 => "Samsung",
        0x56 => "Marvell",
        0x61 => "Apple",
        0x6d => "Microsoft",
        0xc0 => "Ampere",
        _ => return format!("implementer {implementer:#04x}"),
    };
    name.to_string()
}

/// Cores in machines that may run language models: implementer, part, name in the spelling of `-mcpu` and lscpu.
const PARTS: &[(u32, u32, &str)] = &[
    (0x41, 0xd03, "Cortex-A53"),
    (0x41, 0xd05, "Cortex-A55"),
    (0x41, 0xd07, "Cortex-A57"),
    (0x41, 0xd08, "Cortex-A72"),
    (0x41, 0xd0b, "Cortex-A76"),
    (0x41, 0xd0c, "Neoverse-N1"),
    (0x41, 0xd0d, "Cortex-A77"),
    (0x41, 0xd40, "Neoverse-V1"),
    (0x41, 0xd41, "Cortex-A78"),
    (0x41, 0xd44, "Cortex-X1"),
    (0x41, 0xd46, "Cortex-A510"),
    (0x41, 0xd47, "Cortex-A710"),
    (0x41, 0xd48, "Cortex-X2"),
    (0x41, 0xd49, "Neoverse-N2"),
    (0x41, 0xd4b, "Cortex-A78C"),
    (0x41, 0xd4d, "Cortex-A715"),
    (0x41, 0xd4e, "Cortex-X3"),
    (0x41, 0xd4f, "Neoverse-V2"),
    (0x41, 0xd80, "Cortex-A520"),
    (0x41, 0xd81, "Cortex-A720"),
    (0x41, 0xd82, "Cortex-X4"),
    (0x41, 0xd84, "Neoverse-V3"),
    (0x41, 0xd85, "Cortex-X925"),
    (0x41, 0xd87, "Cortex-A725"),
    (0x41, 0xd8e, "Neoverse-N3"),
    (0x46, 0x001, "A64FX"),
    (0x48, 0xd01, "TaiShan-v110"),
    (0x51, 0x001, "Oryon"),
    (0xc0, 0xac3, "Ampere-1"),
    (0xc0, 0xac4, "Ampere-1a"),
];

/// Describes a processor of an architecture with other field names: RISC-V, POWER, s390. On x86, only the processor's
/// name is used, because instruction sets come from CPUID, which uses other names.
fn other(block: &BTreeMap<String, String>, arch: &str) -> Cpu {
    let first_of =
        |names: &[&str]| names.iter().find_map(|name| block.get(*name)).cloned().unwrap_or_default();
    let features = match block.get("isa") {
        Some(isa) if arch.starts_with("riscv") => riscv(isa),
        _ if arch.starts_with("x86") => BTreeSet::new(),
        _ => words(&first_of(&["flags", "features", "Features"])),
    };
    Cpu {
        vendor: first_of(&["vendor_id", "mvendorid"]),
        name: first_of(&["model name", "cpu model", "uarch", "cpu", "machine"]),
        features,
        ..Cpu::default()
    }
}

/// Parses `rv64imafdcv_zba_zbb`: single letters, then names.
fn riscv(isa: &str) -> BTreeSet<String> {
    let mut parts = isa.split('_');
    let letters = parts.next().unwrap_or_default().trim_start_matches("rv64").trim_start_matches("rv32");
    letters.chars().map(String::from).chain(parts.map(str::to_string)).collect()
}

fn words(text: &str) -> BTreeSet<String> {
    text.split_whitespace().map(str::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(text: &str, arch: &str) -> Cpu {
        let mut warnings = Vec::new();
        let cpu = CpuInfo::parse(text).cpu(arch, &mut warnings);
        assert_eq!(warnings, [""; 0]);
        cpu
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    #[test]
    fn two_kinds_of_arm_cores_share_what_both_have() {
        let block = |number: u32, part: &str, features: &str| {
            format!(
                "processor\t: {number}\nFeatures\t: {features}\nCPU implementer\t: 0x41\nCPU part\t: {part}\nCPU revision\t: 0\n\n"
            )
        };
        let text = block(0, "0xd05", "fp asimd asimddp")
            + &block(1, "0xd0b", "fp asimd asimddp i8mm")
            + "Hardware\t: board\n";
        let cpu = cpu(&text, "aarch64");
        assert_eq!((cpu.vendor.as_str(), cpu.name.as_str()), ("ARM", "Cortex-A55 + Cortex-A76"));
        assert_eq!((cpu.model, cpu.stepping), (None, Some(0)));
        assert_eq!(cpu.features, set(&["fp", "asimd", "asimddp"]));
        assert_eq!(cpu.x86_64_level, None);
    }

    #[test]
    fn an_unknown_part_is_named_by_its_number() {
        let cpu = cpu("processor: 0\nCPU implementer: 0x77\nCPU part: 0x123\n", "aarch64");
        assert_eq!(
            (cpu.vendor.as_str(), cpu.name.as_str()),
            ("implementer 0x77", "implementer 0x77 part 0x123")
        );
    }

    #[test]
    fn other_architectures_tell_what_they_can() {
        let riscv = cpu("processor\t: 0\nisa\t\t: rv64imafdcv_zba_zvfh\nuarch\t\t: sifive,u74\n", "riscv64");
        assert_eq!(riscv.name, "sifive,u74");
        assert_eq!(riscv.features, set(&["i", "m", "a", "f", "d", "c", "v", "zba", "zvfh"]));
        let power =
            cpu("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n\ntimebase\t: 512000000\n", "powerpc64");
        assert_eq!(power.name, "POWER9, altivec supported");
    }

    #[test]
    fn an_empty_file_is_a_warning() {
        let mut warnings = Vec::new();
        assert_eq!(CpuInfo::parse("").cpu("aarch64", &mut warnings), Cpu::default());
        assert_eq!(warnings.len(), 1);
    }
}
