//! Tests of devices and workers: impossible requests, a model on two workers, and a worker that disappears.
//!
//! Most of the tests need a build with RPC, such as `native`. In other builds, each test is reported as skipped.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::worker::{Worker, has_rpc, port};
use crate::common::{anneal, code, parts, tiny};
use serde_json::Value;

/// Time limit of each step, long enough for a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn info() -> Value {
    let (code, stdout, stderr) = parts(&anneal(["info", "--json"]));
    assert_eq!(code, Some(0), "{stderr}");
    serde_json::from_str(&stdout).expect("JSON")
}

/// True if the machine has a GPU that this build uses.
fn has_gpu() -> bool {
    info()["devices"].as_array().is_some_and(|all| all.iter().any(|device| device["kind"] == "gpu"))
}

const RUN: [&str; 10] =
    ["--json", "--greedy", "--ignore-eos", "-t", "1", "-p", "The smith brings", "-n", "24", "-m"];

/// Returns the tokens that `anneal run` generates with the flags `more`.
fn tokens(more: &[&str]) -> Value {
    let model = tiny().to_str().expect("a path in UTF-8");
    let (code, stdout, stderr) = parts(&anneal([&["run"], &RUN[..], &[model], more].concat()));
    assert_eq!(code, Some(0), "{more:?}: {stderr}");
    let result: Value = serde_json::from_str(&stdout).expect("one JSON object");
    assert_eq!(result["tokens"].as_array().map(Vec::len), Some(24), "{result}");
    result["tokens"].clone()
}

/// Returns the exit code and the error of `anneal run` with the flags `more`, which must fail.
fn refused(more: &[&str]) -> (Option<i32>, String) {
    let model = tiny().to_str().expect("a path in UTF-8");
    let (code, _, stderr) = parts(&anneal([&["run"], &RUN[..], &[model], more].concat()));
    (code, stderr)
}

#[test]
fn a_worker_listens_to_others_only_where_that_is_said() {
    for address in ["0.0.0.0:50052", "192.168.1.1:50052", "10.0.0.1:1"] {
        let (code, _, stderr) = parts(&anneal(["worker", "--listen", address]));
        assert_eq!(code, Some(2), "{stderr}");
        for words in
            [address, "other machines can reach this address and take over", "--trust-network", "ssh -L"]
        {
            assert!(stderr.contains(words), "{words}: {stderr}");
        }
    }
    for address in ["[::1]:50052", "50052", "box"] {
        let (code, _, stderr) = parts(&anneal(["worker", "--listen", address]));
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains("127.0.0.1:50052"), "{stderr}");
    }
}

#[test]
fn what_asks_for_a_device_that_is_not_there_is_wrong_usage() {
    let cases: [&[&str]; 4] = [
        &["--devices", "CUDA77"],
        &["--tensor-split", "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1"],
        &["--split-mode", "none", "--tensor-split", "3,1"],
        &["--main-gpu", "1"],
    ];
    for more in cases {
        let (code, stderr) = refused(more);
        assert_eq!(code, Some(2), "{more:?}: {stderr}");
        assert!(stderr.contains(more[0]), "{more:?}: {stderr}");
    }
    if has_gpu() {
        return;
    }
    let none: [&[&str]; 4] =
        [&["-ngl", "all"], &["--gpu-layers", "3"], &["-sm", "row"], &["--tensor-split", "3,1"]];
    for more in none {
        let (code, stderr) = refused(more);
        assert_eq!(code, Some(2), "{more:?}: {stderr}");
        assert!(stderr.contains("this build finds no device except the CPU"), "{more:?}: {stderr}");
    }
}

#[test]
fn what_means_the_cpu_alone_changes_nothing() {
    if has_gpu() {
        return;
    }
    let plain = tokens(&[]);
    let cases: [&[&str]; 5] = [
        &["--gpu-layers", "auto"],
        &["-ngl", "0"],
        &["--devices", "none"],
        &["--no-kv-offload", "--no-op-offload"],
        &["--split-mode", "none"],
    ];
    for more in cases {
        assert_eq!(tokens(more), plain, "{more:?}");
    }
}

#[test]
fn info_shows_each_device() {
    let devices = info()["devices"].as_array().cloned().expect("devices");
    let cpu = devices.iter().find(|device| device["name"] == "CPU").expect("a CPU");
    assert_eq!((&cpu["kind"], &cpu["backend"]), (&"cpu".into(), &"CPU".into()));
    let bytes = |field: &str| cpu[field].as_u64().expect("bytes");
    assert!(bytes("memory_total_bytes") >= bytes("memory_free_bytes"), "{cpu}");
    let (code, stdout, stderr) =
        parts(&anneal(["info", "--explain", "-ngl", "auto", "--devices", "none", "--no-kv-offload"]));
    assert_eq!(code, Some(0), "{stderr}");
    for line in
        ["devices   ", "gpu-layers      auto              flag", "kv-offload      off               flag"]
    {
        assert!(stdout.contains(line), "{line:?}: {stdout}");
    }
}

#[test]
fn a_build_without_rpc_says_how_to_get_one() {
    if info()["backends"].as_array().is_some_and(|all| all.iter().any(|name| name == "RPC")) {
        return;
    }
    let own = ["worker", "--listen", "127.0.0.1:50052"];
    for (code, stderr) in [refused(&["--rpc", "127.0.0.1:50052"]), {
        let (code, _, stderr) = parts(&anneal(own));
        (code, stderr)
    }] {
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains("`rpc = true`"), "{stderr}");
    }
}

#[test]
fn a_worker_that_is_not_there_is_named() {
    if !has_rpc() {
        return;
    }
    let nobody = format!("127.0.0.1:{}", port());
    let (code, stderr) = refused(&["--rpc", &nobody]);
    assert_eq!(code, Some(1), "{stderr}");
    let expected = format!(
        "cannot use the worker {nobody}: no program is listening on this address\nhint: start `anneal worker"
    );
    assert!(stderr.contains(&expected), "{stderr}");
    // The first listener is not a worker and answers immediately. The second listener never answers.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let other = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = stream.expect("a client");
            if number > 0 {
                silent.push(stream);
                continue;
            }
            let _ = stream.read(&mut [0; 64]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
    });
    for words in ["the program at this address is not a worker", "a worker serves one client at a time"] {
        let (code, stderr) = refused(&["--rpc", &other]);
        assert_eq!(code, Some(1), "{stderr}");
        assert!(stderr.contains(&other) && stderr.contains(words), "{stderr}");
    }
}

#[test]
fn a_model_on_two_workers_says_what_it_says_here() {
    if !has_rpc() {
        return;
    }
    let workers = [Worker::start(), Worker::start()];
    let both = format!("{},{}", workers[0].address, workers[1].address);
    // Weights on a worker are not repacked.
    let here = tokens(&["--no-repack", "--devices", "none"]);
    let cases: [&[&str]; 8] = [
        &[],
        &["--tensor-split", "3,1"],
        &["--gpu-layers", "2"],
        &["--devices", "RPC1"],
        &["--devices", &workers[0].address],
        &["--split-mode", "none", "--main-gpu", "1"],
        &["--no-kv-offload"],
        // This mode cannot sample on the device, so sampling happens on the host.
        &["--split-mode", "tensor"],
    ];
    for more in cases {
        assert_eq!(tokens(&[&["--no-repack", "--rpc", &both], more].concat()), here, "{more:?}");
    }
    let (code, stdout, stderr) =
        parts(&anneal(["info", "--json", "--rpc", &both, "-m", tiny().to_str().expect("UTF-8")]));
    assert_eq!(code, Some(0), "{stderr}");
    let info: Value = serde_json::from_str(&stdout).expect("JSON");
    let remote: Vec<&Value> = info["devices"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|device| device["backend"] == "RPC")
        .collect();
    assert_eq!(remote.len(), 2, "{info}");
    for (device, worker) in remote.iter().zip(&workers) {
        assert_eq!(device["description"], worker.address.as_str());
        assert!(device["memory_total_bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 20), "{device}");
    }
    // Four layers and the output layer.
    assert_eq!(info["model"]["layers_on_devices"], 5, "{info}");
    let (code, stderr) = refused(&["--rpc", &both, "--devices", "RPC7"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("available devices: RPC0, RPC1"), "{stderr}");
}

/// If all layers are on a worker, the worker also samples, and one local thread sends the work to it.
#[test]
fn a_worker_that_makes_the_logits_chooses_by_them() {
    if !has_rpc() {
        return;
    }
    let worker = Worker::start();
    let model = tiny().to_str().expect("a path in UTF-8");
    let run = |more: &[&str]| -> Value {
        let all = [
            "run",
            "--json",
            "--ignore-eos",
            "--no-repack",
            "-p",
            "The smith brings",
            "-n",
            "64",
            "-m",
            model,
        ];
        let (code, stdout, stderr) = parts(&anneal([&all, more].concat()));
        assert_eq!(code, Some(0), "{more:?}: {stderr}");
        serde_json::from_str(&stdout).expect("one JSON object")
    };
    let cases: [&[&str]; 4] = [
        &["--greedy"],
        &["--greedy", "--repeat-penalty", "1.3", "--logit-bias", "5-2"],
        &["--seed", "3"],
        &["--seed", "3", "--top-p", "1"],
    ];
    for more in cases {
        let here = run(&[more, &["--devices", "none", "-t", "1"]].concat());
        let there = run(&[more, &["--rpc", &worker.address, "--devices", &worker.address]].concat());
        assert_eq!(there["tokens"], here["tokens"], "{more:?}");
        let report = &there["device_sampling"];
        assert_eq!(
            (&report["tokens_on_device"], &report["tokens_on_host"]),
            (&64.into(), &0.into()),
            "{report}"
        );
        assert_eq!(here["device_sampling"]["tokens_on_device"], 0, "{more:?}");
        let reused = there["graphs"]["reused"].as_u64().expect("a number");
        assert!(reused >= 57, "{more:?}: {}", there["graphs"]);
        // The same seed gives the same tokens.
        assert_eq!(run(&[more, &["--rpc", &worker.address]].concat())["tokens"], there["tokens"], "{more:?}");
    }
    // The output layer stays on the host with the first layers.
    let half = run(&["--greedy", "--rpc", &worker.address, "--gpu-layers", "2", "-t", "1"]);
    assert_eq!(half["device_sampling"]["why"], "the CPU computes the logits");
    let threads = |more: &[&str]| -> Vec<(String, String)> {
        let all = ["info", "--explain", "--json", "-m", model, "--rpc", &worker.address];
        // `cargo xtask test` sets this variable for all tests.
        let output =
            crate::common::command().env_remove("ANNEAL_THREADS").args([&all, more].concat()).output();
        let (code, stdout, stderr) = parts(&output.expect("anneal"));
        assert_eq!(code, Some(0), "{stderr}");
        let info: Value = serde_json::from_str(&stdout).expect("JSON");
        let lines = info["settings"].as_array().expect("settings");
        let text = |line: &Value, key: &str| line[key].as_str().unwrap_or_default().to_string();
        let is = |line: &&Value| line["name"] == "threads" || line["name"] == "threads-batch";
        lines.iter().filter(is).map(|line| (text(line, "value"), text(line, "source"))).collect()
    };
    let pair = |value: &str, source: &str| (value.to_string(), source.to_string());
    assert_eq!(threads(&[]), vec![pair("1", "all_layers_on_devices"); 2]);
    assert_eq!(threads(&["-t", "2"]), vec![pair("2", "flag"); 2]);
    assert!(threads(&["--gpu-layers", "2"]).iter().all(|(_, source)| source != "all_layers_on_devices"));
    assert!(threads(&["--no-kv-offload"]).iter().all(|(_, source)| source != "all_layers_on_devices"));
}

#[test]
fn a_worker_that_is_killed_while_it_computes_is_named() {
    if !has_rpc() {
        return;
    }
    for dead in [0, 1] {
        let mut workers = [Worker::start(), Worker::start()];
        let both = format!("{},{}", workers[0].address, workers[1].address);
        let mut child = crate::common::command()
            .args([
                "run",
                "-p",
                "a",
                "-n",
                "-1",
                "-c",
                "100096",
                "--ignore-eos",
                "-t",
                "1",
                "--rpc",
                &both,
                "-m",
            ])
            .arg(tiny())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the executable runs");
        let mut first = [0];
        child.stdout.as_mut().expect("piped").read_exact(&mut first).expect("some text");
        // The reader continues, so that the pipe never fills.
        let mut stdout = child.stdout.take().expect("piped");
        std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
        workers[dead].child.kill().expect("killed");
        let code = code(&mut child, PATIENCE);
        let mut stderr = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("text");
        assert_eq!(code, Some(1), "{stderr}");
        let expected = format!("error: the connection to the worker {} is lost", workers[dead].address);
        assert!(stderr.contains(&expected), "{stderr}");
        assert!(
            !stderr.contains(&workers[1 - dead].address),
            "the error mentions the other worker: {stderr}"
        );
        // The other worker serves the next client.
        let alone = tokens(&["--no-repack", "--rpc", &workers[1 - dead].address]);
        assert_eq!(alone, tokens(&["--no-repack", "--devices", "none"]));
    }
}

#[test]
fn a_worker_ends_in_order() {
    if !has_rpc() {
        return;
    }
    for signal in ["TERM", "INT"] {
        let mut worker = Worker::start();
        worker.signal(signal);
        assert_eq!(code(&mut worker.child, PATIENCE), Some(0), "{signal}");
    }
    let worker = Worker::start();
    let (code, _, stderr) = parts(&anneal(["worker", "--listen", &worker.address]));
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("another program is already listening on this address"), "{stderr}");
}

#[test]
fn a_server_answers_with_workers_and_ends_with_them() {
    if !has_rpc() {
        return;
    }
    let mut worker = Worker::start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let socket = folder.path().join("a.sock");
    let mut child = crate::common::command()
        .args(["serve", "--json", "-t", "1", "--no-repack", "--slots", "1", "--rpc", &worker.address, "-m"])
        .arg(tiny())
        .arg("--socket")
        .arg(&socket)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the executable runs");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    let mut stream = std::os::unix::net::UnixStream::connect(&socket).expect("it listens");
    writeln!(
        stream,
        r#"{{"prompt": "The smith brings", "max_tokens": 24, "temperature": 0, "ignore_eos": true, "cache_prompt": false}}"#
    )
    .expect("asked");
    let mut answer = String::new();
    BufReader::new(&stream).read_line(&mut answer).expect("an answer");
    // The server is idle when its worker disappears, and reports this without waiting for the next request.
    worker.child.kill().expect("killed");
    assert_eq!(code(&mut child, PATIENCE), Some(1));
    let mut stderr = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("text");
    let expected = format!("error: the connection to the worker {} is lost", worker.address);
    assert!(stderr.contains(&expected), "{stderr}");
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!(answer["tokens"], tokens(&["--no-repack", "--devices", "none"]), "{answer}");
}

/// Runs the guide's script with two workers in separate network namespaces, each behind a virtual cable.
#[test]
fn two_networks_give_what_one_machine_gives() {
    if !has_rpc() {
        return;
    }
    let ip = |arguments: &[&str]| {
        let status = Command::new("ip").args(arguments).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    let network = format!("anneal-test-{}", std::process::id());
    if !ip(&["netns", "add", &network]) {
        return match Command::new("ip").arg("-V").output() {
            Ok(_) => skipped::because(
                "no network namespaces can be created here (this needs root and CAP_SYS_ADMIN)",
            ),
            Err(_) => skipped::for_want_of("ip", "install iproute2"),
        };
    }
    assert!(ip(&["netns", "delete", &network]));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/two_workers.sh");
    let output =
        Command::new("sh").arg(script).arg(crate::common::ANNEAL).arg(tiny()).output().expect("a shell");
    let (code, stdout, stderr) = parts(&output);
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert!(stdout.ends_with("the same text\n"), "{stdout}{stderr}");
    assert!(stderr.contains("warning: 10.77.1.2:50052, 10.77.2.2:50052 are not on this machine"), "{stderr}");
    let workers = stderr.matches("warning: anyone who can reach 10.77.").count();
    assert_eq!(workers, 2, "{stderr}");

    // The exit code is also checked, because two failing runs would both have empty output.
    let output = Command::new("sh")
        .arg(script)
        .args([crate::common::ANNEAL, "/nonexistent.gguf"])
        .output()
        .expect("a shell");
    let (code, stdout, stderr) = parts(&output);
    assert_eq!(code, Some(1), "{stdout}{stderr}");
    assert!(!stdout.contains("the same text"), "{stdout}");
    assert!(stderr.contains("anneal run --rpc 10.77.1.2,10.77.2.2 failed"), "{stderr}");
}
