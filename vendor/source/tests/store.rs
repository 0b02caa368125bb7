//! Tests of the store: concurrent processes, leftovers of killed processes, and damage.

mod common;

use std::fs::{self, File};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::thread;

use anyhow::{Context, Result};
use common::Bench;
use llama_source::Origin;

#[test]
fn two_at_once_get_the_same_tree_and_one_makes_it() -> Result<()> {
    let mut bench = Bench::new()?;
    // The fake cargo counts its calls. Its first call does not end until all other processes wait for it.
    let cargo = bench.store.tools.cargo.display().to_string();
    let (log, go) = (bench.path("calls"), bench.path("go"));
    let body = format!(
        "echo \"$1\" >> '{}'\nuntil [ -e '{}' ]; do sleep 0.05; done\nexec '{cargo}' \"$@\"",
        log.display(),
        go.display()
    );
    bench.store.tools.cargo = bench.script("cargo", &body)?;
    let waiting = AtomicU32::new(0);
    let one = || {
        bench.store.ensure(&Origin::Crate, &mut |line| {
            if line.contains("waiting for another process") && waiting.fetch_add(1, SeqCst) == 2 {
                fs::write(&go, "").unwrap();
            }
        })
    };
    let trees = thread::scope(|scope| {
        let started: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
        started.into_iter().map(|thread| thread.join().unwrap()).collect::<Result<Vec<_>>>()
    })?;
    assert!(trees.iter().all(|tree| *tree == trees[0]));
    trees[0].check()?;
    assert_eq!(fs::read_to_string(log)?.lines().count(), 1);
    assert_eq!(bench.stored().len(), 1);
    Ok(())
}

#[test]
fn what_a_killed_process_left_is_swept_but_not_a_living_ones() -> Result<()> {
    let bench = Bench::new()?;
    let leftover = bench.path("root/sources/.staging-1/prepared/llama.cpp");
    let leave = || -> Result<()> {
        fs::create_dir_all(&leftover)?;
        Ok(fs::write(leftover.join("CMakeLists.txt"), "half")?)
    };
    leave()?;
    bench.ensure(&Origin::Crate).0?;
    assert!(!leftover.exists(), "the slow path did not sweep");

    leave()?;
    let living = File::options().write(true).open(bench.path("root/sources/.lock"))?;
    living.lock()?;
    bench.ensure(&Origin::Crate).0?;
    assert!(leftover.exists(), "a living process lost its folder");
    // Not only dropped: a process that another test is starting may still have a copy of the file.
    living.unlock()?;
    bench.ensure(&Origin::Crate).0?;
    assert!(!leftover.exists(), "the fast path did not sweep");
    Ok(())
}

#[test]
fn a_damaged_record_makes_the_tree_anew() -> Result<()> {
    let bench = Bench::new()?;
    let tree = bench.ensure(&Origin::Crate).0?;
    let record = tree.path.parent().context("no parent")?.join("source.json");
    let text = fs::read_to_string(&record)?;
    for damage in ["", "{", &text[..text.len() / 2], "[]"] {
        fs::write(&record, damage)?;
        fs::write(tree.path.join("src/llama.cpp"), "half")?;
        assert_eq!(bench.ensure(&Origin::Crate).0?, tree, "{damage:?}");
        tree.check()?;
    }
    fs::remove_dir_all(&tree.path)?;
    bench.ensure(&Origin::Crate).0?.check()?;
    assert_eq!(bench.stored().len(), 1);
    Ok(())
}

#[test]
fn check_names_what_differs() -> Result<()> {
    let bench = Bench::new()?;
    let tree = bench.ensure(&Origin::Crate).0?;
    llama_source::check(&tree)?;
    fs::write(tree.path.join("src/llama.cpp"), "changed")?;
    fs::write(tree.path.join("src/new.cpp"), "")?;
    fs::remove_file(tree.path.join("scripts/run.sh"))?;
    let error = llama_source::check(&tree).unwrap_err().to_string();
    for part in ["changed src/llama.cpp", "added src/new.cpp", "missing scripts/run.sh", "cargo xtask vendor"]
    {
        assert!(error.contains(part), "no {part:?} in: {error}");
    }
    Ok(())
}

#[test]
fn check_does_not_believe_changed_sums() -> Result<()> {
    let bench = Bench::new()?;
    let tree = bench.ensure(&Origin::Crate).0?;
    fs::write(tree.path.join("src/llama.cpp"), "changed")?;
    let sums = tree.path.parent().context("no parent")?.join("SHA256SUMS");
    fs::write(&sums, llama_source::digest::Listing::of(&tree.path)?.to_text())?;
    let error = tree.check().unwrap_err().to_string();
    assert!(error.contains("does not belong to the tree"), "{error}");
    Ok(())
}

#[test]
fn a_root_that_cannot_be_written_is_named() -> Result<()> {
    let mut bench = Bench::new()?;
    bench.store.root = bench.path("pin/Cargo.toml");
    let error = bench.error(&Origin::Crate);
    assert!(error.contains("cannot create") && error.contains("Cargo.toml"), "{error}");
    Ok(())
}

#[test]
fn what_is_no_llama_cpp_is_refused() -> Result<()> {
    let bench = Bench::new()?;
    fs::remove_file(bench.path("fake-llama/llama.cpp/ggml/CMakeLists.txt"))?;
    let error = bench.error(&Origin::Crate);
    assert!(error.contains("not a llama.cpp tree") && error.contains("ggml/CMakeLists.txt"), "{error}");
    assert_eq!(bench.stored(), [""; 0]);
    Ok(())
}
