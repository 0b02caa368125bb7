//! Tests of the memory that a model and its context need, and of contexts that fit.

use build_info::Bytes;
use gguf::synth::{Preset as Synthetic, SynthOptions};
use gguf::{GgmlType, synth};

use super::{answer, host, shape};
use crate::recommend::fit::{Fit, FitVerdict, Need, compute_buffer, is_repacked};
use crate::recommend::model_facts::Tensor;
use crate::recommend::subject::read_model;

#[test]
fn the_compute_buffer_is_estimated_from_above() {
    let folder = tempfile::tempdir().unwrap();
    let synthetic = |preset: Synthetic| {
        let path = folder.path().join(format!("{preset}.gguf"));
        synth::write(&path, &SynthOptions::new(preset)).unwrap();
        read_model(&path).unwrap()
    };
    let (tiny, moe) = (synthetic(Synthetic::Tiny), synthetic(Synthetic::MoeTiny));
    let (small, qwen) = (synthetic(Synthetic::SmallQwen2), shape("qwen2.5-1.5b", "F16"));
    // Sizes that llama.cpp reported ("CPU compute buffer size" in MiB) for n_ctx and n_ubatch, and the maximum excess
    // of the estimate.
    let cases = [
        (&tiny, 4096, 512, 9.5195, 1.2),
        (&moe, 4096, 512, 9.5195, 1.2),
        (&small, 4096, 512, 42.0195, 1.02),
        (&qwen, 4096, 512, 315.7695, 1.02),
        (&qwen, 32_768, 512, 343.7695, 1.02),
        (&qwen, 2048, 256, 156.8848, 1.02),
    ];
    for (model, n_ctx, n_ubatch, reported, above) in cases {
        let mib = compute_buffer(model, n_ctx, n_ubatch).0 as f64 / f64::from(1 << 20);
        let what = format!("{} {n_ctx} {n_ubatch}: {mib} MiB, reported {reported}", model.name);
        assert!(mib > 0.999 * reported && mib < above * reported, "{what}");
    }
}

#[test]
fn a_verdict_follows_from_what_is_needed() {
    let gib = Bytes::gib;
    let need = Need { n_ctx: 256, weights: gib(8), repacked: gib(4), kv: gib(1), compute: gib(1) };
    let cases = [
        // Repacked weights need no additional memory.
        (gib(10), FitVerdict::Fits),
        (Bytes(gib(10).0 - 1), FitVerdict::StreamsFromDisk),
        (gib(2), FitVerdict::StreamsFromDisk),
        (Bytes(gib(2).0 - 1), FitVerdict::DoesNotFit),
        (Bytes(0), FitVerdict::DoesNotFit),
    ];
    for (usable, expected) in cases {
        assert_eq!(need.verdict(usable), expected, "{usable}");
    }
}

#[test]
fn a_context_is_as_long_as_the_memory_and_no_longer_than_it_was_trained() {
    let mut host = host("i3-6100");
    let model = shape("llama-3.1-8b", "Q4_K_M");
    // In this memory, the weights and the buffers of a context of 8,192 tokens fit exactly, with the minimum reserve.
    let need = Need::of(&model, &host, 8192, 256, crate::recommend::kv::F16).total().0;
    for (spare, expected) in [(0, 8192), (-1, 7936), (1 << 20, 8192)] {
        let free = (need + (512 << 20)).checked_add_signed(spare).unwrap();
        host.memory.available = Bytes(free);
        let fit = Fit::of(&model, &host, 2048, 256);
        assert_eq!(fit.largest_context, Some(expected), "{spare}");
        assert!(fit.largest_context_q8_0 > fit.largest_context);
    }
    host.memory.available = Bytes::gib(64);
    assert_eq!(Fit::of(&model, &host, 2048, 256).largest_context, Some(131_072));
    host.memory.available = Bytes::gib(1);
    let fit = Fit::of(&model, &host, 2048, 256);
    assert_eq!((fit.largest_context, fit.verdict), (None, FitVerdict::StreamsFromDisk));
    assert!(fit.fits_when_idle);
    // A limit of the control group has the same effect.
    host.memory.available = Bytes::gib(64);
    host.limits.memory = Some(Bytes::gib(1));
    assert_eq!(Fit::of(&model, &host, 2048, 256).verdict, FitVerdict::StreamsFromDisk);
}

#[test]
fn a_context_that_does_not_fit_is_shortened_unless_it_was_asked_for() {
    let mut host = host("zen5-vm");
    let model = shape("llama-3.1-8b", "Q4_K_M");
    let need = Need::of(&model, &host, 1024, 256, crate::recommend::kv::F16).total().0;
    host.memory.available = Bytes(need + (512 << 20));
    let own = answer(&model, &host, None, None);
    assert_eq!((own.runtime.n_ctx.value, own.fit.verdict), (1024, FitVerdict::Fits));
    let command = own.command.expect("a command");
    assert!(command.starts_with("target/anneal/native/bin/anneal run -m 'a model.gguf' -c"), "{command}");
    assert!(
        own.runtime.repack.value && command.contains("-c 1024") && !command.contains("--no-repack"),
        "{command}"
    );
    let asked = answer(&model, &host, None, Some(30_000));
    assert_eq!((asked.runtime.n_ctx.value, asked.fit.verdict), (30_208, FitVerdict::StreamsFromDisk));
    assert!(
        !asked.runtime.repack.value && asked.command.is_some_and(|command| command.ends_with("--no-repack"))
    );
    let beyond = answer(&shape("qwen2.5-1.5b", "Q4_K_M"), &host, None, Some(40_000));
    assert!(beyond.notes.iter().any(|note| note.contains("trained for 32768")), "{:?}", beyond.notes);
}

#[test]
fn a_context_that_fits_with_no_quantisation_is_named_as_the_cause() {
    let (host, model) = (host("i3-6100"), shape("llama-3.1-8b", "Q4_K_M"));
    let long = answer(&model, &host, None, Some(100_000));
    let largest = long.fit.largest_context.expect("a shorter one fits");
    assert_eq!((long.fit.verdict, &long.command), (FitVerdict::DoesNotFit, &None));
    let advice = format!("-c {largest} or less");
    assert!(long.quantisation.text.contains("with a context of 100096 tokens"), "{}", long.quantisation.text);
    assert!(long.quantisation.text.contains(&advice), "{}", long.quantisation.text);
    assert!(long.notes.iter().any(|note| note.contains(&advice)), "{:?}", long.notes);
    assert!(long.runtime.n_ctx.reason.contains("100000, rounded up"), "{}", long.runtime.n_ctx.reason);
    assert!(!long.to_string().contains("anneal run"), "{long}");
    // The recommended context fits, and one more step does not.
    let shorter = answer(&model, &host, None, Some(largest));
    assert_eq!((shorter.fit.verdict, shorter.runtime.n_ctx.reason.as_str()), (FitVerdict::Fits, "requested"));
    assert!(shorter.command.is_some() && shorter.quantisation.usual == Some("Q4_K_M"));
    let more = answer(&model, &host, None, Some(largest + 1));
    assert!(more.fit.verdict > FitVerdict::Fits);
    // The weights do not fit with any context.
    let large = answer(&shape("llama-3.3-70b", "Q4_K_M"), &host, None, Some(100_000));
    assert!(large.quantisation.text.contains("smaller model"), "{}", large.quantisation.text);
}

#[test]
fn rearranged_types_are_those_of_the_cpu() {
    let tensor = |id: u32, rows: u64| Tensor {
        name: "blk.0.ffn_up.weight".to_string(),
        dims: vec![256, rows],
        kind: GgmlType::from_id(id).unwrap(),
    };
    let mut amx = host("zen5-vm");
    amx.cpu.features.extend(["amx_tile", "amx_int8"].map(String::from));
    // The types are q4_K, q6_K, q8_0, q2_K and f16, each with 64 rows.
    let cases = [
        ("i3-6100", host("i3-6100"), [true, false, false, false, false]),
        ("ryzen-7950x", host("ryzen-7950x"), [true, false, false, true, false]),
        ("xeon-e5-2680", host("xeon-e5-2680"), [false; 5]),
        ("neoverse", host("neoverse"), [true, true, true, false, false]),
        ("with AMX", amx, [true, true, true, true, true]),
    ];
    for (name, host, expected) in cases {
        let found = [12, 14, 8, 10, 1].map(|id| is_repacked(&tensor(id, 64), &host));
        assert_eq!(found, expected, "{name}");
        assert!(!is_repacked(&tensor(12, 7), &host), "{name}");
    }
}

#[test]
fn the_rearranged_copy_is_as_large_as_llama_cpp_reports() {
    // "AMX model buffer size" of the synthetic F16 models in MiB. The size includes a tied embedding but no experts.
    let cases = [(Synthetic::Tiny, 5.5), (Synthetic::MoeTiny, 2.125), (Synthetic::SmallQwen2, 39.0)];
    let mut host = host("zen5-vm");
    host.cpu.features.extend(["amx_tile", "amx_int8"].map(String::from));
    let folder = tempfile::tempdir().unwrap();
    for (preset, mib) in cases {
        let path = folder.path().join("m.gguf");
        synth::write(&path, &SynthOptions::new(preset)).unwrap();
        let copy = crate::recommend::fit::repacked_bytes(&read_model(&path).unwrap(), &host);
        assert_eq!(copy.0 as f64 / f64::from(1 << 20), mib, "{preset}");
    }
}
