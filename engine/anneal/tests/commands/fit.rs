//! Tests of memory estimates before loading, and of automatic layer counts. Workers replace GPUs: each worker is a
//! device with its own memory of constant size.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::common::worker::{Worker, has_rpc};
use crate::common::{anneal, parts, written_once};
use gguf::synth::{Preset, SynthOptions};
use serde_json::Value;

/// Maximum error of an estimate, in per cent.
const OFF: f64 = 5.0;

/// Returns a model of `preset`, written once per process.
fn model(preset: Preset) -> PathBuf {
    written_once(&format!("{}.gguf", preset.name()), |path| {
        gguf::synth::write(path, &SynthOptions::new(preset)).expect("a model");
    })
}

/// Runs `anneal info --json` on `model` with `arguments`. Returns its output and its log.
fn info(model: &Path, arguments: &[&str]) -> (Value, String) {
    let mut all = vec!["info", "--json", "-m", model.to_str().expect("UTF-8")];
    all.extend(arguments);
    let (code, stdout, stderr) = parts(&anneal(&all));
    assert_eq!(code, Some(0), "{all:?}: {stderr}");
    (serde_json::from_str(&stdout).expect("JSON"), stderr)
}

/// Returns the devices in the output of `anneal info`.
fn devices(info: &Value) -> Vec<&Value> {
    info["estimate"]["devices"].as_array().unwrap_or_else(|| panic!("no estimate: {info}")).iter().collect()
}

fn bytes(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or_else(|| panic!("no {name} in {of}"))
}

/// Returns the sizes of all buffers in llama.cpp's log, by name. Includes only the buffers of the real load, and of
/// its first context.
fn logged(log: &str) -> BTreeMap<String, f64> {
    let (_, real) = log.rsplit_once("no_alloc              = 0").expect("a load");
    let mut all = BTreeMap::new();
    for line in real.lines().take_while(|line| !line.contains("reserve took")) {
        let size = line.split_once(" buffer size = ").filter(|_| line.ends_with(" MiB"));
        let Some((what, size)) = size else { continue };
        // Examples: "load_tensors:   CPU_Mapped model", "llama_kv_cache:        CPU KV", "sched_reserve:        CPU
        // compute".
        let words: Vec<&str> = what.split_whitespace().collect();
        if let [_, name, "model" | "KV" | "RS" | "compute"] = words[..] {
            let mib: f64 = size.trim_end_matches(" MiB").trim().parse().expect("a size");
            *all.entry(name.to_string()).or_default() += mib * f64::from(1 << 20);
        }
    }
    all
}

/// Checks that each device used the estimated memory after loading, according to llama.cpp's buffer sizes and its
/// log.
fn check(model: &Path, arguments: &[&str], pipelined: bool) {
    let (info, log) = info(model, &[arguments, &["--placement", "-v"]].concat());
    let logged = logged(&log);
    for device in devices(&info) {
        let (needed, used) = (bytes(device, "needed_bytes"), bytes(device, "used_bytes"));
        let off = device["difference_percent"].as_f64().expect("a difference");
        // With pipelining over several devices, llama.cpp's estimate has one additional layer input per batch.
        let more = if pipelined { 4 * 512 * 256 * 4 } else { 0 };
        let is_near = off.abs() <= OFF || (used <= needed && needed - used <= more);
        assert!(is_near, "{} {arguments:?}: {device}", model.display());
        // The host is not compared with the log, because the log reports the part of a mapped file that contains the
        // tensors.
        if device["host"] == false && !pipelined {
            let of_worker = logged.iter().filter(|(buffer, _)| buffer.starts_with("RPC"));
            let said: f64 = of_worker.map(|(_, bytes)| *bytes).sum();
            let off = (said - needed as f64) / needed as f64 * 100.0;
            assert!(off.abs() <= OFF, "{} {arguments:?}: {device}; {logged:?}", model.display());
        }
    }
}

const CONTEXTS: [[&str; 2]; 2] = [["-c", "512"], ["-c", "8192"]];
const CACHES: [&[&str]; 2] = [&[], &["-ctk", "q8_0", "-ctv", "q8_0"]];

#[test]
fn the_estimate_is_what_the_cpu_then_takes() {
    for preset in [Preset::Tiny, Preset::MoeTiny, Preset::SwaTiny] {
        for (context, cache) in CONTEXTS.iter().flat_map(|context| CACHES.map(|cache| (context, cache))) {
            for layout in [&[][..], &["--no-repack"], &["--load-mode", "none"]] {
                check(&model(preset), &[&context[..], cache, layout].concat(), false);
            }
        }
    }
}

#[test]
fn the_estimate_is_what_devices_then_take() {
    if !has_rpc() {
        return;
    }
    let workers = [Worker::start(), Worker::start()];
    let one = workers[0].address.as_str();
    let two = format!("{one},{}", workers[1].address);
    for preset in [Preset::Tiny, Preset::MoeTiny, Preset::SwaTiny] {
        for (context, cache) in CONTEXTS.iter().flat_map(|context| CACHES.map(|cache| (context, cache))) {
            let with = |more: &[&'static str]| [&context[..], cache, more].concat();
            check(&model(preset), &[&["--rpc", one][..], &with(&[])].concat(), false);
            check(&model(preset), &[&["--rpc", one][..], &with(&["-ngl", "2", "-nkvo"])].concat(), false);
            check(&model(preset), &[&["--rpc", &two][..], &with(&[])].concat(), true);
        }
    }
    let mixture = model(Preset::MoeTiny);
    for n_cpu_moe in ["1", "all"] {
        check(&mixture, &["--rpc", one, "--n-cpu-moe", n_cpu_moe], false);
    }
}

/// Returns the free memory of the single worker, and the part of it that `arguments` use.
fn taken(model: &Path, arguments: &[&str]) -> (u64, u64) {
    let (info, _) = info(model, arguments);
    let all = devices(&info);
    (bytes(all[0], "memory_free_bytes"), bytes(all[0], "needed_bytes"))
}

/// Returns the largest reserve, in whole MiB, for which `needed` bytes still fit in `free` bytes.
fn kept((free, needed): (u64, u64)) -> String {
    ((free - needed) >> 20).to_string()
}

#[test]
fn as_many_layers_go_to_a_device_as_find_room() {
    if !has_rpc() {
        return;
    }
    let worker = Worker::start();
    let rpc = ["--rpc", &worker.address];
    let tiny = model(Preset::Tiny);
    for layers in ["1", "2", "3", "4", "5"] {
        let kept = kept(taken(&tiny, &[&rpc[..], &["-ngl", layers]].concat()));
        let (info, log) = info(&tiny, &[&rpc[..], &["--fit-target", &kept]].concat());
        let expected: u64 = layers.parse().expect("a number");
        assert_eq!(info["model"]["layers_on_devices"], expected, "{kept}: {}", info["estimate"]);
        let words = info["estimate"]["plan"]["words"].as_str().unwrap_or_default();
        match expected {
            // If everything fits, nothing is logged.
            5 => assert!(words.starts_with("all 5 layers on RPC0: ") && log.is_empty(), "{words}; {log}"),
            _ => assert!(
                log.contains(&format!("{layers} of 5 layers on RPC0: ")) && log.contains(words),
                "{log}"
            ),
        }
    }
    // Experts are moved to the host first, and only as many as necessary.
    let mixture = model(Preset::MoeTiny);
    for n_cpu_moe in ["0", "1", "2", "3"] {
        let kept = kept(taken(&mixture, &[&rpc[..], &["-ngl", "all", "--n-cpu-moe", n_cpu_moe]].concat()));
        let (info, _) = info(&mixture, &[&rpc[..], &["--fit-target", &kept]].concat());
        assert_eq!(info["model"]["layers_on_devices"], 4, "{info}");
        let words = info["estimate"]["plan"]["words"].as_str().unwrap_or_default();
        let expected = match n_cpu_moe {
            "0" => "all 4 layers on RPC0: ".to_string(),
            "3" => "all 4 layers on RPC0 except their experts, which".to_string(),
            some => format!("all 4 layers on RPC0 except the experts of the first {some}, which"),
        };
        assert!(words.starts_with(&expected), "{words}");
        let plan = &info["estimate"]["plan"];
        assert_eq!(
            (&plan["layers"], plan["n_cpu_moe"].to_string().as_str()),
            (&plan["of"], n_cpu_moe),
            "{plan}"
        );
    }
    let kept = kept(taken(&mixture, &[&rpc[..], &["-ngl", "2", "--n-cpu-moe", "all"]].concat()));
    let (info, _) = info(&mixture, &[&rpc[..], &["--fit-target", &kept, "--explain"]].concat());
    assert_eq!(info["model"]["layers_on_devices"], 2, "{info}");
    let settings = info["settings"].as_array().expect("settings");
    let of = |name: &str| {
        settings.iter().find(|line| line["name"] == name).map(|line| (&line["value"], &line["source"]))
    };
    let (auto, given) = (Value::from("default"), Value::from("flag"));
    assert_eq!(of("gpu-layers"), Some((&Value::from("auto: 2 of 4"), &auto)));
    assert_eq!(of("n-cpu-moe"), Some((&Value::from("auto: 3"), &auto)));
    assert_eq!(of("fit-target").map(|(_, source)| source), Some(&given));
}

#[test]
fn what_stays_on_the_host_says_what_it_said() {
    if !has_rpc() {
        return;
    }
    let worker = Worker::start();
    let mixture = model(Preset::MoeTiny);
    let run = |more: &[&str]| {
        let model = mixture.to_str().expect("UTF-8");
        let all = ["run", "-m", model, "-p", "The smith", "-n", "24", "--greedy", "--no-repack", "-t", "1"];
        let (code, stdout, stderr) = parts(&anneal([&all, more].concat()));
        assert_eq!(code, Some(0), "{more:?}: {stderr}");
        (stdout, stderr)
    };
    let (here, _) = run(&["--devices", "none"]);
    let rpc = ["--rpc", &worker.address];
    let half = kept(taken(&mixture, &[&rpc[..], &["-ngl", "2", "--n-cpu-moe", "all"]].concat()));
    let cases: [&[&str]; 5] = [
        &["--n-cpu-moe", "all"],
        &["--n-cpu-moe", "1"],
        &["-ngl", "2", "-ncmoe", "3"],
        &["--fit-target", &half],
        &["--fit-target", "4000000000"],
    ];
    for more in cases {
        assert_eq!(run(&[&rpc[..], more].concat()).0, here, "{more:?}");
    }
}

#[test]
fn where_nothing_finds_room_it_is_said_how_much_is_missing() {
    if !has_rpc() {
        return;
    }
    let worker = Worker::start();
    let tiny = model(Preset::Tiny);
    let tiny = tiny.to_str().expect("UTF-8");
    let run = |more: &[&str]| {
        let all =
            ["run", "-m", tiny, "-p", "a", "-n", "1", "--rpc", &worker.address, "--fit-target", "4000000000"];
        parts(&anneal([&all, more].concat()))
    };
    let (code, _, stderr) = run(&[]);
    assert_eq!(code, Some(0), "{stderr}");
    let words = "0 of 5 layers on RPC0: ";
    assert!(stderr.contains(words) && stderr.contains("more free memory"), "{stderr}");
    let (code, _, stderr) = run(&["--require-gpu"]);
    assert_eq!(code, Some(69), "{stderr}");
    for words in ["no layer fits on", words, "more free memory", "--fit-target"] {
        assert!(stderr.contains(words), "{words:?}: {stderr}");
    }
    // A number of layers that the user has set is not an automatic choice.
    let (code, _, stderr) = run(&["-ngl", "2", "--require-gpu"]);
    assert_eq!(code, Some(0), "{stderr}");
}
