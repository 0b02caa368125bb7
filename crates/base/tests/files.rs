//! Tests that replace files in a folder with hostile links, pipes and folders.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use base::{Access, Pending, Unfinished};

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_file_appears_whole_or_not_at_all() {
    let folder = base::scratch("test").unwrap();
    let path = folder.path().join("settings.json");
    fs::write(&path, "old").unwrap();

    let mut pending = Pending::beside(&path, Access::Usual).unwrap();
    pending.write_all(b"new").unwrap();
    let beside = pending.path().file_name().unwrap().to_str().unwrap().to_string();
    let expected = Unfinished { name: "settings.json", process: std::process::id() };
    assert_eq!(Unfinished::parse(&beside), Some(expected), "{beside}");
    assert_eq!(fs::read(&path).unwrap(), b"old");
    drop(pending);
    assert_eq!(names(folder.path()), ["settings.json"]);

    let failed: io::Result<()> = base::replace_with(&path, Access::Usual, |file| {
        file.write_all(b"half")?;
        Err(io::ErrorKind::StorageFull.into())
    });
    assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(fs::read(&path).unwrap(), b"old");
    base::replace(&path, b"new", Access::Usual).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert!(base::replace(folder.path(), b"x", Access::Usual).is_err(), "a folder is not replaced");
    assert!(base::replace(Path::new("/"), b"x", Access::Usual).is_err());
    assert_eq!(names(folder.path()), ["settings.json"]);
}

#[test]
fn names_cannot_be_predicted_and_fit() {
    let folder = base::scratch("test").unwrap();
    for name in ["a", &"n".repeat(255), "a name with spaces"] {
        let path = folder.path().join(name);
        let pending = [0; 20].map(|_| Pending::beside(&path, Access::Private).unwrap());
        let mut paths: Vec<_> = pending.iter().map(|pending| pending.path().to_path_buf()).collect();
        paths.sort();
        paths.dedup();
        assert_eq!(paths.len(), 20);
        drop(pending);
        base::replace(&path, b"x", Access::Private).unwrap();
    }
    assert_eq!(names(folder.path()).len(), 3);
}

#[test]
fn access_rights_are_as_asked_and_those_of_the_old_file_stay() {
    let folder = base::scratch("test").unwrap();
    assert_eq!(mode(folder.path()), 0o700);
    let plain = folder.path().join("plain");
    fs::write(&plain, "").unwrap();
    let usual = mode(&plain);
    let cases = [
        (Access::Usual, None, usual),
        (Access::Usual, Some(0o640), 0o640),
        (Access::Usual, Some(0o4755), 0o755),
        (Access::PrivateIfNew, None, 0o600),
        (Access::PrivateIfNew, Some(0o644), 0o644),
        (Access::Private, None, 0o600),
        (Access::Private, Some(0o644), 0o600),
        (Access::Exactly(0o644), Some(0o600), 0o644),
    ];
    for (access, before, expected) in cases {
        let path = folder.path().join("file");
        let _ = fs::remove_file(&path);
        if let Some(before) = before {
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(before)).unwrap();
        }
        base::replace(&path, b"x", access).unwrap();
        assert_eq!(mode(&path), expected, "{access:?} in place of {before:?}");
    }
}

#[test]
fn links_are_replaced_and_never_followed() {
    let folder = base::scratch("test").unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("victim"), "precious").unwrap();
    symlink(path("victim"), path("link")).unwrap();
    assert!(!Pending::beside(&path("link"), Access::Private).unwrap().commit_new().unwrap());
    assert_eq!(base::link_target(&path("link")), fs::canonicalize(path("victim")).unwrap());
    assert_eq!(base::link_target(&path("none")), path("none"));
    base::replace(&path("link"), b"new", Access::Usual).unwrap();
    assert!(!path("link").is_symlink());
    assert_eq!(fs::read(path("victim")).unwrap(), b"precious");

    base::switch_link(&path("current"), Path::new("one")).unwrap();
    base::switch_link(&path("current"), Path::new("two")).unwrap();
    assert_eq!(fs::read_link(path("current")).unwrap(), Path::new("two"));
    assert_eq!(names(folder.path()), ["current", "link", "victim"]);
}

#[test]
fn a_lock_is_opened_neither_through_a_link_nor_a_pipe() {
    let folder = base::scratch("test").unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("victim"), "precious").unwrap();
    symlink(path("victim"), path("link")).unwrap();
    symlink(path("new"), path("to nothing")).unwrap();
    fs::create_dir(path("folder")).unwrap();
    let made = std::process::Command::new("mkfifo").arg(path("pipe")).status().unwrap();
    assert!(made.success());
    for (name, words) in [
        ("link", "it is a symbolic link"),
        ("to nothing", "it is a symbolic link"),
        ("pipe", "it is not a regular file"),
        ("folder", "directory"),
    ] {
        let error = base::open_or_create(&path(name)).unwrap_err().to_string();
        assert!(error.contains(words), "{name}: {error}");
    }
    assert!(!path("new").exists());
    drop(base::open_or_create(&path("lock")).unwrap());
    drop(base::open_or_create(&path("victim")).unwrap());
    assert_eq!(fs::read(path("victim")).unwrap(), b"precious");
}

#[test]
fn durable_files_and_links_and_late_names() {
    let folder = base::scratch("test").unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut pending = Pending::beside(&path("durable"), Access::Exactly(0o640)).unwrap();
    pending.write_all(b"new").unwrap();
    pending.commit_durably().unwrap();
    assert_eq!((fs::read(path("durable")).unwrap(), mode(&path("durable"))), (b"new".to_vec(), 0o640));
    base::switch_link(&path("current"), Path::new("durable")).unwrap();
    assert_eq!(fs::read(path("current")).unwrap(), b"new");

    let pending = Pending::beside(&path("unnamed"), Access::Usual).unwrap();
    // A program opens the file by name.
    fs::write(pending.path(), "by name").unwrap();
    pending.commit_as(&path("digest")).unwrap();
    assert_eq!(fs::read(path("digest")).unwrap(), b"by name");
    assert_eq!(names(folder.path()), ["current", "digest", "durable"]);

    base::sync_folder(folder.path()).unwrap();
    assert!(base::sync_folder(&path("none")).is_err());
}
