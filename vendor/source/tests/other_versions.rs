//! Tests of a version other than the pinned one, and of patches that are tried on this version.

mod common;

use std::fs;

use anyhow::Result;
use common::{Bench, FILES, write_tree};
use llama_source::{OtherSource, PatchFit};

/// Returns a patch of the file `file` that replaces the line `from` between `one` and `three`.
fn diff(file: &str, from: &str, to: &str) -> String {
    format!(
        "Why: a reason\n\ndiff --git a/{file} b/{file}\n--- a/{file}\n+++ b/{file}\n@@ -1,3 +1,3 @@ context\n one\n\
         -{from}\n+{to}\n three\n"
    )
}

#[test]
fn every_patch_is_tried_and_the_version_is_unchanged() -> Result<()> {
    let bench = Bench::new()?;
    let other = bench.path("other");
    write_tree(&other, &FILES)?;
    write_tree(&other, &[("moved.c", "-\nzero\none\ntwo\nthree\nfour\n"), ("there.c", "one\n2\nthree\n")])?;
    let file = "src/llama.cpp";
    bench.patch("0001-applies.patch", &diff(file, "two", "2"))?;
    bench.patch("0002-fails.patch", &diff(file, "zwei", "II"))?;
    bench.patch("0003-moved.patch", &diff("moved.c", "two", "2").replace("-1,3 +1,3", "-2,3 +2,3"))?;
    bench.patch("0004-contained.patch", &diff("there.c", "two", "2"))?;
    bench.patch("0005-missing.patch", &diff("gone.c", "two", "2"))?;
    bench.patch("0006-after.patch", &diff(file, "drei", "3"))?;
    // The patches are applied one after another, so this patch needs the first patch.
    bench.patch("0007-builds-on-the-first.patch", &diff(file, "2", "zwei"))?;

    let (store, origin) = bench.store.of_other(&OtherSource::Path(other.clone()), &mut |_| {})?;
    let tree = store.unpatched(&origin, &mut |_| {})?;
    let trials = store.try_patches(&tree)?;
    let told: Vec<(&str, PatchFit, String)> =
        trials.iter().map(|trial| (&trial.name[..4], trial.fit, trial.to_string())).collect();
    let failed = "does not apply: src/llama.cpp: @@ -1,3 +1,3 @@ context";
    let after = format!("{failed}; changes a file of 0002-fails.patch, which does not apply either");
    let expected = [
        ("0001", PatchFit::Applies, "applies"),
        ("0002", PatchFit::Fails, failed),
        ("0003", PatchFit::Moved, "applies with moved context: moved.c: hunk 1, 1 line down"),
        ("0004", PatchFit::Contained, "already contained upstream"),
        ("0005", PatchFit::Fails, "does not apply: gone.c: No such file or directory"),
        ("0006", PatchFit::Fails, &after),
        ("0007", PatchFit::Applies, "applies"),
    ];
    let expected: Vec<(&str, PatchFit, String)> =
        expected.into_iter().map(|(name, fit, text)| (name, fit, text.to_string())).collect();
    assert_eq!(told, expected);
    tree.check()?;
    assert_eq!(fs::read_to_string(tree.path.join(file))?, "one\ntwo\nthree\n");
    let left: Vec<_> = fs::read_dir(bench.store.root.join("sources/downloads"))?.flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    Ok(())
}

#[test]
fn another_version_of_the_crate_gets_a_pin_and_the_files_that_hold_it() -> Result<()> {
    let mut bench = Bench::new()?;
    let other = bench.path("fake-llama-2");
    write_tree(&other.join("llama.cpp"), &FILES)?;
    fs::write(other.join("llama.cpp/src/llama.cpp"), "new\n")?;
    // A fake cargo that knows version 2.0.0 only after this version was fetched.
    let seen = bench.path("fetched");
    bench.store.tools.cargo = bench.script(
        "cargo",
        &format!(
            "case $1 in\nfetch) touch '{0}';;\nmetadata) [ -f '{0}' ] || exit 1; echo '{{\"packages\": [{{\"name\": \
             \"fake-llama\", \"version\": \"2.0.0\", \"manifest_path\": \"{1}/Cargo.toml\"}}]}}';;\nesac",
            seen.display(),
            other.display()
        ),
    )?;
    fs::write(bench.path("pin/Cargo.toml"), "[dependencies]\nfake-llama = \"=1.0.0\"\n")?;
    let version = OtherSource::Crate("2.0.0".to_string());
    let (store, origin) = bench.store.of_other(&version, &mut |_| {})?;
    let tree = store.ensure(&origin, &mut |_| {})?;
    assert_eq!((tree.version.as_str(), &tree.digest), ("2.0.0", &store.pins.krate.digest));
    assert_ne!(store.pins.krate.digest, bench.store.pins.krate.digest);

    let digest = &bench.store.pins.krate.digest;
    let pins = format!(
        "# why\n[crate]\nversion = \"1.0.0\"\ndigest = \"{digest}\"\nllama = \"1.2.3\"\nggml = \"4.5.6\"\n[sdist]\n\
         version = \"1.0.0\"\n"
    );
    fs::write(bench.path("pins.toml"), &pins)?;
    let files = store.pin_files(&bench.store, &bench.path("pins.toml"))?;
    assert_eq!(files[0].1, "[dependencies]\nfake-llama = \"=2.0.0\"\n");
    let expected = pins.replacen("\"1.0.0\"", "\"2.0.0\"", 1).replace(digest.as_str(), tree.digest.as_str());
    assert_eq!(files[2], (bench.path("pins.toml"), expected));
    // Nothing is written before the decision.
    assert_eq!(fs::read_to_string(bench.path("pins.toml"))?, pins);
    Ok(())
}

#[test]
fn a_tree_without_a_patch_is_a_tree_of_its_own() -> Result<()> {
    let bench = Bench::new()?;
    let other = bench.path("other");
    write_tree(&other, &FILES)?;
    write_tree(&other, &[("a.c", "one\ntwo\nthree\n"), ("b.c", "one\ntwo\nthree\n")])?;
    bench.patch("0001-a.patch", &diff("a.c", "two", "2"))?;
    bench.patch("0002-b.patch", &diff("b.c", "two", "2"))?;
    let (store, origin) = bench.store.of_other(&OtherSource::Path(other), &mut |_| {})?;
    let whole = store.ensure(&origin, &mut |_| {})?;
    // A second call replaces the folder of patches.
    for _ in 0..2 {
        let tree = store.without("0001-a.patch")?.ensure(&origin, &mut |_| {})?;
        assert_eq!(tree.tried(), ["0002-b.patch"]);
        assert_ne!(tree.path, whole.path);
        assert_eq!(fs::read_to_string(tree.path.join("a.c"))?, "one\ntwo\nthree\n");
        assert_eq!(fs::read_to_string(tree.path.join("b.c"))?, "one\n2\nthree\n");
    }
    Ok(())
}
