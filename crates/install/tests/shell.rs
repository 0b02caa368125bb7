//! Tests of install.sh and `anneal self` with misbehaving programs and interference: the current version stays intact.

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::interference::{INTERFERENCE, library};
use common::{
    BOTH, Installer, archives, ended, name, own, own_command, runs, script, script_command, script_with,
    snapshot, stand_in, tools,
};

fn archive(dist: &Path, version: &str) -> PathBuf {
    dist.join(format!("{}.tar.zst", name(version)))
}

/// Creates archives of three versions, and a prefix with the first two versions.
fn prepared(temp: &Path) -> (PathBuf, PathBuf) {
    let dist = archives(temp, &["0.1.0", "0.2.0", "0.3.0"]);
    let prefix = temp.join("prefix");
    for version in ["0.1.0", "0.2.0"] {
        let (code, words) = Installer::Script.install(&archive(&dist, version), &prefix);
        assert_eq!(code, 0, "{words}");
    }
    (dist, prefix)
}

/// Returns the state of the prefix without the lock file, which names its last holder.
fn state(prefix: &Path) -> std::collections::BTreeMap<String, String> {
    let mut found = snapshot(prefix);
    found.retain(|name, _| !name.ends_with(".lock"));
    found
}

/// The signal arrives directly after the switch, from ctrl-C, from a service manager, or from `kill` with the ID of the
/// shell.
#[test]
fn a_signal_after_the_switch_takes_nothing_away() {
    let temp = tempfile::tempdir().unwrap();
    let (dist, prefix) = prepared(temp.path());
    let library = library(temp.path(), INTERFERENCE);
    let from = archive(&dist, "0.3.0");
    for installer in BOTH {
        for (signal, to) in
            [("15", "group"), ("2", "group"), ("1", "group"), ("15", "parent"), ("2", "parent")]
        {
            if installer == Installer::Program && to == "parent" {
                continue;
            }
            let mut command = installer.command(from.to_str().unwrap(), &[], &prefix);
            command
                .env("LD_PRELOAD", &library)
                .env("SWITCH", name("0.3.0"))
                .env("SIGNAL", signal)
                .env("TO", to);
            command.process_group(0);
            let (code, words) = ended(command);
            assert_eq!(
                runs(&prefix).as_deref(),
                Some("anneal 0.3.0"),
                "{installer:?} {signal} {to}: {words}"
            );
            assert_eq!(code, 0, "{installer:?} {signal} {to}: {words}");
            let late = format!("the request to stop came too late: {} is current", name("0.3.0"));
            assert!(words.contains(&late), "{installer:?} {signal} {to}: {words}");
            for expected in ["anneal 0.2.0", "anneal 0.3.0"] {
                let (code, words) = installer.rollback(&prefix);
                assert_eq!((code, runs(&prefix).as_deref()), (0, Some(expected)), "{signal} {to}: {words}");
            }
            let (code, words) = installer.uninstall(&prefix, false);
            assert_eq!((code, runs(&prefix).as_deref()), (0, Some("anneal 0.2.0")), "{words}");
        }
    }
}

/// Library that sends the signal in SIGNAL when the installer makes its work folder.
const EARLY: &str = r#"
    #include <signal.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/stat.h>
    #include <unistd.h>
    int mkdir(const char *path, mode_t mode) {
        static int asked;
        if (strstr(path, "/.staging-") && !asked) {
            asked = 1;
            kill(strcmp(getenv("TO"), "parent") ? 0 : getppid(), atoi(getenv("SIGNAL")));
            usleep(200000);
        }
        return mkdirat(-100, path, mode);
    }
"#;

/// The script passes on a signal that the installer may have got itself. This must not count as a second request, which
/// would end the installer before it has cleaned up.
#[test]
fn a_signal_before_the_switch_leaves_the_version_before_and_no_work_folder() {
    let temp = tempfile::tempdir().unwrap();
    let (dist, prefix) = prepared(temp.path());
    let work = temp.path().join("work");
    fs::create_dir(&work).unwrap();
    let from = archive(&dist, "0.3.0");
    let before = state(&prefix);
    let library = library(temp.path(), EARLY);
    for to in ["parent", "group"] {
        for signal in ["15", "2", "1"] {
            let mut command = script_command(&["--from", from.to_str().unwrap()], &prefix);
            command.env("LD_PRELOAD", &library).env("SIGNAL", signal).env("TO", to).env("TMPDIR", &work);
            command.process_group(0);
            let (code, words) = ended(command);
            assert_eq!(code, 130, "{signal} {to}: {words}");
            assert!(words.contains("stopped; existing files are unchanged"), "{signal} {to}: {words}");
            assert_eq!(state(&prefix), before, "{signal} {to}: {words}");
            assert_eq!(fs::read_dir(&work).unwrap().count(), 0, "{signal} {to}");
        }
    }
}

/// The disk does not confirm the switch.
#[test]
fn a_disk_that_fails_after_the_switch_tells_what_is_current() {
    let temp = tempfile::tempdir().unwrap();
    let (dist, prefix) = prepared(temp.path());
    let library = library(temp.path(), INTERFERENCE);
    let from = archive(&dist, "0.3.0");
    for installer in BOTH {
        let mut command = installer.command(from.to_str().unwrap(), &[], &prefix);
        command.env("LD_PRELOAD", &library).env("SWITCH", name("0.3.0")).env("FAIL", "fsync");
        let (code, words) = ended(command);
        let told = format!("{} is current, but", name("0.3.0"));
        assert_eq!(code, 1, "{installer:?}: {words}");
        assert!(words.contains(&told) && words.contains("to the disk"), "{installer:?}: {words}");
        assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.3.0"), "{installer:?}: {words}");
        let (code, words) = installer.uninstall(&prefix, false);
        assert_eq!((code, runs(&prefix).as_deref()), (0, Some("anneal 0.2.0")), "{installer:?}: {words}");
    }
}

/// A prefix with a line break, and one that leaves no room for file names, are refused before anything is created.
#[test]
fn a_prefix_that_cannot_be_used_leaves_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path(), &["0.1.0"]);
    let from = archive(&dist, "0.1.0");
    let below = temp.path().join("below");
    fs::create_dir(&below).unwrap();
    let length = 4020 - below.as_os_str().len();
    let long = vec!["d".repeat(200); 20].join("/")[..length].to_string();
    let from = from.to_str().unwrap();
    for (name, expected) in [("new\nline", "line break"), ("end\n", "line break"), (&long, "bytes")] {
        let prefix = below.join(name);
        let commands = [&["--from", from][..], &["--rollback"], &["--uninstall", "--all"]];
        let commands = commands.map(|arguments| script_command(arguments, &prefix));
        let own = [&["install", "--from", from][..], &["rollback"], &["uninstall", "--all"], &["list"]];
        for mut command in commands.into_iter().chain(own.map(|arguments| own_command(arguments, &prefix))) {
            let output = command.current_dir(&below).output().unwrap();
            let words = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{command:?}: {words}");
            assert!(words.contains(expected), "{command:?}: {words}");
            assert_eq!(fs::read_dir(&below).unwrap().count(), 0, "{command:?}: {words}");
        }
    }
}

/// A path need not be text.
#[test]
fn a_prefix_of_any_bytes_is_used_and_goes_again() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path(), &["0.1.0"]);
    let above = temp.path().join(OsStr::from_bytes(b"n\xffx"));
    for installer in BOTH {
        let prefix = above.join("prefix");
        let (code, words) = installer.install(&archive(&dist, "0.1.0"), &prefix);
        assert_eq!((code, runs(&prefix).as_deref()), (0, Some("anneal 0.1.0")), "{installer:?}: {words}");
        let (code, words) = own(&["list", "--json"], &prefix);
        assert!(code == 2 && words.contains("not valid UTF-8"), "{code}: {words}");
        let (code, words) = installer.uninstall(&prefix, true);
        assert_eq!((code, above.exists()), (0, false), "{installer:?}: {words}");
    }
}

/// File names and the output of other programs must not send escape sequences to the terminal.
#[test]
fn what_is_said_holds_no_escape_sequences() {
    let temp = tempfile::tempdir().unwrap();
    let prefix = temp.path().join("prefix");
    for from in ["e\u{1b}]0;EVIL\u{7}x.tar.gz", "anneal-\u{1b}[2J\u{7f}.tar.gz"] {
        let (code, words) = script(&["--from", from], &prefix);
        assert_eq!(code, 2, "{words}");
        assert!(words.contains(".tar.gz is not an archive"), "{words}");
        assert!(words.chars().all(|char| !char.is_control() || char == '\n'), "{words:?}");
        let (code, words) = Installer::Program.install_with(from, &prefix, &[]);
        assert_eq!(code, 1, "{words}");
        assert!(words.chars().all(|char| !char.is_control() || char == '\n'), "{words:?}");
    }
}

/// A list of sums is read line by line, which would take hours for a large one.
#[test]
fn a_large_sum_or_signature_is_refused_at_once() {
    let temp = tempfile::tempdir().unwrap();
    let (dist, prefix) = prepared(temp.path());
    let from = archive(&dist, "0.3.0");
    let list = dist.join(format!("{}.tar.zst.sha256", name("0.3.0")));
    let line = format!("{}  x\n", "c".repeat(64));
    let many = line.repeat((1 << 16) / line.len() + 1) + &fs::read_to_string(&list).unwrap();
    fs::write(&list, many).unwrap();
    for (installer, expected) in
        [(Installer::Script, "larger than 65536 bytes"), (Installer::Program, "larger than 64")]
    {
        let (code, words) = installer.install(&from, &prefix);
        assert!(code == 1 && words.contains(expected), "{code}: {words}");
        assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.2.0"));
    }
}

/// Output goes to a full device or to a closed pipe. The work is still done or refused, and the exit code still shows
/// which.
#[test]
fn what_cannot_be_said_is_done_all_the_same() {
    let temp = tempfile::tempdir().unwrap();
    let (dist, prefix) = prepared(temp.path());
    let from = archive(&dist, "0.3.0");
    let from = from.to_str().unwrap();
    let redirected = |command: Command, to: &str| {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words = words.map(|word| format!("'{}'", word.display())).collect::<Vec<_>>().join(" ");
        let line = format!("unset ANNEAL_MINISIGN_KEY; {words} {to}");
        let output = Command::new("bash").args(["-o", "pipefail", "-c", &line]).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // Each command undoes the previous command.
    let steps = [("install", "0.3.0"), ("rollback", "0.2.0"), ("install", "0.3.0"), ("uninstall", "0.2.0")];
    let command = |installer: Installer, step: &str| match (installer, step) {
        (_, "install") => installer.command(from, &[], &prefix),
        (Installer::Program, _) => own_command(&[step], &prefix),
        (Installer::Script, _) => script_command(&[&format!("--{step}")], &prefix),
    };
    for (to, expected, told) in [
        (">/dev/full", 1, "cannot write to stdout, but this is done: "),
        (">/dev/full 2>&1", 1, ""),
        ("2>/dev/full", 0, ""),
        ("2>&1 | true", 0, ""),
    ] {
        for (installer, (step, version)) in BOTH.into_iter().flat_map(|each| steps.map(|step| (each, step))) {
            let (code, words) = redirected(command(installer, step), to);
            assert_eq!(code, expected, "{installer:?} {step} {to}: {words}");
            assert!(words.contains(told), "{installer:?} {step} {to}: {words}");
            assert_eq!(
                runs(&prefix),
                Some(format!("anneal {version}")),
                "{installer:?} {step} {to}: {words}"
            );
            let left = |name: &String| name.contains(".staging-");
            assert!(!snapshot(&prefix).keys().any(left), "{step} {to}: {:?}", snapshot(&prefix));
        }
        // The error determines the exit code, even if the message cannot be printed.
        assert_eq!(redirected(script_command(&["--nonsense"], &prefix), to).0, 2, "{to}");
        assert_eq!(redirected(own_command(&["--nonsense"], &prefix), to).0, 2, "{to}");
    }
    for to in [">/dev/full", ">/dev/full 2>&1"] {
        Installer::Script.install(Path::new(from), &prefix);
        let (code, words) = redirected(script_command(&["--uninstall", "--all"], &prefix), to);
        assert_eq!((code, snapshot(&prefix).len()), (1, 0), "{to}: {words}");
    }
}

/// A rollback exchanges both links with one rename, so it has no intermediate state.
#[test]
fn a_switch_that_fails_leaves_the_way_back_as_it_was() {
    let temp = tempfile::tempdir().unwrap();
    let (dist, prefix) = prepared(temp.path());
    let before = state(&prefix);
    let library = library(temp.path(), INTERFERENCE);
    let from = archive(&dist, "0.3.0");
    let from = from.to_str().unwrap();
    for (mut command, version) in [
        (script_command(&["--from", from], &prefix), "0.3.0"),
        (script_command(&["--uninstall"], &prefix), "0.1.0"),
        (own_command(&["install", "--from", from], &prefix), "0.3.0"),
        (own_command(&["uninstall"], &prefix), "0.1.0"),
    ] {
        command.env("LD_PRELOAD", &library).env("SWITCH", name(version)).env("FAIL", "symlink");
        let (code, words) = ended(command);
        assert_eq!(code, 1, "{version}: {words}");
        assert!(words.contains("cannot point"), "{version}: {words}");
        assert_eq!(state(&prefix), before, "{version}: {words}");
    }
}

/// The archive is replaced between the check and the unpacking.
#[test]
fn what_is_checked_is_what_is_unpacked() {
    let temp = tempfile::tempdir().unwrap();
    let (dist, prefix) = prepared(temp.path());
    let from = archive(&dist, "0.3.0");
    let bin = tools(temp.path(), &[]);
    let script = format!("echo nonsense >'{}'\nexec \"$real\" \"$@\"", from.display());
    stand_in(&bin, "zstd", &script);
    let (code, words) = script_with(&bin, &["--from", from.to_str().unwrap()], &prefix);
    assert_eq!(fs::read(&from).unwrap(), b"nonsense\n");
    assert_eq!(code, 0, "{words}");
    assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.3.0"));
}

/// A folder on which a file system is mounted cannot be exchanged.
#[test]
fn a_repair_that_fails_leaves_the_damaged_version() {
    let temp = tempfile::tempdir().unwrap();
    let (dist, prefix) = prepared(temp.path());
    let version = prefix.join("lib/anneal/versions").join(name("0.2.0"));
    let from = archive(&dist, "0.2.0");
    for installer in BOTH {
        fs::write(version.join("build_info.json"), "{}").unwrap();
        let before = state(&prefix);
        let mounted = Command::new("mount").arg("--bind").args([&version, &version]).output();
        if !mounted.is_ok_and(|mounted| mounted.status.success()) {
            return skipped::because("no folder can be mounted here (this needs root)");
        }
        let (code, words) = installer.install(&from, &prefix);
        let unmounted = Command::new("umount").arg(&version).status().unwrap();
        assert!(unmounted.success());
        assert_eq!(code, 1, "{installer:?}: {words}");
        assert_eq!(state(&prefix), before, "{installer:?}: {words}");
        let (code, words) = installer.install(&from, &prefix);
        assert_eq!(code, 0, "{installer:?}: {words}");
        assert!(words.contains("was damaged and has been repaired"), "{installer:?}: {words}");
    }
}

/// On many machines `~/.local/bin` is a link to another folder.
#[test]
fn a_program_is_found_behind_a_link_of_the_users_own() {
    for installer in BOTH {
        let temp = tempfile::tempdir().unwrap();
        let dist = archives(temp.path(), &["0.1.0", "0.2.0"]);
        let prefix = temp.path().join("prefix");
        let elsewhere = temp.path().join("dotfiles/bin");
        fs::create_dir_all(&elsewhere).unwrap();
        fs::create_dir(&prefix).unwrap();
        symlink(&elsewhere, prefix.join("bin")).unwrap();
        for version in ["0.1.0", "0.2.0"] {
            let (code, words) = installer.install(&archive(&dist, version), &prefix);
            assert_eq!((code, runs(&prefix)), (0, Some(format!("anneal {version}"))), "{words}");
        }
        let bin = tools(temp.path(), &[]);
        // The script also removes installations of the program.
        let (code, words) = script_with(&bin, &["--uninstall", "--all"], &prefix);
        assert_eq!(code, 0, "{words}");
        assert!(fs::read_dir(&elsewhere).unwrap().next().is_none(), "{words}");
    }
}

#[test]
fn what_a_killed_one_has_left_goes_whatever_its_rights_are() {
    for installer in BOTH {
        let temp = tempfile::tempdir().unwrap();
        let (dist, prefix) = prepared(temp.path());
        // Leftover of a process that no longer exists.
        let left = prefix.join("lib/anneal/.staging-4194999-x/evil/deep");
        fs::create_dir_all(&left).unwrap();
        fs::write(left.join("file"), "x").unwrap();
        fs::set_permissions(&left, fs::Permissions::from_mode(0o555)).unwrap();
        let from = archive(&dist, "0.3.0");
        let (code, words) = installer.install(&from, &prefix);
        assert_eq!((code, left.exists()), (0, false), "{installer:?}: {words}");

        // Even if the process was killed between the two renames of a switch, the previous version is found.
        let link = prefix.join("lib/anneal/previous");
        fs::remove_file(&link).unwrap();
        symlink(format!("versions/{}", name("0.3.0")), &link).unwrap();
        let (code, words) = installer.rollback(&prefix);
        assert_eq!((code, runs(&prefix).as_deref()), (0, Some("anneal 0.2.0")), "{installer:?}: {words}");
    }
}

/// Without a version, no program is left that the script could run. The hint of its error works.
#[test]
fn what_a_killed_one_has_left_without_a_version_goes_after_an_installation() {
    let temp = tempfile::tempdir().unwrap();
    let (dist, prefix) = prepared(temp.path());
    fs::remove_dir_all(prefix.join("lib/anneal/versions")).unwrap();
    for arguments in [&["--rollback"][..], &["--uninstall"]] {
        let (code, words) = script(arguments, &prefix);
        assert!(code == 1 && words.contains("nothing is installed"), "{arguments:?}: {code}: {words}");
    }
    let (code, words) = script(&["--uninstall", "--all"], &prefix);
    assert_eq!(code, 1, "{words}");
    assert!(
        words.contains("no version is left") && words.contains("install an archive with --from"),
        "{words}"
    );
    let (code, words) = Installer::Script.install(&archive(&dist, "0.1.0"), &prefix);
    assert_eq!(code, 0, "{words}");
    let (code, words) = script(&["--uninstall", "--all"], &prefix);
    assert_eq!((code, snapshot(&prefix).len()), (0, 0), "{words}: {:?}", snapshot(&prefix));
}

/// The script runs the installed version. If the current version does not start, another version is used.
#[test]
fn a_version_that_does_not_start_is_rolled_back_and_removed_all_the_same() {
    let temp = tempfile::tempdir().unwrap();
    let (_, prefix) = prepared(temp.path());
    let versions = prefix.join("lib/anneal/versions");
    let breaks = |version: &str, code: i32| {
        let anneal = versions.join(name(version)).join("bin/anneal");
        fs::remove_file(&anneal).unwrap();
        common::program(&anneal, "unknown command", code);
    };
    // The exit code of a CPU guard.
    breaks("0.2.0", 69);
    let (code, words) = script(&["--rollback"], &prefix);
    assert_eq!((code, runs(&prefix).as_deref()), (0, Some("anneal 0.1.0")), "{words}");
    // The exit code of a version without the command.
    breaks("0.1.0", 2);
    for arguments in [&["--rollback"][..], &["--uninstall", "--all"]] {
        let before = state(&prefix);
        let (code, words) = script(arguments, &prefix);
        assert!(code == 1 && words.contains("no version in"), "{arguments:?}: {code}: {words}");
        assert_eq!(state(&prefix), before, "{arguments:?}");
    }
}

#[test]
fn damage_to_rights_and_to_the_list_is_repaired() {
    let temp = tempfile::tempdir().unwrap();
    let (dist, prefix) = prepared(temp.path());
    let version = prefix.join("lib/anneal/versions").join(name("0.2.0"));
    let from = archive(&dist, "0.2.0");
    for installer in BOTH {
        fs::set_permissions(version.join("bin/anneal"), fs::Permissions::from_mode(0o644)).unwrap();
        let (code, words) = installer.install(&from, &prefix);
        assert_eq!((code, runs(&prefix).as_deref()), (0, Some("anneal 0.2.0")), "{installer:?}: {words}");
        fs::write(version.join("SHA256SUMS"), "nonsense\n").unwrap();
        let (code, words) = installer.install(&from, &prefix);
        assert!(code == 0 && words.contains("has been repaired"), "{installer:?}, {code}: {words}");
        let (code, words) = installer.install(&from, &prefix);
        assert!(code == 0 && words.contains("is already installed"), "{installer:?}, {code}: {words}");
    }
}

#[test]
fn what_excludes_each_other_is_wrong_usage() {
    let temp = tempfile::tempdir().unwrap();
    let (dist, prefix) = prepared(temp.path());
    let before = state(&prefix);
    let from = archive(&dist, "0.3.0");
    let from = from.to_str().unwrap();
    let sum = "0".repeat(64);
    for args in [
        &["--rollback", "--uninstall"][..],
        &["--uninstall", "--from", from],
        &["--all", "--from", from],
        &["--sha256", "nonsense", "--from", from],
        &["--sha256", &sum, "--no-check", "--from", from],
        &["--all"],
        &[],
    ] {
        let (code, words) = script(args, &prefix);
        assert_eq!(code, 2, "{args:?}: {words}");
    }
    for args in [
        &["install"][..],
        &["install", "--from", from, "--sha256", "nonsense"],
        &["install", "--from", from, "--sha256", &sum, "--no-check"],
        &["uninstall", "0.1.0", "--all"],
        &["rollback", "--all"],
        &[],
    ] {
        let (code, words) = own(args, &prefix);
        assert_eq!(code, 2, "{args:?}: {words}");
    }
    assert_eq!(state(&prefix), before);
}

/// The script works with the archive that the machine can unpack, and says which that is.
#[test]
fn a_machine_without_zstd_takes_the_other_archive() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path(), &["0.1.0"]);
    let prefix = temp.path().join("prefix");
    for (missing, refused, works) in [("zstd", ".tar.zst", ".tar.gz"), ("gzip", ".tar.gz", ".tar.zst")] {
        let bin = tools(temp.path(), &[missing]);
        let from = |ending: &str| dist.join(format!("{}{ending}", name("0.1.0"))).display().to_string();
        let (code, words) = script_with(&bin, &["--from", &from(refused)], &prefix);
        assert!(code == 1 && words.contains(&format!("or use the {works} archive")), "{code}: {words}");
        assert!(!prefix.exists());
        let (code, words) = script_with(&bin, &["--from", &from(works)], &prefix);
        assert_eq!((code, runs(&prefix).as_deref()), (0, Some("anneal 0.1.0")), "{words}");
        let (code, words) = script_with(&bin, &["--uninstall"], &prefix);
        assert_eq!((code, prefix.exists()), (0, false), "{words}");
    }
}

/// The work folder contains the archive, so it must not stay.
#[test]
fn no_work_folder_is_left_and_one_without_programs_is_named() {
    let temp = tempfile::tempdir().unwrap();
    let (dist, prefix) = prepared(temp.path());
    let work = temp.path().join("work");
    fs::create_dir(&work).unwrap();
    let from = archive(&dist, "0.3.0");
    let installed = |arguments: &[&str]| {
        let mut command = script_command(&[&["--from", from.to_str().unwrap()], arguments].concat(), &prefix);
        command.env("TMPDIR", &work);
        ended(command)
    };
    let (code, words) = installed(&["--sha256", &"0".repeat(64)]);
    assert!(code == 1 && words.contains("checksum mismatch"), "{code}: {words}");
    assert_eq!(fs::read_dir(&work).unwrap().count(), 0, "{words}");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "noexec", "tmpfs"]).arg(&work).output();
    if mounted.is_ok_and(|mounted| mounted.status.success()) {
        let (code, words) = installed(&[]);
        let left = fs::read_dir(&work).unwrap().count();
        assert!(Command::new("umount").arg(&work).status().unwrap().success());
        assert!(code == 1 && words.contains("set TMPDIR to another folder"), "{code}: {words}");
        assert_eq!(left, 0, "{words}");
    }
    let (code, words) = installed(&[]);
    assert_eq!((code, runs(&prefix).as_deref()), (0, Some("anneal 0.3.0")), "{words}");
    assert_eq!(fs::read_dir(&work).unwrap().count(), 0, "{words}");
}

/// A wrong digest or signature is found before anything of the archive runs. A program that runs makes a file.
#[test]
fn nothing_of_an_archive_runs_before_it_is_verified() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("build");
    common::build(&folder, "hostile");
    let (source, proof) = (folder.join("hostile.c"), temp.path().join("ran"));
    let text = format!("#include <fcntl.h>\nint main(void) {{ creat({proof:?}, 0644); return 1; }}\n");
    fs::write(&source, text).unwrap();
    let compiled = Command::new("cc").arg(&source).arg("-o").arg(folder.join("bin/anneal")).status().unwrap();
    assert!(compiled.success());
    let packed = common::packed(common::order(&folder, "0.1.0", &temp.path().join("dist")));
    let from = packed.archives[0].path.to_str().unwrap();
    let prefix = temp.path().join("prefix");
    // Public minisign keys have this form.
    let key = "RWQBAQEBAQEBAYqI49336KkQzd9oD9gPM+p9U4BxBG+nQZfRIwXRQqBu";
    fs::write(format!("{from}.minisig"), "nonsense").unwrap();
    for installer in BOTH {
        for arguments in [&["--sha256", &"0".repeat(64)][..], &["--key", key]] {
            let (code, words) = installer.install_with(from, &prefix, arguments);
            assert_eq!((code, proof.exists()), (1, false), "{installer:?} {arguments:?}: {words}");
        }
        let (code, words) = installer.install_with(from, &prefix, &[]);
        assert_eq!((code, proof.exists(), prefix.exists()), (1, true, false), "{installer:?}: {words}");
        fs::remove_file(&proof).unwrap();
    }
}

/// Only the program is taken out of the archive, and only if it is a regular file.
#[test]
fn a_link_in_place_of_the_program_is_not_followed() {
    let temp = tempfile::tempdir().unwrap();
    let (_, prefix) = prepared(temp.path());
    let before = state(&prefix);
    let top = temp.path().join("hostile").join(name("0.3.0"));
    fs::create_dir_all(top.join("bin")).unwrap();
    symlink("/bin/true", top.join("bin/anneal")).unwrap();
    let archive = temp.path().join("hostile").join(format!("{}.tar.gz", name("0.3.0")));
    let mut tar = Command::new("tar");
    tar.arg("-czf").arg(&archive).arg("-C").arg(top.parent().unwrap()).arg(name("0.3.0"));
    assert!(tar.status().unwrap().success());
    for (installer, expected) in
        [(Installer::Script, "cannot unpack bin/anneal"), (Installer::Program, "symbolic link")]
    {
        let (code, words) = installer.install_with(archive.to_str().unwrap(), &prefix, &["--no-check"]);
        assert!(code == 1 && words.contains(expected), "{installer:?}, {code}: {words}");
        assert_eq!(state(&prefix), before, "{installer:?}: {words}");
    }
}
