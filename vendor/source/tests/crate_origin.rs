//! Tests of the origin `crate`: the real crate, and a fake crate for error cases.

mod common;

use std::fs;

use anyhow::Result;
use common::{Bench, write_tree, zeros};
use llama_source::digest::Listing;
use llama_source::{Origin, Store};

#[test]
fn the_pinned_crate_is_fetched_and_verified() -> Result<()> {
    let root = tempfile::tempdir()?;
    let store = Store::of_workspace(root.path())?;
    let tree = store.ensure(&Origin::Crate, &mut |_| {})?;
    assert_eq!(tree.digest, store.pins.krate.digest);
    assert_eq!((&tree.llama_version, &tree.ggml_version), (&store.pins.krate.llama, &store.pins.krate.ggml));
    for file in ["CMakeLists.txt", "include/llama.h", "LICENSE"] {
        assert!(tree.path.join(file).is_file(), "no {file}");
    }
    tree.check()
}

#[test]
fn what_cargo_has_needs_no_network() -> Result<()> {
    let mut bench = Bench::new()?;
    let (workspace, cargo) = (Store::of_workspace(&bench.store.root)?, bench.store.tools.cargo.clone());
    // The crate is already fetched at this point, so the fake cargo fails on a second `fetch`.
    workspace.ensure(&Origin::Crate, &mut |_| {})?;
    let guard =
        format!("case $1 in fetch) echo network >&2; exit 1;; esac\nexec '{}' \"$@\"", cargo.display());
    bench.store = Store { root: bench.path("another"), ..workspace };
    bench.store.tools.cargo = bench.script("cargo", &guard)?;
    let tree = bench.store.ensure(&Origin::Crate, &mut |_| {})?;
    assert_eq!(tree.digest, bench.store.pins.krate.digest);
    Ok(())
}

#[test]
fn what_is_in_the_store_needs_no_tool_and_says_nothing() -> Result<()> {
    let mut bench = Bench::new()?;
    let first = bench.ensure(&Origin::Crate).0?;
    bench.store.tools.cargo = "no-such-cargo".into();
    let (second, said) = bench.ensure(&Origin::Crate);
    assert_eq!(second?, first);
    assert_eq!(said, [""; 0]);
    Ok(())
}

#[test]
fn the_record_says_what_the_tree_is() -> Result<()> {
    let bench = Bench::new()?;
    let tree = bench.ensure(&Origin::Crate).0?;
    assert_eq!((&*tree.version, &*tree.llama_version, &*tree.ggml_version), ("1.0.0", "1.2.3", "4.5.6"));
    assert_eq!(
        tree.cmake_definitions(),
        [("LLAMA_BUILD_NUMBER", "0".to_string()), ("LLAMA_BUILD_COMMIT", "crate-1.0.0".to_string())]
    );
    let home = tree.path.parent().unwrap();
    let record: serde_json::Value = serde_json::from_slice(&fs::read(home.join("source.json"))?)?;
    assert_eq!((&record["origin"], &record["version"]), (&"crate".into(), &"1.0.0".into()));
    assert_eq!(record["digest"], tree.digest.as_str());
    Ok(())
}

#[test]
fn without_a_network_the_error_has_the_command() -> Result<()> {
    let mut bench = Bench::new()?;
    bench.store.tools.cargo = bench.script("cargo", "echo 'error: failed to resolve host' >&2; exit 101")?;
    let error = bench.error(&Origin::Crate);
    let command = format!("cargo fetch --locked --manifest-path {}", bench.store.crate_manifest.display());
    for part in ["network access is needed once", &command, "failed to resolve host"] {
        assert!(error.contains(part), "no {part:?} in: {error}");
    }
    assert_eq!(bench.stored(), [""; 0]);
    Ok(())
}

#[test]
fn without_cargo_the_error_says_how_to_get_it() -> Result<()> {
    let mut bench = Bench::new()?;
    bench.store.tools.cargo = "no-such-cargo".into();
    let error = bench.error(&Origin::Crate);
    assert!(error.contains("cannot find the program `no-such-cargo`: install Rust"), "{error}");
    Ok(())
}

#[test]
fn a_changed_crate_is_refused_and_the_last_good_tree_stays() -> Result<()> {
    let mut bench = Bench::new()?;
    let good = bench.ensure(&Origin::Crate).0?;
    let stored = bench.stored();

    let changed = bench.path("fake-llama/llama.cpp");
    write_tree(&changed, &[("src/llama.cpp", "evil\n")])?;
    bench.store.pins.krate.digest = zeros();
    let error = bench.error(&Origin::Crate);
    let found = Listing::of(&changed)?.digest();
    for part in [zeros().as_str(), found.as_str(), "fake-llama", "remove", "pins.toml"] {
        assert!(error.contains(part), "no {part:?} in: {error}");
    }
    assert_eq!(bench.stored(), stored);
    good.check()
}

#[test]
fn another_version_with_the_same_digest_does_not_find_the_old_tree() -> Result<()> {
    let mut bench = Bench::new()?;
    bench.ensure(&Origin::Crate).0?;
    bench.store.pins.krate.version = "2.0.0".into();
    let error = bench.error(&Origin::Crate);
    assert!(error.contains("2.0.0"), "{error}");
    Ok(())
}

#[test]
fn a_stray_git_is_left_out() -> Result<()> {
    let bench = Bench::new()?;
    let files = [(".git", "gitdir: ../../nowhere\n"), ("ggml/.git/config", "[core]\n"), ("x/.git/HEAD", "")];
    write_tree(&bench.path("fake-llama/llama.cpp"), &files)?;
    let tree = bench.ensure(&Origin::Crate).0?;
    assert!(!tree.path.join(".git").exists() && !tree.path.join("ggml/.git").exists());
    tree.check()
}

#[test]
fn a_read_only_registry_gives_a_writable_copy() -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new()?;
    let original = bench.path("fake-llama/llama.cpp");
    fs::set_permissions(original.join("src/llama.cpp"), fs::Permissions::from_mode(0o444))?;
    fs::set_permissions(original.join("scripts/run.sh"), fs::Permissions::from_mode(0o555))?;
    let tree = bench.ensure(&Origin::Crate).0?;
    let mode =
        |path: &str| -> Result<u32> { Ok(fs::metadata(tree.path.join(path))?.permissions().mode() & 0o777) };
    assert_eq!((mode("src/llama.cpp")?, mode("scripts/run.sh")?), (0o644, 0o755));
    Ok(())
}
