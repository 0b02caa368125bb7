//! Every fixture's machine, formulas against figures worked out by hand or reported by llama.cpp, and headers that lie.

use std::path::{Path, PathBuf};

use build_info::roofline::Rates;
use build_info::{Bytes, Host, Roofline};
use gguf::GgmlType;
use gguf::synth::{self, Options, Preset as Synthetic};

use super::fit::{Fit, Need, Verdict, compute_buffer, is_repacked};
use super::model_facts::{Macs, Metadata, ModelFacts, Tensor};
use super::offload::Offload;
use super::preset::{self, Preset};
use super::speed::{decode_ceiling, prefill_ceiling};
use super::subject::{model_of_shape, read_model};
use super::{Question, Recommendation, mixture, recommend, shapes, variant};

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

/// Those of today: a new one must not change what was recommended here.
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

/// A machine whose threads together read 10 GB/s each, and do 100, 20 and 40 G multiply-adds a second each.
fn roofline(cpu: &str) -> Roofline {
    let rates = |threads: u32| Rates {
        threads,
        read_bytes: 10e9 * f64::from(threads),
        int8_macs: 100e9 * f64::from(threads),
        f32_macs: 20e9 * f64::from(threads),
        bf16_macs: Some(40e9 * f64::from(threads)),
    };
    Roofline {
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
    // No preset: the engine's own policy and defaults.
    let runtime = answer(&shape("llama-3.1-8b", "Q4_K_M"), &host("i7-12700k"), None, None).runtime;
    assert_eq!((runtime.preset, runtime.decode_threads.value, runtime.prefill_threads.value), (None, 6, 8));
    assert_eq!((runtime.n_ctx.value, runtime.n_batch.value, runtime.n_ubatch.value), (4096, 2048, 512));
}

#[test]
fn shapes_have_the_published_numbers_of_parameters() {
    let cases: [(&str, u64); 12] = [
        ("qwen2.5-0.5b", 494_032_768),
        ("llama-3.2-1b", 1_235_814_400),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("llama-3.2-3b", 3_212_749_824),
        ("mistral-7b", 7_241_732_096),
        ("qwen2.5-7b", 7_615_616_512),
        ("llama-3.1-8b", 8_030_261_248),
        ("qwen2.5-14b", 14_770_033_664),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen2.5-32b", 32_763_876_352),
        ("mixtral-8x7b", 46_702_792_704),
        ("llama-3.3-70b", 70_553_706_496),
    ];
    assert_eq!(
        cases.map(|(name, _)| name).to_vec(),
        shapes::SHAPES.iter().map(|shape| shape.name).collect::<Vec<_>>()
    );
    for (name, parameters) in cases {
        assert_eq!(shape(name, "F16").parameters, parameters, "{name}");
    }
}

#[test]
fn the_work_of_a_token_is_counted() {
    let llama = shape("llama-3.1-8b", "F16");
    // 2 bytes each, 4 for the 65 norms of 4,096.
    assert_eq!(llama.weights.0, 2 * 8_030_261_248 + 2 * 65 * 4096);
    // All but the embedding, of which one row is read.
    assert_eq!(llama.bytes_per_token.0, llama.weights.0 - 2 * 128_256 * 4096 + 2 * 4096);
    // Of each layer q and o, k and v, and three matrices of the feed-forward network.
    let layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14_336;
    assert_eq!(llama.prefill_macs, Macs { half: 32 * layer, ..Macs::default() });
    // 32 layers, keys and values, 8 heads of 128.
    assert_eq!((llama.kv.f16.0, llama.kv.q8_0), (32 * 2 * 1024 * 2, Some(Bytes(32 * 2 * 1024 / 32 * 34))));
    assert!(llama.kv.exact && llama.notes.is_empty(), "{:?}", llama.notes);

    // A tied embedding is read whole, as the output matrix.
    let tied = shape("qwen2.5-1.5b", "Q8_0");
    assert_eq!(tied.bytes_per_token, tied.weights);

    let mixture = shape("qwen3-30b-a3b", "F16");
    let experts: u64 = 48 * 128 * 3 * 2048 * 768;
    assert_eq!(mixture.expert_weights.0, 2 * experts);
    assert_eq!(mixture.active_parameters, 30_532_122_624 - experts + experts / 16);
    let embedding = 2 * 151_936 * 2048;
    let expected = mixture.weights.0 - 2 * experts + 2 * experts / 16 - embedding + 2 * 2048;
    assert_eq!(mixture.bytes_per_token.0, expected);
}

#[test]
fn mixtures_are_those_of_llama_cpp() {
    // Sums of the tensors' sizes in files that `anneal quantize` made of these synthetic models (crate 0.1.161).
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
        synth::write(&path, &Options::new(preset)).unwrap();
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
    // GiB, of whole files, from the list in tools/quantize/quantize.cpp; a vocabulary of 8 MB is in them.
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
    // Rows of 896: q, k, v, o, gate and up of 24 layers, and the embedding; down's 4,864 are whole.
    let mixed = mixture::quantise(&model, mixture::find("Q4_K_M").unwrap());
    assert_eq!(mixed.fallbacks, 24 * 6);
    let kinds: Vec<&str> = model.types.iter().map(|share| share.kind).collect();
    assert_eq!(kinds[0], "q5_0", "{kinds:?}");
    let warnings = answer(&model, &host("i3-6100"), None, None).quantisation.warnings;
    assert!(warnings.iter().any(|warning| warning.contains("no multiple of 256")), "{warnings:?}");
    assert!(warnings.iter().any(|warning| warning.contains("general kernels")), "{warnings:?}");
    let good = answer(&shape("qwen2.5-1.5b", "Q4_K_M"), &host("i3-6100"), None, None).quantisation.warnings;
    assert!(good.is_empty(), "{good:?}");
}

#[test]
fn the_compute_buffer_is_estimated_from_above() {
    let folder = tempfile::tempdir().unwrap();
    let synthetic = |preset: Synthetic| {
        let path = folder.path().join(format!("{preset}.gguf"));
        synth::write(&path, &Options::new(preset)).unwrap();
        read_model(&path).unwrap()
    };
    let (tiny, moe) = (synthetic(Synthetic::Tiny), synthetic(Synthetic::MoeTiny));
    let (small, qwen) = (synthetic(Synthetic::SmallQwen2), shape("qwen2.5-1.5b", "F16"));
    // What llama.cpp reported ("CPU compute buffer size", MiB) for n_ctx and n_ubatch, and how far above it may be.
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
        (gib(14), Verdict::Fits),
        (Bytes(gib(14).0 - 1), Verdict::FitsWithoutRepack),
        (gib(10), Verdict::FitsWithoutRepack),
        (Bytes(gib(10).0 - 1), Verdict::StreamsFromDisk),
        (gib(2), Verdict::StreamsFromDisk),
        (Bytes(gib(2).0 - 1), Verdict::DoesNotFit),
        (Bytes(0), Verdict::DoesNotFit),
    ];
    for (usable, expected) in cases {
        assert_eq!(need.verdict(usable), expected, "{usable}");
    }
}

#[test]
fn a_context_is_as_long_as_the_memory_and_no_longer_than_it_was_trained() {
    let mut host = host("i3-6100");
    let model = shape("llama-3.1-8b", "Q4_K_M");
    // So much that the weights and the buffers of a context of 8,192 fit to the byte, with the least reserve.
    let need = Need::of(&model, &host, 8192, 256, super::kv::F16).once().0;
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
    assert_eq!((fit.largest_context, fit.verdict), (None, Verdict::StreamsFromDisk));
    assert!(fit.fits_when_idle);
    // A limit of the control group counts as much.
    host.memory.available = Bytes::gib(64);
    host.limits.memory = Some(Bytes::gib(1));
    assert_eq!(Fit::of(&model, &host, 2048, 256).verdict, Verdict::StreamsFromDisk);
}

#[test]
fn a_context_that_does_not_fit_is_shortened_unless_it_was_asked_for() {
    let mut host = host("zen5-vm");
    let model = shape("llama-3.1-8b", "Q4_K_M");
    let need = Need::of(&model, &host, 1024, 256, super::kv::F16).once().0;
    host.memory.available = Bytes(need + (512 << 20));
    let own = answer(&model, &host, None, None);
    assert_eq!((own.runtime.n_ctx.value, own.fit.verdict), (1024, Verdict::FitsWithoutRepack));
    let command = own.command.expect("a command");
    assert!(command.starts_with("target/anneal/native/bin/anneal run -m 'a model.gguf' -c"), "{command}");
    assert!(!own.runtime.repack.value && command.contains("-c 1024 ") && command.ends_with("--no-repack"));
    let asked = answer(&model, &host, None, Some(30_000));
    assert_eq!((asked.runtime.n_ctx.value, asked.fit.verdict), (30_208, Verdict::StreamsFromDisk));
    let beyond = answer(&shape("qwen2.5-1.5b", "Q4_K_M"), &host, None, Some(40_000));
    assert!(beyond.notes.iter().any(|note| note.contains("longer than the 32768")), "{:?}", beyond.notes);
}

#[test]
fn speeds_are_ceilings_from_what_was_measured() {
    assert_eq!(decode_ceiling(40e9, 4_000_000_000, 1_000_000_000), Some(8.0));
    let rates = Rates { threads: 2, read_bytes: 1.0, int8_macs: 1e12, f32_macs: 1e11, bf16_macs: Some(2e11) };
    let macs = |quantised, half, single| Macs { quantised, half, single };
    let cases = [
        (macs(6_000_000_000, 0, 1_000_000_000), Some(1.0 / 0.016)),
        (macs(0, 2_000_000_000, 0), Some(100.0)),
        (macs(0, 0, 0), None),
    ];
    for (macs, expected) in cases {
        assert_eq!(prefill_ceiling(&rates, macs), expected, "{macs:?}");
    }
    for nonsense in [0.0, -1.0, f64::INFINITY, f64::NAN] {
        assert_eq!(decode_ceiling(nonsense, 1, 0), None);
    }

    let (model, host) = (shape("llama-3.1-8b", "Q8_0"), host("i3-6100"));
    let measured = roofline(&host.cpu.name);
    let speed = answer(&model, &host, Some(&measured), None).speed;
    let bytes = model.bytes_per_token.0 as f64;
    let kv = model.kv.f16.0 as f64 * 2048.0;
    assert_eq!((speed.decode, speed.decode_full), (Some(20e9 / bytes), Some(20e9 / (bytes + kv))));
    let per_token = model.prefill_macs.quantised as f64 / 200e9;
    assert_eq!(speed.prefill, Some(1.0 / per_token));
    let without = answer(&model, &host, None, None).speed;
    assert!(without.decode.is_none() && without.how.contains("anneal bench --roofline"));
    // Weights that come from the disk are not bound by memory.
    let large = answer(&shape("llama-3.3-70b", "Q4_K_M"), &host, Some(&measured), None);
    assert!(large.speed.decode.is_none() && large.speed.how.contains("disk"), "{:?}", large.speed);
    assert!(large.quantisation.choices.iter().all(|choice| choice.decode.is_none()));
    let mut wrong = measured;
    wrong.rates.iter_mut().for_each(|rates| rates.read_bytes = -1.0);
    let speed = answer(&model, &host, Some(&wrong), None).speed;
    assert!(speed.decode.is_none() && speed.how.contains("no sense"), "{speed:?}");
}

#[test]
fn a_gpu_takes_as_many_layers_as_fit() {
    let host = host("ryzen-7950x-4060ti");
    let model = shape("llama-3.1-8b", "F16");
    // A layer of 218,103,808 weights and two norms; 17,175,674,880 bytes less a sixteenth and the buffers.
    let layer = 2 * 218_103_808 + 4 * 2 * 4096;
    let short = Offload::of(&model, &host, 4096, 512).unwrap();
    assert_eq!(short.layer.0, layer + 4096 * 2 * 1024 * 2);
    assert_eq!((short.layers, short.of_layers), (33, 33));
    let long = Offload::of(&model, &host, 32_768, 512).unwrap();
    let room = 17_175_674_880 - 17_175_674_880 / 16 - long.compute.0;
    assert_eq!(long.layers, room / (layer + 32_768 * 2 * 1024 * 2));
    assert_eq!((long.layers, long.layers_with_experts_on_cpu), (27, None));
    assert_eq!(Offload::of(&model, &self::host("i3-6100"), 4096, 512), None);

    let moe = Offload::of(&shape("qwen3-30b-a3b", "Q4_K_M"), &host, 4096, 512).unwrap();
    let behind = moe.layers_with_experts_on_cpu.unwrap();
    assert!(behind > 0 && behind < 48 && !moe.is_whole(), "{moe:?}");
    let whole = Offload::of(&shape("qwen3-30b-a3b", "Q2_K"), &host, 4096, 512).unwrap();
    assert!(whole.is_whole() && whole.layers_with_experts_on_cpu.is_none(), "{whole:?}");
}

/// A Ryzen 7950X with cards of so many GiB.
fn with_cards(cards: &[(&str, u64)]) -> Host {
    let card = |(name, gib): &(&str, u64)| build_info::host::Gpu {
        name: name.to_string(),
        compute_capability: "8.9".to_string(),
        memory: Bytes::gib(*gib),
        driver: "590.44.01".to_string(),
    };
    Host { gpus: cards.iter().map(card).collect(), ..host("ryzen-7950x") }
}

#[test]
fn several_gpus_share_the_layers() {
    let model = shape("llama-3.3-70b", "Q4_K_M");
    let of = |cards: &[(&str, u64)]| Offload::of(&model, &with_cards(cards), 4096, 512).unwrap();
    let one = of(&[("RTX 4090", 24)]);
    assert_eq!((one.gpu.as_str(), one.gpus, one.is_whole()), ("RTX 4090", 1, false));
    let two = of(&[("RTX 4090", 24), ("RTX 4090", 24)]);
    assert_eq!((two.gpu.as_str(), two.gpus, two.layers), ("2 × RTX 4090", 2, 81));
    // Driver and buffers take of each.
    let twice = |bytes: Bytes| Bytes(2 * bytes.0);
    let kept = (twice(one.memory), twice(one.reserve), twice(one.compute));
    assert_eq!((two.memory, two.reserve, two.compute), kept);
    // What no GPU can take alone is not cut.
    let small = of(&[("A", 16), ("B", 16)]);
    let each = of(&[("A", 16)]);
    assert_eq!((small.layers, small.is_whole()), (2 * each.layers, false));
    let unlike = of(&[("RTX 4090", 24), ("L4", 16), ("GT 1030", 1)]);
    assert_eq!((unlike.gpu.as_str(), unlike.layers), ("L4 and RTX 4090", one.layers + each.layers));
    // The largest, where none has room.
    let none = of(&[("GT 1030", 1), ("GT 1030 Ti", 1)]);
    assert_eq!((none.gpus, none.layers), (1, 0));
    // A part of a layer is left over on one of them: experts that would need that stay behind.
    let moe = shape("qwen3-30b-a3b", "Q4_K_M");
    let behind = |cards: &[(&str, u64)]| {
        Offload::of(&moe, &with_cards(cards), 4096, 512).unwrap().layers_with_experts_on_cpu.unwrap()
    };
    assert!(behind(&[("A", 8), ("B", 8)]) > behind(&[("AB", 16)]));

    let of_model = |cards: &[(&str, u64)]| {
        let profiles = ["native", "cuda-dense", "cuda-hybrid"].map(String::from);
        let host = with_cards(cards);
        let question = Question {
            model: &model,
            path: "m.gguf",
            host: &host,
            roofline: None,
            presets: &[],
            profiles: &profiles,
            n_ctx: None,
        };
        recommend(&question)
    };
    let answer = of_model(&[("RTX 4090", 24), ("RTX 4090", 24), ("GT 1030", 1)]);
    assert_eq!(answer.build.profile, "cuda-dense", "{}", answer.build.reason);
    assert_eq!(answer.build.reason, "81 of 81 layers fit into the memory of 2 × RTX 4090");
    let text = answer.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("81 of 81 layers: 48 GiB of 2 GPUs less 3 GiB for the driver"), "{text}");
    let notes = answer.notes.join("\n");
    assert!(
        notes.contains("the 2 GPUs share the layers") && notes.contains("one more GPU is left out"),
        "{notes}"
    );
    let alone = of_model(&[("RTX 4090", 24)]);
    assert_eq!(alone.build.profile, "cuda-hybrid");
    assert!(!alone.notes.join("\n").contains("GPUs share"), "{:?}", alone.notes);
}

#[test]
fn a_build_is_chosen_among_those_that_are_there() {
    let host = host("ryzen-7950x-4060ti");
    let cases = [
        ("llama-3.1-8b", "Q4_K_M", "cuda-dense"),
        ("llama-3.1-8b", "F16", "cuda-cublas-dense"),
        ("qwen3-30b-a3b", "Q2_K", "cuda-mmq-moe"),
        ("qwen3-30b-a3b", "Q4_K_M", "cpu-cuda-hybrid"),
        ("qwen2.5-32b", "Q4_K_M", "cuda-hybrid"),
        ("llama-3.3-70b", "Q4_K_M", "cpu-cuda-hybrid"),
    ];
    for (model, quant, expected) in cases {
        let model = shape(model, quant);
        let offload = Offload::of(&model, &host, 4096, 512);
        let none = variant::choose(&model, &host, offload.as_ref(), &profiles());
        assert_eq!((none.profile, none.planned), ("native", Some(expected)), "{} {quant}", model.name);
        assert!(none.reason.contains("not there yet"), "{}", none.reason);
        let there = [profiles(), vec![expected.to_string()]].concat();
        let advice = variant::choose(&model, &host, offload.as_ref(), &there);
        assert_eq!((advice.profile, advice.planned), (expected, None), "{} {quant}", model.name);
        assert_eq!(advice.command, format!("cargo xtask build --profile {expected}"));
    }
    let mut small = host.clone();
    small.gpus[0].memory = Bytes::gib(1);
    let model = shape("llama-3.3-70b", "F16");
    let offload = Offload::of(&model, &small, 4096, 512);
    let advice = variant::choose(&model, &small, offload.as_ref(), &profiles());
    assert_eq!(advice.planned, Some("cpu-hybrid"));
}

#[test]
fn the_command_runs_the_build_that_was_chosen_and_leaves_the_cpu_out_where_it_does_nothing() {
    let (host, presets) = (host("ryzen-7950x-4060ti"), presets());
    let profiles = ["native", "cuda-dense", "cuda-hybrid"].map(String::from);
    let command = |model: &str| {
        let (model, path) = (shape(model, "Q4_K_M"), "m.gguf");
        let (host, presets, profiles) = (&host, &presets[..], &profiles[..]);
        let question = Question { model: &model, path, host, roofline: None, presets, profiles, n_ctx: None };
        recommend(&question).command.unwrap()
    };
    let whole = command("llama-3.1-8b");
    assert_eq!(whole, "target/anneal/cuda-dense/bin/anneal run -m m.gguf -c 4096 -b 2048 --ubatch-size 512");
    let part = command("qwen2.5-32b");
    assert!(part.starts_with("target/anneal/cuda-hybrid/bin/anneal run ") && part.contains(" -t "), "{part}");
}

#[test]
fn a_context_that_fits_with_no_quantisation_is_named_as_the_cause() {
    let (host, model) = (host("i3-6100"), shape("llama-3.1-8b", "Q4_K_M"));
    let long = answer(&model, &host, None, Some(100_000));
    let largest = long.fit.largest_context.expect("a shorter one fits");
    assert_eq!((long.fit.verdict, &long.command), (Verdict::DoesNotFit, &None));
    let advice = format!("give -c {largest} or less");
    assert!(long.quantisation.text.contains("with a context of 100096 tokens"), "{}", long.quantisation.text);
    assert!(long.quantisation.text.contains(&advice), "{}", long.quantisation.text);
    assert!(long.notes.iter().any(|note| note.contains(&advice)), "{:?}", long.notes);
    assert!(long.runtime.n_ctx.reason.contains("100000, and"), "{}", long.runtime.n_ctx.reason);
    assert!(!long.to_string().contains("anneal run"), "{long}");
    // The advice can be followed, and a step more cannot.
    let shorter = answer(&model, &host, None, Some(largest));
    assert_eq!(
        (shorter.fit.verdict, shorter.runtime.n_ctx.reason.as_str()),
        (Verdict::FitsWithoutRepack, "asked for")
    );
    assert!(shorter.command.is_some() && shorter.quantisation.usual == Some("Q4_K_M"));
    let more = answer(&model, &host, None, Some(largest + 1));
    assert!(more.fit.verdict > Verdict::FitsWithoutRepack);
    // A model that is too large with any context stays so.
    let large = answer(&shape("llama-3.3-70b", "Q4_K_M"), &host, None, Some(100_000));
    assert!(large.quantisation.text.contains("smaller model"), "{}", large.quantisation.text);
}

#[test]
fn a_quantisation_is_recommended_that_fits() {
    let host = host("i3-6100");
    // model, what it is now, the usual one, the most exact that fits, a word of the text
    let cases = [
        ("llama-3.1-8b", "Q4_K_M", Some("Q4_K_M"), Some("Q8_0"), "stay with Q4_K_M"),
        ("llama-3.1-8b", "F16", Some("Q4_K_M"), Some("Q8_0"), "F16 does not stay in memory"),
        ("qwen2.5-1.5b", "F16", Some("Q4_K_M"), Some("F16"), "Q4_K_M for speed"),
        ("qwen3-30b-a3b", "Q4_K_M", Some("Q2_K"), Some("Q2_K"), "a smaller model is mostly"),
        ("llama-3.3-70b", "Q4_K_M", None, None, "take a smaller model"),
    ];
    for (name, quant, usual, most_exact, word) in cases {
        let advice = answer(&shape(name, quant), &host, None, None).quantisation;
        assert_eq!((advice.usual, advice.most_exact), (usual, most_exact), "{name} {quant}");
        assert!(advice.text.contains(word), "{name} {quant}: {}", advice.text);
        let sizes: Vec<u64> = advice.choices.iter().map(|choice| choice.weights.0).collect();
        assert!(sizes.is_sorted_by(|a, b| a >= b), "{name}: {sizes:?}");
    }
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
    // q4_K, q6_K, q8_0, q2_K, f16, each with 64 rows
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
    // "AMX model buffer size" of the synthetic F16 models, MiB: experts are not among it, a tied embedding is.
    let cases = [(Synthetic::Tiny, 5.5), (Synthetic::MoeTiny, 2.125), (Synthetic::SmallQwen2, 39.0)];
    let mut host = host("zen5-vm");
    host.cpu.features.extend(["amx_tile", "amx_int8"].map(String::from));
    let folder = tempfile::tempdir().unwrap();
    for (preset, mib) in cases {
        let path = folder.path().join("m.gguf");
        synth::write(&path, &Options::new(preset)).unwrap();
        let copy = super::fit::repacked_bytes(&read_model(&path).unwrap(), &host);
        assert_eq!(copy.0 as f64 / f64::from(1 << 20), mib, "{preset}");
    }
}

/// A header of these keys.
struct Keys(Vec<(&'static str, Vec<u64>)>);

impl Metadata for Keys {
    fn text(&self, key: &str) -> Option<String> {
        (key == "general.architecture" && !self.0.is_empty()).then(|| "llama".to_string())
    }

    fn numbers(&self, key: &str) -> Option<Vec<u64>> {
        let key = key.strip_prefix("llama.")?;
        self.0.iter().find(|(name, _)| *name == key).map(|(_, values)| values.clone())
    }
}

#[test]
fn layers_may_differ_in_keys_and_values() {
    let sizes = |kv_heads: Vec<u64>, more: &[(&'static str, u64)]| {
        let mut keys = vec![
            ("block_count", vec![3]),
            ("embedding_length", vec![256]),
            ("attention.head_count", vec![4]),
            ("attention.head_count_kv", kv_heads),
        ];
        keys.extend(more.iter().map(|(name, value)| (*name, vec![*value])));
        let tensor = Tensor { name: "output.weight".into(), dims: vec![256, 8], kind: GgmlType::F16 };
        ModelFacts::read(&Keys(keys), vec![tensor], "m").unwrap().kv
    };
    // Heads of 256 / 4 = 64 elements of 2 bytes, for keys and for values.
    let one = |heads: u64| 2 * 2 * 64 * heads;
    let cases = [
        (sizes(vec![2], &[]), 3, one(6)),
        (sizes(vec![4, 0, 1], &[]), 2, one(5)),
        (sizes(vec![], &[]), 3, one(12)),
        // Latent attention: keys alone.
        (
            sizes(
                vec![1],
                &[
                    ("attention.key_length", 576),
                    ("attention.key_length_mla", 192),
                    ("attention.value_length_mla", 128),
                ],
            ),
            3,
            3 * 2 * 576,
        ),
    ];
    for (kv, layers, bytes) in cases {
        assert_eq!((kv.layers, kv.f16.0, kv.exact), (layers, bytes, true));
    }
    let window = sizes(vec![2], &[("attention.sliding_window", 1024)]);
    assert!(!window.exact && window.notes[0].contains("1024 tokens only"), "{:?}", window.notes);
}

#[test]
fn headers_that_lie_are_refused_or_survived() {
    let host = host("ryzen-7950x-4060ti");
    let wild = u64::MAX;
    let tensors = || {
        let tensor = |name: &str, dims: &[u64], id| Tensor {
            name: name.to_string(),
            dims: dims.to_vec(),
            kind: GgmlType::from_id(id).unwrap(),
        };
        vec![
            tensor("token_embd.weight", &[wild, wild], 1),
            tensor("output.weight", &[0, 0], 12),
            tensor("blk.0.attn_v.weight", &[], 0),
            tensor("blk.18446744073709551615.ffn_down.weight", &[wild, 2, 2], 0),
            tensor("blk.0.ffn_up_exps.weight", &[7, wild, wild, wild], 1),
            tensor("blk.x.ffn_down_exps.weight", &[256, 3, 3], 14),
        ]
    };
    let names = [
        "block_count",
        "embedding_length",
        "feed_forward_length",
        "context_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.sliding_window",
        "expert_count",
        "expert_used_count",
    ];
    let mut survived = 0;
    for layers in [0, 1, 3, 512, 513, wild] {
        for value in [0, 1, 255, 1 << 32, wild - 1, wild] {
            for missing in ["", "attention.head_count", "context_length", "embedding_length"] {
                let keys = names.map(|name| (name, vec![if name == "block_count" { layers } else { value }]));
                let keys = Keys(keys.into_iter().filter(|(name, _)| *name != missing).collect());
                let Ok(model) = ModelFacts::read(&keys, tensors(), "m.gguf") else {
                    assert!(layers == 0 || layers > 512);
                    continue;
                };
                for n_ctx in [None, Some(1), Some(1 << 28)] {
                    let answer = answer(&model, &host, Some(&roofline("x")), n_ctx);
                    assert!(!answer.to_string().is_empty());
                    assert!(serde_json::to_string(&answer).unwrap().contains("verdict"));
                    survived += 1;
                }
            }
        }
    }
    assert!(survived > 100);
    let refused =
        |keys: Keys, tensors| format!("{:#}", ModelFacts::read(&keys, tensors, "m.gguf").unwrap_err());
    assert!(refused(Keys(vec![]), tensors()).contains("no architecture"));
    assert!(refused(Keys(vec![("x", vec![])]), tensors()).contains("of no layers"));
    assert!(refused(Keys(vec![("block_count", vec![513])]), tensors()).contains("takes 512 at most"));
    assert!(refused(Keys(vec![("block_count", vec![2])]), vec![]).contains("no weights"));
}

/// docs/src/guide/recommend.md holds an example and the table of variants, written by this test.
#[test]
fn the_example_and_the_table_of_variants_in_docs_are_those_of_the_program() {
    let path = root().join("docs/src/guide/recommend.md");
    let mut page = std::fs::read_to_string(&path).unwrap();
    let there = build::profile::names(&root().join("profiles/build")).unwrap();
    let mut table = String::from("| profile | for | runs on | why | |\n| --- | --- | --- | --- | --- |\n");
    for status in variant::statuses(&there) {
        let variant = status.variant;
        let there = if status.there { "" } else { "planned, not there yet" };
        let row = [&format!("`{}`", variant.profile), variant.models, variant.runs_on, variant.why, there];
        table.push_str(&format!("| {} |\n", row.join(" | ")));
    }
    let example = recommend(&Question {
        model: &shape("llama-3.1-8b", "Q4_K_M"),
        path: "MODEL.gguf",
        host: &host("i3-6100"),
        roofline: None,
        presets: &presets(),
        profiles: &profiles(),
        n_ctx: None,
    });
    let example = format!("```text\n{example}\n```\n");
    for (name, content) in [("example", example), ("variants", table)] {
        let begin = format!("<!-- {name}: written by `UPDATE_DOCS=1 cargo test -p lab recommend` -->\n");
        let end = format!("<!-- end of {name} -->");
        let (before, rest) = page.split_once(&begin).expect("the page lost a marker");
        let (_, after) = rest.split_once(&end).expect("the page lost the end of a marker");
        page = format!("{before}{begin}\n{content}\n{end}{after}");
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    assert!(
        std::fs::read_to_string(&path).unwrap() == page,
        "run `UPDATE_DOCS=1 cargo test -p lab recommend` and review the change"
    );
}

#[test]
fn all_parts_of_a_split_model_are_counted() {
    use gguf::write::{Header, Meta, TensorSpec, Writer};
    let folder = tempfile::tempdir().unwrap();
    let part = |number: u32| {
        let mut metadata =
            vec![("split.no".to_string(), Meta::U32(number)), ("split.count".to_string(), Meta::U32(2))];
        if number == 0 {
            metadata.push(("general.architecture".into(), Meta::String("llama".into())));
            metadata.push(("llama.block_count".into(), Meta::U32(2)));
            metadata.push(("llama.embedding_length".into(), Meta::U32(64)));
            metadata.push(("llama.attention.head_count".into(), Meta::U32(4)));
            metadata.push(("llama.attention.head_count_kv".into(), Meta::I32s(vec![2, 1])));
        }
        let name = format!("blk.{number}.ffn_up.weight");
        let tensors = vec![TensorSpec { name, dims: vec![64, 8], kind: GgmlType::F16 }];
        let header = Header { metadata, tensors };
        let mut writer = Writer::new(Vec::new(), &header).unwrap();
        writer.write_data(&[0; 1024]).unwrap();
        let path = folder.path().join(format!("m-{:05}-of-00002.gguf", number + 1));
        std::fs::write(&path, writer.finish().unwrap()).unwrap();
        path
    };
    let (first, second) = (part(0), part(1));
    let model = read_model(&first).unwrap();
    assert_eq!((model.weights.0, model.parameters, model.layers), (2048, 1024, 2));
    // Heads of 64 / 4 elements, 2 and 1 of them, keys and values, 2 bytes.
    assert_eq!(model.kv.f16.0, 16 * 3 * 2 * 2);
    assert_eq!(model.name, "m-00001-of-00002.gguf");
    std::fs::remove_file(second).unwrap();
    let error = format!("{:#}", read_model(&first).unwrap_err());
    assert!(error.contains("put all parts into one folder"), "{error}");
}
