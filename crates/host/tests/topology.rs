//! Tests of cores and affinity on machines whose `/sys` is incomplete or unusual.

mod common;

use build_info::host::CoreKind;
use build_info::{Policy, threads};

/// Returns the CPUs of each core.
fn cores(host: &build_info::Host) -> Vec<Vec<u32>> {
    host.topology.cores.iter().map(|core| core.cpus.clone()).collect()
}

#[test]
fn offline_cpus_are_no_cores() {
    // CPU 2, the sibling of 0, and CPUs 1 and 3 are offline, but the mask contains all of them.
    let text = common::snapshot("i3-6100") + "file /sys/devices/system/cpu/online = 0\n";
    let host = common::detect(&text).host;
    assert_eq!(cores(&host), [[0]]);
    assert_eq!(host.limits.affinity, [0]);
    assert_eq!(host.topology.nodes[0].cpus, [0]);
}

#[test]
fn affinity_bounds_the_threads() {
    // Affinity mask, cores, CPUs of the threads, limit that determines them.
    let cases: [(&str, u32, &[u32], &str); 4] = [
        ("3,19", 1, &[3], "affinity mask"),
        ("19", 1, &[19], "affinity mask"),
        ("0,16,1,18", 3, &[0, 1, 18], "affinity mask"),
        ("0-15", 16, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], "physical cores"),
    ];
    for (mask, count, cpus, bound_by) in cases {
        let text = common::snapshot("ryzen-7950x")
            + &format!("file /proc/self/status = Cpus_allowed_list: {mask}\n");
        let budget = threads::budget(&common::detect(&text).host, Policy::Max);
        assert_eq!((budget.cores, budget.cpus.as_slice()), (count, cpus), "{mask}");
        assert_eq!(budget.bound_by, bound_by, "{mask}");
    }
    // On a hybrid CPU without usable performance cores, the efficiency cores are used.
    let text = common::snapshot("i7-12700k") + "file /proc/self/status = Cpus_allowed_list: 17-18\n";
    assert_eq!(threads::budget(&common::detect(&text).host, Policy::Max).cpus, [17, 18]);
    // One performance core (CPUs 0 and 1) with two or with three efficiency cores: an efficiency core counts half.
    for (mask, cpus, bound_by) in [
        ("0-1,17-18", &[0][..], "performance cores"),
        ("0-1,17-19", &[0, 17, 18, 19], "performance and efficiency cores"),
    ] {
        let text =
            common::snapshot("i7-12700k") + &format!("file /proc/self/status = Cpus_allowed_list: {mask}\n");
        let budget = threads::budget(&common::detect(&text).host, Policy::Max);
        assert_eq!((budget.cpus.as_slice(), budget.bound_by.as_str()), (cpus, bound_by), "{mask}");
    }
}

#[test]
fn garbage_in_a_list_is_said_and_something_sensible_taken() {
    for garbage in ["0-", "9999999999", "3-1", "0-4294967295", "0-9999999999", "zero"] {
        let text =
            common::snapshot("i3-6100") + &format!("file /proc/self/status = Cpus_allowed_list: {garbage}\n");
        let detected = common::detect(&text);
        assert_eq!(detected.host.limits.affinity, [0, 1, 2, 3], "{garbage}");
        assert!(detected.warnings[0].contains("affinity mask"), "{:?}", detected.warnings);

        let text =
            common::snapshot("i3-6100") + &format!("file /sys/devices/system/cpu/online = {garbage}\n");
        let detected = common::detect(&text);
        assert_eq!(detected.host.limits.affinity, [0, 1, 2, 3], "{garbage}");
        assert_eq!(cores(&detected.host), [[0, 2], [1, 3]], "{garbage}");
        assert!(detected.warnings[0].contains("cpu/online"), "{:?}", detected.warnings);

        let path = "/sys/devices/system/cpu/cpu0/topology/core_cpus_list";
        let text = common::snapshot("i3-6100") + &format!("file {path} = {garbage}\n");
        let detected = common::detect(&text);
        assert_eq!(detected.host.topology.logical_cpus(), 4, "{garbage}");
        assert!(detected.warnings[0].contains(path), "{:?}", detected.warnings);
    }
}

/// Returns the lines of a snapshot that are not files below `folder`.
fn without(text: &str, folder: &str) -> String {
    text.lines().filter(|line| !line.contains(folder)).map(|line| format!("{line}\n")).collect()
}

#[test]
fn a_container_without_sys_falls_back_on_cpuinfo_and_cpuid() {
    let cpuinfo =
        "file /proc/cpuinfo\nfor c in 0-3\n| processor : {c}\n| physical id : 0\n| core id : {c%2}\n|\nend\n";
    let detected = common::detect(&(without(&common::snapshot("i3-6100"), "/sys/devices") + cpuinfo));
    assert_eq!(detected.warnings, [""; 0]);
    assert_eq!(cores(&detected.host), [[0, 2], [1, 3]]);
    assert!(detected.host.topology.nodes.is_empty());
    let core = &detected.host.topology.cores[1];
    let told =
        [core.l1d, core.l2, core.l3].map(|cache| cache.map(|cache| (cache.size.0 >> 10, cache.shared_by)));
    assert_eq!(told, [Some((32, 2)), Some((256, 2)), Some((3072, 4))]);
}

#[test]
fn without_sys_and_cpuinfo_each_cpu_of_the_mask_is_a_core() {
    let detected = common::detect(&without(&common::snapshot("i3-6100"), "/sys/devices"));
    assert_eq!(cores(&detected.host), [[0], [1], [2], [3]]);
    assert_eq!(detected.warnings.len(), 2, "{:?}", detected.warnings);
    assert!(detected.warnings[1].contains("SMT siblings"), "{:?}", detected.warnings);
}

#[test]
fn a_machine_that_shows_nothing_is_no_reason_to_fail() {
    let detected = common::detect("arch x86_64\n");
    assert_eq!(threads::budget(&detected.host, Policy::Max).cores, 1);
    assert!(detected.host.topology.cores.is_empty());
    for word in ["instruction sets", "processor", "memory", "affinity mask", "online"] {
        assert!(
            detected.warnings.iter().any(|warning| warning.contains(word)),
            "{word}: {:?}",
            detected.warnings
        );
    }
}

#[test]
fn a_hybrid_whose_kinds_are_not_shown() {
    let text = without(&common::snapshot("i7-12700k"), "/sys/devices/cpu_");
    let detected = common::detect(&text);
    assert!(!detected.host.topology.is_hybrid());
    assert!(detected.warnings[0].contains("hybrid"), "{:?}", detected.warnings);
    // Capacities also identify efficiency cores.
    let capacities = "for c in 0-15\nfile /sys/devices/system/cpu/cpu{c}/cpu_capacity = 1024\nend\n\
                      for c in 16-19\nfile /sys/devices/system/cpu/cpu{c}/cpu_capacity = 618\nend\n";
    let detected = common::detect(&(text + capacities));
    assert_eq!(detected.warnings, [""; 0]);
    assert_eq!(threads::budget(&detected.host, Policy::Max).cores, 8);
}

#[test]
fn little_arm_cores_are_efficiency_cores_and_slower_big_ones_are_not() {
    let capacities = [
        (0, 290, CoreKind::Efficiency),
        (1, 290, CoreKind::Efficiency),
        (2, 866, CoreKind::Performance),
        (3, 1024, CoreKind::Performance),
    ];
    let mut text = "arch aarch64\nfile /sys/devices/system/cpu/online = 0-3\n".to_string();
    for (cpu, capacity, _) in capacities {
        text += &format!(
            "file /sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list = {cpu}\n\
             file /sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id = -1\n\
             file /sys/devices/system/cpu/cpu{cpu}/cpu_capacity = {capacity}\n"
        );
    }
    let cores = common::detect(&text).host.topology.cores;
    assert_eq!(cores.len(), 4);
    for (core, (cpu, _, kind)) in cores.iter().zip(capacities) {
        assert_eq!((core.cpus[0], core.kind, core.package), (cpu, kind, 0));
    }
}

#[test]
fn cache_files_that_make_no_sense_are_no_caches() {
    for size in ["", "K", "-32K", "0K", "32X", "99999999999999999999K", "18446744073709551615G"] {
        let text = common::snapshot("i3-6100")
            + &format!("file /sys/devices/system/cpu/cpu0/cache/index2/size = {size}\n");
        let cores = common::detect(&text).host.topology.cores;
        assert_eq!((cores[0].l2, cores[1].l2.map(|cache| cache.size.0)), (None, Some(256 << 10)), "{size:?}");
    }
    for level in ["0", "4", "-1", "x"] {
        let text = common::snapshot("i3-6100")
            + &format!("file /sys/devices/system/cpu/cpu0/cache/index2/level = {level}\n");
        assert_eq!(common::detect(&text).host.topology.cores[0].l2, None, "{level:?}");
    }
}
