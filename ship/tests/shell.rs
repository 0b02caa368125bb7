//! install.sh where another program does what it should not, or somebody interferes: what is current stays whole.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Installer, archives, name, runs, script_with, snapshot, stand_in, tools};

fn archive(dist: &Path, version: &str) -> PathBuf {
    dist.join(format!("{}.tar.zst", name(version)))
}

/// Archives of three versions, and a prefix with the first two of them.
fn prepared(temp: &Path) -> (PathBuf, PathBuf) {
    let dist = archives(temp, &["0.1.0", "0.2.0", "0.3.0"]);
    let prefix = temp.join("prefix");
    for version in ["0.1.0", "0.2.0"] {
        let (code, words) = Installer::Script.install(&archive(&dist, version), &prefix);
        assert_eq!(code, 0, "{words}");
    }
    (dist, prefix)
}

/// What is installed, without who held the lock last.
fn state(prefix: &Path) -> std::collections::BTreeMap<String, String> {
    let mut found = snapshot(prefix);
    found.retain(|name, _| !name.ends_with(".lock"));
    found
}

/// Asked to stop between the switch and what follows it.
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

/// Between the check and the unpacking somebody puts another file there.
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

/// As of two folders that cannot change places.
#[test]
fn a_repair_that_fails_leaves_the_damaged_version() {
    let temp = tempfile::tempdir().unwrap();
    let (dist, prefix) = prepared(temp.path());
    let version = prefix.join("lib/anneal/versions").join(name("0.2.0"));
    fs::write(version.join("build_info.json"), "{}").unwrap();
    let before = state(&prefix);
    let bin = tools(temp.path(), &[]);
    // The new one cannot be moved there, the old one can.
    let script = format!("case $2 in */.staging-*/{}) exit 1 ;; esac\nexec \"$real\" \"$@\"", name("0.2.0"));
    stand_in(&bin, "mv", &script);
    let from = archive(&dist, "0.2.0");
    let (code, words) = script_with(&bin, &["--from", from.to_str().unwrap()], &prefix);
    assert_eq!(code, 1, "{words}");
    assert_eq!(state(&prefix), before);
    let (code, words) = Installer::Script.install(&from, &prefix);
    assert_eq!(code, 0, "{words}");
    assert!(words.contains("was damaged and is repaired"), "{words}");
}
