//! Tests of the commands `cargo xtask gpu-check run` and `show`, with programs that are scripts:
//! tests/data/fake-gpu-anneal.sh.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

const KERNEL: &str = include_str!("fixtures/gpu-check/anneal-kernel.json");
const END_TO_END: &str = include_str!("fixtures/gpu-check/anneal-end-to-end.json");
/// Output of the real engine for 64 tokens that the device chose.
const SAID: &str = include_str!("../../../fixtures/run/greedy-on-device.txt");

/// Folder with an engine, a llama-bench and room for models.
struct Stage {
    folder: tempfile::TempDir,
}

impl Stage {
    /// Creates an engine that behaves as `plan` says, with the record of a GPU build.
    fn new(plan: &str) -> Self {
        let stage = Self { folder: tempfile::tempdir().unwrap() };
        std::fs::create_dir_all(stage.path("bin")).unwrap();
        std::fs::create_dir_all(stage.path("scratch")).unwrap();
        stage.write("bin/plan", &format!("bench() {{ :; }}\ndecode() {{ :; }}\n{plan}\n"));
        stage.write("bin/kernel.json", KERNEL);
        stage.write("bin/end-to-end.json", END_TO_END);
        stage.write("bin/said.txt", SAID);
        let placement = json!({"placement": {
            "devices": ["CUDA0 (NVIDIA H100)"],
            "weights": [
                {"device": "CUDA0", "host": false, "bytes": 6_000_000, "kinds": {"attention": 6_000_000}},
                {"device": "host", "host": true, "bytes": 1_000_000, "kinds": {"embedding": 1_000_000}},
            ],
            "cache": [{"device": "CUDA0", "host": false, "bytes": 5, "kinds": {"k": 5}}],
            "host_ops": [{"op": "GET_ROWS", "why": "input_layer", "ops": 1}],
            "faults": [],
        }});
        stage.write("bin/placement.json", &placement.to_string());
        stage.write("build_info.json", &record().to_string());
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/fake-gpu-anneal.sh");
        stage.program("anneal", &std::fs::read_to_string(script).unwrap());
        stage
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn program(&self, name: &str, text: &str) {
        self.write(&format!("bin/{name}.text"), text);
        // Another process writes the script, because a script cannot be run while a forked child has it open for
        // writing.
        let done = Command::new("sh")
            .args(["-c", "mv \"$0.text\" \"$0\" && chmod +x \"$0\""])
            .arg(self.path("bin").join(name))
            .status();
        assert!(done.unwrap().success());
    }

    /// Adds a llama-bench that is half as fast.
    fn with_llama_bench(self) -> Self {
        let mut tests: Vec<Value> = serde_json::from_str(KERNEL).unwrap();
        for test in &mut tests {
            let halves: Vec<f64> = test["samples_ts"]
                .as_array()
                .unwrap()
                .iter()
                .map(|sample| sample.as_f64().unwrap() / 2.0)
                .collect();
            test["samples_ts"] = json!(halves);
            let fields = test.as_object_mut().unwrap();
            fields.remove("anneal_path");
            fields.insert("n_batch".to_string(), json!(512));
        }
        self.write("bin/theirs.json", &json!(tests).to_string());
        self.program("llama-bench", "#!/bin/sh\ncat \"${0%/*}/theirs.json\"\n");
        self
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
        command.args(["gpu-check", "run", "--models", "tiny/F16", "--scratch"]).arg(self.path("scratch"));
        command.arg("--anneal").arg(self.path("bin/anneal")).arg("--out").arg(self.path("out.json"));
        let llama_bench = self.path("bin/llama-bench");
        if llama_bench.is_file() {
            command.arg("--llama-bench").arg(llama_bench);
        }
        command.args(arguments).stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> (Output, Value) {
        let output = self.command(arguments).output().unwrap();
        // The models are always removed.
        assert_eq!(std::fs::read_dir(self.path("scratch")).unwrap().count(), 0);
        let report = std::fs::read_to_string(self.path("out.json")).unwrap_or_default();
        (output, serde_json::from_str(&report).unwrap_or(Value::Null))
    }
}

fn record() -> Value {
    let hosts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/hosts/ryzen-7950x-4060ti.json");
    let host: Value = serde_json::from_str(&std::fs::read_to_string(hosts).unwrap()).unwrap();
    let nothing = "0".repeat(64);
    json!({
        "schema_version": "1.5", "anneal_version": "0.1.0", "build_type": "Release", "date": "2026-11-25T00:00:00Z",
        "hostname": "secret", "cpu_model": "", "cpu_flags": [], "cmake_flags": ["-DROOT=/secret/cuda"], "llama_version": "0.1.161",
        "compiler": "clang 22.1.8", "reproducible": false, "optimal_threads": 12, "profile": "cuda-dense",
        "plan_hash": nothing, "target": "x86_64-unknown-linux-gnu",
        "toolchain": {"nvcc": {"path": "/secret/bin/nvcc", "version": "13.5"}},
        "source": {"origin": "crate", "version": "0.1.161", "digest": nothing, "patches": []},
        "effective_flags": {"ggml_cpu": [], "definitions": [], "commands": 0}, "isa_required": [],
        "cuda": {"toolkit": "13.5", "architectures": ["90-real"], "cublas": "lazy", "mul_mat": "auto"},
        "threading": "threadpool", "lto": "off", "host": host,
        "threads": {"prefill": 1, "decode": 1, "cores": 1, "cpus": [0], "bound_by": "physical cores"},
        "artifacts": [], "stages": [],
    })
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn list<'a>(report: &'a Value, name: &str) -> &'a Vec<Value> {
    report[name].as_array().unwrap_or_else(|| panic!("no {name} in {report:#}"))
}

fn verdict<'a>(report: &'a Value, what: &str) -> &'a str {
    let figure = list(report, "figures").iter().find(|figure| figure["what"] == what);
    figure.unwrap_or_else(|| panic!("no {what} in {:#}", report["figures"]))["verdict"].as_str().unwrap()
}

#[test]
fn a_whole_check_is_one_file_that_shows_everything() {
    let stage = Stage::new("").with_llama_bench();
    let (output, report) = stage.run(&["--allow-cpu", "--budget", "5m"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let failed: Vec<&Value> = list(&report, "steps").iter().filter(|step| !step["error"].is_null()).collect();
    assert_eq!(failed.len(), 0, "{failed:#?}");
    assert_eq!(list(&report, "left_out").len(), 0, "{:#}", report["left_out"]);
    for (what, expected) in [
        ("refused without a GPU", "pass"),
        ("whole model on the GPU", "pass"),
        ("same tokens in both runs", "pass"),
        ("tg16 against llama-bench", "pass"),
        ("pp32 @ d64 against llama-bench", "pass"),
        ("tg16 against llama-bench, with the default samplers", "pass"),
        ("tg16 against llama-bench, greedy on the device", "pass"),
        ("device sampling only where requested", "pass"),
        ("the same text with and without device sampling", "pass"),
        ("the same text with and without CUDA graphs", "pass"),
        ("the same text in both wait modes of the host", "pass"),
        ("CPUs busy in decode with ANNEAL_CUDA_WAIT=spin", "told"),
        ("CPUs busy in decode, device sampling", "pass"),
    ] {
        assert_eq!(verdict(&report, what), expected, "{what}");
    }
    // The record in the folder belongs to the engine.
    assert_eq!(
        (&report["anneal"]["build"]["profile"], &report["llama_bench"]["build"]),
        (&json!("cuda-dense"), &Value::Null)
    );
    let model = &report["models"][0];
    let ratio = &model["comparisons"][0]["ratio"];
    assert!((ratio["median"].as_f64().unwrap() - 2.0).abs() < 1e-9 && ratio["pairs"] == 2, "{ratio}");
    assert_eq!(model["runs"].as_array().unwrap().len(), 6, "every run is kept");
    assert_eq!(model["differing_settings"][0]["setting"], "n_batch");
    assert!(model["bytes_per_token"].as_u64().unwrap() > 1_000_000);
    assert_eq!(report["long"]["decode"]["chosen_on_device"], 64);
    assert_eq!(list(&report, "pairs").len(), 6);
    let waiting = list(&report, "pairs").iter().find(|pair| pair["switch"] == "waiting").unwrap();
    assert_eq!((&waiting["on"]["wait"], &waiting["off"]["wait"]), (&json!("block"), &json!("spin")));
    let share =
        list(&report, "figures").iter().find(|figure| figure["what"] == "share of bandwidth in decode");
    assert_eq!(share.unwrap()["measured_copy_bandwidth"], 3e12);
    // The report contains no names or folders of this machine.
    let text = report.to_string();
    for hidden in ["secret", &*stage.folder.path().to_string_lossy()] {
        assert!(!text.contains(hidden), "{hidden} in {text}");
    }

    // The report can be read and shown.
    let show = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_lab"))
            .args(["gpu-check", "show"])
            .arg(stage.path("out.json"))
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(serde_json::from_str::<Value>(&show(&["--json"])).unwrap(), report);
    let page = show(&["--markdown"]);
    for words in ["# GPU check", "| model | what | goal |", "CUDA 13.5 for 90-real", "a rehearsal on the CPU"]
    {
        assert!(page.contains(words), "{words} in {page}");
    }
    assert!(show(&[]).contains("Goals"));
}

#[test]
fn what_fails_is_written_down_and_the_rest_goes_on() {
    // Prompts need a missing library, tokens differ from run to run, and the program runs without a GPU.
    let plan =
        "bench() { echo \"$here: CUBLAS_STATUS_NOT_INITIALIZED\" >&2; exit 134; }\ntoken=$$\nrefusal=0";
    let stage = Stage::new(plan);
    let (output, report) = stage.run(&["--allow-cpu", "--budget", "5m"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let errors: Vec<String> = list(&report, "steps").iter().map(|step| step["error"].to_string()).collect();
    let told = errors.iter().filter(|error| error.contains("CUBLAS_STATUS_NOT_INITIALIZED")).count();
    assert_eq!(told, 2, "{errors:?}");
    assert!(!report.to_string().contains(&*stage.folder.path().to_string_lossy()), "{report:#}");
    assert_eq!(verdict(&report, "refused without a GPU"), "miss");
    assert_eq!(verdict(&report, "same tokens in both runs"), "miss");
    assert_eq!(report["models"][0]["determinism"]["equal"], 2);
    assert!(!report["long"].is_null(), "the other steps did not run");
    let left_out = list(&report, "left_out");
    assert!(left_out.iter().any(|step| step["step"] == "rounds of llama-bench"), "{left_out:#?}");
}

#[test]
fn decode_is_measured_where_prompts_cannot_be() {
    let plan =
        "bench() { case \"$args\" in *'-p 16'*) echo 'no cuBLAS' >&2; exit 134 ;; esac; }\nargs=\"$*\"";
    let (_, report) = Stage::new(plan).run(&["--allow-cpu", "--budget", "5m"]);
    let failed = list(&report, "steps").iter().filter(|step| !step["error"].is_null()).count();
    assert_eq!(failed, 0, "{:#}", report["steps"]);
    let reasons: Vec<&str> =
        list(&report, "left_out").iter().filter_map(|step| step["reason"].as_str()).collect();
    assert!(reasons.iter().any(|reason| reason.contains("no cuBLAS")), "{reasons:?}");
    assert_eq!(report["models"][0]["runs"].as_array().unwrap().len(), 4);
}

#[test]
fn the_budget_is_kept_and_what_is_left_out_is_named() {
    // Every generation takes half a minute.
    let stage = Stage::new("decode() { sleep 30; }");
    let began = Instant::now();
    let (output, report) = stage.run(&["--allow-cpu", "--budget", "20s"]);
    // Without a budget, the four generations would take two minutes.
    assert!(began.elapsed() < Duration::from_secs(110), "{:?}", began.elapsed());
    assert!(output.status.success(), "{}", stderr(&output));
    let told = report["steps"].to_string() + &report["left_out"].to_string();
    assert!(told.contains("and was stopped") && told.contains("of the budget are left"), "{told}");
    assert_eq!(report["stopped"], Value::Null);

    let (output, _) = stage.run(&["--allow-cpu", "--budget", "1s"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

#[test]
fn ctrl_c_keeps_what_there_is_and_removes_the_models() {
    let stage = Stage::new("decode() { : > \"$here/decoding\"; sleep 60; }");
    let mut child = stage
        .command(&["--allow-cpu", "--budget", "5m"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let began = Instant::now();
    // Wait for the decode in the first round, which never ends.
    while !stage.path("bin/decoding").exists() {
        assert!(began.elapsed() < Duration::from_secs(300), "the check did not reach the first decode");
        std::thread::sleep(Duration::from_millis(20));
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let asked = Instant::now();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(asked.elapsed() < Duration::from_secs(50), "the check waited for the program");
    assert_eq!(std::fs::read_dir(stage.path("scratch")).unwrap().count(), 0);
    let report: Value =
        serde_json::from_str(&std::fs::read_to_string(stage.path("out.json")).unwrap()).unwrap();
    assert_eq!(report["stopped"], "stopped by the user");
    // The measurements of the unfinished round are kept.
    assert_eq!(report["models"][0]["runs"].as_array().unwrap().len(), 2);
    assert!(
        list(&report, "left_out")
            .iter()
            .all(|step| step["reason"] == "stopped by the user" || step["step"] == "rounds of llama-bench")
    );
}

#[test]
fn a_machine_without_a_gpu_is_refused() {
    if Path::new("/proc/driver/nvidia/version").exists() || Path::new("/dev/dxg").exists() {
        return skipped::because("this machine has an NVIDIA driver");
    }
    let (output, report) = Stage::new("").run(&[]);
    assert_eq!(output.status.code(), Some(69), "{}", stderr(&output));
    assert!(stderr(&output).contains("no NVIDIA driver is loaded"), "{}", stderr(&output));
    assert_eq!(report, Value::Null);
}

#[test]
fn what_cannot_be_checked_is_not_packed_and_told_before_anything_is_built() {
    let pack = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
        let output =
            command.args(["gpu-check", "pack"]).args(arguments).stdin(Stdio::null()).output().unwrap();
        (output.status.code(), stderr(&output))
    };
    let (code, told) = pack(&["--profile", "native"]);
    assert!(code == Some(2) && told.contains("the profile uses no GPU"), "{told}");
    for (program, words) in [("/nonexistent", "No such file"), ("/bin/sh", "not a llama-bench program")] {
        let (code, told) = pack(&["--profile", "cuda-dense", "--llama-bench", program]);
        assert!(code == Some(2) && told.contains(words), "{program}: {told}");
    }
}

#[test]
fn an_archive_that_was_changed_on_its_way_is_told() {
    let stage = Stage::new("");
    std::fs::copy(env!("CARGO_BIN_EXE_lab"), stage.path("bin/gpu-check")).unwrap();
    let check = |digest: &str| {
        let packed = json!({"name": "bin/anneal", "bytes": 1, "sha256": digest, "libraries": []});
        let contents = json!({"packed": "", "programs": [packed], "isa_required": [], "missing": []});
        stage.write("contents.json", &contents.to_string());
        let mut command = Command::new(stage.path("bin/gpu-check"));
        command.args([
            "gpu-check",
            "run",
            "--models",
            "tiny/F16",
            "--allow-cpu",
            "--budget",
            "5m",
            "--scratch",
        ]);
        command.arg(stage.path("scratch")).arg("--out").arg(stage.path("out.json"));
        command.stdin(Stdio::null()).output().unwrap()
    };
    let changed = check(&"0".repeat(64));
    assert_eq!(changed.status.code(), Some(1));
    assert!(stderr(&changed).contains("checksum mismatch: anneal"), "{}", stderr(&changed));
}

#[test]
fn a_file_that_is_no_report_is_told() {
    let stage = Stage::new("");
    for (text, expected) in [
        ("{}", "not a report"),
        ("{\"schema_version\": \"9.0\"}", "has format 9.0"),
        ("{\"schema_version\": \"1.0\"}", "damaged"),
    ] {
        stage.write("other.json", text);
        let output = Command::new(env!("CARGO_BIN_EXE_lab"))
            .args(["gpu-check", "show"])
            .arg(stage.path("other.json"))
            .output()
            .unwrap();
        assert!(!output.status.success() && stderr(&output).contains(expected), "{}", stderr(&output));
    }
    // The existing file is not overwritten.
    stage.write("out.json", "precious");
    let (output, _) = stage.run(&["--allow-cpu"]);
    assert!(stderr(&output).contains("not a record of measurements"), "{}", stderr(&output));
    assert_eq!(std::fs::read_to_string(stage.path("out.json")).unwrap(), "precious");
}
