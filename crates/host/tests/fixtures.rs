//! Tests that every recorded machine is detected as described by its JSON in `fixtures/hosts`, which the planner's
//! tests use. After an intended change, run `UPDATE_FIXTURES=1 cargo test -p host --test fixtures` and read the diff.

use std::path::{Path, PathBuf};

use build_info::host::CoreKind;
use build_info::{Host, Policy, threads};

const NAMES: [&str; 9] = [
    "container-quota-1.5",
    "epyc-2s",
    "i3-6100",
    "i7-12700k",
    "neoverse",
    "ryzen-7950x",
    "ryzen-7950x-4060ti",
    "xeon-e5-2680",
    "zen5-vm",
];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

fn detect(name: &str) -> Host {
    let path = fixtures().join(format!("roots/{name}.root"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let root = host::Root::from_snapshot(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
    let detected = host::detect(&root);
    assert_eq!(detected.warnings, [""; 0], "{name}");
    detected.host
}

#[test]
fn every_recorded_machine_is_read_as_its_json_says() {
    for name in NAMES {
        let host = detect(name);
        let path = fixtures().join(format!("hosts/{name}.json"));
        let json = serde_json::to_string_pretty(&host).expect("a Host is plain data") + "\n";
        if std::env::var_os("UPDATE_FIXTURES").is_some() {
            std::fs::write(&path, &json).expect("the fixture can be written");
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(json == expected, "{name}: not what {} says (UPDATE_FIXTURES=1 rewrites it)", path.display());
        let read: Host = serde_json::from_str(&expected).expect("the fixture is a Host");
        assert_eq!(read, host, "{name}");
    }
}

#[test]
fn no_fixture_is_left_out() {
    for (folder, ending) in [("roots", ".root"), ("hosts", ".json")] {
        let entries = std::fs::read_dir(fixtures().join(folder)).expect("the folder can be listed");
        let mut names: Vec<String> = entries
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("a UTF-8 name"))
            .map(|name| name.strip_suffix(ending).unwrap_or(&name).to_string())
            .collect();
        names.sort();
        assert_eq!(names, NAMES, "{folder}");
    }
}

/// Checks facts about these machines that were written manually, so that a regenerated fixture cannot hide a mistake.
#[test]
fn the_machines_are_what_they_are_sold_as() {
    // Name, vendor, (family, model), level, packages, cores, threads, nodes.
    let cases = [
        ("container-quota-1.5", "AuthenticAMD", Some((25, 1)), Some(3), 1, 64, 128, 1),
        ("epyc-2s", "AuthenticAMD", Some((25, 1)), Some(3), 2, 128, 256, 8),
        ("i3-6100", "GenuineIntel", Some((6, 94)), Some(3), 1, 2, 4, 1),
        ("i7-12700k", "GenuineIntel", Some((6, 151)), Some(3), 1, 12, 20, 1),
        ("neoverse", "ARM", None, None, 1, 64, 64, 1),
        ("ryzen-7950x", "AuthenticAMD", Some((25, 97)), Some(4), 1, 16, 32, 1),
        ("ryzen-7950x-4060ti", "AuthenticAMD", Some((25, 97)), Some(4), 1, 16, 32, 1),
        ("xeon-e5-2680", "GenuineIntel", Some((6, 45)), Some(2), 1, 8, 16, 1),
        ("zen5-vm", "AuthenticAMD", Some((26, 2)), Some(4), 1, 2, 2, 1),
    ];
    assert_eq!(cases.map(|case| case.0), NAMES);
    for (name, vendor, signature, level, packages, cores, threads, nodes) in cases {
        let host = detect(name);
        let cpu = &host.cpu;
        assert_eq!(cpu.vendor, vendor, "{name}");
        assert_eq!(cpu.family.zip(cpu.model), signature, "{name}");
        assert_eq!(cpu.x86_64_level, level, "{name}");
        assert!(cpu.disabled_features.is_empty(), "{name}: {:?}", cpu.disabled_features);
        let topology = &host.topology;
        assert_eq!(
            (topology.packages(), topology.cores.len(), topology.logical_cpus(), topology.nodes.len()),
            (packages, cores, threads, nodes),
            "{name}"
        );
    }
}

#[test]
fn instruction_sets_that_tell_the_machines_apart() {
    // Name, expected instruction sets, absent instruction sets.
    let cases: [(&str, &[&str], &[&str]); 7] = [
        (
            "i3-6100",
            &["avx2", "fma", "f16c", "adx", "clflushopt"],
            &["avx512f", "sha_ni", "avx_vnni", "hybrid"],
        ),
        (
            "i7-12700k",
            &["avx_vnni", "vaes", "gfni", "serialize", "waitpkg", "hybrid"],
            &["avx512f", "amx_tile"],
        ),
        (
            "xeon-e5-2680",
            &["avx", "aes", "pclmulqdq", "popcnt"],
            &["avx2", "fma", "f16c", "bmi1", "movbe", "rdrand"],
        ),
        (
            "ryzen-7950x",
            &["avx512_bf16", "avx512_vnni", "avx512_vbmi", "sse4a"],
            &["avx_vnni", "fma4", "xop"],
        ),
        ("zen5-vm", &["avx_vnni", "avx512_vp2intersect", "movdir64b"], &["avx512_fp16", "amx_tile"]),
        ("epyc-2s", &["avx2", "vaes", "sha_ni", "clwb"], &["avx512f", "gfni"]),
        ("neoverse", &["asimddp", "i8mm", "bf16", "sve"], &["sve2", "avx2"]),
    ];
    for (name, has, has_not) in cases {
        let cpu = detect(name).cpu;
        for feature in has {
            assert!(cpu.has(feature), "{name} has {feature}");
        }
        for feature in has_not {
            assert!(!cpu.has(feature), "{name} has no {feature}");
        }
    }
}

#[test]
fn what_else_the_machines_show() {
    let hybrid = detect("i7-12700k").topology;
    assert!(hybrid.is_hybrid());
    let efficient = hybrid.cores.iter().filter(|core| core.kind == CoreKind::Efficiency);
    assert_eq!(efficient.flat_map(|core| core.cpus.clone()).collect::<Vec<_>>(), [16, 17, 18, 19]);

    let gpus = detect("ryzen-7950x-4060ti").gpus;
    let [gpu] = &gpus[..] else { panic!("{gpus:?}") };
    assert_eq!((gpu.name.as_str(), gpu.compute_capability.as_str()), ("NVIDIA GeForce RTX 4060 Ti", "8.9"));
    assert_eq!((gpu.memory.0 >> 20, gpu.driver.as_str()), (16380, "570.133.07"));
    assert!(detect("ryzen-7950x").gpus.is_empty());

    let limits = detect("container-quota-1.5").limits;
    assert_eq!((limits.cpu_quota, limits.memory.map(|memory| memory.0)), (Some(1.5), Some(8 << 30)));
    let vm = detect("zen5-vm");
    assert_eq!((vm.limits.cpu_quota, vm.limits.memory), (None, None));
    assert_eq!(vm.os.hypervisor.as_deref(), Some("KVM"));

    let last = detect("epyc-2s").topology.cores.pop().expect("128 cores");
    assert_eq!((last.package, last.node, last.cpus), (1, 7, vec![127, 255]));
    assert_eq!(last.l3.map(|cache| (cache.size.0 >> 20, cache.shared_by)), Some((32, 16)));
}

#[test]
fn threads_of_the_machines() {
    // Name, cores, decode threads under balanced, limit that determines them.
    let cases = [
        ("container-quota-1.5", 1, 1, "CPU quota of 1.5 cores"),
        ("epyc-2s", 128, 96, "physical cores"),
        ("i3-6100", 2, 2, "physical cores"),
        ("i7-12700k", 8, 6, "performance cores"),
        ("neoverse", 64, 48, "physical cores"),
        ("ryzen-7950x", 16, 12, "physical cores"),
        ("ryzen-7950x-4060ti", 16, 12, "physical cores"),
        ("xeon-e5-2680", 8, 6, "physical cores"),
        ("zen5-vm", 2, 2, "physical cores"),
    ];
    assert_eq!(cases.map(|case| case.0), NAMES);
    for (name, cores, decode, bound_by) in cases {
        let host = detect(name);
        let budget = threads::budget(&host, Policy::Balanced);
        assert_eq!((budget.cores, budget.prefill, budget.decode), (cores, cores, decode), "{name}");
        assert_eq!(budget.bound_by, bound_by, "{name}");
        // One CPU per core, without duplicates.
        let mut placed = budget.cpus.clone();
        placed.sort_unstable();
        placed.dedup();
        assert_eq!(placed.len(), budget.cpus.len(), "{name}");
        for core in &host.topology.cores {
            assert!(core.cpus.iter().filter(|cpu| placed.contains(cpu)).count() <= 1, "{name}: {core:?}");
        }
        let debug = threads::budget(&host, Policy::Debug);
        assert_eq!((debug.prefill, debug.decode), (1, 1), "{name}");
    }
}
