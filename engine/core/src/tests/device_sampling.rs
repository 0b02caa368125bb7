//! Tests that a device samples tokens with the correct probabilities. llama.cpp treats the CPU as a device.

use std::sync::Arc;

use gguf::synth::{self, Preset};
use llama::sampling::{SamplingOptions, SamplingStep};
use llama::{ALONE, Candidate, Context, Model, Token};
use sampling::Chain;

use crate::runtime_host::RuntimeHost;
use crate::settings::{Requested, Settings};

const DRAWS: usize = 1500;

/// Returns how often the device drew each of `likely` after one prompt.
fn counts(context: &mut Context, options: &SamplingOptions, likely: &[Candidate]) -> Vec<usize> {
    let mut chain = Chain::new(options, &Arc::clone(context.model())).expect("a chain");
    chain.place(context, ALONE).expect("samplers");
    assert!(chain.device_report().on_host.is_empty(), "{:?}", chain.device_report());
    let mut counts = vec![0; likely.len()];
    for _ in 0..DRAWS {
        context.clear();
        context.decode(&[5, 9, 2]).expect("the prompt");
        let token = chain.sample_of(context, ALONE, -1).expect("a token");
        let at = likely.iter().position(|candidate| candidate.id == token);
        counts[at.expect("a token that the host's samplers leave")] += 1;
    }
    assert_eq!((chain.device_report().tokens_on_device, chain.device_report().tokens_on_host), (DRAWS, 0));
    context.sample_on_host(ALONE).expect("no samplers");
    counts
}

fn chi_square(counts: &[usize], likely: &[Candidate]) -> f64 {
    let expected = likely.iter().map(|candidate| f64::from(candidate.p) * DRAWS as f64);
    counts.iter().zip(expected).map(|(count, expected)| (*count as f64 - expected).powi(2) / expected).sum()
}

/// Returns the tiny model and one of its contexts.
fn tiny() -> (tempfile::TempDir, Arc<Model>, Context) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("tiny.gguf");
    synth::write(&path, &synth::SynthOptions::new(Preset::Tiny)).expect("the tiny model");
    let runtime_host = RuntimeHost::default();
    let requested = Requested { n_ctx: Some(256), decode_threads: Some(1), ..Requested::default() };
    let settings = Settings::resolve(&requested, &runtime_host).expect("valid");
    let model = crate::model::open(&path, &settings, &runtime_host).expect("it loads");
    let context = crate::context::context(&model, &settings, &runtime_host, false).expect("a context");
    (folder, model, context)
}

#[test]
fn a_device_draws_by_the_probabilities_that_the_host_finds() {
    let (_folder, model, mut context) = tiny();
    let mut likely = |options: &SamplingOptions| {
        context.clear();
        context.decode(&[5, 9, 2]).expect("the prompt");
        let mut chain = Chain::new(options, &model).expect("a chain");
        chain.sample(&mut context, -1).expect("a token");
        chain.candidates().to_vec()
    };
    // The first options keep eight tokens; the second options apply every truncating sampler.
    let flat = SamplingOptions {
        top_k: 8,
        top_p: 1.0,
        min_p: 0.0,
        temperature: 0.7,
        seed: Some(7),
        ..Default::default()
    };
    let cut = SamplingOptions {
        top_k: 20,
        top_p: 0.98,
        min_p: 0.001,
        temperature: 1.5,
        seed: Some(8),
        ..Default::default()
    };
    let wrong = SamplingOptions { temperature: 0.3, ..flat.clone() };
    let (flat_likely, cut_likely, wrong_likely) = (likely(&flat), likely(&cut), likely(&wrong));
    assert_eq!(flat_likely.len(), 8);
    assert!((3..20).contains(&cut_likely.len()), "{cut_likely:?}");
    let flat_counts = counts(&mut context, &flat, &flat_likely);
    // Critical value for 7 degrees of freedom, which a correct sampler exceeds once in a thousand times.
    let bound = 24.32;
    let chi = chi_square(&flat_counts, &flat_likely);
    assert!(chi < bound, "{chi}: {flat_counts:?}");
    // The test must detect a different temperature.
    let chi = chi_square(&flat_counts, &wrong_likely);
    assert!(chi > 2.0 * bound, "{chi}");
    let cut_counts = counts(&mut context, &cut, &cut_likely);
    // 99.9 % quantile, by the Wilson–Hilferty approximation.
    let free = (cut_likely.len() - 1) as f64;
    let bound = free * (1.0 - 2.0 / (9.0 * free) + 3.0902 * (2.0 / (9.0 * free)).sqrt()).powi(3);
    let chi = chi_square(&cut_counts, &cut_likely);
    assert!(chi < bound, "{chi} of {bound}: {cut_counts:?}");
    // The same seed draws the same tokens, and another seed draws different tokens.
    assert_eq!(counts(&mut context, &flat, &flat_likely), flat_counts);
    let other = SamplingOptions { seed: Some(9), ..flat };
    assert_ne!(counts(&mut context, &other, &flat_likely), flat_counts);
}

/// Generates `many` tokens; each token is evaluated before the next is chosen.
fn text(chain: &mut Chain, context: &mut Context, many: usize) -> Vec<Token> {
    let mut next = || {
        let token = chain.sample_of(context, ALONE, -1).expect("a token");
        context.decode(&[token]).expect("it is evaluated");
        token
    };
    (0..many).map(|_| next()).collect()
}

/// Simulates a server that preempts a request, and the next request in the same slot.
#[test]
fn a_text_goes_on_with_the_samplers_of_another_place() {
    let (_folder, model, mut context) = tiny();
    let options = SamplingOptions {
        frequency_penalty: 0.8,
        repeat_last_n: 16,
        top_k: 0,
        seed: Some(5),
        ..Default::default()
    };
    let partly = SamplingOptions { typical_p: 0.95, ..options.clone() };
    let begin = |options: &SamplingOptions, context: &mut Context| {
        let mut chain = Chain::new(options, &model).expect("a chain");
        chain.accept_prompt(&[5, 9, 2]).expect("the prompt");
        chain.place(context, ALONE).expect("samplers");
        assert!(
            chain.device_report().offloaded.contains(&SamplingStep::Penalties),
            "{:?}",
            chain.device_report()
        );
        context.clear();
        context.decode(&[5, 9, 2]).expect("the prompt");
        chain
    };
    for options in [options, partly] {
        let mut chain = begin(&options, &mut context);
        let whole = text(&mut chain, &mut context, 24);
        // Another seed uses the same graph with a different state.
        let other = SamplingOptions { seed: Some(6), ..options.clone() };
        let mut chain = begin(&other, &mut context);
        assert_ne!(text(&mut chain, &mut context, 24), whole);
        let mut chain = begin(&options, &mut context);
        let mut parts = text(&mut chain, &mut context, 10);
        // Another request uses the slot for a while. Afterwards, the last token is evaluated again in the new slot.
        let mut guest = Chain::new(&other, &model).expect("a chain");
        guest.place(&mut context, ALONE).expect("samplers");
        chain.place(&mut context, ALONE).expect("samplers");
        let held = [&[5, 9, 2], &parts[..]].concat();
        context.clear();
        context.decode(&held).expect("it is evaluated");
        parts.extend(text(&mut chain, &mut context, 14));
        assert_eq!(parts, whole, "{:?}", chain.device_report());
    }
}
