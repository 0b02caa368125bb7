//! Tests of quotas and memory limits of control groups: nested, in namespaces, of both versions, and damaged.

mod common;

use build_info::{Policy, threads};

/// Returns the snapshot of a machine with 8 CPUs and the control group files in `files`.
fn machine(files: &str) -> String {
    format!(
        "arch riscv64\nfile /proc/cpuinfo = processor : 0\nfile /proc/meminfo = MemTotal: 1 kB\n\
         file /sys/devices/system/cpu/online = 0-7\n\
         file /proc/self/status = Cpus_allowed_list: 0-7\n\
         for c in 0-7\nfile /sys/devices/system/cpu/cpu{{c}}/topology/core_cpus_list = {{c}}\nend\n{files}"
    )
}

const V2: &str = "34 24 0:29 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
const V1_CPU: &str = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct";
const V1_MEMORY: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";

#[test]
fn the_tightest_limit_of_all_groups_above_counts() {
    // Description, /proc/self/cgroup, mountinfo, files, expected quota, expected memory limit.
    type Case<'a> = (&'a str, &'a str, &'a str, &'a [(&'a str, &'a str)], Option<f64>, Option<u64>);
    let cases: &[Case] = &[
        ("nothing said", "0::/a/b", V2, &[], None, None),
        ("no control groups", "", "", &[], None, None),
        (
            "not mounted",
            "0::/a",
            "25 19 0:22 / /proc rw - proc proc rw",
            &[("/sys/fs/cgroup/a/cpu.max", "1 1")],
            None,
            None,
        ),
        (
            "v2, own group",
            "0::/a/b",
            V2,
            &[
                ("/sys/fs/cgroup/a/b/cpu.max", "150000 100000"),
                ("/sys/fs/cgroup/a/b/memory.max", "1073741824"),
            ],
            Some(1.5),
            Some(1 << 30),
        ),
        (
            "v2, tightest above",
            "0::/a/b/c",
            V2,
            &[
                ("/sys/fs/cgroup/a/cpu.max", "50000 20000"),
                ("/sys/fs/cgroup/a/memory.max", "4096"),
                ("/sys/fs/cgroup/a/b/cpu.max", "max 100000"),
                ("/sys/fs/cgroup/a/b/memory.max", "max"),
                ("/sys/fs/cgroup/a/b/c/cpu.max", "800000 100000"),
                ("/sys/fs/cgroup/a/b/c/memory.max", "8192"),
            ],
            Some(2.5),
            Some(4096),
        ),
        (
            "v2, at the namespace's root",
            "0::/",
            V2,
            &[("/sys/fs/cgroup/cpu.max", "400000 100000")],
            Some(4.0),
            None,
        ),
        ("v2, another's group", "0::/ab", V2, &[("/sys/fs/cgroup/a/cpu.max", "100000 100000")], None, None),
        (
            "v1, tightest above",
            "5:cpu,cpuacct:/a/b\n4:memory:/m/n\n0::/",
            &format!("{V1_CPU}\n{V1_MEMORY}"),
            &[
                ("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "300000"),
                ("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000"),
                ("/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "-1"),
                ("/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000"),
                ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
                ("/sys/fs/cgroup/memory/m/memory.limit_in_bytes", "65536"),
                ("/sys/fs/cgroup/memory/m/n/memory.limit_in_bytes", "9223372036854710272"),
            ],
            Some(3.0),
            Some(65536),
        ),
        (
            "v1 and v2 side by side",
            "5:cpu,cpuacct:/a\n0::/b",
            &format!("{V1_CPU}\n{V2}"),
            &[
                ("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "400000"),
                ("/sys/fs/cgroup/b/cpu.max", "200000 100000"),
            ],
            Some(2.0),
            None,
        ),
        (
            "v1, Docker without a namespace: the mount shows the group itself",
            "5:cpu,cpuacct:/docker/0a1b/worker",
            "32 31 0:29 /docker/0a1b /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct",
            &[
                ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000"),
                ("/sys/fs/cgroup/cpu/worker/cpu.cfs_quota_us", "200000"),
            ],
            Some(1.5),
            None,
        ),
        (
            "outside of the namespace, by a mount that shows it",
            "0::/../other",
            "34 24 0:29 /.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
            &[("/sys/fs/cgroup/other/cpu.max", "250000 100000")],
            Some(2.5),
            None,
        ),
        (
            "a mount point with a blank",
            "0::/a",
            r"34 24 0:29 / /mnt/my\040groups rw shared:3 master:1 - cgroup2 none rw",
            &[("/mnt/my groups/a/cpu.max", "50000 100000")],
            Some(0.5),
            None,
        ),
        ("the default period", "0::/", V2, &[("/sys/fs/cgroup/cpu.max", "200000")], Some(2.0), None),
    ];
    for (what, groups, mounts, files, quota, memory) in cases {
        let mut text = String::new();
        for (path, content) in [("/proc/self/cgroup", groups), ("/proc/self/mountinfo", mounts)].iter() {
            text += &format!("file {path}\n");
            text.extend(content.lines().map(|line| format!("| {line}\n")));
        }
        text.extend(files.iter().map(|(path, content)| format!("file {path} = {content}\n")));
        let detected = common::detect(&machine(&text));
        assert_eq!(detected.warnings, [""; 0], "{what}");
        let limits = detected.host.limits;
        assert_eq!((limits.cpu_quota, limits.memory.map(|bytes| bytes.0)), (*quota, *memory), "{what}");
    }
}

#[test]
fn what_cannot_be_read_is_said_and_no_limit() {
    // /proc/self/cgroup, file, its content, a word of the warning.
    let cases = [
        ("0::/", "cpu.max", "garbage", "garbage"),
        ("0::/", "cpu.max", "0 100000", "CPU quota"),
        ("0::/", "cpu.max", "100000 0", "CPU quota"),
        ("0::/", "cpu.max", "-5 100000", "CPU quota"),
        ("0::/", "cpu.max", "99999999999999999999999 1", "CPU quota"),
        ("0::/", "memory.max", "much", "memory limit"),
        ("0::/", "memory.max", "-1", "memory limit"),
        ("0::/../elsewhere", "cpu.max", "100000 100000", "does not show this group"),
    ];
    for (group, file, content, word) in cases {
        let text = format!(
            "file /proc/self/cgroup = {group}\nfile /proc/self/mountinfo = {V2}\nfile /sys/fs/cgroup/{file} = {content}"
        );
        let detected = common::detect(&machine(&text));
        let limits = detected.host.limits;
        assert_eq!((limits.cpu_quota, limits.memory), (None, None), "{content}");
        let [warning] = &detected.warnings[..] else { panic!("{content}: {:?}", detected.warnings) };
        assert!(warning.contains(word), "{warning}");
    }
}

#[test]
fn a_mount_from_above_the_namespace_shows_only_its_top() {
    let text = "file /proc/self/cgroup = 0::/inner\n\
                file /proc/self/mountinfo = 34 24 0:29 /../.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n\
                file /sys/fs/cgroup/cpu.max = 300000 100000\n\
                file /sys/fs/cgroup/inner/cpu.max = 100000 100000\n";
    let detected = common::detect(&machine(text));
    assert_eq!(detected.host.limits.cpu_quota, Some(3.0));
    assert!(detected.warnings[0].contains("cannot read all limits"), "{:?}", detected.warnings);
    // With a second mount by the container's runtime, all limits are known.
    let text = text.replace("rw\nfile", "rw\nfile /own/inner/cpu.max = 200000 100000\nfile").replacen(
        "file /proc/self/mountinfo = ",
        "file /proc/self/mountinfo\n| 35 24 0:29 / /own rw - cgroup2 cgroup2 rw\n| ",
        1,
    );
    let detected = common::detect(&machine(&text));
    assert_eq!((detected.host.limits.cpu_quota, detected.warnings.len()), (Some(2.0), 0));
}

#[test]
fn damaged_files_of_proc_do_no_harm() {
    for garbage in
        ["", ":::", "0:", "x:y", "0::", "- - - -", "1 2 3 - cgroup2", "0::/a/../../b", "\u{fffd}\u{0}"]
    {
        let text = format!("file /proc/self/cgroup = {garbage}\nfile /proc/self/mountinfo = {garbage}\n");
        let limits = common::detect(&machine(&text)).host.limits;
        assert_eq!((limits.cpu_quota, limits.memory), (None, None), "{garbage:?}");
    }
}

#[test]
fn threads_follow_the_quota_down_but_not_to_zero() {
    for (quota, cores) in [("50000", 1), ("150000", 1), ("200000", 2), ("799999", 7), ("1600000", 8)] {
        let text = format!(
            "file /proc/self/cgroup = 0::/\nfile /proc/self/mountinfo = {V2}\nfile /sys/fs/cgroup/cpu.max = {quota} 100000"
        );
        let host = common::detect(&machine(&text)).host;
        assert_eq!(threads::budget(&host, Policy::Max).cores, cores, "{quota}");
    }
}
