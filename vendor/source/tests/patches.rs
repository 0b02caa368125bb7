//! Tests of patches that are applied to trees in the store.

mod common;

use std::fs;
use std::process::Command;

use anyhow::Result;
use common::Bench;
use llama_source::Origin;

/// Returns a patch of `src/llama.cpp` that replaces the line `from` between its neighbours.
fn diff(from: &str, to: &str) -> String {
    format!(
        "diff --git a/src/llama.cpp b/src/llama.cpp\n--- a/src/llama.cpp\n+++ b/src/llama.cpp\n\
         @@ -1,3 +1,3 @@\n one\n-{from}\n+{to}\n three\n"
    )
}

#[test]
fn patches_are_applied_in_order_and_recorded() -> Result<()> {
    let bench = Bench::new()?;
    let plain = bench.ensure(&Origin::Crate).0?;
    bench.patch("0002-b.patch", &format!("Why: the second\n{}", diff("2", "zwei")))?;
    bench.patch("0001-a.patch", &format!("Why: the first\n{}", diff("two", "2")))?;
    bench.patch("README.md", "no patch")?;
    let tree = bench.ensure(&Origin::Crate).0?;
    assert_eq!(fs::read_to_string(tree.path.join("src/llama.cpp"))?, "one\nzwei\nthree\n");
    assert_eq!(tree.patches, ["0001-a.patch", "0002-b.patch"]);
    assert_eq!(tree.digest, plain.digest);
    assert_ne!(tree.patched_digest, plain.digest);
    assert_ne!(tree.path, plain.path);
    tree.check()?;
    plain.check()?;
    // The originals are unchanged, and the same patches give the same tree.
    assert_eq!(fs::read_to_string(bench.path("fake-llama/llama.cpp/src/llama.cpp"))?, "one\ntwo\nthree\n");
    assert_eq!(bench.ensure(&Origin::Crate).0?, tree);
    Ok(())
}

/// For another version of llama.cpp, or a user's own tree, a missing optional patch should not cause an error.
#[test]
fn an_optional_patch_that_does_not_fit_is_left_out_and_told() -> Result<()> {
    let bench = Bench::new()?;
    let optional = "Why: faster\nOptional: slower without it\n";
    bench.patch("0001-a.patch", &format!("{optional}{}", diff("zwei", "2")))?;
    bench.patch("0002-b.patch", &format!("{optional}{}", diff("two", "2")))?;
    let mut said = Vec::new();
    let tree = bench.store.ensure(&Origin::Crate, &mut |line| said.push(line.to_string()))?;
    assert_eq!(
        (&tree.patches[..], &tree.left_out[..]),
        (&["0002-b.patch".to_string()][..], &["0001-a.patch".to_string()][..])
    );
    let told = |line: &String| {
        line.contains("0001-a.patch does not apply") && line.ends_with("skipped: slower without it")
    };
    assert!(said.iter().any(told), "{said:?}");
    // The tree is found in the store and not recreated.
    let again = bench.store.ensure(&Origin::Crate, &mut |line| panic!("{line}"))?;
    assert_eq!(again, tree);
    Ok(())
}

/// The store is in a subfolder of a repository. In such a subfolder, `git apply` silently skips the files of a patch in
/// git's format.
#[test]
fn a_repository_around_the_store_does_not_matter() -> Result<()> {
    let bench = Bench::new()?;
    assert!(Command::new("git").args(["init", "-q"]).current_dir(bench.dir.path()).status()?.success());
    bench.patch("a.patch", &format!("Why: a test\n{}", diff("two", "2")))?;
    let tree = bench.ensure(&Origin::Crate).0?;
    assert_eq!(fs::read_to_string(tree.path.join("src/llama.cpp"))?, "one\n2\nthree\n");
    Ok(())
}

#[test]
fn patches_may_add_remove_and_rename() -> Result<()> {
    let bench = Bench::new()?;
    let text = "Why: a test\n\
        diff --git a/new/file b/new/file\nnew file mode 100644\n--- /dev/null\n+++ b/new/file\n@@ -0,0 +1 @@\n+new\n\
        diff --git a/scripts/run.sh b/scripts/run.sh\ndeleted file mode 100644\n--- a/scripts/run.sh\n+++ /dev/null\n\
        @@ -1 +0,0 @@\n-#!/bin/sh\n\
        diff --git a/src/llama.cpp b/src/renamed.cpp\nsimilarity index 100%\nrename from src/llama.cpp\n\
        rename to src/renamed.cpp\n";
    bench.patch("a.patch", text)?;
    let tree = bench.ensure(&Origin::Crate).0?;
    assert_eq!(
        common::paths(&tree.path)?,
        ["CMakeLists.txt", "ggml/CMakeLists.txt", "new/file", "src/renamed.cpp"]
    );
    Ok(())
}

#[test]
fn a_bad_patch_is_named_and_nothing_is_left() -> Result<()> {
    let good = diff("two", "2");
    let cases = [
        ("does not fit", format!("Why: x\n{}", diff("zwei", "2")), "patch failed: src/llama.cpp:1"),
        ("truncated", format!("Why: x\n{}", &good[..good.len() - 8]), "does not apply"),
        ("no diff", "Why: x\n".to_string(), "does not apply"),
        ("no header", good.clone(), "does not say why"),
        ("leads out", format!("Why: x\n{}", good.replace("src/llama.cpp", "../evil")), "does not apply"),
        (
            "changes nothing",
            "Why: x\ndiff --git a/scripts/run.sh b/scripts/run.sh\nold mode 100644\nnew mode 100755\n".to_string(),
            "changes nothing",
        ),
        (
            "adds a link",
            "Why: x\ndiff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc\n\
             \\ No newline at end of file\n"
                .to_string(),
            "symbolic link",
        ),
    ];
    let bench = Bench::new()?;
    let plain = bench.ensure(&Origin::Crate).0?;
    let stored = bench.stored();
    for (what, text, expected) in cases {
        bench.patch("0001-bad.patch", &text)?;
        let error = bench.error(&Origin::Crate);
        assert!(error.contains(expected), "{what}: {error}");
        assert!(error.contains("0001-bad.patch"), "{what}: {error}");
        assert_eq!(bench.stored(), stored, "{what}");
    }
    plain.check()
}

#[test]
fn patches_without_git_say_so() -> Result<()> {
    let mut bench = Bench::new()?;
    bench.store.tools.git = "no-such-git".into();
    bench.ensure(&Origin::Crate).0?;
    bench.patch("a.patch", &format!("Why: x\n{}", diff("two", "2")))?;
    let error = bench.error(&Origin::Crate);
    assert!(error.contains("cannot find the program `no-such-git`: install git"), "{error}");
    Ok(())
}
