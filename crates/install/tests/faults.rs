//! Tests with a full disk, a read-only prefix, and kills at any moment: the earlier version stays usable, and leftovers
//! do not affect the next installer.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::interference::{INTERFERENCE, library};
use common::{BOTH, Installer, build, listed, name, order, own_command, packed, runs};
use ship::order::Item;

/// Number of incompressible bytes in an archive.
const BALLAST: usize = 4 << 20;

/// Creates the archives 0.1.0, which is small, and 0.2.0 and 0.3.0, which are large.
fn archives(temp: &Path) -> PathBuf {
    let out = temp.join("dist");
    let mut state = 1u64;
    let ballast: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    })
    .take(BALLAST)
    .collect();
    for version in ["0.1.0", "0.2.0", "0.3.0"] {
        let folder = temp.join(version);
        build(&folder, &format!("anneal {version}"));
        let mut order = order(&folder, version, &out);
        // Level 19 is slow for incompressible data, and the level does not matter here.
        order.gz = false;
        if version != "0.1.0" {
            let from = folder.join("ballast");
            fs::write(&from, &ballast).unwrap();
            order.files.push(Item { from, to: "share/doc/anneal/ballast".to_string(), executable: false });
        }
        packed(order);
    }
    out
}

fn archive(dist: &Path, version: &str) -> PathBuf {
    dist.join(format!("{}.tar.zst", name(version)))
}

/// Starts an installation in its own process group, without waiting for it.
fn start(installer: Installer, from: &Path, prefix: &Path, before: &str) -> Child {
    let inner = installer.command(from.to_str().unwrap(), &[], prefix);
    let words = std::iter::once(inner.get_program()).chain(inner.get_args());
    let words: Vec<String> = words.map(|word| format!("'{}'", word.to_string_lossy())).collect();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{before} exec {}", words.join(" "))]);
    command.env_remove("ANNEAL_MINISIGN_KEY").process_group(0);
    // A script that is killed leaves its work folder.
    command.env("TMPDIR", prefix.parent().unwrap());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Returns the names of leftovers in a prefix.
fn leavings(prefix: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for folder in ["lib/anneal", "bin", "lib/anneal/versions"] {
        for entry in fs::read_dir(prefix.join(folder)).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if (name.starts_with('.') || name.contains(".new")) && name != ".lock" {
                found.push(format!("{folder}/{name}"));
            }
        }
    }
    found
}

/// Waits until the lock is free. The children of a killed script hold the lock until the kernel has ended them, which
/// may be after the shell was reaped.
fn wait_for_the_lock(prefix: &Path) {
    let lock = fs::OpenOptions::new().write(true).open(prefix.join("lib/anneal/.lock")).unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    while lock.try_lock().is_err() {
        assert!(Instant::now() < deadline, "the lock of {} is still held", prefix.display());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// File system of limited size, mounted at this path. Requires root and permission to mount.
struct Mounted(PathBuf);

impl Mounted {
    fn new(place: &Path, size: usize) -> Option<Self> {
        fs::create_dir_all(place).unwrap();
        let option = format!("size={size}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &option, "tmpfs"]).arg(place).output();
        mounted.ok()?.status.success().then(|| Self(place.to_path_buf()))
    }

    fn remount(&self, option: &str) {
        let option = format!("remount,{option}");
        let done = Command::new("mount").args(["-o", &option]).arg(&self.0).status().unwrap();
        assert!(done.success(), "cannot {option} {}", self.0.display());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Reports the running test as skipped. Tests with a limit on the file size cover the same code.
fn cannot_mount() {
    skipped::because("no small file system can be mounted here (this needs root)");
}

#[test]
fn a_full_disk_leaves_the_version_before() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path());
    for installer in BOTH {
        // The disk is full at the beginning, in the middle of the large file, and at the very end.
        for size in [256 << 10, 2 << 20, BALLAST, BALLAST + (64 << 10), BALLAST + (160 << 10)] {
            let Some(disk) = Mounted::new(&temp.path().join("disk"), size) else { return cannot_mount() };
            let prefix = disk.0.join("prefix");
            let (code, words) = installer.install(&archive(&dist, "0.1.0"), &prefix);
            assert_eq!(code, 0, "{installer:?}, {size}: {words}");
            let (code, words) = installer.install(&archive(&dist, "0.2.0"), &prefix);
            if code == 0 {
                // If the archive fitted after all, it must be complete.
                assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.2.0"), "{installer:?}, {size}");
                assert!(size > BALLAST, "{installer:?}: {BALLAST} bytes on a disk of {size}");
                continue;
            }
            assert_eq!(code, 1, "{installer:?}, {size}: {words}");
            assert!(
                words.contains("No space left") || words.contains("disk is full"),
                "{installer:?}: {words}"
            );
            assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.1.0"), "{installer:?}, {size}: {words}");
            assert_eq!(leavings(&prefix), Vec::<String>::new(), "{installer:?}, {size}");
            assert_eq!(fs::read_dir(prefix.join("lib/anneal/versions")).unwrap().count(), 1);
            // After freeing space, the installation succeeds.
            disk.remount("size=64m");
            let (code, words) = installer.install(&archive(&dist, "0.2.0"), &prefix);
            assert_eq!(code, 0, "{installer:?}, {size}: {words}");
            assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.2.0"));
        }
    }
}

#[test]
fn a_file_that_may_not_get_large_leaves_the_version_before() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path());
    for installer in BOTH {
        let prefix = temp.path().join(format!("{installer:?}"));
        installer.install(&archive(&dist, "0.1.0"), &prefix);
        // The limit is in blocks of 512 bytes: half of the ballast.
        let mut child = start(installer, &archive(&dist, "0.2.0"), &prefix, "ulimit -f 4096;");
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(1), "{installer:?}: {status}");
        assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.1.0"), "{installer:?}");
        assert_eq!(leavings(&prefix), Vec::<String>::new(), "{installer:?}");
    }
}

#[test]
fn a_prefix_that_cannot_be_written_to_is_named() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path());
    for installer in BOTH {
        let place = temp.path().join(format!("{installer:?}"));
        let root = rustix::process::geteuid().is_root();
        let disk = if root { Mounted::new(&place, 16 << 20) } else { None };
        if root && disk.is_none() {
            return cannot_mount();
        }
        let prefix = place.join("prefix");
        installer.install(&archive(&dist, "0.1.0"), &prefix);
        let writable = |yes: bool| match &disk {
            Some(disk) => disk.remount(if yes { "rw" } else { "ro" }),
            None => {
                let mode = if yes { 0o755 } else { 0o555 };
                for folder in ["", "lib/anneal", "lib/anneal/versions"] {
                    fs::set_permissions(prefix.join(folder), fs::Permissions::from_mode(mode)).unwrap();
                }
            }
        };
        writable(false);
        let (code, words) = installer.install(&archive(&dist, "0.2.0"), &prefix);
        let (new_code, new_words) = installer.install(&archive(&dist, "0.2.0"), &prefix.join("below"));
        let still = runs(&prefix);
        writable(true);
        assert_eq!(code, 1, "{installer:?}: {words}");
        assert!(words.contains(prefix.to_str().unwrap()), "{installer:?}: {words}");
        assert_eq!(new_code, 1, "{installer:?}: {new_words}");
        assert!(new_words.contains("--prefix DIR"), "{installer:?}: {new_words}");
        assert_eq!(still.as_deref(), Some("anneal 0.1.0"), "{installer:?}");
    }
}

#[test]
fn a_kill_at_any_moment_leaves_a_version_that_runs() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path());
    for installer in BOTH {
        let prefix = temp.path().join(format!("{installer:?}"));
        let (code, words) = installer.install(&archive(&dist, "0.1.0"), &prefix);
        assert_eq!(code, 0, "{words}");
        let begun = Instant::now();
        assert!(start(installer, &archive(&dist, "0.2.0"), &prefix, "").wait().unwrap().success());
        let whole = begun.elapsed();

        let mut before = "anneal 0.2.0".to_string();
        let mut killed = 0;
        for turn in 0..20 {
            let version = if turn % 2 == 0 { "0.3.0" } else { "0.2.0" };
            // An installed version is removed first, because installing it again would leave little to interrupt.
            let version_of = |link: &str| prefix.join("lib/anneal").join(link).canonicalize().ok();
            let previous =
                version_of("previous").filter(|folder| Some(folder) != version_of("current").as_ref());
            if let Some(previous) = previous {
                fs::remove_dir_all(previous).unwrap();
            }
            let mut child = start(installer, &archive(&dist, version), &prefix, "");
            std::thread::sleep(whole.mul_f64(f64::from(turn) / 19.0));
            let group = rustix::process::Pid::from_child(&child);
            let signal = rustix::process::Signal::KILL;
            let _ = rustix::process::kill_process_group(group, signal);
            let status = child.wait().unwrap();
            killed += u32::from(!status.success());
            wait_for_the_lock(&prefix);
            let now = runs(&prefix).unwrap_or_else(|| panic!("{installer:?}, turn {turn}: nothing runs"));
            assert!(now == before || now == format!("anneal {version}"), "{installer:?}, turn {turn}: {now}");
            before = now;
        }
        assert!(killed > 5, "{installer:?}: only {killed} of 20 were killed before their end");
        for version in ["0.3.0", "0.2.0"] {
            let (code, words) = installer.install(&archive(&dist, version), &prefix);
            assert_eq!(code, 0, "{installer:?}: {words}");
            assert_eq!(runs(&prefix), Some(format!("anneal {version}")));
        }
        assert_eq!(leavings(&prefix), Vec::<String>::new(), "{installer:?}");
        let (code, words) = installer.uninstall(&prefix, true);
        assert_eq!(code, 0, "{installer:?}: {words}");
        assert!(!prefix.exists(), "{installer:?} left {:?}", common::snapshot(&prefix));
    }
}

/// If the process is killed between the two renames of a switch, both links point to the same version. The version that
/// `previous` points to may also have been removed.
#[test]
fn a_kill_within_a_switch_leaves_a_way_back() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path());
    let previous = [Some(name("0.2.0")), Some(name("0.0.9")), None];
    for (installer, previous) in BOTH.into_iter().flat_map(|each| previous.clone().map(|link| (each, link))) {
        let prefix = tempfile::tempdir_in(temp.path()).unwrap();
        let prefix = prefix.path();
        for version in ["0.1.0", "0.3.0", "0.2.0"] {
            let (code, words) = installer.install(&archive(&dist, version), prefix);
            assert_eq!(code, 0, "{installer:?}: {words}");
        }
        let link = prefix.join("lib/anneal/previous");
        fs::remove_file(&link).unwrap();
        if let Some(previous) = &previous {
            std::os::unix::fs::symlink(format!("versions/{previous}"), &link).unwrap();
        }
        if installer == Installer::Program {
            let back = listed(prefix).into_iter().filter(|version| version["previous"] == true);
            let back: Vec<_> = back.map(|mut version| version["name"].take()).collect();
            assert_eq!(back, [name("0.3.0")], "{previous:?}");
        }
        // The second rollback returns to the first version.
        for expected in ["anneal 0.3.0", "anneal 0.2.0"] {
            let (code, words) = installer.rollback(prefix);
            assert_eq!(code, 0, "{installer:?}, {previous:?}: {words}");
            assert_eq!(runs(prefix).as_deref(), Some(expected), "{installer:?}, {previous:?}: {words}");
        }
    }
}

#[test]
fn whoever_is_asked_to_stop_takes_away_what_was_begun() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path());
    for installer in BOTH {
        let prefix = temp.path().join(format!("{installer:?}"));
        installer.install(&archive(&dist, "0.1.0"), &prefix);
        let mut child = start(installer, &archive(&dist, "0.2.0"), &prefix, "");
        // Waits until the installation has begun.
        let deadline = Instant::now() + Duration::from_secs(120);
        while leavings(&prefix).is_empty() && Instant::now() < deadline && child.try_wait().unwrap().is_none()
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        let group = rustix::process::Pid::from_child(&child);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::TERM);
        let status = child.wait().unwrap();
        let expected = if status.success() { "anneal 0.2.0" } else { "anneal 0.1.0" };
        assert!(status.success() || status.code() == Some(130), "{installer:?}: {status}");
        assert_eq!(runs(&prefix).as_deref(), Some(expected), "{installer:?}: {status}");
        assert_eq!(leavings(&prefix), Vec::<String>::new(), "{installer:?}: {status}");
    }
}

#[test]
fn a_disk_that_fails_after_the_switch_takes_nothing_away() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path());
    let library = library(temp.path(), INTERFERENCE);
    let prefix = temp.path().join("prefix");
    let versions = prefix.join("lib/anneal/versions");
    Installer::Program.install(&archive(&dist, "0.1.0"), &prefix);
    // Links that were made for the version must also be kept.
    let page = prefix.join("share/man/man1/anneal.1");
    fs::remove_file(&page).unwrap();
    let failing = |mut command: Command| {
        command.env("LD_PRELOAD", &library).env("SWITCH", name("0.2.0")).env("FAIL", "fsync");
        common::ended(command)
    };
    let from = archive(&dist, "0.2.0");
    let (code, words) = failing(Installer::Program.command(from.to_str().unwrap(), &[], &prefix));
    assert_eq!(code, 1, "{words}");
    assert!(words.contains("to the disk"), "{words}");
    assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.2.0"), "{words}");
    assert!(versions.join(name("0.2.0")).is_dir() && page.is_file());
    let (code, words) = Installer::Program.rollback(&prefix);
    assert_eq!(code, 0, "{words}");
    assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.1.0"));
    // The same applies to switching away from a version.
    let (code, words) = failing(own_command(&["uninstall"], &prefix));
    assert_eq!(code, 1, "{words}");
    assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.2.0"), "{words}");
    assert!(page.is_file());
}

#[test]
fn two_installers_do_not_meet() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path());
    let prefix = temp.path().join("prefix");
    Installer::Program.install(&archive(&dist, "0.1.0"), &prefix);
    let lock = fs::OpenOptions::new().write(true).open(prefix.join("lib/anneal/.lock")).unwrap();
    lock.lock().unwrap();
    fs::write(prefix.join("lib/anneal/.lock"), "install of process 1").unwrap();
    for installer in BOTH {
        for (code, words) in [
            installer.install(&archive(&dist, "0.2.0"), &prefix),
            installer.rollback(&prefix),
            installer.uninstall(&prefix, true),
        ] {
            assert_eq!(code, 75, "{installer:?}: {words}");
            assert!(words.contains("install of process 1 is running"), "{installer:?}: {words}");
        }
    }
    drop(lock);
    let (code, words) = Installer::Script.install(&archive(&dist, "0.2.0"), &prefix);
    assert_eq!(code, 0, "{words}");
}
