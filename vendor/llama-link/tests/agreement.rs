//! Tests that the guard's CPUID table agrees with the `host` crate's. The guard has a separate table, because it must
//! run before any code that could contain a newer instruction. If the tables differed, a machine could refuse its own
//! native build.

#[allow(dead_code, missing_docs, reason = "a part of the build script")]
#[path = "../build/features.rs"]
mod features;

use std::collections::BTreeMap;

use features::{Feature, FeatureBit, table};
use host::{Cpuid, Root};

/// XCR0 value of the x87 state alone, which every process uses.
const X87: u64 = 1;

/// Returns the XCR0 value that the guard requires for a feature (`enum state` of guard.c).
fn xcr0(feature: &Feature, state: &str) -> u64 {
    match state {
        "NONE" => X87,
        "YMM" => X87 | 0x6,
        "ZMM" => X87 | 0xe6,
        "TILE" => X87 | 0x6_0000,
        other => panic!("{}: unknown state {other}", feature.name),
    }
}

/// Returns the features that the `host` crate reports as usable on a CPU that has only OSXSAVE and `feature`.
fn usable(feature: &Feature, xcr0: u64) -> Vec<String> {
    let FeatureBit::Cpuid { leaf, subleaf, register, bit, .. } = feature.place else {
        panic!("{} is not shown by CPUID", feature.name)
    };
    let mut leaves: BTreeMap<(u32, u32), [u32; 4]> = BTreeMap::new();
    leaves.insert((0, 0), [0xd, 0, 0, 0]);
    leaves.insert((0x8000_0000, 0), [0x8000_0008, 0, 0, 0]);
    leaves.insert((1, 0), [0, 0, 1 << 27, 0]);
    leaves.insert((7, 0), [1, 0, 0, 0]);
    let register = ["EAX", "EBX", "ECX", "EDX"].iter().position(|name| *name == register);
    let register = register.unwrap_or_else(|| panic!("{}: no register", feature.name));
    leaves.entry((leaf, subleaf)).or_default()[register] |= 1 << bit;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let root = Root::at(folder.path(), "x86_64").with_cpuid(Cpuid::recorded(leaves, xcr0));
    host::detect(&root).host.cpu.features.into_iter().collect()
}

#[test]
fn host_and_guard_know_a_feature_by_the_same_bit_and_state() {
    for feature in table("x86_64") {
        let FeatureBit::Cpuid { state, .. } = feature.place else { panic!("{}", feature.name) };
        let mut expected = vec!["osxsave".to_string(), feature.name.to_string()];
        expected.sort();
        expected.dedup();
        let found = usable(feature, xcr0(feature, state));
        assert_eq!(found, expected, "{}", feature.c_row());
        if state != "NONE" {
            let found = usable(feature, X87);
            assert_eq!(found, ["osxsave"], "{} without its state", feature.c_row());
        }
    }
}
