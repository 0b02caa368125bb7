//! The table of the CPU guard: spellings, and what a compiler says it may emit.

#[allow(dead_code, missing_docs, reason = "a part of the build script")]
#[path = "../build/features.rs"]
mod features;

use features::{FEATURES, of_compiler, resolve};

#[test]
fn every_spelling_of_a_feature_is_the_same_row() {
    let cases: [(&[&str], &[&str]); 6] = [
        (&["avx512_vnni", "avx512vnni"], &["avx512_vnni"]),
        (&["sse4.1", "sse4_1"], &["sse4_1"]),
        (&["abm", "lzcnt"], &["lzcnt"]),
        (&["pni", "bmi", "sha"], &["sse3", "bmi1", "sha_ni"]),
        // In the table's order, which is the message's.
        (&["avx2", "fma"], &["fma", "avx2"]),
        // Every x86-64 CPU has these.
        (&["sse2", "fxsr", "x87"], &[]),
    ];
    for (names, expected) in cases {
        let resolved = resolve(names.iter().copied()).expect("known names");
        let resolved: Vec<&str> = resolved.iter().map(|feature| feature.name).collect();
        assert_eq!(resolved, expected, "{names:?}");
    }
}

#[test]
fn a_name_that_cannot_be_checked_is_an_error() {
    let error = resolve(["avx2", "avx1024"]).map(|rows| rows.len()).map_err(|error| error.to_string());
    assert!(error.as_ref().is_err_and(|text| text.contains("avx1024")), "{error:?}");
}

#[test]
fn no_feature_stands_twice() {
    let mut rows: Vec<String> = FEATURES.iter().map(|feature| feature.c_row()).collect();
    // Without the name: leaf, subleaf, register and bit.
    for row in &mut rows {
        *row = row.split_once(',').map(|(_, place)| place.to_string()).unwrap_or_default();
    }
    let all = rows.len();
    rows.sort_unstable();
    rows.dedup();
    assert_eq!(rows.len(), all, "two features share a CPUID bit");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_compiler_tells_what_it_may_emit() {
    let names = |flag: &str| of_compiler("cc".as_ref(), &[flag.to_string()]).expect("a C compiler");
    let plain = names("-march=x86-64");
    let v3 = names("-march=x86-64-v3");
    assert!(!plain.contains(&"sse3") && !plain.contains(&"avx"), "{plain:?}");
    for name in ["avx2", "fma", "f16c", "bmi1", "bmi2", "lzcnt", "movbe", "popcnt"] {
        assert!(v3.contains(&name), "{name} is missing: {v3:?}");
    }
    assert!(!v3.contains(&"avx512f"), "{v3:?}");
}
