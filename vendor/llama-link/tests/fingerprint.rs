//! Tests of a default tree's name: a different definition, compiler or CPU gives a different name.
#![cfg(unix)]

#[allow(missing_docs, reason = "a part of the build script")]
#[path = "../build/fingerprint.rs"]
mod fingerprint;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Creates a fake compiler that reports `version` and, for any flags, the macros of `cpu`.
fn compiler(folder: &Path, version: &str, cpu: &str) -> PathBuf {
    let path = folder.join(format!("cc {version} {cpu}"));
    let script =
        format!("#!/bin/sh\ncase \"$1\" in --version) echo {version} ;; *) echo '#define {cpu} 1' ;; esac\n");
    std::fs::write(&path, script).expect("a script");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("an executable");
    path
}

#[test]
fn whatever_a_tree_is_made_of_changes_its_name() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cc = |version, cpu| compiler(folder.path(), version, cpu);
    let of = |value: &str, c: PathBuf, cxx: PathBuf, native: &str| {
        let definitions = [("GGML_OPENMP".to_string(), value.to_string())];
        fingerprint::of(&definitions, [c, cxx], native).expect("a fingerprint")
    };
    let names = [
        of("OFF", cc("22.1", "__znver5__"), cc("22.1", "__znver5__"), "-march=native"),
        of("ON", cc("22.1", "__znver5__"), cc("22.1", "__znver5__"), "-march=native"),
        of("OFF", cc("22.2", "__znver5__"), cc("22.1", "__znver5__"), "-march=native"),
        of("OFF", cc("22.1", "__znver5__"), cc("22.2", "__znver5__"), "-march=native"),
        of("OFF", cc("22.1", "__skylake__"), cc("22.1", "__znver5__"), "-march=native"),
    ];
    let different: std::collections::BTreeSet<&String> = names.iter().collect();
    assert_eq!(different.len(), names.len(), "{names:?}");
    assert!(names.iter().all(|name| name.len() == 12), "{names:?}");
    let again = of("OFF", cc("22.1", "__znver5__"), cc("22.1", "__znver5__"), "-march=native");
    assert_eq!(again, names[0], "the same is not the same");

    let error = fingerprint::of(&[], ["no-such-cc", "no-such-cc"], "-march=native");
    assert!(error.is_err_and(|error| error.to_string().contains("no-such-cc")));
}
