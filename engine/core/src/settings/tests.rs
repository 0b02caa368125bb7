use build_info::defaults::Layers;
use build_info::host::{Cpu, Limits, Memory, Os, Topology};
use build_info::{Host, Policy};
use llama::MAX_THREADS;
use llama::error::Error;
use llama::offload::{CpuMoe, Devices, GpuLayers};
use llama::options::*;
use llama::own_kernels::MatrixKernels;

use super::*;
use crate::runtime_host::{Blas, RuntimeHost};

fn runtime_host(cpus: u32) -> RuntimeHost {
    let host = Host {
        arch: "x86_64".to_string(),
        hostname: None,
        os: Os::default(),
        cpu: Cpu::default(),
        topology: Topology::default(),
        memory: Memory::default(),
        limits: Limits { affinity: (0..cpus).collect(), ..Limits::default() },
        gpus: Vec::new(),
    };
    RuntimeHost { host: Some(host), ..RuntimeHost::default() }
}

#[test]
fn blas_threads_are_one_unless_told_otherwise_and_say_so() {
    let linked = |threads_obeyed| Some(Blas { library: "OpenBLAS 0.3.21".to_string(), threads_obeyed });
    let none = "none in this build";
    let cases = [
        (None, None, none, Source::Default),
        (Some(2), None, none, Source::Flag),
        (None, linked(true), "1", Source::Default),
        (Some(2), linked(true), "2", Source::Flag),
        (Some(0), linked(true), "the thread count of the current phase (prefill or decode)", Source::Flag),
        (Some(2), linked(false), "the same as llama.cpp; this build cannot set it", Source::Flag),
    ];
    for (blas_threads, blas, value, source) in cases {
        let requested = Requested { blas_threads, ..Requested::default() };
        let runtime_host = RuntimeHost { blas, ..runtime_host(4) };
        let settings = Settings::resolve(&requested, &runtime_host).expect("valid");
        let explained = settings.explain();
        let line = explained.iter().find(|line| line.name == "blas-threads").expect("a line");
        assert_eq!((line.value.as_str(), line.source), (value, source), "{blas_threads:?}");
    }
    let requested = Requested { blas_threads: Some(MAX_THREADS + 1), ..Requested::default() };
    let error = Settings::resolve(&requested, &runtime_host(4)).expect_err("too many");
    assert!(error.to_string().contains("--blas-threads"), "{error}");
}

#[test]
fn a_flag_goes_before_the_live_host() {
    let cases = [
        (Requested::default(), (6, Source::LiveHost), (8, Source::LiveHost)),
        (Requested { decode_threads: Some(3), ..Requested::default() }, (3, Source::Flag), (3, Source::Flag)),
        (
            Requested { prefill_threads: Some(20), ..Requested::default() },
            (6, Source::LiveHost),
            (20, Source::Flag),
        ),
        (
            Requested { policy: Some(Policy::Max), ..Requested::default() },
            (8, Source::LiveHost),
            (8, Source::LiveHost),
        ),
    ];
    for (requested, decode, prefill) in cases {
        let settings = Settings::resolve(&requested, &runtime_host(8)).expect("valid");
        assert_eq!((settings.decode_threads.value, settings.decode_threads.source), decode, "{requested:?}");
        assert_eq!(
            (settings.prefill_threads.value, settings.prefill_threads.source),
            prefill,
            "{requested:?}"
        );
    }
}

#[test]
fn what_cannot_be_meant_is_wrong_usage() {
    let cases = [
        Requested { decode_threads: Some(0), ..Requested::default() },
        Requested { prefill_threads: Some(10_000), ..Requested::default() },
        Requested { n_batch: Some(0), ..Requested::default() },
        Requested { n_ubatch: Some(0), ..Requested::default() },
        Requested { n_ctx: Some(u32::MAX), ..Requested::default() },
        Requested { poll: Some(101), ..Requested::default() },
        Requested { cpus: Some(vec![512]), ..Requested::default() },
        Requested { top_p: Some(f32::NAN), ..Requested::default() },
        Requested { temperature: Some(-1.0), ..Requested::default() },
        Requested { main_gpu: Some(1), ..Requested::default() },
        Requested {
            flash_attention: Some(FlashAttention::Off),
            split_mode: Some(SplitMode::Tensor),
            ..Requested::default()
        },
    ];
    for requested in cases {
        let result = Settings::resolve(&requested, &runtime_host(2));
        assert!(matches!(result, Err(Error::Usage(_))), "{requested:?} was accepted");
    }
}

#[test]
fn one_thread_hands_devices_their_work_unless_others_were_asked_for() {
    let flag = |decode_threads, prefill_threads| Requested {
        decode_threads,
        prefill_threads,
        ..Requested::default()
    };
    let (alone, asked) = (Source::AllLayersOnDevices, Source::Flag);
    let cases = [
        (flag(None, None), (1, alone), (1, alone)),
        // A single number applies to both phases.
        (flag(Some(3), None), (3, asked), (3, asked)),
        (flag(None, Some(2)), (1, alone), (2, asked)),
    ];
    for (requested, decode, prefill) in cases {
        let mut settings = Settings::resolve(&requested, &runtime_host(4)).expect("valid");
        settings.dispatch_alone();
        let is = |threads: &Setting<u32>| (threads.value, threads.source);
        assert_eq!((is(&settings.decode_threads), is(&settings.prefill_threads)), (decode, prefill));
    }
    let policy = Requested { policy: Some(Policy::Max), ..Requested::default() };
    let mut settings = Settings::resolve(&policy, &runtime_host(4)).expect("valid");
    settings.dispatch_alone();
    assert_eq!((settings.decode_threads.value, settings.decode_threads.source), (4, Source::LiveHost));
    let tuned = flag(Some(2), Some(4));
    let settings = Settings::resolve_tuned(&Requested::default(), Some(&tuned), &runtime_host(4));
    let mut settings = settings.expect("valid");
    settings.dispatch_alone();
    assert_eq!(settings.decode_threads.source, Source::TuningRecord);
}

#[test]
fn what_the_profile_wants_counts_before_the_default_alone() {
    let mut build: build_info::BuildInfo =
        serde_json::from_slice(include_bytes!("../../../../fixtures/builds/cuda-4060ti.json"))
            .expect("a record");
    let of = |build: &build_info::BuildInfo, flags: &Requested, tuned: Option<&Requested>| {
        let runtime_host =
            RuntimeHost { build: Some(("build_info.json".into(), build.clone())), ..runtime_host(4) };
        Settings::resolve_tuned(flags, tuned, &runtime_host).expect("valid")
    };
    let none = Requested::default();
    // Older records do not have this table, and are read as if their profile set no defaults.
    let older = of(&build, &none, None);
    assert_eq!((older.gpu_layers.value, older.gpu_layers.source), (GpuLayers::Auto, Source::Default));
    assert_eq!(older.require_gpu.value, RequireGpu::Yes);

    build.defaults = build_info::Defaults {
        gpu_layers: Some(Layers::All),
        n_cpu_moe: Some(Layers::Some(3)),
        kv_offload: Some(false),
        op_offload: Some(false),
        flash_attention: Some(build_info::defaults::FlashAttention::Off),
        cuda_graphs: Some(false),
        cuda_fusion: Some(false),
    };
    let profile = of(&build, &none, None);
    let explained = profile.explain();
    for (name, value) in [
        ("gpu-layers", "all"),
        ("n-cpu-moe", "3"),
        ("kv-offload", "off"),
        ("op-offload", "off"),
        ("flash-attn", "off"),
        ("cuda-graphs", "off"),
        ("cuda-fusion", "off"),
    ] {
        let line = explained.iter().find(|line| line.name == name).expect("a line");
        assert_eq!((line.value.as_str(), line.source), (value, Source::BuildInfo), "{name}");
    }

    let tuned = Requested { flash_attention: Some(FlashAttention::On), ..Requested::default() };
    let settings = of(&build, &none, Some(&tuned));
    let is = |setting: &Setting<FlashAttention>| (setting.value, setting.source);
    assert_eq!(is(&settings.flash_attention), (FlashAttention::On, Source::TuningRecord));
    let flags = Requested {
        flash_attention: Some(FlashAttention::Auto),
        gpu_layers: Some(GpuLayers::Some(5)),
        kv_offload: Some(true),
        ..Requested::default()
    };
    let settings = of(&build, &flags, Some(&tuned));
    assert_eq!(is(&settings.flash_attention), (FlashAttention::Auto, Source::Flag));
    assert_eq!((settings.gpu_layers.value, settings.gpu_layers.source), (GpuLayers::Some(5), Source::Flag));
    assert_eq!((settings.kv_offload.value, settings.kv_offload.source), (true, Source::Flag));
    assert_eq!(settings.op_offload.source, Source::BuildInfo);
    // Without a device, a user's request for one is an error, but a profile's preference for one is not.
    assert!(profile.offload().is_default && !settings.offload().is_default);

    // A quantised V cache requires flash attention.
    let flags = Requested { type_v: Some(KvType::Q8_0), ..Requested::default() };
    let settings = of(&build, &flags, None);
    assert_eq!(is(&settings.flash_attention), (FlashAttention::Auto, Source::Default));
    assert_eq!((settings.gpu_layers.value, settings.gpu_layers.source), (GpuLayers::All, Source::BuildInfo));
    assert!(
        settings.warnings.iter().any(|why| why.contains("this build's profile")),
        "{:?}",
        settings.warnings
    );

    build.defaults.gpu_layers = Some(Layers::Some(0));
    assert_eq!(of(&build, &none, None).require_gpu.value, RequireGpu::No);
}

#[test]
fn what_was_tuned_does_not_count_where_the_model_lies_elsewhere() {
    let mut build: build_info::BuildInfo =
        serde_json::from_slice(include_bytes!("../../../../fixtures/builds/cuda-4060ti.json"))
            .expect("a record");
    build.defaults.gpu_layers = Some(Layers::All);
    let tuned = Requested { n_ubatch: Some(256), ..Requested::default() };
    let of = |build: Option<&build_info::BuildInfo>, flags: &Requested| {
        let build = build.map(|build| ("build_info.json".into(), build.clone()));
        let settings =
            Settings::resolve_tuned(flags, Some(&tuned), &RuntimeHost { build, ..runtime_host(4) })
                .expect("valid");
        let left = settings.warnings.iter().any(|why| why.contains("tuning record is not used"));
        assert_eq!(left, settings.n_ubatch.source == Source::Default, "{:?}", settings.warnings);
        left
    };
    let layers = |layers| Requested { gpu_layers: Some(layers), ..Requested::default() };
    let experts = Requested { n_cpu_moe: Some(CpuMoe::Some(2)), ..Requested::default() };
    let nowhere = Requested { devices: Some(Devices::None), ..Requested::default() };
    let cache = |kv_offload| Requested { kv_offload: Some(kv_offload), ..Requested::default() };
    let cases = [
        (Requested::default(), false),
        (layers(GpuLayers::All), false),
        (layers(GpuLayers::Auto), true),
        (layers(GpuLayers::Some(0)), true),
        (experts, true),
        (nowhere, true),
        (cache(true), false),
        (cache(false), true),
    ];
    for (flags, left) in cases {
        assert_eq!(of(Some(&build), &flags), left, "{flags:?}");
        // A CPU build cannot place layers on devices.
        assert!(!of(None, &flags), "{flags:?}");
    }
}

#[test]
fn every_setting_is_explained() {
    let settings = Settings::resolve(&Requested::default(), &runtime_host(2)).expect("valid");
    let names: Vec<&str> = settings.explain().iter().map(|line| line.name).collect();
    assert_eq!(names.len(), 40);
    assert!(names.contains(&"threads-batch") && names.contains(&"seed"), "{names:?}");
}

#[test]
fn kernels_come_from_a_flag_then_the_variable_then_the_record() {
    let record = Requested { kernels: Some(MatrixKernels::Ggml), ..Requested::default() };
    let of = |flag: Option<MatrixKernels>, variable: Option<&str>, tuned: Option<&Requested>| {
        let mut runtime_host = runtime_host(2);
        runtime_host.environment.kernels = variable.map(str::to_string);
        let requested = Requested { kernels: flag, ..Requested::default() };
        Settings::resolve_tuned(&requested, tuned, &runtime_host)
            .map(|settings| (settings.kernels.value, settings.kernels.source))
    };
    let (auto, ggml, avx2) = (MatrixKernels::Auto, MatrixKernels::Ggml, MatrixKernels::Avx2);
    assert_eq!(of(None, None, None).expect("valid").0, auto);
    assert_eq!(of(None, None, Some(&record)).expect("valid"), (ggml, Source::TuningRecord));
    assert_eq!(of(None, Some("avx2"), Some(&record)).expect("valid"), (avx2, Source::Environment));
    assert_eq!(of(Some(auto), Some("avx2"), Some(&record)).expect("valid"), (auto, Source::Flag));
    let error = of(None, Some("sse"), None).expect_err("there are no such kernels").to_string();
    assert!(error.contains("ANNEAL_KERNELS=sse: unknown kernels\nhint: "), "{error}");
}
