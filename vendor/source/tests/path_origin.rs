//! Tests of the origin `path`: a user's folder is only read, never written.

mod common;

use std::fs;
use std::os::unix::fs::symlink;

use anyhow::Result;
use common::{Bench, FILES, paths, write_tree};
use llama_source::Origin;
use llama_source::digest::Listing;

#[test]
fn sources_are_copied_and_builds_and_models_are_not() -> Result<()> {
    let bench = Bench::new()?;
    let dir = bench.path("a user's folder");
    write_tree(&dir, &FILES)?;
    write_tree(
        &dir,
        &[
            (".git/HEAD", "ref: refs/heads/master\n"),
            ("ggml/.git", "gitdir: nowhere\n"),
            ("build-x/CMakeCache.txt", ""),
            ("build-x/bin/llama-cli", "ELF"),
            ("gguf-py/__pycache__/a.pyc", ""),
            ("models/big.gguf", "GGUF"),
            ("models/ggml-vocab-qwen2.gguf", "GGUF"),
        ],
    )?;
    write_tree(&bench.path("elsewhere"), &[("extra.cpp", "extra\n")])?;
    symlink(bench.path("elsewhere"), dir.join("linked"))?;
    symlink("..", dir.join("ggml/loop"))?;
    symlink("nowhere", dir.join("dangling"))?;

    let origin = Origin::Path(dir.clone());
    let (tree, said) = bench.ensure(&origin);
    let tree = tree?;
    assert_eq!(
        paths(&tree.path)?,
        [
            "CMakeLists.txt",
            "ggml/CMakeLists.txt",
            "linked/extra.cpp",
            "models/ggml-vocab-qwen2.gguf",
            "scripts/run.sh",
            "src/llama.cpp"
        ]
    );
    for link in ["loop", "dangling"] {
        let told = said.iter().filter(|line| line.contains("skipped ") && line.contains(link)).count();
        assert_eq!(told, 1, "{link}: {said:?}");
    }
    assert_eq!(tree.origin, origin);
    assert_eq!(tree.version, format!("tree-{}", tree.digest.short()));
    tree.check()
}

#[test]
fn a_change_in_the_folder_is_another_tree_and_patches_stay_out_of_it() -> Result<()> {
    let bench = Bench::new()?;
    let dir = bench.path("mine");
    write_tree(&dir, &FILES)?;
    bench.patch(
        "a.patch",
        "Why: x\n--- a/src/llama.cpp\n+++ b/src/llama.cpp\n@@ -1,3 +1,3 @@\n-one\n+1\n two\n three\n",
    )?;
    let before = Listing::of(&dir)?;
    let first = bench.ensure(&Origin::Path(dir.clone())).0?;
    assert_eq!(Listing::of(&dir)?, before);
    assert_eq!(bench.ensure(&Origin::Path(dir.clone())).0?, first);

    write_tree(&dir, &[("src/new.cpp", "")])?;
    let second = bench.ensure(&Origin::Path(dir)).0?;
    assert_ne!(second.path, first.path);
    assert!(second.path.join("src/new.cpp").exists());
    first.check()
}

#[test]
fn a_folder_that_cannot_be_used_is_told_why() -> Result<()> {
    let mut bench = Bench::new()?;
    let missing = bench.path("missing");
    let error = bench.error(&Origin::Path(missing));
    assert!(error.contains("cannot open the folder") && error.contains("missing"), "{error}");

    let empty = bench.path("empty");
    fs::create_dir(&empty)?;
    let error = bench.error(&Origin::Path(empty));
    assert!(error.contains("not a llama.cpp tree"), "{error}");

    let around = bench.path("around");
    write_tree(&around, &FILES)?;
    bench.store.root = around.join("target/anneal");
    let error = bench.error(&Origin::Path(around));
    assert!(error.contains("the destination of the copy"), "{error}");
    Ok(())
}
