//! Tests of installing, rolling back and removing, with `anneal self` and install.sh, which can continue each other's
//! work.

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use common::{BOTH, Installer, archives, listed, name, own, own_command, runs, snapshot};

#[test]
fn a_version_is_installed_replaced_taken_back_and_removed() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path(), &["0.1.0", "0.2.0"]);
    let archive = |version: &str, ending: &str| dist.join(format!("{}{ending}", name(version)));
    // Each step uses one of the two installers.
    for (first, second) in [
        (Installer::Program, Installer::Program),
        (Installer::Script, Installer::Script),
        (Installer::Program, Installer::Script),
        (Installer::Script, Installer::Program),
    ] {
        let prefix = temp.path().join("a prefix");
        // Foreign files must not be touched.
        fs::create_dir_all(prefix.join("bin")).unwrap();
        fs::write(prefix.join("bin/other"), "theirs").unwrap();
        let before = snapshot(&prefix);

        let (code, words) = first.install(&archive("0.1.0", ".tar.zst"), &prefix);
        assert_eq!(code, 0, "{first:?}: {words}");
        assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.1.0"));
        for page in ["share/man/man1/anneal-run.1", "share/bash-completion/completions/anneal"] {
            assert!(prefix.join(page).is_symlink() && prefix.join(page).is_file(), "{first:?}: {page}");
        }
        let (code, words) = first.rollback(&prefix);
        assert_eq!(code, 1, "{words}");
        assert!(words.contains("has no previous version"), "{words}");

        let (code, words) = second.install(&archive("0.2.0", ".tar.gz"), &prefix);
        assert_eq!(code, 0, "{second:?}: {words}");
        assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.2.0"));
        let (code, words) = first.rollback(&prefix);
        assert_eq!(code, 0, "{first:?}: {words}");
        assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.1.0"));
        let (code, words) = second.rollback(&prefix);
        assert_eq!(code, 0, "{second:?}: {words}");
        assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.2.0"));

        // The current version is removed and the other version becomes current.
        let (code, words) = second.uninstall(&prefix, false);
        assert_eq!(code, 0, "{second:?}: {words}");
        assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.1.0"));
        let (code, words) = first.uninstall(&prefix, false);
        assert_eq!(code, 0, "{first:?}: {words}");
        assert_eq!(snapshot(&prefix), before, "{first:?} and {second:?} left something");
        let (code, words) = first.uninstall(&prefix, true);
        assert_eq!(code, 1, "{words}");
        assert!(words.contains("nothing is installed"), "{words}");
    }
}

#[test]
fn a_prefix_that_was_made_goes_again() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path(), &["0.1.0", "0.2.0"]);
    for installer in BOTH {
        let prefix = temp.path().join("new");
        for version in ["0.1.0", "0.2.0"] {
            let (code, words) = installer.install(&dist.join(format!("{}.tar.zst", name(version))), &prefix);
            assert_eq!(code, 0, "{installer:?}: {words}");
        }
        let (code, words) = installer.uninstall(&prefix, true);
        assert_eq!(code, 0, "{installer:?}: {words}");
        assert!(!prefix.exists(), "{installer:?} left {:?}", snapshot(&prefix));
    }
}

#[test]
fn folders_that_were_made_above_a_prefix_go_again_and_those_of_others_stay() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path(), &["0.1.0"]);
    let archive = dist.join(format!("{}.tar.zst", name("0.1.0")));
    let damaged = temp.path().join(archive.file_name().unwrap());
    fs::write(&damaged, "no archive").unwrap();
    for (first, second) in [
        (Installer::Program, Installer::Script),
        (Installer::Script, Installer::Program),
        (Installer::Program, Installer::Program),
        (Installer::Script, Installer::Script),
    ] {
        let root = tempfile::tempdir_in(temp.path()).unwrap();
        let root = root.path();
        let below = |name: &str| root.join(name);
        let installed = |prefix: &Path| {
            let (code, words) = first.install(&archive, prefix);
            assert_eq!(code, 0, "{first:?}: {words}");
        };
        let removed = |prefix: &Path| {
            let (code, words) = second.uninstall(prefix, true);
            assert_eq!(code, 0, "{second:?}: {words}");
        };
        // These installations are refused, the second because a part of the prefix's path is a file.
        let sum = ["--sha256", &"0".repeat(64)];
        let (code, words) = first.install_with(damaged.to_str().unwrap(), &below("a new/b/prefix"), &sum);
        assert_eq!((code, snapshot(root).len()), (1, 0), "{first:?}: {words}");
        fs::write(below("file"), "").unwrap();
        let (code, words) = first.install(&archive, &below("file/b/prefix"));
        assert_eq!((code, snapshot(root).len()), (1, 1), "{first:?}: {words}");
        fs::remove_file(below("file")).unwrap();

        // The prefix is given through a link and with `..`.
        symlink(root, below("link")).unwrap();
        installed(&below("link/a new/../a new/b/prefix"));
        removed(&below("a new/b/prefix/"));
        fs::remove_file(below("link")).unwrap();
        assert_eq!(snapshot(root).len(), 0, "{first:?}, {second:?}: {:?}", snapshot(root));

        // An existing folder is kept even if it is empty. A folder that other programs have used since is also kept.
        fs::create_dir_all(below("theirs/empty")).unwrap();
        installed(&below("theirs/empty/new/prefix"));
        removed(&below("theirs/empty/new/prefix"));
        assert_eq!(snapshot(root).into_keys().collect::<Vec<_>>(), ["theirs", "theirs/empty"]);
        installed(&below("theirs/empty/new/prefix"));
        fs::write(below("theirs/empty/new/file"), "theirs").unwrap();
        removed(&below("theirs/empty/new/prefix"));
        assert_eq!(snapshot(&below("theirs/empty")).into_keys().collect::<Vec<_>>(), ["new", "new/file"]);

        // The prefix is moved into a foreign folder.
        installed(&below("a/prefix"));
        fs::create_dir(below("kept")).unwrap();
        fs::rename(below("a/prefix"), below("kept/prefix")).unwrap();
        removed(&below("kept/prefix"));
        assert!(below("kept").is_dir() && !below("kept/prefix").exists(), "{second:?}");
    }
}

/// If a process was killed after removing all versions, `--all` removes the rest.
#[test]
fn what_a_killed_one_has_left_goes_with_all() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path(), &["0.1.0"]);
    // The script has no program for this; the tests in shell.rs follow the hint of its error.
    let installer = Installer::Program;
    let prefix = temp.path().join("prefix");
    let (code, words) = installer.install(&dist.join(format!("{}.tar.zst", name("0.1.0"))), &prefix);
    assert_eq!(code, 0, "{words}");
    fs::remove_dir_all(prefix.join("lib/anneal/versions")).unwrap();
    let (code, words) = installer.uninstall(&prefix, false);
    assert_eq!(code, 1, "{words}");
    let (code, words) = installer.uninstall(&prefix, true);
    assert_eq!((code, prefix.exists()), (0, false), "{words}: {:?}", snapshot(&prefix));
}

#[test]
fn what_others_put_there_is_never_overwritten() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path(), &["0.1.0"]);
    let archive = dist.join(format!("{}.tar.zst", name("0.1.0")));
    let in_the_way = [
        "bin/anneal",
        "share/man/man1/anneal-run.1",
        "share/fish/vendor_completions.d/anneal.fish",
        "lib/anneal/current",
        "lib/anneal/previous",
    ];
    for installer in BOTH {
        for place in in_the_way {
            for link in [false, true] {
                let prefix = tempfile::tempdir_in(temp.path()).unwrap();
                let path = prefix.path().join(place);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                match link {
                    true => symlink("../elsewhere", &path).unwrap(),
                    false => fs::write(&path, "theirs").unwrap(),
                }
                let before = fs::symlink_metadata(&path).unwrap().modified().unwrap();
                let (code, words) = installer.install(&archive, prefix.path());
                assert_eq!(code, 1, "{installer:?} {place}: {words}");
                assert!(words.contains(path.to_str().unwrap()), "{installer:?} {place}: {words}");
                assert!(
                    words.contains("it was not created by Anneal's installer"),
                    "{installer:?} {place}: {words}"
                );
                assert_eq!(fs::symlink_metadata(&path).unwrap().modified().unwrap(), before);
                let versions = prefix.path().join("lib/anneal/versions");
                assert_eq!(
                    fs::read_dir(versions).map_or(0, |there| there.count()),
                    0,
                    "{installer:?} {place}"
                );
                assert_eq!(prefix.path().join("bin/anneal").exists(), place == "bin/anneal" && !link);
            }
        }
    }
}

#[test]
fn the_same_again_is_a_switch_and_other_content_is_not() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path(), &["0.1.0", "0.2.0"]);
    let archive = |version: &str| dist.join(format!("{}.tar.zst", name(version)));
    for installer in BOTH {
        let prefix = tempfile::tempdir_in(temp.path()).unwrap();
        let prefix = prefix.path();
        for version in ["0.1.0", "0.2.0", "0.1.0", "0.1.0"] {
            let (code, words) = installer.install(&archive(version), prefix);
            assert_eq!(code, 0, "{installer:?}: {words}");
            assert_eq!(runs(prefix).unwrap(), format!("anneal {version}"));
        }
        let (code, words) = installer.rollback(prefix);
        assert_eq!(code, 0, "{installer:?}: {words}");
        assert_eq!(runs(prefix).as_deref(), Some("anneal 0.2.0"), "installing it twice took the way back");

        // Another build has the same name.
        let other = tempfile::tempdir_in(temp.path()).unwrap();
        let folder = other.path().join("build");
        common::build(&folder, "another");
        common::packed(common::order(&folder, "0.2.0", other.path()));
        let other = other.path().join(format!("{}.tar.zst", name("0.2.0")));
        let (code, words) = installer.install(&other, prefix);
        assert_eq!(code, 1, "{installer:?}: {words}");
        assert!(words.contains("with other content"), "{words}");
        assert_eq!(runs(prefix).as_deref(), Some("anneal 0.2.0"));
        if installer == Installer::Program {
            let (code, words) = installer.install_with(other.to_str().unwrap(), prefix, &["--force"]);
            assert_eq!(code, 0, "{words}");
            assert_eq!(runs(prefix).as_deref(), Some("another"));
        }
    }
}

#[test]
fn a_damaged_version_is_told_of_not_gone_back_to_and_repaired() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path(), &["0.1.0", "0.2.0"]);
    let archive = |version: &str| dist.join(format!("{}.tar.zst", name(version)));
    let prefix = temp.path().join("prefix");
    for version in ["0.1.0", "0.2.0"] {
        Installer::Program.install(&archive(version), &prefix);
    }
    let damaged = prefix.join("lib/anneal/versions").join(name("0.1.0")).join("build_info.json");
    fs::write(&damaged, "{}").unwrap();
    let told: Vec<_> = listed(&prefix)
        .iter()
        .map(|one| (one["current"] == true, one["previous"] == true, one["problem"].is_string()))
        .collect();
    assert_eq!(told, [(false, true, true), (true, false, false)]);
    let (code, words) = own(&["list"], &prefix);
    assert_eq!(code, 0, "{words}");
    let line = |version: &str| words.lines().find(|line| line.contains(&name(version))).unwrap_or_default();
    assert!(line("0.1.0").starts_with("- ") && line("0.1.0").contains("checksum mismatch"), "{words}");
    assert!(line("0.2.0").starts_with("* ") && line("0.2.0").ends_with("as installed"), "{words}");
    for installer in BOTH {
        let (code, words) = installer.rollback(&prefix);
        assert_eq!(code, 1, "{installer:?}: {words}");
        assert!(words.contains("is damaged"), "{installer:?}: {words}");
        assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.2.0"));
    }
    // Tests the current and the previous version.
    for (installer, version) in BOTH.into_iter().flat_map(|each| [(each, "0.1.0"), (each, "0.2.0")]) {
        let damaged = prefix.join("lib/anneal/versions").join(name(version)).join("build_info.json");
        fs::write(&damaged, "{}").unwrap();
        let (code, words) = installer.install(&archive(version), &prefix);
        assert_eq!(code, 0, "{installer:?}: {words}");
        assert!(words.contains("was damaged and has been repaired"), "{installer:?}: {words}");
        assert_eq!(runs(&prefix), Some(format!("anneal {version}")), "{installer:?}");
        assert_ne!(fs::read(&damaged).unwrap(), b"{}", "{installer:?}");
    }
    let (code, words) = Installer::Script.rollback(&prefix);
    assert_eq!(code, 0, "{words}");
    assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.1.0"), "a repair took the way back");
}

#[test]
fn no_version_is_removed_for_one_that_does_not_run() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path(), &["0.1.0", "0.2.0"]);
    for installer in BOTH {
        let prefix = temp.path().join(format!("{installer:?}"));
        for version in ["0.1.0", "0.2.0"] {
            installer.install(&dist.join(format!("{}.tar.zst", name(version))), &prefix);
        }
        let damaged = prefix.join("lib/anneal/versions").join(name("0.1.0")).join("build_info.json");
        let whole = fs::read(&damaged).unwrap();
        fs::write(&damaged, "{}").unwrap();
        let (code, words) = installer.uninstall(&prefix, false);
        assert_eq!(code, 1, "{installer:?}: {words}");
        assert!(
            words.contains("is damaged") && words.contains("would become current"),
            "{installer:?}: {words}"
        );
        assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.2.0"), "{installer:?}");
        fs::write(&damaged, whole).unwrap();
        let (code, words) = installer.uninstall(&prefix, false);
        assert_eq!(code, 0, "{installer:?}: {words}");
        assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.1.0"), "{installer:?}");
    }
}

#[test]
fn the_newest_that_is_left_takes_the_place_of_what_is_removed() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path(), &["0.9.0", "0.10.0", "0.11.0"]);
    for installer in BOTH {
        let prefix = temp.path().join(format!("{installer:?}"));
        for version in ["0.9.0", "0.10.0", "0.11.0"] {
            installer.install(&dist.join(format!("{}.tar.zst", name(version))), &prefix);
        }
        // Creates foreign files and leftovers.
        let versions = prefix.join("lib/anneal/versions");
        fs::write(versions.join(name("0.12.0")), "no folder").unwrap();
        fs::create_dir(versions.join("zzz")).unwrap();
        fs::remove_file(prefix.join("lib/anneal/previous")).unwrap();
        let (code, words) = installer.uninstall(&prefix, false);
        assert_eq!(code, 0, "{installer:?}: {words}");
        assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.10.0"), "{installer:?}: {words}");
        let (code, words) = installer.uninstall(&prefix, true);
        assert_eq!(code, 0, "{installer:?}: {words}");
        let mut left: Vec<_> =
            fs::read_dir(&versions).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [name("0.12.0").as_str(), "zzz"], "{installer:?}");
    }
}

#[test]
fn a_first_installation_that_is_refused_leaves_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path(), &["0.1.0"]);
    let archive = dist.join(format!("{}.tar.zst", name("0.1.0")));
    let mut content = fs::read(&archive).unwrap();
    let middle = content.len() / 2;
    content[middle] ^= 1;
    fs::write(&archive, content).unwrap();
    for installer in BOTH {
        let prefix = temp.path().join(format!("{installer:?}"));
        let (code, words) = installer.install(&archive, &prefix);
        assert_eq!(code, 1, "{installer:?}: {words}");
        assert!(!prefix.exists(), "{installer:?} left {:?}", snapshot(&prefix));
        // Existing folders are also kept.
        fs::create_dir_all(prefix.join("lib/other")).unwrap();
        let before = snapshot(&prefix);
        let (code, words) = installer.install(&archive, &prefix);
        assert_eq!(code, 1, "{installer:?}: {words}");
        assert_eq!(snapshot(&prefix), before, "{installer:?}");
    }
}

#[test]
fn a_folder_gives_the_newest_or_is_what_was_unpacked() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path(), &["0.9.0", "0.10.0"]);
    let prefix = temp.path().join("prefix");
    let (code, words) = Installer::Program.install(&dist, &prefix);
    assert_eq!(code, 0, "{words}");
    assert!(words.contains("the portable build runs on the most machines"), "{words}");
    assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.10.0"));

    let unpacked = prefix.join("lib/anneal/versions").join(name("0.10.0"));
    let second = temp.path().join("second");
    let (code, words) = Installer::Program.install(&unpacked, &second);
    assert_eq!(code, 0, "{words}");
    assert_eq!(runs(&second).as_deref(), Some("anneal 0.10.0"));
    let tree = |prefix: &std::path::Path| snapshot(&prefix.join("lib/anneal/versions"));
    assert_eq!(tree(&second), tree(&prefix));

    // A build folder is not an archive.
    let (code, words) = Installer::Program.install(&temp.path().join("build-0.9.0"), &prefix);
    assert_eq!(code, 2, "{words}");
    assert!(words.contains("cargo xtask dist"), "{words}");
}

#[test]
fn a_dry_run_says_what_would_be_and_changes_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path(), &["0.1.0"]);
    let prefix = temp.path().join("prefix");
    let from = dist.to_str().unwrap();
    let (code, words) = Installer::Program.install_with(from, &prefix, &["--dry-run"]);
    assert_eq!(code, 0, "{words}");
    assert!(words.contains("would install") && words.contains(", checked"), "{words}");
    let (code, words) = Installer::Program.install_with(from, &prefix, &["--dry-run", "--json"]);
    assert!(code == 0 && words.contains("\"dry_run\": true"), "{words}");
    assert!(!prefix.exists());

    Installer::Program.install(&dist, &prefix);
    let before = snapshot(&prefix);
    let (code, words) = own(&["uninstall", "--all", "--dry-run"], &prefix);
    assert!(code == 0 && words.contains("would remove"), "{code}: {words}");
    assert_eq!(snapshot(&prefix), before);
}

#[test]
fn versions_are_removed_by_name_and_by_number() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path(), &["0.1.0", "0.2.0", "0.3.0"]);
    let prefix = temp.path().join("prefix");
    for version in ["0.1.0", "0.2.0", "0.3.0"] {
        Installer::Program.install(&dist.join(format!("{}.tar.zst", name(version))), &prefix);
    }
    let uninstall = |version: &str| own(&["uninstall", version], &prefix);
    let (code, words) = uninstall("0.4.0");
    assert_eq!(code, 1);
    assert!(words.contains("0.4.0 is not installed"), "{words}");
    // The version that a rollback would make current is removed, so no link may point to it.
    assert_eq!(uninstall("0.2.0").0, 0);
    assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.3.0"));
    assert!(!prefix.join("lib/anneal/previous").is_symlink());
    assert_eq!(uninstall(&name("0.3.0")).0, 0);
    assert_eq!(runs(&prefix).as_deref(), Some("anneal 0.1.0"));
}

#[test]
fn others_may_run_what_an_installer_with_a_narrow_umask_installed() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path(), &["0.1.0"]);
    let made = temp.path().join("made");
    let prefix = made.join("prefix");
    let archive = dist.join(format!("{}.tar.zst", name("0.1.0")));
    let install = own_command(&["install", "--from", archive.to_str().unwrap()], &prefix);
    let words = install.get_args().map(|word| format!("'{}'", word.display())).collect::<Vec<_>>().join(" ");
    let shell = format!("umask 077; exec '{}' {words}", install.get_program().display());
    let done = std::process::Command::new("sh").args(["-c", &shell]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    let version = prefix.join("lib/anneal/versions").join(name("0.1.0"));
    for (path, expected) in [("bin/anneal", 0o755), ("build_info.json", 0o644)] {
        assert_eq!(mode(&version.join(path)), expected, "{path}");
    }
    // All folders on the path are accessible.
    assert_eq!(mode(&made), 0o755);
    let folders = snapshot(&made).into_iter().filter(|(_, told)| told == "folder");
    let mut seen = 0;
    for (folder, _) in folders {
        assert_eq!(mode(&made.join(&folder)), 0o755, "{folder}");
        seen += 1;
    }
    assert!(seen > 10, "{seen}");
}
