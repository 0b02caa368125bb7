//! Tests that the program never falls back to the CPU silently. The placement of a model is shown, and a run that
//! requires a GPU fails with exit code 69 if no GPU is available.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::worker::{Worker, has_rpc};
use crate::common::{ANNEAL, anneal, parts, tiny};
use gguf::synth::Preset;
use serde_json::Value;

/// Exit code if a required device is missing.
const UNAVAILABLE: Option<i32> = Some(69);

fn info(arguments: &[&str]) -> Value {
    let all = ["info", "--json"].iter().chain(arguments);
    let (code, stdout, stderr) = parts(&anneal(all));
    assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
    serde_json::from_str(&stdout).expect("JSON")
}

/// True if this build has a device other than the CPU. Tests without such devices are then reported as skipped.
fn has_device() -> bool {
    let has = info(&[])["devices"].as_array().expect("devices").iter().any(|device| device["kind"] == "gpu");
    if has {
        skipped::because("this machine has a GPU that this build uses");
    }
    has
}

fn model() -> &'static str {
    tiny().to_str().expect("a path in UTF-8")
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number"))
}

#[test]
fn without_devices_placement_shows_all_of_a_model_on_the_host() {
    if has_device() {
        return;
    }
    let info = info(&["--placement", "-m", model()]);
    let placement = &info["placement"];
    assert_eq!(placement["devices"], serde_json::json!([]), "{placement}");
    assert_eq!((&placement["layers"]["on_devices"], &placement["layers"]["all"]), (&0.into(), &5.into()));
    let sum = |list: &Value| {
        let list = list.as_array().expect("a list");
        assert!(!list.is_empty() && list.iter().all(|stored| stored["host"] == true), "{list:?}");
        list.iter().map(|stored| number(&stored["bytes"])).sum::<u64>()
    };
    // Every tensor of the file is counted exactly once.
    assert_eq!(sum(&placement["weights"]), number(&info["model"]["size_bytes"]));
    // K and V of the context in 4 layers with 2 heads of 64 values, F16.
    let context = number(&info["model"]["trained_context"]).min(4096);
    assert_eq!(sum(&placement["cache"]), context * 4 * 2 * 128 * 2);

    let phases = placement["phases"].as_array().expect("phases");
    let names: Vec<&Value> = phases.iter().map(|phase| &phase["phase"]).collect();
    assert_eq!(names, ["prefill", "decode"]);
    assert_eq!((number(&phases[0]["tokens"]), number(&phases[1]["tokens"])), (64, 1));
    for phase in phases {
        assert!(number(&phase["ops"]) > 40, "{phase}");
        assert_eq!((number(&phase["splits"]), number(&phase["copies"])), (1, 0), "{phase}");
        let [host] = &phase["devices"].as_array().expect("devices")[..] else { panic!("{phase}") };
        assert_eq!((&host["device"], &host["ops"]), (&"host".into(), &phase["ops"]));
    }
    // A token reads all weights, but only one row of the embeddings.
    let weights = placement["weights"].as_array().expect("a list");
    let embeddings: u64 =
        weights.iter().map(|stored| stored["kinds"]["embedding"].as_u64().unwrap_or(0)).sum();
    let read = number(&phases[1]["devices"][0]["weight_bytes"]);
    let all = number(&info["model"]["size_bytes"]);
    assert!(read > all - embeddings && read < all - embeddings + 4096, "{read} of {all}, {embeddings}");

    let (code, text, stderr) = parts(&anneal(["info", "--placement", "-m", model()]));
    assert_eq!(code, Some(0), "{stderr}");
    for words in
        ["everything is on the host", "weights", "cache", "prefill", "decode", "No device is available"]
    {
        assert!(text.contains(words), "{words:?} is not in\n{text}");
    }
}

#[test]
fn placement_is_of_a_model() {
    let (code, _, stderr) = parts(&anneal(["info", "--placement"]));
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("-m FILE"), "{stderr}");
}

#[test]
fn who_requires_a_gpu_is_refused_where_none_came_up() {
    if has_device() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let socket = folder.path().join("s");
    let socket = socket.to_str().expect("a path in UTF-8");
    let commands: [&[&str]; 5] = [
        &["run", "-p", "a", "-n", "1"],
        &["chat", "--chat-template", "chatml"],
        &["bench", "-p", "8", "-n", "1", "-r", "1"],
        &["serve", "--socket", socket],
        &["tune", "--budget", "30s"],
    ];
    for command in commands {
        for flag in ["--require-gpu", "--require-gpu=full"] {
            let all = [command, &["-m", model(), flag]].concat();
            let (code, stdout, stderr) = parts(&anneal(&all));
            assert_eq!(code, UNAVAILABLE, "{command:?} {flag}: {stderr}");
            assert!(stdout.is_empty() || command[0] == "bench", "{command:?}: {stdout}");
            for words in [
                "no GPU is available",
                "caused by: this build supports only the CPU",
                "build-cuda",
                "--require-gpu=no",
            ] {
                assert!(stderr.contains(words), "{command:?} {flag}: {words:?} is not in {stderr}");
            }
        }
    }
    // Commands that only show information succeed, and so do runs that do not require a GPU.
    info(&["--require-gpu", "--placement", "-m", model()]);
    crate::common::on_tiny("run", &["--require-gpu=no", "-p", "a", "-n", "1"]);
    let (code, _, stderr) = parts(&anneal(["run", "-m", model(), "-p", "a", "--require-gpu=maybe"]));
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("no, yes, full"), "{stderr}");
}

/// Program with the build record of a CUDA build for an RTX 4060 Ti.
struct Promising {
    _folder: tempfile::TempDir,
    executable: PathBuf,
}

impl Promising {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let executable = folder.path().join("anneal");
        std::fs::copy(ANNEAL, &executable).expect("a copy");
        let record = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/builds/cuda-4060ti.json");
        std::fs::copy(record, folder.path().join("build_info.json")).expect("a record");
        Self { _folder: folder, executable }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(&self.executable);
        command.args(arguments).env("ANNEAL_STATE_DIR", tiny().with_file_name("state"));
        command.env_remove("ANNEAL_TUNING");
        // The copy cannot be run while a process that another test has just forked holds the file open for writing.
        loop {
            match command.output() {
                Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                output => return output.expect("the executable runs"),
            }
        }
    }
}

#[test]
fn a_build_that_was_made_for_a_gpu_requires_one() {
    if has_device() {
        return;
    }
    if Path::new("/dev/nvidiactl").exists() {
        skipped::because("this machine has an NVIDIA driver");
        return;
    }
    let promising = Promising::new();
    let run = ["run", "-m", model(), "-p", "a", "-n", "1"];
    let (code, _, stderr) = parts(&promising.run(&run));
    assert_eq!(code, UNAVAILABLE, "{stderr}");
    for words in [
        "made for a GPU (CUDA 13.5 for 89-real",
        "no NVIDIA driver is loaded",
        "--require-gpu=no",
        "build_info.json",
    ] {
        assert!(stderr.contains(words), "{words:?} is not in {stderr}");
    }
    let (code, _, stderr) = parts(&promising.run(&[&run[..], &["--require-gpu=no"]].concat()));
    assert_eq!(code, Some(0), "{stderr}");

    let (code, stdout, stderr) = parts(&promising.run(&["info", "--json", "--explain"]));
    assert_eq!(code, Some(0), "{stderr}");
    let info: Value = serde_json::from_str(&stdout).expect("JSON");
    let settings = info["settings"].as_array().expect("settings");
    let line = settings.iter().find(|line| line["name"] == "require-gpu").expect("a line");
    assert_eq!((&line["value"], &line["source"]), (&"yes".into(), &"build_info".into()));
    assert_eq!(info["gpu"]["promised"], "CUDA 13.5 for 89-real");
    let what = info["gpu"]["reasons"][0]["what"].as_str().expect("a reason");
    assert!(what.contains("no NVIDIA driver"), "{what}");
    let (code, text, _) = parts(&promising.run(&["info"]));
    assert_eq!(code, Some(0));
    assert!(text.contains("made for  CUDA 13.5 for 89-real; no device is available"), "{text}");
}

/// Returns the result of `info --placement` for the tiny model with the flags `more`, and llama.cpp's own numbers of
/// splits in prefill and decode.
fn placement(more: &[&str]) -> (Value, Vec<u64>) {
    let all = [&["info", "--json", "--verbose", "--placement", "-m", model()], more].concat();
    let (code, stdout, stderr) = parts(&anneal(&all));
    assert_eq!(code, Some(0), "{more:?}: {stderr}");
    let info: Value = serde_json::from_str(&stdout).expect("JSON");
    // The line is "graph (pp bs=512, tg bs=1): nodes = 134 / 134, splits = 2 / 2, …", or has one number for both
    // phases.
    let line = stderr.lines().find(|line| line.contains("splits = ")).expect("llama.cpp's line");
    let counts = line.split("splits = ").nth(1).and_then(|rest| rest.split(',').next()).expect("numbers");
    let counts: Vec<u64> = counts.split('/').map(|count| count.trim().parse().expect("a number")).collect();
    (info["placement"].clone(), counts)
}

/// Covers a mixture of experts, and a model whose output matrix is also its input matrix.
#[test]
fn models_of_other_kinds_are_all_on_a_device() {
    if !has_rpc() {
        return;
    }
    let worker = Worker::start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    // Each case has a preset, and a kind of weights that are on the device.
    for (preset, kind) in
        [(Preset::MoeTiny, "experts"), (Preset::SmallQwen2, "output"), (Preset::SwaTiny, "attention")]
    {
        let path = folder.path().join("model.gguf");
        gguf::synth::write(&path, &gguf::synth::SynthOptions::new(preset)).expect("a model");
        let path = path.to_str().expect("a path in UTF-8");
        let (code, stdout, stderr) =
            parts(&anneal(["info", "--json", "--placement", "-m", path, "--rpc", worker.address.as_str()]));
        assert_eq!(code, Some(0), "{preset:?}: {stderr}");
        let info: Value = serde_json::from_str(&stdout).expect("JSON");
        let placement = &info["placement"];
        let layers = number(&info["model"]["layers"]) + 1;
        assert_eq!(number(&placement["layers"]["all"]), layers, "{preset:?}: {placement}");
        assert_eq!(number(&placement["layers"]["on_devices"]), layers, "{preset:?}: {placement}");
        assert_eq!(on_host(placement), (0, 0), "{preset:?}: {placement}");
        let weights = placement["weights"].as_array().expect("a list");
        let device = weights.iter().find(|stored| stored["host"] == false).expect("the worker's weights");
        assert!(number(&device["kinds"][kind]) > 0, "{preset:?}: {device}");
        let run =
            ["run", "-m", path, "-p", "a", "-n", "1", "--require-gpu=full", "--rpc", worker.address.as_str()];
        let (code, _, stderr) = parts(&anneal(run));
        assert_eq!(code, Some(0), "{preset:?}: {stderr}");
    }
}

/// Returns the bytes of the cache on the host, and the number of decode operations on the host outside the input
/// layer.
fn on_host(placement: &Value) -> (u64, u64) {
    let list = |name: &str| placement[name].as_array().expect("a list").clone();
    let cache = list("cache")
        .iter()
        .filter(|stored| stored["host"] == true)
        .map(|stored| number(&stored["bytes"]))
        .sum();
    let ops = list("host_ops")
        .iter()
        .filter(|ops| ops["why"] != "input_layer")
        .map(|ops| number(&ops["ops"]))
        .sum();
    (cache, ops)
}

#[test]
fn what_lies_on_a_device_is_told_from_what_lies_on_the_host() {
    if !has_rpc() {
        return;
    }
    let worker = Worker::start();
    let rpc = ["--rpc", worker.address.as_str()];
    // Flags, layers on the device, true if a part of the cache and of the operations is on the host, and the reason.
    type Case = (&'static [&'static str], u64, bool, bool, &'static str);
    let cases: [Case; 4] = [
        (&[], 5, false, false, ""),
        (&["--gpu-layers", "2"], 2, true, true, "weights"),
        (&["--no-kv-offload"], 5, true, true, "cache"),
        (&["--gpu-layers", "0"], 0, true, true, "weights"),
    ];
    for (flags, layers, has_cache, has_ops, why) in cases {
        let (placement, splits) = placement(&[&rpc[..], flags].concat());
        assert_eq!(number(&placement["layers"]["on_devices"]), layers, "{flags:?}: {placement}");
        let (cache, ops) = on_host(&placement);
        assert_eq!((cache > 0, ops > 0), (has_cache, has_ops), "{flags:?}: {placement}");
        let faults = placement["faults"].as_array().expect("a list");
        assert_eq!(!faults.is_empty(), has_cache || has_ops, "{flags:?}: {placement}");
        let host_ops = placement["host_ops"].as_array().expect("a list");
        assert!(host_ops.iter().any(|ops| ops["why"] == "input_layer"), "{flags:?}: {placement}");
        assert!(why.is_empty() || host_ops.iter().any(|ops| ops["why"] == why), "{flags:?}: {placement}");
        // llama.cpp's own counts must agree.
        let phases = placement["phases"].as_array().expect("phases");
        let counted: Vec<u64> = phases.iter().map(|phase| number(&phase["splits"])).collect();
        assert_eq!(counted, [splits[0], splits[splits.len() - 1]], "{flags:?}: {placement}");
        // If both devices compute, data is copied between them.
        let decode = &phases[1];
        let is_shared = decode["devices"].as_array().expect("devices").len() == 2;
        assert_eq!(is_shared, number(&decode["copies"]) > 0, "{flags:?}: {decode}");
    }
}

#[test]
fn who_requires_all_of_it_on_a_device_is_refused_where_a_part_is_not() {
    if !has_rpc() {
        return;
    }
    let worker = Worker::start();
    let run = ["run", "-m", model(), "-p", "a", "-n", "2", "--greedy", "--rpc", worker.address.as_str()];
    // Flags, exit codes of `--require-gpu` and of `--require-gpu=full`, and words of the second error.
    type Case = (&'static [&'static str], i32, i32, &'static [&'static str]);
    let cases: [Case; 4] = [
        (&[], 0, 0, &[]),
        (
            &["--gpu-layers", "2"],
            0,
            69,
            &[
                "2 of 5 layers",
                "of weights are on the host (layers 0-2): put more layers",
                "6 MiB of KV cache",
                "MUL_MAT",
            ],
        ),
        (
            &["--no-kv-offload"],
            0,
            69,
            &["5 of 5 layers", "8 MiB of KV cache are on the host (layers 0-3)", "--no-kv-offload"],
        ),
        (&["--gpu-layers", "0"], 69, 69, &["no part of the model is on", "--gpu-layers"]),
    ];
    for (flags, some, full, words) in cases {
        for (flag, expected) in [("--require-gpu", some), ("--require-gpu=full", full)] {
            let (code, _, stderr) = parts(&anneal([&run[..], flags, &[flag]].concat()));
            assert_eq!(code, Some(expected), "{flags:?} {flag}: {stderr}");
            let is_refused = expected == 69 && flag.ends_with("full");
            assert!(!is_refused || words.iter().all(|words| stderr.contains(words)), "{flags:?}: {stderr}");
        }
    }
}

#[test]
fn a_worker_does_in_place_of_the_gpu_that_a_build_was_made_for_and_it_is_said() {
    if !has_rpc() || has_device() {
        return;
    }
    let worker = Worker::start();
    let run = ["run", "-m", model(), "-p", "a", "-n", "2", "--rpc", worker.address.as_str()];
    // A user who names the worker has chosen it deliberately.
    for (devices, expected) in [("auto", 1), ("RPC0", 0), (worker.address.as_str(), 0)] {
        let (code, _, stderr) = parts(&Promising::new().run(&[&run[..], &["--devices", devices]].concat()));
        assert_eq!(code, Some(0), "{devices}: {stderr}");
        let warnings = stderr
            .lines()
            .filter(|line| line.contains("no CUDA device is available, so RPC0 is used instead"));
        assert_eq!(warnings.count(), expected, "{devices}: {stderr}");
    }
}
