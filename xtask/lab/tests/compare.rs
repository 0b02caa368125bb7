//! Tests of the command `cargo xtask bench compare`, with engines that are scripts.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn compare(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
    command.args(["bench", "compare", "-q"]).args(arguments).stdin(Stdio::null());
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Creates an engine that runs `extra` and then prints the same speeds each time.
fn engine(folder: &Path, extra: &str) -> PathBuf {
    let script = format!(
        "#!/bin/sh\n{extra}\ncat <<'END'\n[{{\"n_prompt\": 8, \"n_gen\": 0, \"avg_ns\": 1, \"avg_ts\": 10}},\n\
         {{\"n_prompt\": 0, \"n_gen\": 4, \"avg_ns\": 1, \"avg_ts\": 5}}]\nEND\n"
    );
    let path = folder.join("bin/anneal");
    std::fs::create_dir_all(folder.join("bin")).unwrap();
    // Another process writes the script, because a script cannot be run while a forked child has it open for writing.
    let mut writer = Command::new("sh")
        .args(["-c", "cat > \"$0\" && chmod +x \"$0\""])
        .arg(&path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    writer.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(writer.wait().unwrap().success());
    path
}

#[test]
fn builds_are_named_by_label_by_folder_and_by_program() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (folder.path().join("one"), folder.path().join("two"));
    engine(&one, "");
    let program = engine(&two, "");
    let model = folder.path().join("m.gguf");
    std::fs::write(&model, "not looked at").unwrap();
    let (raw, model) = (folder.path().join("raw.json"), model.display().to_string());
    let builds = format!("{},labelled={}", one.display(), program.display());
    let phases = "prefill,decode,binary-size";
    let output =
        compare(&["--builds", &builds, "-m", &model, "--pairs", "6", "--phases", phases, "--json", "--raw"])
            .arg(&raw)
            .output()
            .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let result: Value = serde_json::from_slice(&output.stdout).expect("stdout is the result");
    let kept: Value = serde_json::from_slice(&std::fs::read(&raw).unwrap()).unwrap();
    assert_eq!(result, kept);
    assert_eq!(result["builds"][0]["name"], "one");
    assert_eq!(result["figures"][0]["results"][1]["build"], "labelled");
    assert_eq!(result["figures"][0]["results"][1]["verdict"], "equal");
    // The result may be published, so it must not contain a folder of this machine.
    let text = result.to_string();
    assert!(!text.contains(&*folder.path().to_string_lossy()), "{text}");
    assert!(text.contains("--builds one,labelled=anneal -m m.gguf"), "{text}");
}

#[test]
fn what_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    engine(folder.path(), "");
    let here = format!("here={}", folder.path().display());
    let none = format!("{here},none={}/none", folder.path().display());
    let no_folder = format!("none: {}/none does not exist", folder.path().display());
    let unknown = format!("{here},nattive");
    let cases: [(&[&str], i32, &str); 5] = [
        (&["--builds", &unknown], 2, "unknown build \"nattive\""),
        (&["--builds", &none], 1, &no_folder),
        (&["--builds", &here, "-m", "x.gguf"], 2, "at least two builds"),
        (&["--builds", &here, "-p", "1,2", "-n", "1"], 2, "give both the same number of values"),
        (&["--builds", &here, "--phases", "speed"], 2, "unknown phase"),
    ];
    for (arguments, code, words) in cases {
        let output = compare(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(words), "{arguments:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty());
    }
}

/// Checks that invalid inputs are reported before anything is built, made or measured. `bench switches` would
/// otherwise build for minutes.
#[test]
fn inputs_are_looked_at_first() {
    let folder = tempfile::tempdir().unwrap();
    // The checkout has no builds, sources or models, so the test would notice new ones.
    let workspace = folder.path().join("checkout");
    for kept in ["profiles/build", "one/bin", "two/bin"] {
        std::fs::create_dir_all(workspace.join(kept)).unwrap();
    }
    for profile in ["base", "native"] {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../profiles/build/{profile}.toml"));
        std::fs::copy(from, workspace.join(format!("profiles/build/{profile}.toml"))).unwrap();
    }
    let (one, two) = (workspace.join("one"), workspace.join("two"));
    engine(&one, "touch ran");
    engine(&two, "touch ran");
    let builds = format!("{},{}", one.display(), two.display());
    let nowhere = folder.path().join("none/raw.json").display().to_string();
    let folder_as_model = folder.path().display().to_string();
    let cases: [(&[&str], i32, &str); 6] = [
        (&["-m", "/nonexist"], 1, "cannot find the model /nonexist"),
        (&["-m", &folder_as_model], 1, "is not a file"),
        (&["--text", "/nonexist"], 1, "cannot read the text /nonexist"),
        (&["--raw", &nowhere], 1, "its folder does not exist"),
        (&["--pairs", "0"], 2, "needs at least one pair"),
        (&["-p", "1,2", "-n", "1"], 2, "give both the same number of values"),
    ];
    for (arguments, code, words) in cases {
        for command in [&["switches", "--set", "repack=false"][..], &["compare", "--builds", &builds]] {
            let output = Command::new(env!("CARGO_BIN_EXE_lab"))
                .args(["bench"])
                .args(command)
                .args(arguments)
                .env("ANNEAL_WORKSPACE", &workspace)
                .current_dir(&folder)
                .stdin(Stdio::null())
                .output()
                .unwrap();
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(code), "{command:?} {arguments:?}: {said}");
            assert!(said.contains(words), "{command:?} {arguments:?}: {said}");
            assert!(!workspace.join("target").exists(), "{command:?} {arguments:?} began");
            assert!(!folder.path().join("ran").exists(), "{command:?} {arguments:?} ran an engine");
        }
    }
}

#[test]
fn ctrl_c_keeps_what_was_measured() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (folder.path().join("one"), folder.path().join("two"));
    engine(&one, "");
    // This engine hangs in its third run.
    let runs = folder.path().join("runs").display().to_string();
    engine(&two, &format!("echo >> {runs}; [ $(grep -c '' {runs}) -lt 3 ] || sleep 600"));
    let model = folder.path().join("m.gguf");
    std::fs::write(&model, "not looked at").unwrap();
    let (raw, model) = (folder.path().join("raw.json"), model.display().to_string());
    let builds = format!("{},{}", one.display(), two.display());
    let mut child = compare(&["--builds", &builds, "-m", &model, "--phases", "prefill", "--raw"])
        .arg(&raw)
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(300);
    while !raw.exists() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    let stopped = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(stopped.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let kept: Value = serde_json::from_slice(&std::fs::read(&raw).unwrap()).unwrap();
    assert_eq!(kept["stopped"], "in round 2 of 20: stopped by the user");
    assert_eq!(kept["figures"][0]["results"][0]["samples"], serde_json::json!([10.0]));
    let mut told = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut told).unwrap();
    assert!(told.contains("the comparison is incomplete; the results so far are in"), "{told}");
}

#[test]
fn wrong_arguments_of_the_engine_are_wrong_usage_and_flags_may_stand_among_them() {
    let folder = tempfile::tempdir().unwrap();
    let row = r#"[{"n_prompt": 8, "n_gen": 0, "n_depth": 0, "samples_ts": [10], "avg_ts": 10}]"#;
    let picky = format!(
        "case \"$*\" in *--nonsense*|*-q*|*--json*) echo \"error: unexpected argument\" >&2; exit 2 ;; *-x*) exit 1 ;; esac\n\
         echo '{row}'; exit 0"
    );
    let program = engine(folder.path(), &picky);
    let bench = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
        command.arg("bench").arg(format!("--builds=a={}", program.display())).args(arguments);
        command.stdin(Stdio::null()).output().unwrap()
    };
    let good = bench(&["-p", "8", "-q", "-r", "1", "--json"]);
    assert!(good.status.success(), "{}", stderr(&good));
    let rows: Value = serde_json::from_slice(&good.stdout).expect("--json is the format");
    assert_eq!(rows[0]["avg_ts"], 10.0);
    for (arguments, code, said) in [
        (&["-p", "8", "--nonsense"][..], 2, "a does not accept these arguments"),
        (&["-p", "8", "-q", "-v"], 2, "-q cannot be used with -v"),
        (&["-p", "8", "-x"], 1, "a failed"),
    ] {
        let output = bench(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(said), "{arguments:?}: {}", stderr(&output));
    }
}
