//! Tests of the command `cargo xtask validate`, with engines that are scripts: tests/data/fake-anneal.sh.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// CPU tolerance. The scripts use real CPU time, and on a machine with other load the measured time varies widely.
const TOLERANCE: &str = "3";

/// Folder with engines and a model.
struct Stage {
    folder: tempfile::TempDir,
}

impl Stage {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("m.gguf"), "not looked at").unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Creates an engine that behaves as `plan` says. Returns the engine's folder.
    fn engine(&self, name: &str, plan: &str) -> String {
        let bin = self.path(name).join("bin");
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::write(bin.join("plan"), plan).unwrap();
        // Another process writes the script, because a script cannot be run while a forked child has it open for
        // writing.
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/fake-anneal.sh");
        let done = Command::new("sh")
            .args(["-c", "cp \"$0\" \"$1\" && chmod +x \"$1\""])
            .args([&script, &bin.join("anneal")])
            .status();
        assert!(done.unwrap().success());
        self.path(name).display().to_string()
    }

    fn validate(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
        command
            .args(["validate", "-q", "--pairs", "8", "--precision", "0"])
            .args(arguments)
            .stdin(Stdio::null());
        command.arg("-m").arg(self.path("m.gguf"));
        command
    }

    /// Compares an engine that behaves as `plan` says with an engine without a plan.
    fn judge(&self, plan: &str, arguments: &[&str]) -> (i32, Value, String) {
        let (a, b) = (self.engine("a", ""), self.engine("b", plan));
        let output = self.validate(&[&[a.as_str(), &b, "--json"], arguments].concat()).output().unwrap();
        let record = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        (output.status.code().unwrap_or(-1), record, stderr(&output))
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn reasons(record: &Value) -> String {
    record["reasons"].to_string()
}

#[cfg(feature = "long-tests")]
#[test]
fn what_was_planted_is_found() {
    let stage = Stage::new();
    // One phase is enough, and takes half the time of two.
    let loose = ["--cpu-tolerance", TOLERANCE, "--phases", "prefill"];
    let cases = [
        ("speed=1200", 0, "accepted", ""),
        ("speed=900", 1, "not-accepted", "prefill is slower: 0."),
        ("", 1, "not-accepted", "no phase is faster"),
        ("speed=1200 tokens=8", 1, "not-accepted", "B's output differs from A's: 0 of 64 greedy tokens"),
        ("speed=1200 nan=1", 1, "not-accepted", "B computes invalid logits"),
        ("speed=1200 unstable=1", 1, "not-accepted", "B is unstable"),
        ("speed=1200 crash=run", 1, "not-accepted", "B broke: anneal run"),
        ("speed=1200 crash=bench", 1, "not-accepted", "signal: 6"),
        ("speed=1200 crash=info", 1, "not-accepted", "planted crash"),
        ("speed=1200 work=3000000", 1, "not-accepted", "takes more CPU time per token"),
        ("speed=1200 work=0", 75, "cannot-tell", "CPU time of prefill was too short"),
    ];
    for (plan, code, verdict, words) in cases {
        let (found, record, said) = stage.judge(plan, &loose);
        assert_eq!((found, record["verdict"].as_str()), (code, Some(verdict)), "{plan}: {record:#} {said}");
        assert!(reasons(&record).contains(words), "{plan}: {}", reasons(&record));
        assert!(
            !record.to_string().contains(&*stage.folder.path().to_string_lossy()),
            "a folder of this machine"
        );
    }
    let (code, record, said) = stage.judge("", &[&loose[..], &["--accept-equal"]].concat());
    assert_eq!((code, &record["verdict"]), (0, &Value::from("accepted")), "{said}");
}

#[test]
fn a_lost_device_is_a_fallback() {
    let stage = Stage::new();
    let (a, b) = (stage.engine("a", "gpu='An H100'"), stage.engine("b", "speed=2000"));
    let output = stage.validate(&[&a, &b, "--json"]).output().unwrap();
    let record: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(reasons(&record).contains("it does not find An H100"), "{}", reasons(&record));
    // The verdict was reached before any race.
    assert_eq!(record["speed"], Value::Array(Vec::new()));
}

#[cfg(feature = "long-tests")]
#[test]
fn a_long_run_finds_what_grows() {
    let stage = Stage::new();
    let long = ["--long", "1000", "--cpu-tolerance", TOLERANCE, "--phases", "decode"];
    let (code, record, said) = stage.judge("speed=1200 leak=2000000", &long);
    assert_eq!((code, &record["verdict"]), (1, &Value::from("not-accepted")), "{record:#} {said}");
    assert!(reasons(&record).contains("B's memory grows by +"), "{}", reasons(&record));
    assert!(record["long"]["runs"][1]["samples"].as_array().is_some_and(|samples| samples.len() > 10));
}

#[test]
fn the_page_and_the_record_are_told() {
    let stage = Stage::new();
    let (a, b) = (stage.engine("a", ""), stage.engine("b", "speed=1300"));
    let out = stage.path("record.json");
    let flags = ["--cpu-tolerance", TOLERANCE, "--flags-b=--no-repack -t 2", "--phases", "decode"];
    let output = stage.validate(&[&a, &b]).args(flags).arg("--out").arg(&out).output().unwrap();
    let page = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{page} {}", stderr(&output));
    assert!(page.starts_with("accepted\n"), "{page}");
    assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
    let record: Value = serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
    assert_eq!(record["subjects"][1]["flags"], serde_json::json!(["--no-repack", "-t", "2"]));
    assert_eq!(record["speed"][0]["laps"][1].as_array().map(Vec::len), Some(8));
    assert!(
        record["command"].as_str().is_some_and(|line| line.contains("--flags-b '--no-repack -t 2'")),
        "{record}"
    );
    // Every run of B had the flags.
    let runs = std::fs::read_to_string(stage.path("b/bin/anneal.runs")).unwrap();
    assert!(runs.lines().all(|line| line.ends_with("--no-repack -t 2")), "{runs}");
}

#[test]
fn wrong_usage_is_told_before_the_long_part() {
    let stage = Stage::new();
    let a = stage.engine("a", "");
    let plan = stage.path("plan.toml");
    std::fs::write(&plan, "[base]\nprofile = \"native\"\n").unwrap();
    let plan = plan.display().to_string();
    let cases: [(&[&str], i32, &str); 10] = [
        (&[], 2, "required"),
        (&[&a, "nattive"], 2, "unknown build \"nattive\""),
        (&[&a, "none=/nowhere/none"], 2, "none: /nowhere/none does not exist"),
        (&[&a, &a, "--flags-b=--seed 3"], 2, "B: validate sets --seed"),
        (&[&a, &a, "--flags-a='"], 2, "a quote is not closed"),
        (&[&a, &a, "-n", "20"], 2, "50"),
        (&[&a, &a, "--phases", "load"], 2, "load cannot be validated\nhint: use prefill or decode"),
        (&[&a, &a, "--phases", "prefill", "--decisive", "decode"], 2, "not in --phases"),
        (&[&a, &a, "--out", "/nowhere/at/all.json"], 2, "its folder does not exist"),
        (&["--steps", &plan], 2, "no [[step]]"),
    ];
    for (arguments, code, words) in cases {
        let output = stage.validate(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(words), "{arguments:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty());
    }
    assert!(!stage.path("a/bin/anneal.runs").exists(), "an engine was run");
    let (code, record, said) = stage.judge("", &["--flags-b=--unheard-of"]);
    assert_eq!((code, record), (2, Value::Null), "{said}");
    assert!(said.contains("B: anneal info") && said.contains("unexpected argument '--unheard-of'"), "{said}");
    // Only some commands of the engine accept this flag.
    let (code, record, said) = stage.judge("", &["--flags-b=--not-in-bench"]);
    assert_eq!((code, record), (2, Value::Null), "{said}");
    assert!(said.contains("B: anneal bench"), "{said}");
    let output =
        Command::new(env!("CARGO_BIN_EXE_lab")).args(["validate", &a, "-m", "none.gguf"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("cannot find the model none.gguf"), "{}", stderr(&output));
}

#[test]
fn an_a_that_does_not_work_is_an_error_and_no_verdict() {
    let stage = Stage::new();
    let (a, b) = (stage.engine("a", "crash=bench"), stage.engine("b", ""));
    let out = stage.path("record.json");
    let output = stage.validate(&[&a, &b]).arg("--out").arg(&out).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    assert!(stderr(&output).contains("the measurements so far are in"), "{}", stderr(&output));
    let record: Value = serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
    assert_eq!(record["verdict"], Value::Null);
    assert!(record["stopped"].as_str().is_some_and(|why| why.starts_with("A: anneal bench")), "{record:#}");
    assert_eq!(record["output"]["equal"], 64);
}

#[test]
fn a_verdict_is_told_also_where_the_record_cannot_be_written() {
    let stage = Stage::new();
    let folder = stage.path("kept");
    std::fs::create_dir(&folder).unwrap();
    let out = folder.join("record.json").display().to_string();
    let flags = ["--cpu-tolerance", TOLERANCE, "--phases", "decode", "--out", &out];
    // The folder disappears while B runs.
    let plan = format!("speed=1300\n[ \"$1\" = bench ] && rm -rf '{}'\n", folder.display());
    let (code, record, said) = stage.judge(&plan, &flags);
    assert_eq!((code, &record["verdict"]), (0, &Value::from("accepted")), "{said}");
    assert!(said.contains("cannot write the record"), "{said}");
}

#[test]
fn ctrl_c_keeps_what_was_measured() {
    let stage = Stage::new();
    let (a, b) = (stage.engine("a", ""), stage.engine("b", "[ \"$1\" = bench ] && sleep 600"));
    let out = stage.path("record.json");
    let mut child = stage
        .validate(&[&a, &b])
        .arg("--out")
        .arg(&out)
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let runs = stage.path("b/bin/anneal.runs");
    let until = Instant::now() + Duration::from_secs(300);
    // The record exists once the output has been compared.
    while !out.exists() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(runs.exists());
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let record: Value = serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
    assert_eq!(record["stopped"], "stopped by the user");
    assert_eq!((&record["verdict"], &record["output"]["equal"]), (&Value::Null, &Value::from(64)));
}

#[test]
fn a_place_that_takes_no_file_is_told_before_anything_runs() {
    let stage = Stage::new();
    let folder = stage.folder.path().to_str().unwrap().to_string();
    for (out, said) in [(folder.as_str(), "it is a folder"), ("/nowhere/x.json", "its folder does not exist")]
    {
        let (code, record, stderr) = stage.judge("", &["--out", out]);
        assert_eq!((code, record), (2, Value::Null), "{stderr}");
        assert!(stderr.contains(said), "{stderr}");
        assert!(
            !stage.path("a/bin/anneal.runs").exists(),
            "an engine ran before the output path was checked"
        );
    }
}
