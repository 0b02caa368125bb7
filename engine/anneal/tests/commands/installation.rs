//! Tests of `anneal self`. The tests of the crate `install` cover installing itself.

use std::fs;
use std::process::Command;

use crate::common::parts;

/// install.sh runs the program without the other files of its archive.
#[test]
fn the_program_alone_manages_installations() {
    let temp = tempfile::tempdir().unwrap();
    let program = temp.path().join("anneal");
    fs::copy(env!("CARGO_BIN_EXE_anneal"), &program).unwrap();
    let prefix = temp.path().join("a prefix");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.arg("self").args(arguments).arg("--prefix").arg(&prefix).env_clear().current_dir(&temp);
        parts(&command.output().unwrap())
    };
    assert_eq!(run(&["list", "--json"]), (Some(0), "[]\n".to_string(), String::new()));
    let nothing =
        format!("nothing is installed in {}\nhint: specify the prefix with --prefix DIR\n", prefix.display());
    assert_eq!(run(&["list"]), (Some(0), String::new(), nothing.clone()));
    for arguments in [&["rollback"][..], &["uninstall"], &["uninstall", "--all"]] {
        assert_eq!(run(arguments), (Some(1), String::new(), format!("error: {nothing}")), "{arguments:?}");
    }
    let archive = temp.path().join("anneal-0.1.0-x86_64-unknown-linux-gnu-portable.tar.zst");
    fs::write(&archive, "no archive").unwrap();
    let from = archive.to_str().unwrap();
    for (arguments, expected, message) in [
        (&["install"][..], 2, "--from"),
        (&["install", "--from", "nowhere.tar.zst"], 1, "cannot install from"),
        (&["install", "--from", from], 1, "--no-check installs without a check"),
        (&["install", "--from", from, "--no-check"], 1, "not compressed with zstd or gzip"),
        (&["install", "--from", from, "--key", "no key"], 2, "not a minisign public key"),
        (&["uninstall", "0.1.0", "--all"], 2, "cannot be used with"),
    ] {
        let (code, _, stderr) = run(arguments);
        assert_eq!(code, Some(expected), "{arguments:?}: {stderr}");
        assert!(stderr.contains(message), "{arguments:?}: {stderr}");
        assert!(!prefix.exists(), "{arguments:?}: {stderr}");
    }
}
