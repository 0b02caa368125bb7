use std::convert::Infallible;

use build_info::Bytes;
use llama::fit::{self as figures, Estimate, LayerPlan, Need, Taken};
use llama::offload::{CpuMoe, Offload, Placed};
use llama::options::LoadMode;
use llama::{Device, DeviceKind};

use super::{EstimatedModel, Seats, context};
use crate::runtime_host::RuntimeHost;
use crate::settings::{Requested, Settings};

/// Returns the result of `choose` and the number of estimates that it made. Each layer needs 10 without its experts and
/// 90 for its experts, and the buffers need 50.
fn found(room: i64, n_layer: u32, is_mixture: bool, asked: CpuMoe) -> (Option<(u32, u32)>, u32) {
    let mut looks = 0;
    let mut excess = |layers: u32, n_cpu_moe: u32| -> Result<i64, Infallible> {
        looks += 1;
        // llama.cpp counts layers from the last layer, and experts from the first layer.
        let first = (n_layer + 1).saturating_sub(layers);
        let with_experts = (first.max(n_cpu_moe)..n_layer).count() as i64;
        Ok(50 + i64::from(layers) * 10 + with_experts * 90 - room)
    };
    let Ok(found) = figures::choose(n_layer, is_mixture, asked, &mut excess);
    (found, looks)
}

#[test]
fn layers_go_whole_and_experts_stay_first() {
    let auto = CpuMoe::Auto;
    // 32 layers and an output need 330, the experts need 2880, and the buffers need 50.
    let cases = [
        (5000, false, auto, Some((33, 0))),
        (5000, true, auto, Some((33, 0))),
        (3260, true, auto, Some((33, 0))),
        // One byte less than the total need.
        (3259, true, auto, Some((33, 1))),
        (3259, false, auto, Some((32, 0))),
        // The experts of 10 layers also fit.
        (50 + 330 + 900, true, auto, Some((33, 22))),
        (50 + 330, true, auto, Some((33, 32))),
        // Even without experts, not all layers fit.
        (50 + 329, true, auto, Some((32, 32))),
        (50 + 110, true, auto, Some((11, 32))),
        (50, true, auto, Some((0, 32))),
        (49, true, auto, None),
        (49, false, auto, None),
        // Dense model: first the output, then layer by layer.
        (60, false, auto, Some((1, 0))),
        (159, false, auto, Some((1, 0))),
        (160, false, auto, Some((2, 0))),
        // A requested number is kept.
        (5000, true, CpuMoe::Some(4), Some((33, 4))),
        (5000, true, CpuMoe::All, Some((33, 32))),
        (50 + 110, true, CpuMoe::All, Some((11, 32))),
        (50 + 110, true, CpuMoe::Some(0), Some((2, 0))),
    ];
    for (room, is_mixture, asked, expected) in cases {
        let (found, looks) = found(room, 32, is_mixture, asked);
        assert_eq!(found, expected, "{room} {is_mixture} {asked}");
        assert!(looks <= 11, "{room} {is_mixture} {asked}: {looks} estimates");
    }
    assert_eq!(found(5000, 32, false, auto).1, 1, "one estimate is enough if the whole model fits");
}

/// The CPU uses exactly the estimated memory in each case: for one sequence, for several sequences, and for several
/// contexts.
#[test]
fn contexts_of_several_sequences_are_estimated_as_they_are_made() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("tiny.gguf");
    gguf::synth::write(&path, &gguf::synth::SynthOptions::new(gguf::synth::Preset::Tiny)).expect("a model");
    let file = gguf::GgufFile::open(&path).expect("a model");
    let checked = gguf::check::model(&[&file]).expect("a good model");
    let runtime_host = RuntimeHost::default();
    let requested =
        Requested { repack: Some(false), load_mode: Some(LoadMode::None), ..Requested::default() };
    let settings = Settings::resolve(&requested, &runtime_host).expect("valid");
    let model = crate::model::open(&path, &settings, &runtime_host).expect("it loads");
    for (sequences, rows) in [(1, 1), (4, 4), (4, 16), (16, 16)] {
        let seats = Seats { contexts: 1, sequences, rows };
        let needs = |contexts| {
            let seats = Seats { contexts, ..seats };
            let subject =
                EstimatedModel::new(&[&file], &checked, &settings, &runtime_host, &Placed::default(), seats);
            subject.and_then(|subject| subject.needs(&settings.offload())).expect("an estimate").remove(0)
        };
        let mut context = context(&model, &settings, seats).expect("a context");
        let used = figures::add_up(&context.taken().expect("told"), &[], 1, 0).remove(0);
        let one = needs(1);
        assert_eq!((one.weights_bytes, one.cache_bytes), (used.weights_bytes, used.cache_bytes), "{seats:?}");
        assert_eq!(one.compute_bytes, used.compute_bytes, "{seats:?}");
        let two = needs(2);
        assert_eq!((two.weights_bytes, two.cache_bytes.0), (one.weights_bytes, one.cache_bytes.0 * 2));
    }
}

fn need(device: &str, weights: u64, free: Option<u64>) -> Need {
    Need {
        device: device.to_string(),
        host: device == "host",
        weights_bytes: Bytes::mib(weights),
        free: free.map(Bytes::mib),
        ..Need::default()
    }
}

#[test]
fn the_device_with_the_least_room_decides() {
    let kept = Bytes::mib(100);
    let mib = |excess: i64| excess / (1 << 20);
    let cases = [
        (vec![need("CUDA0", 900, Some(1000)), need("host", 5000, Some(10))], 0),
        (vec![need("CUDA0", 500, Some(1000)), need("CUDA1", 950, Some(1000))], 50),
        (vec![need("CUDA0", 901, None), need("CUDA1", 100, Some(1000))], -800),
    ];
    for (needs, expected) in cases {
        assert_eq!(mib(figures::excess(&needs, kept)), expected, "{needs:?}");
    }
    assert_eq!(figures::excess(&[need("CUDA0", 900, None)], kept), i64::MIN);
    let needs = [need("CUDA0", 900, Some(1000)), need("CUDA1", 901, Some(900)), need("host", 5000, Some(10))];
    assert_eq!(
        figures::lack(&needs).as_deref(),
        Some(
            "CUDA1 would need 901 MiB (901 MiB of weights, 0 B of cache, 0 B of compute buffers), but only 900 MiB is free; \
             --gpu-layers auto uses as many layers as fit"
        )
    );
    assert_eq!(figures::lack(&needs[..1]), None);
    let mut loaded =
        Need { weights_bytes: Bytes::mib(900), free: Some(Bytes::mib(300)), ..need("CUDA0", 0, None) };
    assert_eq!(figures::lack_beside_weights(std::slice::from_ref(&loaded)), None);
    (loaded.cache_bytes, loaded.compute_bytes) = (Bytes::mib(250), Bytes::mib(60));
    assert_eq!(
        figures::lack_beside_weights(&[loaded]).as_deref(),
        Some(
            "CUDA0 would need 310 MiB (250 MiB of cache, 60 MiB of compute buffers) in addition to 900 MiB of weights, \
             but only 300 MiB is free; --gpu-layers auto uses as many layers as fit"
        )
    );
}

#[test]
fn a_plan_says_what_and_why() {
    let plan = |layers, n_cpu_moe, missing: Option<u64>, needs: Vec<Need>| LayerPlan {
        offload: Offload::default(),
        layers,
        all: 29,
        n_cpu_moe,
        needs,
        missing: missing.map(Bytes::mib),
        kept: Bytes::mib(512),
    };
    let one = || vec![need("CUDA0", 7270, Some(7782)), need("host", 100, Some(1000))];
    let two = || vec![need("RPC0", 1024, Some(2048)), need("CUDA0", 2048, Some(4096))];
    let cases = [
        (plan(22, 0, None, one()), "22 of 29 layers on CUDA0: 7.1 GiB of 7.6 GiB free, 512 MiB kept"),
        (
            plan(29, 20, None, one()),
            "all 29 layers on CUDA0 except the experts of the first 20, which stay on the host: 7.1 GiB of 7.6 GiB free, \
             512 MiB kept",
        ),
        (
            plan(29, 28, None, two()),
            "all 29 layers on RPC0, CUDA0 except their experts, which stay on the host: 1 GiB of 2 GiB free and 2 GiB \
             of 4 GiB free, 512 MiB kept on each",
        ),
        (
            plan(0, 0, Some(300), one()),
            "0 of 29 layers on CUDA0: one layer needs 300 MiB more free memory, 512 MiB kept",
        ),
    ];
    for (plan, words) in cases {
        assert_eq!(plan.to_string(), words);
    }
}

#[test]
fn what_several_devices_hold_together_is_shared_and_nobody_elses() {
    let device = |name: &str| Device {
        index: 0,
        name: name.to_string(),
        description: String::new(),
        backend: "CUDA".to_string(),
        kind: DeviceKind::Gpu,
        shares_memory: false,
    };
    let takers = [device("CUDA1"), device("CUDA11")];
    let taken = |device: &str, is_host, weights| Taken {
        device: device.to_string(),
        buffer: device.to_string(),
        is_host,
        weights,
        cache: weights / 10,
        compute: 7,
    };
    let all = [taken("Meta(CUDA1,CUDA11)", false, 1001), taken("CUDA11", false, 100), taken("CPU", true, 50)];
    let needs = figures::add_up(&all, &takers, 1, 0);
    let weights: Vec<u64> = needs.iter().map(|need| need.weights_bytes.0).collect();
    assert_eq!(weights, [501, 601, 50]);
    assert_eq!((needs[0].cache_bytes.0, needs[0].compute_bytes.0), (50, 4));
    let nameless = figures::add_up(&[taken("Meta()", false, 1001)], &takers, 1, 0);
    assert_eq!(
        (nameless[0].weights_bytes.0, nameless[1].weights_bytes.0, nameless[2].weights_bytes.0),
        (501, 501, 0)
    );
    // If a device is not on the list, its memory is added to the host's, so that it is still reported.
    let other = figures::add_up(&[taken("CUDA7", false, 9)], &takers, 1, 0);
    assert_eq!(other[2].weights_bytes.0, 9);
}

#[test]
fn an_estimate_is_put_beside_what_was_used() {
    let estimate = Estimate {
        needs: vec![need("CUDA0", 1000, Some(2000)), need("host", 100, None)],
        plan: None,
        used: vec![need("CUDA0", 1030, None), need("host", 100, None)],
    };
    let percent: Vec<Option<f64>> = estimate.compared().iter().map(|one| one.difference_percent).collect();
    assert_eq!(percent, [Some(3.0), Some(0.0)]);
    let text = estimate.to_string();
    assert!(text.contains("off by") && text.contains("3.0 %") && text.contains("unknown"), "{text}");
}
