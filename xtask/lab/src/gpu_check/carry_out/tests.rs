use build::compare::Provenance;
use build::ui::Global;
use build_info::Sha256;
use serde_json::{Value, json};

use super::*;
use crate::gpu_check::report::{self, ProgramReport, SCHEMA_VERSION};

#[test]
fn a_shortened_long_run_is_the_same_step() {
    assert!(is_same(CheckStep::Long(1, 10_000), CheckStep::Long(1, 5000)));
    assert!(!is_same(CheckStep::Long(1, 10_000), CheckStep::Long(2, 10_000)));
    assert!(!is_same(CheckStep::Round(1, 1), CheckStep::Round(1, 2)));
    assert!(check_budget(480.0).is_ok() && check_budget(1.0).is_err());
}

/// Returns a report of a machine with one GPU.
fn report() -> Report {
    let host = include_str!("../../../../../fixtures/hosts/ryzen-7950x-4060ti.json");
    let host: build_info::Host = serde_json::from_str(host).unwrap();
    Report {
        provenance: Provenance::now(&host, "gpu-check run".to_string()),
        schema_version: SCHEMA_VERSION.to_string(),
        budget_seconds: 300.0,
        seconds: 0.0,
        rehearsal: false,
        stopped: None,
        archive: None,
        host,
        host_warnings: Vec::new(),
        cards: Vec::new(),
        info: None,
        anneal: ProgramReport {
            name: "anneal".to_string(),
            bytes: Bytes(0),
            sha256: Sha256::of(b""),
            build: None,
        },
        llama_bench: None,
        llama_bench_missing: None,
        refusal: None,
        models: vec![report::ModelReport::new("tiny/F16".parse().unwrap(), Bytes::mib(7))],
        pairs: Vec::new(),
        long: None,
        figures: Vec::new(),
        steps: Vec::new(),
        left_out: Vec::new(),
    }
}

/// Returns a fake engine in `folder` that simulates a GPU and logs each call in the file `calls`.
fn engine(folder: &std::path::Path) -> Engine {
    let placement = json!({ "placement": { "devices": ["CUDA0 (NVIDIA H100)"], "faults": [] } }).to_string();
    for (name, text) in [
        (
            "plan",
            "bench() { :; }\ndecode() { :; }\necho \"${ANNEAL_CUDA_WAIT-unset} $*\" >> \"$here/calls\"\n",
        ),
        ("kernel.json", include_str!("../../../tests/fixtures/gpu-check/anneal-kernel.json")),
        ("end-to-end.json", include_str!("../../../tests/fixtures/gpu-check/anneal-end-to-end.json")),
        ("said.txt", include_str!("../../../../../fixtures/run/greedy-on-device.txt")),
        ("placement.json", &placement),
        ("anneal.text", include_str!("../../../tests/data/fake-gpu-anneal.sh")),
    ] {
        std::fs::write(folder.join(name), text).unwrap();
    }
    // Another process writes the script, because a script cannot be run while a forked child has it open for writing.
    let program = folder.join("anneal");
    let made = std::process::Command::new("sh")
        .args(["-c", "cp \"$0.text\" \"$0\" && chmod +x \"$0\""])
        .arg(&program)
        .status();
    assert!(made.unwrap().success());
    Engine::open(&program, false).unwrap()
}

#[test]
fn whatever_the_builds_defaults_are_all_is_looked_at_on_the_gpu() {
    let folder = tempfile::tempdir().unwrap();
    let options = CheckOptions {
        engine: engine(folder.path()),
        llama_bench: None,
        sizes: Sizes::REHEARSAL,
        budget: 300.0,
        out: folder.path().join("out.json"),
        promises_gpu: false,
        cuda: true,
        graphs: true,
    };
    let scratch = Scratch::among_others(folder.path(), "models").unwrap();
    let ui = Ui::new(&Global { quiet: true, ..Global::default() });
    let report = RunningCheck::new(&options, report(), scratch, Instant::now(), &ui).run().unwrap();
    let failed: Vec<&Done> = report.steps.iter().filter(|step| step.error.is_some()).collect();
    assert_eq!(failed, Vec::<&Done>::new());
    assert!(report.models[0].placement.as_ref().is_some_and(|placement| placement.full));

    let calls = std::fs::read_to_string(folder.path().join("calls")).unwrap();
    let of_model: Vec<&str> = calls.lines().filter(|call| call.contains(" -m ")).collect();
    for call in &of_model {
        let forced = "--require-gpu=full --gpu-layers all --n-cpu-moe 0 --kv-offload --op-offload";
        assert!(call.contains(forced), "{call}");
    }
    // Beginning of a call, end of a call, and minimum number of such calls.
    for (begin, end, least) in [
        ("unset info --placement --json -m ", "", 1),
        ("unset bench -m ", "", 2),
        ("unset bench -m ", "-r 1 -o json -t 1", 2),
        ("unset run -m ", "--ignore-eos --json", 2),
        ("unset run -m ", "--device-sampling=on", 5),
        ("unset run -m ", "--device-sampling=off", 2),
        ("block run -m ", "--device-sampling=on", 2),
        ("spin run -m ", "--device-sampling=on", 2),
    ] {
        let found = of_model.iter().filter(|call| call.starts_with(begin) && call.ends_with(end)).count();
        assert!(found >= least, "{begin}…{end}: {found} in\n{calls}");
    }
    let told: Value = serde_json::from_slice(&std::fs::read(&options.out).unwrap()).unwrap();
    assert_eq!(told["pairs"].as_array().map(Vec::len), Some(6));
}
