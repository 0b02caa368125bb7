//! Tests of install.sh with misbehaving programs and interference: the current version stays intact.

mod common;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Installer, archives, name, runs, script_command, script_with, snapshot, stand_in, tools};

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

/// The signal arrives between the switch and the following steps.
#[test]
fn a_signal_at_the_switch_takes_nothing_away() {
    for signal in ["TERM", "INT", "HUP"] {
        let temp = tempfile::tempdir().unwrap();
        let (dist, prefix) = prepared(temp.path());
        let bin = tools(temp.path(), &[]);
        let script = format!(
            "\"$real\" \"$@\" || exit\nfor last; do :; done\n\
             case $last in */lib/anneal/current) kill -{signal} $PPID ;; esac"
        );
        stand_in(&bin, "mv", &script);
        let from = archive(&dist, "0.3.0");
        let (code, words) = script_with(&bin, &["--from", from.to_str().unwrap()], &prefix);
        assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.3.0"), "{signal}: {words}");
        assert_eq!(code, 0, "{signal}: {words}");
        for expected in ["anneal 0.2.0", "anneal 0.3.0"] {
            let (code, words) = script_with(&bin, &["--rollback"], &prefix);
            assert_eq!((code, runs(&prefix).as_deref()), (0, Some(expected)), "{signal}: {words}");
        }
    }
}

/// The signal arrives while `sync` writes the switch to the disk, the longest part of a switch. The cases give the
/// behaviour of `sync`, the exit code and part of the message.
#[test]
fn a_signal_after_the_switch_tells_what_is_current() {
    let temp = tempfile::tempdir().unwrap();
    let (dist, prefix) = prepared(temp.path());
    let cases = [
        ("kill -TERM $PPID; exit 0", 0, "came too late"),
        // Ctrl-C reaches both processes.
        ("kill -INT $PPID; kill -INT $$", 130, "may not be completely on the disk"),
        ("kill -HUP $PPID; exit 1", 130, "may not be completely on the disk"),
        ("exit 1", 1, "completely to the disk"),
    ];
    let from = archive(&dist, "0.3.0");
    let switches = [(&["--from", from.to_str().unwrap()][..], "0.3.0"), (&["--rollback"], "0.2.0")];
    for (turn, (does, expected, told)) in cases.into_iter().enumerate() {
        for (arguments, version) in switches {
            let folder = temp.path().join(format!("{turn}-{version}"));
            fs::create_dir(&folder).unwrap();
            let bin = tools(&folder, &[]);
            let script = format!(
                "case $(readlink '{}/lib/anneal/current') in versions/{}) {does} ;; esac\nexec \"$real\" \"$@\"",
                prefix.display(),
                name(version)
            );
            stand_in(&bin, "sync", &script);
            let (code, words) = script_with(&bin, arguments, &prefix);
            assert_eq!(code, expected, "{does}: {arguments:?}: {words}");
            assert!(words.contains(told) && words.contains(&name(version)), "{does}: {arguments:?}: {words}");
            assert_eq!(runs(&prefix), Some(format!("anneal {version}")), "{does}: {arguments:?}: {words}");
        }
    }
}

/// The signal reaches the whole process group, as from a service manager, while the links are swept after the switch.
#[test]
fn a_signal_to_the_group_after_the_switch_tells_what_is_current() {
    for signal in ["TERM", "INT", "HUP"] {
        let temp = tempfile::tempdir().unwrap();
        let (dist, prefix) = prepared(temp.path());
        let bin = tools(temp.path(), &[]);
        // The script calls `readlink` for each link that it sweeps. If a shell ignores a signal, its children ignore
        // the signal too.
        let script = format!(
            "case $(\"$real\" '{home}/current') in versions/{name})\n\
             [ -e '{home}/asked' ] || {{ : >'{home}/asked'; kill -{signal} 0; }} ;;\nesac\n\
             exec \"$real\" \"$@\"",
            home = prefix.join("lib/anneal").display(),
            name = name("0.3.0")
        );
        stand_in(&bin, "readlink", &script);
        let from = archive(&dist, "0.3.0");
        let mut command = script_command(&["--from", from.to_str().unwrap()], &prefix);
        command.env("PATH", &bin).process_group(0);
        let output = command.output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(prefix.join("lib/anneal/asked").exists(), "{signal}: {words}");
        assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.3.0"), "{signal}: {words}");
        assert_eq!(output.status.code(), Some(0), "{signal}: {words}");
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
    for (name, expected) in [("new\nline", "line break"), ("end\n", "line break"), (&long, "bytes")] {
        let prefix = below.join(name);
        for arguments in [&["--from", from.to_str().unwrap()][..], &["--rollback"], &["--uninstall", "--all"]]
        {
            let output = script_command(arguments, &prefix).current_dir(&below).output().unwrap();
            let words = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{arguments:?}: {words}");
            assert!(words.contains(expected), "{arguments:?}: {words}");
            assert_eq!(fs::read_dir(&below).unwrap().count(), 0, "{arguments:?}: {words}");
        }
    }
}

/// File names and the output of other programs must not send escape sequences to the terminal.
#[test]
fn what_is_said_holds_no_escape_sequences() {
    let temp = tempfile::tempdir().unwrap();
    let prefix = temp.path().join("prefix");
    for from in ["e\u{1b}]0;EVIL\u{7}x.tar.gz", "anneal-\u{1b}[2J\u{7f}.tar.gz"] {
        let output = script_command(&["--from", from], &prefix).output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words}");
        assert!(words.contains(".tar.gz is not an archive"), "{words}");
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
    let (code, words) = Installer::Script.install(&from, &prefix);
    assert!(code == 1 && words.contains("is larger than 65536 bytes"), "{code}: {words}");
    assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.2.0"));
}

/// Output goes to a full device or to a closed pipe. The work is still done or refused, and the exit code still shows
/// which.
#[test]
fn what_cannot_be_said_is_done_all_the_same() {
    let temp = tempfile::tempdir().unwrap();
    let (dist, prefix) = prepared(temp.path());
    let from = archive(&dist, "0.3.0");
    let from = from.to_str().unwrap();
    let redirected = |arguments: &[&str], to: &str| {
        let script = script_command(arguments, &prefix);
        let words = script.get_args().map(|word| format!("'{}'", word.display()));
        let line = format!("env {} {to}", words.collect::<Vec<_>>().join(" "));
        let output = Command::new("bash").args(["-o", "pipefail", "-c", &line]).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // Each command undoes the previous command.
    for (to, expected, told) in [
        (">/dev/full", 1, "cannot write to stdout, but this is done: "),
        (">/dev/full 2>&1", 1, ""),
        ("2>/dev/full", 0, ""),
        ("2>&1 | true", 0, ""),
    ] {
        for (arguments, version) in [
            (&["--from", from][..], "0.3.0"),
            (&["--rollback"], "0.2.0"),
            (&["--from", from], "0.3.0"),
            (&["--uninstall"], "0.2.0"),
        ] {
            let (code, words) = redirected(arguments, to);
            assert_eq!(code, expected, "{arguments:?} {to}: {words}");
            assert!(words.contains(told), "{arguments:?} {to}: {words}");
            assert_eq!(runs(&prefix), Some(format!("anneal {version}")), "{arguments:?} {to}: {words}");
            let left = |name: &String| name.contains(".staging-");
            assert!(!snapshot(&prefix).keys().any(left), "{arguments:?} {to}: {:?}", snapshot(&prefix));
        }
        // The error determines the exit code, even if the message cannot be printed.
        assert_eq!(redirected(&["--nonsense"], to).0, 2, "{to}");
    }
    for to in [">/dev/full", ">/dev/full 2>&1"] {
        Installer::Script.install(Path::new(from), &prefix);
        let (code, words) = redirected(&["--uninstall", "--all"], to);
        assert_eq!((code, snapshot(&prefix).len()), (1, 0), "{to}: {words}");
    }
}

#[test]
fn a_switch_that_fails_leaves_the_way_back_as_it_was() {
    let temp = tempfile::tempdir().unwrap();
    let (dist, prefix) = prepared(temp.path());
    let before = state(&prefix);
    let bin = tools(temp.path(), &[]);
    let script = "for last; do :; done\n\
                  case $last in */lib/anneal/current) exit 1 ;; esac\nexec \"$real\" \"$@\"";
    stand_in(&bin, "mv", script);
    let from = archive(&dist, "0.3.0");
    for arguments in [&["--from", from.to_str().unwrap()][..], &["--rollback"], &["--uninstall"]] {
        let (code, words) = script_with(&bin, arguments, &prefix);
        assert_eq!(code, 1, "{arguments:?}: {words}");
        assert!(words.contains("cannot point"), "{arguments:?}: {words}");
        assert_eq!(state(&prefix), before, "{arguments:?}");
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

/// Simulates two folders that cannot be exchanged.
#[test]
fn a_repair_that_fails_leaves_the_damaged_version() {
    let temp = tempfile::tempdir().unwrap();
    let (dist, prefix) = prepared(temp.path());
    let version = prefix.join("lib/anneal/versions").join(name("0.2.0"));
    fs::write(version.join("build_info.json"), "{}").unwrap();
    let before = state(&prefix);
    let bin = tools(temp.path(), &[]);
    // The new folder cannot be moved into place, but the old one can be moved back.
    let script = format!("case $2 in */.staging-*/{}) exit 1 ;; esac\nexec \"$real\" \"$@\"", name("0.2.0"));
    stand_in(&bin, "mv", &script);
    let from = archive(&dist, "0.2.0");
    let (code, words) = script_with(&bin, &["--from", from.to_str().unwrap()], &prefix);
    assert_eq!(code, 1, "{words}");
    assert_eq!(state(&prefix), before);
    let (code, words) = Installer::Script.install(&from, &prefix);
    assert_eq!(code, 0, "{words}");
    assert!(words.contains("was damaged and has been repaired"), "{words}");
}

/// On many machines `~/.local/bin` is a link to another folder.
#[test]
fn a_program_is_found_behind_a_link_of_the_users_own() {
    for installer in [Installer::Script, Installer::Ship] {
        let temp = tempfile::tempdir().unwrap();
        let dist = archives(temp.path(), &["0.1.0", "0.2.0"]);
        let prefix = temp.path().join("prefix");
        let elsewhere = temp.path().join("dotfiles/bin");
        fs::create_dir_all(&elsewhere).unwrap();
        fs::create_dir(&prefix).unwrap();
        std::os::unix::fs::symlink(&elsewhere, prefix.join("bin")).unwrap();
        for version in ["0.1.0", "0.2.0"] {
            let (code, words) = installer.install(&archive(&dist, version), &prefix);
            assert_eq!((code, runs(&prefix)), (0, Some(format!("anneal {version}"))), "{words}");
        }
        let bin = tools(temp.path(), &[]);
        // The script also removes installations that `ship` made.
        let (code, words) = script_with(&bin, &["--uninstall", "--all"], &prefix);
        assert_eq!(code, 0, "{words}");
        assert!(fs::read_dir(&elsewhere).unwrap().next().is_none(), "{words}");
    }
}

#[test]
fn what_a_killed_one_has_left_goes_whatever_its_rights_are() {
    let temp = tempfile::tempdir().unwrap();
    let (dist, prefix) = prepared(temp.path());
    let bin = tools(temp.path(), &[]);
    // Leftover of a process that no longer exists.
    let left = prefix.join("lib/anneal/.staging-4194999-x/evil/deep");
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("file"), "x").unwrap();
    std::fs::set_permissions(&left, std::os::unix::fs::PermissionsExt::from_mode(0o555)).unwrap();
    let from = archive(&dist, "0.3.0");
    let (code, words) = script_with(&bin, &["--from", from.to_str().unwrap()], &prefix);
    assert_eq!((code, left.exists()), (0, false), "{words}");

    // Even if the process was killed between the two renames of a switch, the previous version is found.
    let link = prefix.join("lib/anneal/previous");
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(format!("versions/{}", name("0.3.0")), &link).unwrap();
    let (code, words) = script_with(&bin, &["--rollback"], &prefix);
    assert_eq!((code, runs(&prefix).as_deref()), (0, Some("anneal 0.2.0")), "{words}");

    // If the process was killed after removing all versions, the rest is removed, too.
    fs::remove_dir_all(prefix.join("lib/anneal/versions")).unwrap();
    let (code, words) = script_with(&bin, &["--uninstall", "--all"], &prefix);
    assert_eq!(code, 0, "{words}");
    assert_eq!(snapshot(&prefix).len(), 0, "{:?}", snapshot(&prefix));
}

#[test]
fn damage_to_rights_and_to_the_list_is_repaired() {
    let temp = tempfile::tempdir().unwrap();
    let (dist, prefix) = prepared(temp.path());
    let bin = tools(temp.path(), &[]);
    let version = prefix.join("lib/anneal/versions").join(name("0.2.0"));
    let from = archive(&dist, "0.2.0");
    let again = || script_with(&bin, &["--from", from.to_str().unwrap()], &prefix);
    std::fs::set_permissions(version.join("bin/anneal"), std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .unwrap();
    let (code, words) = again();
    assert_eq!((code, runs(&prefix).as_deref()), (0, Some("anneal 0.2.0")), "{words}");
    fs::write(version.join("SHA256SUMS"), "nonsense\n").unwrap();
    let (code, words) = again();
    assert!(code == 0 && words.contains("has been repaired"), "{code}: {words}");
    let (code, words) = again();
    assert!(code == 0 && words.contains("is already installed"), "{code}: {words}");
}

#[test]
fn what_excludes_each_other_is_wrong_usage() {
    let temp = tempfile::tempdir().unwrap();
    let (dist, prefix) = prepared(temp.path());
    let before = state(&prefix);
    let bin = tools(temp.path(), &[]);
    let from = archive(&dist, "0.3.0");
    let from = from.to_str().unwrap();
    for args in [
        &["--rollback", "--uninstall"][..],
        &["--uninstall", "--from", from],
        &["--all", "--from", from],
        &["--sha256", "nonsense", "--from", from],
    ] {
        let (code, words) = script_with(&bin, args, &prefix);
        assert_eq!(code, 2, "{args:?}: {words}");
    }
    assert_eq!(state(&prefix), before);
}
