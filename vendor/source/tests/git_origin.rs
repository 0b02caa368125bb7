//! Tests of the origin `git`, with a repository created by the test.

mod common;

use std::fs;
use std::process::Command;

use anyhow::{Result, ensure};
use common::{Bench, FILES, paths, write_tree, zeros};
use llama_source::{Origin, SourceTool};

fn git(bench: &Bench, args: &[&str]) -> Result<String> {
    let output = Command::new("git")
        .args(["-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"])
        .args(args)
        .current_dir(bench.path("repository"))
        .output()?;
    ensure!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().to_string())
}

/// Creates a bench with a repository of two commits. The first commit contains [`FILES`] and is pinned.
fn bench() -> Result<Bench> {
    let mut bench = Bench::new()?;
    let repository = bench.path("repository");
    write_tree(&repository, &FILES)?;
    git(&bench, &["init", "-q"])?;
    git(&bench, &["add", "."])?;
    git(&bench, &["commit", "-qm", "first"])?;
    bench.store.pins.git.commit = git(&bench, &["rev-parse", "HEAD"])?;
    write_tree(&repository, &[("src/second.cpp", "2\n")])?;
    git(&bench, &["add", "."])?;
    git(&bench, &["commit", "-qm", "second"])?;
    Ok(bench)
}

#[test]
fn the_pinned_commit_is_fetched_without_its_repository() -> Result<()> {
    let bench = bench()?;
    let tree = bench.ensure(&Origin::Git).0?;
    assert_eq!(tree.version, bench.store.pins.git.commit);
    assert_eq!(tree.build_commit, tree.version[..9]);
    assert_eq!(
        paths(&tree.path)?,
        ["CMakeLists.txt", "ggml/CMakeLists.txt", "scripts/run.sh", "src/llama.cpp"]
    );
    assert!(!tree.path.join(".git").exists());
    tree.check()
}

#[test]
fn another_commit_needs_no_digest_and_is_held_to_the_first_fetch() -> Result<()> {
    let mut bench = bench()?;
    let head = git(&bench, &["rev-parse", "HEAD"])?;
    bench.store.pins = bench.store.pins.clone().with_commit(&head)?;
    let tree = bench.ensure(&Origin::Git).0?;
    assert!(tree.path.join("src/second.cpp").is_file());
    assert_eq!(bench.ensure(&Origin::Git).0?, tree);
    fs::write(tree.path.join("src/second.cpp"), "changed")?;
    assert!(tree.check().unwrap_err().to_string().contains("changed src/second.cpp"));
    Ok(())
}

#[test]
fn what_was_fetched_once_needs_no_repository() -> Result<()> {
    let mut bench = bench()?;
    assert_eq!(bench.store.programs(&Origin::Git)?, [SourceTool::Git]);
    assert_eq!(bench.store.programs(&Origin::Crate)?, []);
    let tree = bench.ensure(&Origin::Git).0?;
    assert_eq!(bench.store.programs(&Origin::Git)?, []);
    fs::remove_dir_all(bench.path("repository"))?;
    // The tree comes from the store. After a patch is added, the new tree is made from the kept objects.
    assert_eq!(bench.ensure(&Origin::Git).0?, tree);
    bench.patch("a.patch", "Why: x\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+new\n")?;
    assert!(bench.ensure(&Origin::Git).0?.path.join("new").is_file());
    // A different root has no kept objects.
    bench.store.root = bench.path("another");
    let error = bench.error(&Origin::Git);
    for part in ["cannot fetch commit", "network access is needed once", "--git-url DIR", "--path DIR"] {
        assert!(error.contains(part), "no {part:?} in: {error}");
    }
    assert_eq!(bench.stored(), [""; 0]);
    Ok(())
}

#[test]
fn a_wrong_digest_an_unknown_commit_and_no_git_are_told() -> Result<()> {
    let mut bench = bench()?;
    let right = bench.store.pins.git.clone();
    bench.store.pins.git.digest = Some(zeros());
    let error = bench.error(&Origin::Git);
    assert!(error.contains(zeros().as_str()) && error.contains("pins.toml"), "{error}");

    bench.store.pins.git.commit = "cd".repeat(20);
    let error = bench.error(&Origin::Git);
    assert!(error.contains(&"cd".repeat(20)) && error.contains("not our ref"), "{error}");

    bench.store.pins.git.commit = "master".into();
    assert!(bench.error(&Origin::Git).contains("not a full commit"));

    bench.store.pins.git = right;
    bench.store.root = bench.path("another");
    bench.store.tools.git = "no-such-git".into();
    assert!(bench.error(&Origin::Git).contains("install git"));
    assert_eq!(bench.stored(), [""; 0]);
    Ok(())
}

#[test]
fn line_ends_and_links_come_as_they_were_committed() -> Result<()> {
    let mut bench = bench()?;
    let repository = bench.path("repository");
    git(&bench, &["config", "core.autocrlf", "false"])?;
    write_tree(&repository, &[("crlf.txt", "a\r\nb\r\n")])?;
    std::os::unix::fs::symlink("/etc/passwd", repository.join("link"))?;
    git(&bench, &["add", "."])?;
    git(&bench, &["commit", "-qm", "third"])?;
    let head = git(&bench, &["rev-parse", "HEAD"])?;
    bench.store.pins = bench.store.pins.clone().with_commit(&head)?;
    let tree = bench.ensure(&Origin::Git).0?;
    assert_eq!(fs::read_to_string(tree.path.join("crlf.txt"))?, "a\r\nb\r\n");
    assert!(fs::symlink_metadata(tree.path.join("link"))?.is_file());
    assert_eq!(fs::read_to_string(tree.path.join("link"))?, "/etc/passwd");
    Ok(())
}
