//! Tests of the current machine against the standard library's values.

use build_info::{Policy, threads};
use host::Root;

#[test]
#[cfg(target_os = "linux")]
fn cores_and_affinity_agree_with_the_standard_library() {
    let host = host::detect(&Root::live().without_gpus()).host;
    assert_eq!(host.arch, std::env::consts::ARCH);
    assert!(host.memory.total.0 > 0 && host.memory.available <= host.memory.total);
    let parallelism = std::thread::available_parallelism().expect("a number").get();
    // The standard library's value includes quotas; the mask does not.
    assert!(host.limits.affinity.len() >= parallelism, "{:?}", host.limits.affinity);
    assert!(host.topology.logical_cpus() >= host.limits.affinity.len());
    let budget = threads::budget(&host, Policy::Max);
    assert!((1..=parallelism).contains(&(budget.cores as usize)), "{budget:?}");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn instruction_sets_agree_with_the_standard_library() {
    let cpu = host::detect(&Root::live().without_gpus()).host.cpu;
    let cases = [
        ("sse3", is_x86_feature_detected!("sse3")),
        ("ssse3", is_x86_feature_detected!("ssse3")),
        ("sse4_2", is_x86_feature_detected!("sse4.2")),
        ("popcnt", is_x86_feature_detected!("popcnt")),
        ("movbe", is_x86_feature_detected!("movbe")),
        ("lzcnt", is_x86_feature_detected!("lzcnt")),
        ("cx16", is_x86_feature_detected!("cmpxchg16b")),
        ("sha_ni", is_x86_feature_detected!("sha")),
        ("avx", is_x86_feature_detected!("avx")),
        ("f16c", is_x86_feature_detected!("f16c")),
        ("fma", is_x86_feature_detected!("fma")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("avx_vnni", is_x86_feature_detected!("avxvnni")),
        ("gfni", is_x86_feature_detected!("gfni")),
        ("vaes", is_x86_feature_detected!("vaes")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512bw", is_x86_feature_detected!("avx512bw")),
        ("avx512_vbmi", is_x86_feature_detected!("avx512vbmi")),
        ("avx512_vnni", is_x86_feature_detected!("avx512vnni")),
        ("avx512_bf16", is_x86_feature_detected!("avx512bf16")),
        ("avx512_fp16", is_x86_feature_detected!("avx512fp16")),
    ];
    for (name, expected) in cases {
        assert_eq!(cpu.has(name), expected, "{name}");
    }
}
