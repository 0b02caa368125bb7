use build_info::Sha256;
use measure::Usage;

use super::*;

fn row(test: (u32, u32, u32), end_to_end: bool, samples: &[f64]) -> GpuBenchRow {
    let (n_prompt, n_gen, n_depth) = test;
    GpuBenchRow {
        test: build_info::bench_row::test_name(n_prompt, n_gen, n_depth),
        n_prompt,
        n_gen,
        n_depth,
        end_to_end,
        samples: samples.to_vec(),
        gpus: Vec::new(),
    }
}

fn run(round: u32, by: Who, rows: Vec<GpuBenchRow>) -> Run {
    Run { round, by, rows, settings: serde_json::Map::new() }
}

/// Returns rounds in which `anneal` decodes `ours` tokens per second, and `sampled` tokens per second with sampling.
/// llama-bench decodes 100 tokens per second, with a little noise.
fn rounds(count: u32, ours: f64, sampled: f64) -> Vec<Run> {
    (1..=count)
        .flat_map(|round| {
            let noise = 1.0 + f64::from(round % 3) / 1000.0;
            [
                run(round, Who::Anneal, vec![row((0, 128, 0), false, &[ours * noise, ours])]),
                run(
                    round,
                    Who::Anneal,
                    vec![row((16, 128, 0), true, &[sampled]), row((4096, 128, 0), true, &[sampled / 2.0])],
                ),
                run(
                    round,
                    Who::LlamaBench,
                    vec![row((0, 128, 0), false, &[100.0]), row((0, 128, 4096), false, &[50.0])],
                ),
            ]
        })
        .collect()
}

fn of(runs: Vec<Run>, decodes: Vec<Decode>) -> Vec<ProgramComparison> {
    comparisons(&ModelReport { runs, decodes, ..ModelReport::new("tiny/F16".parse().unwrap(), Bytes(1)) })
}

#[test]
fn steady_decodes_are_held_against_the_decode_of_their_round() {
    let of_round = |round: Option<u32>, chosen: Option<u32>| Decode { round, ..decode(true, 0.1, chosen) };
    let decodes = vec![of_round(Some(1), Some(512)), of_round(Some(3), Some(512)), of_round(None, Some(512))];
    let comparisons = of(rounds(2, 110.0, 90.0), decodes);
    let device = comparisons.iter().find(|of| of.sampling == Sampling::GreedyOnDevice).unwrap();
    // A decode forms no pair if it belongs to no round, or to a round without llama-bench.
    assert_eq!(
        (device.test.as_str(), device.ratio.map(|ratio| (ratio.median, ratio.pairs))),
        ("tg128", Some((1.0, 1)))
    );
    // If the device chose no token, the decode is not treated as sampled on the device.
    let comparisons = of(rounds(2, 110.0, 90.0), vec![of_round(Some(1), Some(0))]);
    assert!(comparisons.iter().any(|of| of.sampling == Sampling::GreedyOnHost));
}

#[test]
fn tests_are_held_against_those_of_the_same_depth() {
    let comparisons = of(rounds(6, 110.0, 90.0), Vec::new());
    let told: Vec<(&str, Sampling)> =
        comparisons.iter().map(|comparison| (comparison.test.as_str(), comparison.sampling)).collect();
    assert_eq!(
        told,
        [("tg128", Sampling::None), ("tg128", Sampling::Default), ("tg128 @ d4096", Sampling::Default)]
    );
    let ratios: Vec<Ratio> = comparisons.iter().map(|comparison| comparison.ratio.unwrap()).collect();
    assert!((ratios[0].median - 1.1).abs() < 0.002, "{ratios:?}");
    assert!((ratios[1].median - 0.9).abs() < 1e-9 && (ratios[2].median - 0.9).abs() < 1e-9, "{ratios:?}");
    assert_eq!(ratios[0].pairs, 6);
    assert_eq!(comparisons[2].llama_bench, Some(50.0));
}

#[test]
fn a_round_that_lacks_one_program_is_no_pair() {
    let mut runs = rounds(3, 110.0, 90.0);
    runs.retain(|run| run.round != 2 || run.by != Who::LlamaBench);
    let first = &of(runs.clone(), Vec::new())[0];
    assert_eq!(first.ratio.map(|ratio| ratio.pairs), Some(2));
    runs.retain(|run| run.by == Who::Anneal);
    let alone = &of(runs, Vec::new())[0];
    assert_eq!((alone.ratio, alone.llama_bench), (None, None));
    assert!(alone.anneal > 109.0);
    assert_eq!(speed(alone).verdict, FigureVerdict::NotMeasured);
    assert_eq!(of(Vec::new(), Vec::new()), []);
}

#[test]
fn a_miss_is_told_only_where_it_is_no_chance() {
    let of = |ratios: &[f64]| at_least(&Ratio::of(ratios), 1.0);
    assert_eq!(of(&[1.01; 5]), FigureVerdict::Pass);
    assert_eq!(of(&[0.9, 1.2, 1.3]), FigureVerdict::Pass);
    assert_eq!(of(&[0.9; 5]), FigureVerdict::Miss);
    assert_eq!(of(&[0.9; 2]), FigureVerdict::Unclear);
    assert_eq!(of(&[0.9, 0.95, 1.05, 0.9, 0.98]), FigureVerdict::Unclear);
}

fn model(name: &str, bytes: u64, speed: f64) -> ModelReport {
    let runs = rounds(5, speed, speed);
    ModelReport {
        bytes_per_token: Some(Bytes(bytes)),
        comparisons: of(runs.clone(), Vec::new()),
        runs,
        ..ModelReport::new(name.parse().unwrap(), Bytes(bytes))
    }
}

#[test]
fn bandwidth_is_the_weights_times_the_speed() {
    // The model reads 1.6 GB per token.
    let figure = |name: &str, speed: f64, theoretical: Option<f64>, copy: Option<f64>| {
        bandwidth(&model(name, 1_600_000_000, speed), &MemorySpeed { theoretical, copy }).unwrap()
    };
    let (q8, most) = ("qwen2.5-1.5b/Q8_0", Some(3.2e12));
    let half = figure(q8, 1000.0, most, None);
    assert!((half.value.unwrap() - 0.5).abs() < 0.01, "{half:?}");
    assert!((half.effective_bandwidth.unwrap() / 1.6e12 - 1.0).abs() < 0.01, "{half:?}");
    assert_eq!((half.verdict, half.measured_copy_bandwidth), (FigureVerdict::Miss, None));
    // Between a definite miss and a definite pass, the copy bandwidth decides.
    for (speed, copy, verdict) in [
        (1300.0, None, FigureVerdict::Unclear),
        (1700.0, None, FigureVerdict::Pass),
        (1300.0, Some(2.5e12), FigureVerdict::Pass),
        (1300.0, Some(2.9e12), FigureVerdict::Miss),
    ] {
        assert_eq!(figure(q8, speed, most, copy).verdict, verdict, "{speed} {copy:?}");
    }
    assert_eq!(figure("qwen2.5-1.5b/Q4_K_M", 100.0, most, None).verdict, FigureVerdict::Told);
    let unknown = figure(q8, 100.0, None, None);
    assert_eq!((unknown.verdict, unknown.value), (FigureVerdict::NotMeasured, None));
    assert!(
        bandwidth(&ModelReport::new("tiny/F16".parse().unwrap(), Bytes(1)), &MemorySpeed::default())
            .is_none()
    );
}

fn decode(device_sampling: bool, cpus: f64, chosen: Option<u32>) -> Decode {
    Decode {
        round: None,
        device_sampling,
        graphs: true,
        wait: None,
        tokens: 512,
        tokens_per_second: Some(100.0),
        chosen_on_device: chosen,
        text: text("a"),
        cpus: Some(cpus),
        pace: Vec::new(),
        usage: Usage::default(),
    }
}

fn text(text: &str) -> Sha256 {
    Sha256::of(text)
}

#[test]
fn the_hosts_part_is_that_of_device_sampling_alone() {
    let with =
        |cpus: f64, chosen| host_cpu(&[decode(false, 1.0, None), decode(true, cpus, chosen)], &[]).unwrap();
    assert_eq!((with(0.2, Some(512)).verdict, with(0.2, Some(512)).note), (FigureVerdict::Pass, None));
    assert_eq!(with(0.3, Some(512)).verdict, FigureVerdict::Miss);
    // If the device did not choose the tokens, the host's CPU use with device sampling is unknown.
    let by_host = with(0.2, Some(0));
    assert_eq!((by_host.verdict, by_host.note.is_some()), (FigureVerdict::NotMeasured, true));
    assert_eq!(host_cpu(&[decode(false, 1.0, None)], &[]), None);
}

#[test]
fn the_hosts_part_is_that_of_a_host_that_sleeps() {
    let of = |cpus: f64, wait| Decode { wait: Some(wait), ..decode(true, cpus, Some(512)) };
    let pair = |switch| Pair { switch, on: of(0.1, Wait::Block), off: of(1.0, Wait::Spin) };
    let plain = [decode(true, 1.0, Some(512))];
    let figure = host_cpu(&plain, &[pair(Switch::Waiting)]).unwrap();
    assert_eq!((figure.value, figure.verdict), (Some(0.1), FigureVerdict::Pass));
    assert_eq!(figure.note.as_deref(), Some("with ANNEAL_CUDA_WAIT=block"));
    // A pair with another switch is not used as a pair for waiting.
    assert_eq!(host_cpu(&plain, &[pair(Switch::CudaGraphs)]).unwrap().verdict, FigureVerdict::Miss);
}

#[test]
fn a_pair_whose_sides_are_the_same_thing_is_no_pair() {
    for (on, off, verdict) in [
        (Some(512), None, FigureVerdict::Pass),
        (Some(512), Some(0), FigureVerdict::Pass),
        (Some(511), None, FigureVerdict::Miss),
        (None, None, FigureVerdict::Miss),
        (Some(512), Some(512), FigureVerdict::Miss),
    ] {
        let pair =
            Pair { switch: Switch::DeviceSampling, on: decode(true, 0.1, on), off: decode(false, 0.1, off) };
        let figure = sampled_as_asked(&[&pair]);
        assert_eq!(
            (figure.verdict, figure.note.is_none()),
            (verdict, verdict == FigureVerdict::Pass),
            "{figure:?}"
        );
    }
}

#[test]
fn settings_that_differ_are_named() {
    let with = |by: Who, batch: u32| {
        let settings = [("n_batch".to_string(), batch.into()), ("only_ours".to_string(), by_number(by))];
        Run { settings: settings.into_iter().collect(), ..run(1, by, vec![row((0, 8, 0), false, &[1.0])]) }
    };
    let mut theirs = with(Who::LlamaBench, 512);
    theirs.settings.remove("only_ours");
    let found = differing(&[with(Who::Anneal, 2048), theirs]);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].setting.as_str(), &found[0].llama_bench), ("n_batch", &512.into()));
    assert_eq!(differing(&[with(Who::Anneal, 2048), with(Who::LlamaBench, 2048)]).len(), 0);
}

fn by_number(_: Who) -> serde_json::Value {
    1.into()
}
