//! Files of a build to publish, and runs of the program `store`.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use build_info::tuning::CpuKey;
use build_info::{Sha256, TuningRecord};
use ship::order::Item;
use store::order::{Ask, Check, Choose, Publish, Take, Tune};
use store::{Answer, Build, CpuKind, Location, Order, Parts, Reply};

pub const NAME: &str = "anneal-0.1.0-x86_64-unknown-linux-gnu-native";

/// Returns the parts of the key of a build with the engine's sources `engine`.
pub fn parts(engine: &str) -> Parts {
    Parts {
        schema: 1,
        plan: serde_json::json!({ "target": "x86_64-unknown-linux-gnu" }),
        engine: Sha256::of(engine),
        gate: Sha256::of(b"gate"),
        audit: Sha256::of(b"audit"),
        cpu: Some(kind()),
        glibc: None,
    }
}

pub fn kind() -> CpuKind {
    CpuKind {
        arch: "x86_64".into(),
        vendor: "AuthenticAMD".into(),
        family: Some(25),
        model: Some(1),
        features: vec!["avx2".into()],
    }
}

/// Creates the files of a build of `size` bytes in `folder`, and returns the order to publish them.
pub fn publish(folder: &Path, store: &str, engine: &str, size: usize) -> Order {
    fs::create_dir_all(folder).unwrap();
    // The content is incompressible and depends only on the engine.
    let mut seed = Sha256::of(engine)
        .as_str()
        .bytes()
        .fold(1u64, |all, byte| all.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let mut noise = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed as u8
    };
    let program: Vec<u8> = (0..size).map(|_| noise()).collect();
    fs::write(folder.join("anneal"), &program).unwrap();
    fs::write(folder.join("build_info.json"), "{}").unwrap();
    let work = folder.join("work");
    fs::create_dir_all(&work).unwrap();
    let archive = folder.join(format!("{NAME}.tar.zst"));
    fs::write(&archive, [b"archive of ".as_slice(), &program].concat()).unwrap();
    let item = |from: &str, to: &str| Item { from: folder.join(from), to: to.into(), executable: false };
    Order::Publish(Box::new(Publish {
        store: location(store),
        build: Build {
            parts: parts(engine),
            profile: "native".into(),
            version: "0.1.0".into(),
            target: "x86_64-unknown-linux-gnu".into(),
            glibc: Some("2.28".parse().unwrap()),
            plan_hash: Sha256::of(format!("plan of {engine}")),
            variant: None,
            published: "2026-01-01T00:00:00Z".into(),
            gate: "passed".into(),
            audit: "passed".into(),
            name: NAME.into(),
        },
        archive,
        tree: vec![item("anneal", "bin/anneal"), item("build_info.json", "build_info.json")],
        mtime: 1_700_000_000,
        force: false,
        work,
    }))
}

pub fn forced(order: Order) -> Order {
    match order {
        Order::Publish(mut publish) => {
            publish.force = true;
            Order::Publish(publish)
        }
        other => other,
    }
}

pub fn location(store: &str) -> Location {
    store.parse().unwrap()
}

pub fn ask(store: &str, engine: &str) -> Order {
    Order::Ask(Ask { store: location(store), key: parts(engine).key() })
}

/// Returns the order to check a published build, with copies in the folder `work`.
pub fn check(store: &str, engine: &str, list: bool, work: &Path) -> Order {
    Order::Check(Check { store: location(store), key: parts(engine).key(), list, work: work.to_path_buf() })
}

/// Returns the order to download a published build into the new folder `into`.
pub fn take(store: &str, engine: &str, into: &Path) -> Order {
    fs::create_dir_all(into).unwrap();
    Order::Take(Take {
        store: location(store),
        key: parts(engine).key(),
        into: into.to_path_buf(),
        cpu: Some(cpu()),
    })
}

pub fn choose(store: &str, kinds: &[&str], glibc: &str, into: Option<PathBuf>) -> Order {
    Order::Choose(Choose {
        store: location(store),
        kinds: kinds.iter().map(|kind| (*kind).to_string()).collect(),
        profile: "native".into(),
        glibc: Some(glibc.parse().unwrap()),
        into,
        cpu: Some(cpu()),
    })
}

pub fn cpu() -> CpuKey {
    serde_json::from_value(
        serde_json::json!({ "vendor": "v", "name": "n", "features": "f", "affinity": [0, 1], "quota": 1.5 }),
    )
    .unwrap()
}

/// Returns a record of the build `build` for `objective`, tuned on `date`.
pub fn tuned(build: &str, objective: &str, date: &str) -> TuningRecord {
    let entry = serde_json::json!({
        "key": {
            "build": build, "cpu": cpu(), "objective": objective,
            "model": {
                "architecture": "llama", "layers": 1, "embedding": 1, "feed_forward": 1, "heads": 1, "kv_heads": 1,
                "vocabulary": 1, "quantisation": "Q4_0", "weights": 1
            }
        },
        "chosen": {}, "date": date, "anneal_version": "0.1.0", "budget_seconds": 1.0, "seconds": 1.0,
        "lossy": false, "tokens": [1, 1], "stages": []
    });
    serde_json::from_value(serde_json::json!({ "schema_version": "1.0", "entries": [entry] })).unwrap()
}

pub fn tune(store: &str, engine: &str, record: TuningRecord, build: &str) -> Order {
    Order::Tune(Tune { store: location(store), key: parts(engine).key(), record, build: Sha256::of(build) })
}

/// Returns the command of the program.
pub fn command(variables: &BTreeMap<String, String>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_store"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).envs(variables);
    command
}

/// Returns the exit code and the reply of a finished program.
pub fn ended(output: &Output) -> (i32, Reply) {
    let reply = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(&output.stdout)));
    (output.status.code().unwrap_or(-1), reply)
}

/// Gives an order to the program.
pub fn give_with(order: &Order, variables: &BTreeMap<String, String>) -> (i32, Reply) {
    let mut child = command(variables).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&serde_json::to_vec(order).unwrap()).unwrap();
    ended(&child.wait_with_output().unwrap())
}

pub fn give(order: &Order) -> (i32, Reply) {
    give_with(order, &BTreeMap::new())
}

/// Returns the answer to an order that must succeed.
pub fn done(reply: (i32, Reply)) -> Answer {
    match reply {
        (0, Reply::Done(answer)) => answer,
        other => panic!("{other:?}"),
    }
}

/// Returns the exit code and the messages of a failure on one line.
pub fn said((code, reply): (i32, Reply)) -> (i32, String) {
    match reply {
        Reply::Failed(failed) => (code, failed.said.join(": ")),
        Reply::Done(answer) => panic!("it was done: {answer:?}"),
    }
}

/// Returns the names of all files below `folder`.
pub fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![folder.to_path_buf()];
    while let Some(path) = waiting.pop() {
        for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                waiting.push(entry.path());
            } else {
                found.push(entry.path().strip_prefix(folder).unwrap().display().to_string());
            }
        }
    }
    found.sort();
    found
}

/// Returns the path of the object with the files of the build folder, which is compressed by zstd.
pub fn tree_object(store: &Path) -> PathBuf {
    let objects = fs::read_dir(store.join("v1/objects")).unwrap().flatten().map(|entry| entry.path());
    let zstd = |path: &PathBuf| fs::read(path).unwrap().starts_with(&[0x28, 0xb5, 0x2f, 0xfd]);
    objects.into_iter().find(zstd).unwrap()
}
