//! Tests of layers on GPUs and of GPU builds.

use build_info::{Bytes, Host};

use super::{host, presets, profiles, shape};
use crate::recommend::offload::Offload;
use crate::recommend::{Question, recommend, variant};

#[test]
fn a_gpu_takes_as_many_layers_as_fit() {
    let host = host("ryzen-7950x-4060ti");
    let model = shape("llama-3.1-8b", "F16");
    // A layer has 218,103,808 weights and two norms. The GPU has 17,175,674,880 bytes, minus a sixteenth and the
    // buffers.
    let layer = 2 * 218_103_808 + 4 * 2 * 4096;
    let short = Offload::of(&model, &host, 4096, 512).unwrap();
    assert_eq!(short.layer.0, layer + 4096 * 2 * 1024 * 2);
    assert_eq!((short.layers, short.of_layers), (33, 33));
    let long = Offload::of(&model, &host, 32_768, 512).unwrap();
    let room = 17_175_674_880 - 17_175_674_880 / 16 - long.compute.0;
    assert_eq!(long.layers, room / (layer + 32_768 * 2 * 1024 * 2));
    assert_eq!((long.layers, long.layers_with_experts_on_cpu), (27, None));
    assert_eq!(Offload::of(&model, &super::host("i3-6100"), 4096, 512), None);

    let moe = Offload::of(&shape("qwen3-30b-a3b", "Q4_K_M"), &host, 4096, 512).unwrap();
    let behind = moe.layers_with_experts_on_cpu.unwrap();
    assert!(behind > 0 && behind < 48 && !moe.is_whole(), "{moe:?}");
    let whole = Offload::of(&shape("qwen3-30b-a3b", "Q2_K"), &host, 4096, 512).unwrap();
    assert!(whole.is_whole() && whole.layers_with_experts_on_cpu.is_none(), "{whole:?}");
}

/// Returns a Ryzen 7950X with GPUs of the given sizes in GiB.
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
    // Each GPU reserves memory for its own driver and buffers.
    let twice = |bytes: Bytes| Bytes(2 * bytes.0);
    let kept = (twice(one.memory), twice(one.reserve), twice(one.compute));
    assert_eq!((two.memory, two.reserve, two.compute), kept);
    // GPU memory that is too small for a whole layer stays unused.
    let small = of(&[("A", 16), ("B", 16)]);
    let each = of(&[("A", 16)]);
    assert_eq!((small.layers, small.is_whole()), (2 * each.layers, false));
    let unlike = of(&[("RTX 4090", 24), ("L4", 16), ("GT 1030", 1)]);
    assert_eq!((unlike.gpu.as_str(), unlike.layers), ("L4 and RTX 4090", one.layers + each.layers));
    // If no GPU has room, the result contains the name of the largest GPU.
    let none = of(&[("GT 1030", 1), ("GT 1030 Ti", 1)]);
    assert_eq!((none.gpus, none.layers), (1, 0));
    // One GPU has room for a part of a layer. Experts that would need this room stay in main memory.
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
    assert!(text.contains("81 of 81 layers fit into 48 GiB of 2 GPUs, less 3 GiB for the driver"), "{text}");
    let notes = answer.notes.join("\n");
    assert!(
        notes.contains("the 2 GPUs share the layers") && notes.contains("one more GPU is not used"),
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
        assert!(none.reason.contains("does not exist yet"), "{}", none.reason);
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
