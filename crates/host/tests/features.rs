//! Tests of instruction sets that the operating system or CPUID does not enable.

mod common;

use build_info::host::Cpu;

/// Returns the CPU of a fixture with some lines appended, which replace earlier lines.
fn cpu(name: &str, lines: &str) -> Cpu {
    common::detect(&format!("{}\n{lines}\n", common::snapshot(name))).host.cpu
}

#[test]
fn what_the_operating_system_does_not_save_is_disabled() {
    // XCR0, expected level, usable instruction sets, disabled instruction sets.
    let cases: [(&str, u8, &[&str], &[&str]); 5] = [
        ("xcr0 0xe7", 4, &["avx", "avx2", "fma", "avx512f", "avx512_bf16", "vaes", "gfni"], &[]),
        (
            "xcr0 0x7",
            3,
            &["avx", "avx2", "fma", "f16c", "vaes", "xsave"],
            &["avx512f", "avx512_bf16", "avx512_vnni"],
        ),
        // One of the three parts of AVX-512's state is missing.
        ("xcr0 0x67", 3, &["avx2"], &["avx512f"]),
        (
            "xcr0 0x3",
            2,
            &["sse4_2", "popcnt", "bmi2", "gfni", "aes", "osxsave"],
            &["avx", "avx2", "fma", "f16c", "vaes"],
        ),
        // The YMM bit without the XMM bit is impossible, and not sufficient.
        ("xcr0 0x5", 2, &["sse4_2"], &["avx"]),
    ];
    for (xcr0, level, usable, disabled) in cases {
        let cpu = cpu("ryzen-7950x", xcr0);
        assert_eq!(cpu.x86_64_level, Some(level), "{xcr0}");
        for name in usable {
            assert!(cpu.has(name) && !cpu.disabled_features.contains(*name), "{xcr0}: {name}");
        }
        for name in disabled {
            assert!(!cpu.has(name) && cpu.disabled_features.contains(*name), "{xcr0}: {name}");
        }
        assert!(cpu.features.is_disjoint(&cpu.disabled_features), "{xcr0}");
    }
}

#[test]
fn xcr0_does_not_count_without_osxsave() {
    // Leaf 1 of the 7950X with bit 27 of ECX cleared.
    let cpu = cpu("ryzen-7950x", "cpuid 0x1 0 0x00a60f12 0x00200800 0x76f8320b 0x178bfbff");
    assert_eq!(cpu.x86_64_level, Some(2));
    for name in ["xsave", "avx", "avx2", "avx512f"] {
        assert!(cpu.disabled_features.contains(name), "{name}");
    }
}

#[test]
fn amx_needs_both_parts_of_its_state() {
    // AMX bits of leaf 7 from Sapphire Rapids.
    let leaf = "cpuid 0x7 0 0x00000001 0xf1bf97a9 0x00405fce 0x13400010\n";
    for (xcr0, is_usable) in [("xcr0 0x600e7", true), ("xcr0 0x200e7", false), ("xcr0 0xe7", false)] {
        let cpu = cpu("ryzen-7950x", &format!("{leaf}{xcr0}"));
        for name in ["amx_tile", "amx_int8", "amx_bf16"] {
            assert_eq!(
                (cpu.has(name), cpu.disabled_features.contains(name)),
                (is_usable, !is_usable),
                "{xcr0}: {name}"
            );
        }
    }
}

#[test]
fn leaves_beyond_the_last_are_not_read() {
    // Beyond its last leaf, an Intel CPU returns the last leaf, so any content is possible.
    let ones = "0xffffffff 0xffffffff 0xffffffff 0xffffffff";
    let beyond_7 =
        format!("cpuid 0x0 0 0x6 0x756e6547 0x6c65746e 0x49656e69\ncpuid 0x7 0 {ones}\ncpuid 0x7 1 {ones}");
    let old = cpu("xeon-e5-2680", &beyond_7);
    assert!(!old.has("avx2") && !old.has("avx_vnni") && old.disabled_features.is_empty());
    // Leaf 7 exists, but its subleaf 1 does not.
    let beyond_7_0 = format!("cpuid 0x7 1 {ones}");
    let milan = cpu("epyc-2s", &beyond_7_0);
    assert!(!milan.has("avx_vnni") && !milan.disabled_features.contains("avx512_bf16"));
    let no_extended = cpu("i3-6100", "cpuid 0x80000000 0 0 0 0 0");
    assert_eq!((no_extended.name.as_str(), no_extended.x86_64_level), ("", None));
}

#[test]
fn a_name_padded_in_front_is_trimmed() {
    assert_eq!(cpu("xeon-e5-2680", "").name, "Intel(R) Xeon(R) CPU E5-2680 0 @ 2.70GHz");
}

#[test]
fn all_ones_do_not_overflow() {
    let mut lines = String::from("cpuid 0x0 0 0xffffffff 0xffffffff 0xffffffff 0xffffffff\n");
    for leaf in ["0x1 0", "0x7 0", "0x7 1", "0x80000000 0", "0x80000001 0", "0x80000002 0", "0x40000000 0"] {
        lines += &format!("cpuid {leaf} 0xffffffff 0xffffffff 0xffffffff 0xffffffff\n");
    }
    for subleaf in 0..20 {
        for leaf in ["0x4", "0x8000001d"] {
            lines += &format!("cpuid {leaf} {subleaf} 0xffffffff 0xffffffff 0xffffffff 0xffffffff\n");
        }
    }
    let text =
        format!("arch x86_64\nxcr0 0xffffffff\nfile /proc/self/status = Cpus_allowed_list: 0-1\n{lines}");
    let host = common::detect(&text).host;
    assert_eq!((host.cpu.family, host.cpu.model), (Some(270), Some(255)));
    assert_eq!(host.cpu.x86_64_level, Some(4));
    assert_eq!(host.topology.cores.len(), 2);
}
