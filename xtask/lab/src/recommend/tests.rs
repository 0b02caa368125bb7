//! Recommendations for every machine of the fixtures. The files in this folder compare formulas with values that were
//! computed manually or reported by llama.cpp.

mod docs;
mod gpus;
mod memory;
mod model_facts;
mod quantisations;
mod speed;

use std::path::{Path, PathBuf};

use build_info::roofline::Rates;
use build_info::{Host, Roofline};

use crate::recommend::model_facts::ModelFacts;
use crate::recommend::preset::Preset;
use crate::recommend::subject::model_of_shape;
use crate::recommend::{Question, Recommendation, preset, recommend};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn host(name: &str) -> Host {
    let path = root().join("fixtures/hosts").join(format!("{name}.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn hosts() -> Vec<String> {
    let entries = std::fs::read_dir(root().join("fixtures/hosts")).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn presets() -> Vec<Preset> {
    preset::load(&root().join("profiles/runtime")).unwrap()
}

/// Returns a fixed list of profiles, so that a new profile does not change these recommendations.
fn profiles() -> Vec<String> {
    ["native", "native-blas", "native-lto", "portable"].map(String::from).to_vec()
}

fn shape(name: &str, quant: &str) -> ModelFacts {
    model_of_shape(name, quant).unwrap()
}

fn answer(
    model: &ModelFacts,
    host: &Host,
    roofline: Option<&Roofline>,
    n_ctx: Option<u32>,
) -> Recommendation {
    let (presets, profiles) = (presets(), profiles());
    let path = "a model.gguf";
    recommend(&Question { model, path, host, roofline, presets: &presets, profiles: &profiles, n_ctx })
}

/// Returns limits of a machine on which each thread reads 10 GB/s and does 100, 20 and 40 G multiply-adds per second.
fn roofline(cpu: &str) -> Roofline {
    let rates = |threads: u32| Rates {
        threads,
        read_bytes: 10e9 * f64::from(threads),
        int8_macs: 100e9 * f64::from(threads),
        f32_macs: 20e9 * f64::from(threads),
        int8_wide_macs: None,
        bf16_macs: Some(40e9 * f64::from(threads)),
    };
    Roofline {
        version: build_info::roofline::VERSION,
        date: "2026-01-01T00:00:00Z".to_string(),
        cpu: cpu.to_string(),
        affinity: vec![0, 1],
        cpu_quota: None,
        rates: vec![rates(1), rates(2)],
    }
}

#[test]
fn every_machine_gets_an_answer_for_a_dense_model_and_for_a_mixture() {
    for name in hosts() {
        let host = host(&name);
        for model in ["llama-3.1-8b", "qwen3-30b-a3b"] {
            let text = answer(&shape(model, "Q4_K_M"), &host, None, None).to_string();
            let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
            assert!(
                long.iter().all(|line| line.starts_with("target/anneal/native/bin/anneal run")),
                "{long:?}"
            );
            insta::assert_snapshot!(format!("{model}@{name}"), text);
        }
    }
}

#[test]
fn the_machines_of_the_issue_come_out_as_stated() {
    // n_ctx, n_batch, n_ubatch, decode threads, prefill threads, preset
    let cases = [
        ("i3-6100", (2048, 1024, 256, 2, 2), "two-cores"),
        ("ryzen-7950x", (4096, 2048, 512, 10, 16), "sixteen-cores"),
        ("ryzen-7950x-4060ti", (4096, 2048, 512, 10, 16), "sixteen-cores"),
    ];
    for (name, expected, preset) in cases {
        for model in ["llama-3.1-8b", "qwen2.5-1.5b"] {
            let runtime = answer(&shape(model, "Q4_K_M"), &host(name), None, None).runtime;
            let found = (
                runtime.n_ctx.value,
                runtime.n_batch.value,
                runtime.n_ubatch.value,
                runtime.decode_threads.value,
                runtime.prefill_threads.value,
            );
            assert_eq!(found, expected, "{model} on {name}");
            assert_eq!((runtime.mmap.value, runtime.mlock.value), (true, false), "{model} on {name}");
            assert_eq!(runtime.preset.as_deref(), Some(preset));
        }
    }
    // Without a preset, the engine's policy and defaults apply.
    let runtime = answer(&shape("llama-3.1-8b", "Q4_K_M"), &host("i7-12700k"), None, None).runtime;
    assert_eq!((runtime.preset, runtime.decode_threads.value, runtime.prefill_threads.value), (None, 6, 8));
    assert_eq!((runtime.n_ctx.value, runtime.n_batch.value, runtime.n_ubatch.value), (4096, 2048, 512));
}
