//! Tests of the CPU guard's table: spellings, and instruction sets from a compiler's macros.

#[allow(dead_code, missing_docs, reason = "a part of the build script")]
#[path = "../build/features.rs"]
mod features;

use features::{of_compiler, resolve, table};

#[test]
fn every_spelling_of_a_feature_is_the_same_row() {
    let cases: [(&str, &[&str], &[&str]); 8] = [
        ("x86_64", &["avx512_vnni", "avx512vnni"], &["avx512_vnni"]),
        ("x86_64", &["sse4.1", "sse4_1"], &["sse4_1"]),
        ("x86_64", &["abm", "lzcnt"], &["lzcnt"]),
        ("x86_64", &["pni", "bmi", "sha"], &["sse3", "bmi1", "sha_ni"]),
        // Results are in the order of the table, as in the guard's message.
        ("x86_64", &["avx2", "fma"], &["fma", "avx2"]),
        ("aarch64", &["dotprod", "asimddp", "lse", "rdm"], &["atomics", "asimdrdm", "asimddp"]),
        // Every CPU of the architecture has these features.
        ("x86_64", &["sse2", "fxsr", "x87"], &[]),
        ("aarch64", &["neon", "fp"], &[]),
    ];
    for (arch, names, expected) in cases {
        let resolved = resolve(arch, names.iter().copied()).expect("known names");
        let resolved: Vec<&str> = resolved.iter().map(|feature| feature.name).collect();
        assert_eq!(resolved, expected, "{names:?}");
    }
}

#[test]
fn a_name_that_cannot_be_checked_is_an_error() {
    for (arch, known, unknown) in
        [("x86_64", "avx2", "avx1024"), ("aarch64", "sve", "avx2"), ("riscv64", "", "v")]
    {
        let names = [known, unknown].into_iter().filter(|name| !name.is_empty());
        let error = resolve(arch, names).map(|rows| rows.len()).map_err(|error| error.to_string());
        assert!(error.as_ref().is_err_and(|text| text.contains(unknown)), "{error:?}");
    }
}

#[test]
fn no_feature_stands_twice() {
    for arch in ["x86_64", "aarch64"] {
        let mut rows: Vec<String> = table(arch).iter().map(|feature| feature.c_row()).collect();
        assert!(!rows.is_empty());
        // Only the position of the bit is compared, not the name.
        for row in &mut rows {
            *row = row.split_once(',').map(|(_, place)| place.to_string()).unwrap_or_default();
        }
        let all = rows.len();
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), all, "two features of {arch} share a bit");
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_compiler_tells_what_it_may_emit() {
    let names = |flag: &str| of_compiler("x86_64", "cc".as_ref(), &[flag.to_string()]).expect("a C compiler");
    let plain = names("-march=x86-64");
    let v3 = names("-march=x86-64-v3");
    assert!(!plain.contains(&"sse3") && !plain.contains(&"avx"), "{plain:?}");
    for name in ["avx2", "fma", "f16c", "bmi1", "bmi2", "lzcnt", "movbe", "popcnt"] {
        assert!(v3.contains(&name), "{name} is missing: {v3:?}");
    }
    assert!(!v3.contains(&"avx512f"), "{v3:?}");
}
