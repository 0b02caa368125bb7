//! Tests of archives that `dist` makes. They only use the unpacked archive, never the build tree: they install it
//! with the shell script, with xtask and with the installed program, run the program, and uninstall it.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gguf::synth::{self, Preset, SynthOptions};
use serde_json::Value;

const PROFILE: &str = "universal-few";

fn xtask(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask")).args(args).output().unwrap()
}

/// Runs `anneal self` of the installed program.
fn own(prefix: &Path, args: &[&str]) -> Output {
    Command::new(prefix.join("bin/anneal")).arg("self").args(args).output().unwrap()
}

#[track_caller]
fn succeeded(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Packs the current build of `profile` into `out`.
fn dist(profile: &str, out: &Path) -> PathBuf {
    let args = ["dist", "--profile", profile, "--no-build", "--json", "--out", out.to_str().unwrap()];
    let made: Value = serde_json::from_str(&succeeded(&xtask(&args))).unwrap();
    assert!(made["crates"].as_u64().is_some_and(|crates| crates > 100), "{made}");
    made["archives"][0]["path"].as_str().map(PathBuf::from).unwrap()
}

/// Generates twelve tokens with the installed program in an empty environment.
fn tokens(program: &Path, model: &str) -> Value {
    let args = ["run", "-m", model, "-p", "The smith brings the steel", "-n", "12", "--greedy", "--json"];
    let report = succeeded(&Command::new(program).args(args).env_clear().current_dir("/").output().unwrap());
    serde_json::from_str::<Value>(&report).unwrap()["tokens"].clone()
}

/// Checks that the list of crates in the program, which auditors read, matches the bill of materials next to the
/// program.
#[track_caller]
fn carries_its_list_of_crates(prefix: &Path) {
    let program = std::fs::canonicalize(prefix.join("bin/anneal")).unwrap();
    let carried = auditable_info::audit_info_from_file(&program, auditable_info::Limits::default()).unwrap();
    let carried: BTreeSet<String> = carried
        .packages
        .iter()
        .filter(|package| !package.root)
        .map(|package| {
            format!("{} {} {}", package.name, package.version, String::from(package.source.clone()))
        })
        .collect();
    let bill = program.parent().and_then(Path::parent).unwrap().join("sbom.cdx.json");
    let bill: Value = serde_json::from_slice(&std::fs::read(bill).unwrap()).unwrap();
    let source = |purl: &str| match purl {
        purl if purl.starts_with("pkg:cargo/") => Some("crates.io"),
        purl if purl.starts_with("pkg:generic/anneal/") => Some("local"),
        _ => None,
    };
    let word = |part: &Value, key: &str| part[key].as_str().unwrap().to_string();
    let listed: BTreeSet<String> = bill["components"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|part| {
            let source = source(part["purl"].as_str()?)?;
            Some(format!("{} {} {source}", word(part, "name"), word(part, "version")))
        })
        .collect();
    assert!(carried.len() > 100, "{carried:?}");
    assert_eq!(carried, listed);
}

#[test]
fn archives_are_made_alike_twice_installed_run_and_taken_back() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("tiny.gguf");
    synth::write(&model, &SynthOptions::new(Preset::Tiny)).unwrap();
    let model = model.to_str().unwrap();
    let archive = dist(PROFILE, &folder.path().join("one"));
    let placed = |name: &str| archive.with_file_name(name).is_file();
    assert!(placed("install.sh") && placed("index.json") && !archive.to_str().unwrap().contains(".packing"));

    let built = |profile: &str| {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/anneal").join(profile).join("bin/anneal")
    };
    let expected = tokens(&built(PROFILE), model);
    assert_eq!(expected.as_array().map(Vec::len), Some(12));

    let prefix = folder.path().join("a prefix");
    let from = archive.to_str().unwrap();
    let script = archive.with_file_name("install.sh");
    let sh = |args: &[&str]| Command::new("sh").arg(&script).args(args).output().unwrap();
    let to = ["--prefix", prefix.to_str().unwrap()];
    succeeded(&sh(&[&["--from", from][..], &to].concat()));
    assert_eq!(tokens(&prefix.join("bin/anneal"), model), expected);
    carries_its_list_of_crates(&prefix);
    succeeded(&xtask(&[&["uninstall", "--all"][..], &to].concat()));
    assert!(!prefix.join("bin/anneal").exists() && !prefix.join("lib/anneal").exists());
    succeeded(&xtask(&[&["install", "--from", from][..], &to].concat()));
    assert_eq!(tokens(&prefix.join("bin/anneal"), model), expected);
    // The installed program changes its own installation.
    let listed = succeeded(&own(&prefix, &["list", "--json"]));
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert!(listed[0]["current"] == true && listed[0]["problem"].is_null(), "{listed}");
    succeeded(&own(&prefix, &["install", "--from", from]));
    assert_eq!(tokens(&prefix.join("bin/anneal"), model), expected);

    // If one bit of the archive is flipped, the archive is rejected, and the installed version stays. The checksum file
    // is next to the archive.
    let bad = folder.path().join("bad");
    std::fs::create_dir(&bad).unwrap();
    let flipped = bad.join(archive.file_name().unwrap());
    let sum = |archive: &Path| PathBuf::from(format!("{}.sha256", archive.display()));
    std::fs::copy(sum(&archive), sum(&flipped)).unwrap();
    flip_a_bit(&archive, &flipped);
    for refused in [
        sh(&[&["--from", flipped.to_str().unwrap()][..], &to].concat()),
        xtask(&[&["install", "--from", flipped.to_str().unwrap()][..], &to].concat()),
    ] {
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains("sum") || said.contains("SHA-256"), "{said}");
    }
    assert_eq!(tokens(&prefix.join("bin/anneal"), model), expected);

    // A native archive is for machines like this one and may contain paths of this machine. The native archive is
    // smaller, so packing it several times takes less time.
    let native = dist("native", &folder.path().join("native"));
    let prefix = folder.path().join("fleet");
    let to = ["--prefix", prefix.to_str().unwrap()];
    succeeded(&xtask(&[&["install", "--from", native.to_str().unwrap()][..], &to].concat()));
    let expected = tokens(&built("native"), model);
    assert_eq!(tokens(&prefix.join("bin/anneal"), model), expected);

    let second = dist("native", &folder.path().join("two"));
    assert!(
        std::fs::read(&native).unwrap() == std::fs::read(&second).unwrap(),
        "the same build, packed twice"
    );

    // The output folder contains the archive to compare with. If the archives differ, that archive must not be
    // replaced.
    flip_a_bit(&native, &second);
    let there = std::fs::read(&second).unwrap();
    let out = second.parent().unwrap();
    let before = std::fs::read_dir(out).unwrap().count();
    let (path, from) = (out.to_str().unwrap(), second.to_str().unwrap());
    let refused = xtask(&["dist", "--profile", "native", "--no-build", "--out", path, "--against", from]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(std::fs::read(&second).unwrap() == there, "{said}");
    assert_eq!(std::fs::read_dir(out).unwrap().count(), before, "{said}");
}

/// Writes the file `from` to `to` with one bit changed in the middle.
fn flip_a_bit(from: &Path, to: &Path) {
    let mut bytes = std::fs::read(from).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(to, bytes).unwrap();
}
