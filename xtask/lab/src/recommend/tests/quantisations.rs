//! Tests of the sizes of quantised models, and of the recommended quantisation.

use gguf::synth;
use gguf::synth::{Preset as Synthetic, SynthOptions};

use super::{answer, host, shape};
use crate::recommend::mixture;
use crate::recommend::subject::read_model;

#[test]
fn mixtures_are_those_of_llama_cpp() {
    // Sums of the sizes of tensors in files that `anneal quantize` made from these synthetic models (crate 0.1.161).
    let tiny = [
        ("Q8_0", 3_630_080),
        ("Q6_K", 2_804_736),
        ("Q5_K_M", 2_465_280),
        ("Q5_K_S", 2_421_760),
        ("Q4_K_M", 2_145_792),
        ("Q4_K_S", 2_077_696),
        ("IQ4_XS", 1_971_200),
        ("Q4_0", 2_061_312),
        ("Q3_K_M", 1_808_384),
        ("Q2_K", 1_478_656),
    ];
    let moe_tiny = [
        ("Q8_0", 6_787_584),
        ("Q6_K", 5_295_616),
        ("Q5_K_M", 4_616_704),
        ("Q5_K_S", 4_547_072),
        ("Q4_K_M", 4_002_304),
        ("Q4_K_S", 3_867_136),
        ("IQ4_XS", 3_697_152),
        ("Q4_0", 3_842_560),
        ("Q3_K_M", 3_353_600),
        ("Q2_K", 2_752_000),
    ];
    let small_qwen2 = [
        ("Q8_0", 21_755_904),
        ("Q6_K", 16_803_840),
        ("Q5_K_M", 15_428_608),
        ("Q5_K_S", 15_202_304),
        ("Q4_K_M", 14_134_272),
        ("Q4_K_S", 13_727_744),
        ("IQ4_XS", 13_359_104),
        ("Q4_0", 13_694_976),
        ("Q3_K_M", 12_701_696),
        ("Q2_K", 11_356_160),
    ];
    let folder = tempfile::tempdir().unwrap();
    let models =
        [(Synthetic::Tiny, tiny), (Synthetic::MoeTiny, moe_tiny), (Synthetic::SmallQwen2, small_qwen2)];
    for (preset, sizes) in models {
        let path = folder.path().join(format!("{preset}.gguf"));
        synth::write(&path, &SynthOptions::new(preset)).unwrap();
        let model = read_model(&path).unwrap();
        assert_eq!((model.quantisation.as_str(), model.kv.exact), ("F16", true), "{preset}");
        for (quant, bytes) in sizes {
            let mixed = mixture::quantise(&model, mixture::find(quant).unwrap());
            assert_eq!((mixed.model.weights.0, mixed.fallbacks), (bytes, 0), "{preset} {quant}");
        }
    }
}

#[test]
fn sizes_are_those_that_llama_cpp_publishes_for_llama_3_8b() {
    // Sizes of whole files in GiB, from the list in tools/quantize/quantize.cpp. The files include a vocabulary of 8
    // MB.
    let cases = [
        ("Q8_0", 7.96),
        ("Q6_K", 6.14),
        ("Q5_K_M", 5.33),
        ("Q5_K_S", 5.21),
        ("Q4_K_M", 4.58),
        ("Q4_K_S", 4.37),
        ("Q4_0", 4.34),
        ("Q3_K_M", 3.74),
        ("Q2_K", 2.96),
    ];
    for (quant, published) in cases {
        let gib = shape("llama-3.1-8b", quant).weights.0 as f64 / f64::from(1 << 30);
        assert!((gib - published).abs() < 0.025, "{quant}: {gib:.3} GiB, published {published}");
    }
}

#[test]
fn odd_rows_fall_back_and_are_told() {
    let model = shape("qwen2.5-0.5b", "Q4_K_M");
    // Rows of 896 elements are not a multiple of 256: q, k, v, o, gate and up of 24 layers, and the embedding. Rows of
    // 4,864 elements (down) are a multiple of 256.
    let mixed = mixture::quantise(&model, mixture::find("Q4_K_M").unwrap());
    assert_eq!(mixed.fallbacks, 24 * 6);
    let kinds: Vec<&str> = model.types.iter().map(|share| share.kind).collect();
    assert_eq!(kinds[0], "q5_0", "{kinds:?}");
    let warnings = answer(&model, &host("i3-6100"), None, None).quantisation.warnings;
    assert!(warnings.iter().any(|warning| warning.contains("not a multiple of 256")), "{warnings:?}");
    assert!(warnings.iter().any(|warning| warning.contains("general kernels")), "{warnings:?}");
    let good = answer(&shape("qwen2.5-1.5b", "Q4_K_M"), &host("i3-6100"), None, None).quantisation.warnings;
    assert!(good.is_empty(), "{good:?}");
}

#[test]
fn a_quantisation_is_recommended_that_fits() {
    let host = host("i3-6100");
    // Model, its current type, the usual type, the most precise type that fits, and a word of the text.
    let cases = [
        ("llama-3.1-8b", "Q4_K_M", Some("Q4_K_M"), Some("Q8_0"), "keep Q4_K_M"),
        ("llama-3.1-8b", "F16", Some("Q4_K_M"), Some("Q8_0"), "F16 does not stay in memory"),
        ("qwen2.5-1.5b", "F16", Some("Q4_K_M"), Some("F16"), "Q4_K_M for speed"),
        ("qwen3-30b-a3b", "Q4_K_M", Some("Q2_K"), Some("Q2_K"), "a smaller model is usually"),
        ("llama-3.3-70b", "Q4_K_M", None, None, "use a smaller model"),
    ];
    for (name, quant, usual, most_exact, word) in cases {
        let advice = answer(&shape(name, quant), &host, None, None).quantisation;
        assert_eq!((advice.usual, advice.most_exact), (usual, most_exact), "{name} {quant}");
        assert!(advice.text.contains(word), "{name} {quant}: {}", advice.text);
        let sizes: Vec<u64> = advice.choices.iter().map(|choice| choice.weights.0).collect();
        assert!(sizes.is_sorted_by(|a, b| a >= b), "{name}: {sizes:?}");
    }
}
