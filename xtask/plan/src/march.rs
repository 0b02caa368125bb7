//! Names of CPUs for `-march`, and the first compilers that know them.
//!
//! Sources: the release notes of GCC 4.9 to 14 and Clang 3.6 to 19; family and model numbers from the processor
//! manuals, as in LLVM's `Host.cpp` and GCC's `cpuinfo.h`; qemu's names from `qemu-x86_64 -cpu help` and, for CPUs
//! since Sapphire Rapids, from its `target/i386/cpu.c`.

use build_info::host::Cpu;
use toolchain::{Compiler, CompilerKind, Version};

/// Microarchitecture.
struct March {
    /// Name for `-march`.
    name: &'static str,
    /// First GCC that knows the name.
    gcc: Version,
    /// First Clang that knows the name.
    clang: Version,
    /// Predecessor whose code runs on this microarchitecture.
    before: Option<&'static str>,
    /// Name for qemu's `-cpu`; empty if qemu has no such CPU.
    qemu: &'static str,
}

const fn march(
    name: &'static str,
    gcc: (u32, u32),
    clang: u32,
    before: Option<&'static str>,
    qemu: &'static str,
) -> March {
    March { name, gcc: Version::new(gcc.0, gcc.1, 0), clang: Version::new(clang, 0, 0), before, qemu }
}

const TABLE: &[March] = &[
    march("sandybridge", (4, 9), 4, None, "SandyBridge"),
    march("ivybridge", (4, 9), 4, Some("sandybridge"), "IvyBridge"),
    march("haswell", (4, 9), 4, Some("ivybridge"), "Haswell"),
    march("broadwell", (4, 9), 4, Some("haswell"), "Broadwell"),
    march("skylake", (6, 0), 4, Some("broadwell"), "Skylake-Client"),
    march("skylake-avx512", (6, 0), 4, Some("skylake"), "Skylake-Server"),
    march("cascadelake", (9, 0), 8, Some("skylake-avx512"), "Cascadelake-Server"),
    march("cooperlake", (10, 0), 10, Some("cascadelake"), "Cooperlake"),
    march("icelake-client", (8, 0), 7, Some("skylake-avx512"), ""),
    march("icelake-server", (8, 0), 7, Some("skylake-avx512"), "Icelake-Server"),
    march("tigerlake", (10, 0), 10, Some("icelake-client"), ""),
    march("alderlake", (11, 0), 12, Some("skylake"), ""),
    march("arrowlake", (14, 0), 18, Some("alderlake"), ""),
    march("sapphirerapids", (11, 0), 12, Some("icelake-server"), "SapphireRapids"),
    march("graniterapids", (13, 0), 16, Some("sapphirerapids"), "GraniteRapids"),
    march("znver1", (6, 0), 4, Some("haswell"), "EPYC"),
    march("znver2", (9, 0), 9, Some("znver1"), "EPYC-Rome"),
    march("znver3", (11, 0), 12, Some("znver2"), "EPYC-Milan"),
    march("znver4", (12, 3), 16, Some("znver3"), "EPYC-Genoa"),
    march("znver5", (14, 1), 19, Some("znver4"), "EPYC-Turin"),
];

/// Instruction sets of newer CPUs, each with the flag that enables it.
const FEATURE_FLAGS: &[(&str, &str)] = &[
    ("avx512f", "-mavx512f"),
    ("avx512cd", "-mavx512cd"),
    ("avx512bw", "-mavx512bw"),
    ("avx512dq", "-mavx512dq"),
    ("avx512vl", "-mavx512vl"),
    ("avx512ifma", "-mavx512ifma"),
    ("avx512_vbmi", "-mavx512vbmi"),
    ("avx512_vbmi2", "-mavx512vbmi2"),
    ("avx512_vnni", "-mavx512vnni"),
    ("avx512_bitalg", "-mavx512bitalg"),
    ("avx512_vpopcntdq", "-mavx512vpopcntdq"),
    ("avx512_bf16", "-mavx512bf16"),
    ("avx_vnni", "-mavxvnni"),
    ("gfni", "-mgfni"),
    ("vaes", "-mvaes"),
    ("vpclmulqdq", "-mvpclmulqdq"),
];

/// Returns the `-march` name of `cpu`, if it is in the table.
pub fn name(cpu: &Cpu) -> Option<&'static str> {
    let (family, model) = (cpu.family?, cpu.model?);
    Some(match (cpu.vendor.as_str(), family, model) {
        ("AuthenticAMD", 0x17, ..0x30) => "znver1",
        ("AuthenticAMD", 0x17, _) => "znver2",
        ("AuthenticAMD", 0x19, 0x10..=0x1f | 0x60..=0x7f | 0xa0..=0xaf) => "znver4",
        ("AuthenticAMD", 0x19, _) => "znver3",
        ("AuthenticAMD", 0x1a, _) => "znver5",
        ("GenuineIntel", 6, 0x2a | 0x2d) => "sandybridge",
        ("GenuineIntel", 6, 0x3a | 0x3e) => "ivybridge",
        ("GenuineIntel", 6, 0x3c | 0x3f | 0x45 | 0x46) => "haswell",
        ("GenuineIntel", 6, 0x3d | 0x47 | 0x4f | 0x56) => "broadwell",
        ("GenuineIntel", 6, 0x4e | 0x5e | 0x8e | 0x9e | 0xa5 | 0xa6) => "skylake",
        ("GenuineIntel", 6, 0x55) if cpu.has("avx512_bf16") => "cooperlake",
        ("GenuineIntel", 6, 0x55) if cpu.has("avx512_vnni") => "cascadelake",
        ("GenuineIntel", 6, 0x55) => "skylake-avx512",
        ("GenuineIntel", 6, 0x7d | 0x7e) => "icelake-client",
        ("GenuineIntel", 6, 0x6a | 0x6c) => "icelake-server",
        ("GenuineIntel", 6, 0x8c | 0x8d) => "tigerlake",
        ("GenuineIntel", 6, 0x97 | 0x9a | 0xb7 | 0xba | 0xbf | 0xaa | 0xac) => "alderlake",
        ("GenuineIntel", 6, 0xb5 | 0xc5) => "arrowlake",
        ("GenuineIntel", 6, 0x8f | 0xcf) => "sapphirerapids",
        ("GenuineIntel", 6, 0xad | 0xae) => "graniterapids",
        _ => return None,
    })
}

/// Returns qemu's name for the CPU whose `-march` name is `name`, if the table contains one.
pub fn emulated(name: &str) -> Option<&'static str> {
    let row = TABLE.iter().find(|march| march.name == name)?;
    Some(row.qemu).filter(|qemu| !qemu.is_empty())
}

/// Returns a note with the closest flags if `compiler` does not know the `-march` of `cpu`.
pub fn shortfall(cpu: &Cpu, compiler: &Compiler) -> Option<String> {
    let entry = |name: &str| TABLE.iter().find(|march| march.name == name);
    let since = |march: &March| match compiler.kind {
        CompilerKind::Gcc => march.gcc,
        CompilerKind::Clang => march.clang,
    };
    let wanted = entry(name(cpu)?)?;
    if compiler.version >= since(wanted) {
        return None;
    }
    let mut nearest = wanted.before.and_then(entry);
    while let Some(march) = nearest.filter(|march| compiler.version < since(march)) {
        nearest = march.before.and_then(entry);
    }
    let mut flags = vec![format!("-march={}", nearest.map_or("x86-64-v3", |march| march.name))];
    flags.extend(
        FEATURE_FLAGS.iter().filter(|(feature, _)| cpu.has(feature)).map(|(_, flag)| flag.to_string()),
    );
    Some(format!(
        "{} {} has no -march={} (added in {} {}.{}), so -march=native is equivalent to {}; a newer compiler \
         would also tune for this CPU",
        compiler.kind,
        compiler.version,
        wanted.name,
        compiler.kind,
        since(wanted).major,
        since(wanted).minor,
        flags.join(" ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(vendor: &str, family: u32, model: u32, features: &[&str]) -> Cpu {
        Cpu {
            vendor: vendor.to_string(),
            family: Some(family),
            model: Some(model),
            features: features.iter().map(|name| name.to_string()).collect(),
            ..Cpu::default()
        }
    }

    fn compiler(kind: CompilerKind, version: &str) -> Compiler {
        Compiler { kind, cc: "cc".into(), cxx: "c++".into(), version: version.parse().unwrap() }
    }

    #[test]
    fn a_compiler_older_than_the_cpu_is_told_of_with_the_nearest_flags() {
        let zen5 = cpu("AuthenticAMD", 0x1a, 0x02, &["avx512f", "avx512_vnni"]);
        let zen4 = cpu("AuthenticAMD", 0x19, 0x11, &["avx512f"]);
        let zen3 = cpu("AuthenticAMD", 0x19, 0x01, &[]);
        let cases = [
            (
                &zen5,
                compiler(CompilerKind::Gcc, "12.2.0"),
                Some("equivalent to -march=znver3 -mavx512f -mavx512vnni;"),
            ),
            (
                &zen5,
                compiler(CompilerKind::Gcc, "13.2.0"),
                Some("equivalent to -march=znver4 -mavx512f -mavx512vnni;"),
            ),
            (&zen5, compiler(CompilerKind::Gcc, "14.2.0"), None),
            (&zen5, compiler(CompilerKind::Clang, "18.1.0"), Some("equivalent to -march=znver4")),
            (&zen5, compiler(CompilerKind::Clang, "22.1.8"), None),
            (&zen4, compiler(CompilerKind::Gcc, "12.2.0"), Some("no -march=znver4 (added in gcc 12.3)")),
            (&zen3, compiler(CompilerKind::Gcc, "11.0.0"), None),
        ];
        for (cpu, compiler, expected) in cases {
            let note = shortfall(cpu, &compiler);
            match expected {
                None => assert_eq!(note, None, "{compiler:?}"),
                Some(part) => {
                    let note = note.unwrap_or_default();
                    assert!(note.contains(part), "{compiler:?}: {note}");
                }
            }
        }
    }

    #[test]
    fn every_name_that_is_given_is_in_the_table() {
        for vendor in ["AuthenticAMD", "GenuineIntel"] {
            for family in [6, 0x17, 0x19, 0x1a] {
                for model in 0..=0xff {
                    if let Some(name) = name(&cpu(vendor, family, model, &[])) {
                        assert!(TABLE.iter().any(|march| march.name == name), "{name}");
                    }
                }
            }
        }
    }
}
