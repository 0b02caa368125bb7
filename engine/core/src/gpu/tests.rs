//! Tests of the reasons, with a scripted driver and messages in the format of the CUDA runtime.

use build_info::BuildInfo;
use host::Root;
use host::nvml::testing::Fake;
use llama::error::GpuReason as Reason;
use llama::offload::{Devices, GpuLayers};
use llama::options::{FlashAttention, RequireGpu};

use super::reasons::{Evidence, reasons};
use crate::runtime_host::RuntimeHost;
use crate::settings::{Requested, Settings, Source};

const CARD: &str = "device\n name NVIDIA GeForce RTX 4060 Ti\n uuid GPU-aa\n capability 8 9\n total 16380\n";

/// Returns the runtime host of a build for CUDA 13.5 and an RTX 4060 Ti.
fn cuda_build() -> RuntimeHost {
    let path =
        std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/builds/cuda-4060ti.json"));
    let build = BuildInfo::read(path).expect("a record");
    RuntimeHost { build: Some((path.to_path_buf(), build)), ..RuntimeHost::default() }
}

/// Machine with a driver that answers as `script` prescribes; without a script, the machine has no driver.
struct Machine {
    folder: tempfile::TempDir,
    fake: Option<Fake>,
}

impl Machine {
    fn new(script: Option<&str>) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        if script.is_some() {
            std::fs::create_dir_all(folder.path().join("dev")).expect("a folder");
            std::fs::write(folder.path().join("dev/nvidiactl"), "").expect("a file");
        }
        Self { folder, fake: script.map(Fake::new) }
    }

    /// Returns the evidence if `CUDA_VISIBLE_DEVICES` is `visible` and ggml logged `line`.
    fn evidence(&self, visible: Option<&str>, line: &str) -> Evidence {
        let mut root = Root::at(self.folder.path(), "x86_64").with_cuda(visible, None);
        if let Some(fake) = &self.fake {
            root = root.with_nvml(fake.place());
        }
        let log = if line.is_empty() { Vec::new() } else { vec![line.to_string()] };
        Evidence { log, backends: vec!["CPU".into(), "CUDA".into()], ..Evidence::of(&cuda_build(), &root) }
    }
}

/// Formats a message like ggml-cuda's log.
fn said(what: &str) -> String {
    format!("ggml_cuda_init: failed to initialize CUDA: {what}")
}

#[test]
fn each_reason_is_said_with_its_mend_and_the_likeliest_first() {
    /// Test case: the driver's script, `CUDA_VISIBLE_DEVICES`, CUDA's message, words from the first reason, and the
    /// number of reasons.
    type Case<'a> = (Option<&'a str>, Option<&'a str>, &'a str, &'a [&'a str], usize);
    let old = format!("driver 550.54.14\ncuda 12040\n{CARD}");
    let now = format!("driver 580.95.05\ncuda 13000\n{CARD}");
    let exclusive = format!("{now} mode 3\n");
    let prohibited = format!("{now} mode 2\n");
    let full = format!("{now} used 16200\n");
    let pascal =
        "driver 580.95.05\ncuda 13000\ndevice\n name GTX 1080\n uuid GPU-b\n capability 6 1\n total 8192\n";
    let cases: [Case<'_>; 12] = [
        // Without a driver, the CUDA runtime reports that the driver is too old.
        (
            None,
            None,
            "CUDA driver version is insufficient for CUDA runtime version",
            &["no NVIDIA driver is loaded", "modprobe nvidia", "--gpus all"],
            2,
        ),
        (
            Some(&old),
            None,
            "CUDA driver version is insufficient for CUDA runtime version",
            &["550.54.14 supports CUDA 12.4", "toolkit 13.5", "580.65.06 or later"],
            2,
        ),
        (
            Some(&now),
            Some(""),
            "no CUDA-capable device is detected",
            &["CUDA_VISIBLE_DEVICES is empty", "unset the variable"],
            2,
        ),
        (Some(&now), Some("7"), "invalid device ordinal", &["no GPU 7", "nvidia-smi -L"], 2),
        (
            Some(&exclusive),
            None,
            "CUDA-capable device(s) is/are busy or unavailable",
            &["serves one process at a time", "nvidia-smi", "-c 0"],
            2,
        ),
        (Some(&prohibited), None, "", &["no process may compute on NVIDIA GeForce RTX 4060 Ti", "-c 0"], 1),
        (Some(&full), None, "out of memory", &["180 MiB of 16 GiB free", "nvidia-smi"], 2),
        (Some(pascal), None, "", &["compute capability 6.1", "89-real", "--cuda-arch 61"], 1),
        (Some("init 18\n"), None, "initialization error", &["version mismatch", "restart the machine"], 2),
        (Some("init 4\n"), None, "", &["Insufficient Permissions", "ls -l /dev/nvidia*"], 1),
        (
            Some(&now),
            None,
            "unknown error",
            &["ggml reported: failed to initialize CUDA: unknown error", "nvidia-uvm"],
            1,
        ),
        (Some(&now), None, "", &["neither the driver nor ggml reports", "nvidia-smi"], 1),
    ];
    for (script, visible, words_of_cuda, words, count) in cases {
        let line = if words_of_cuda.is_empty() { String::new() } else { said(words_of_cuda) };
        let found = reasons(&Machine::new(script).evidence(visible, &line));
        let first = found[0].to_string();
        assert!(words.iter().all(|word| first.contains(word)), "{script:?} {visible:?}: {first}");
        assert_eq!(found.len(), count, "{found:?}");
        // ggml's message is always included.
        let told = found.iter().any(|reason| reason.what.contains(words_of_cuda));
        assert!(told, "{words_of_cuda}: {found:?}");
    }
}

#[test]
fn a_driver_of_the_same_major_is_not_too_old() {
    let machine = Machine::new(Some(&format!("driver 580.65.06\ncuda 13000\n{CARD}")));
    let found = reasons(&machine.evidence(None, &said("unknown error")));
    assert!(found.iter().all(|reason| !reason.what.contains("supports CUDA")), "{found:?}");
}

#[test]
fn a_build_without_cuda_says_so_and_names_the_card() {
    let machine = Machine::new(Some(&format!("cuda 13000\n{CARD}")));
    let root =
        Root::at(machine.folder.path(), "x86_64").with_nvml(machine.fake.as_ref().expect("one").place());
    let evidence = Evidence { backends: vec!["CPU".into()], ..Evidence::of(&RuntimeHost::default(), &root) };
    let found = reasons(&evidence);
    let [only] = &found[..] else { panic!("{found:?}") };
    let text = only.to_string();
    assert!(
        text.contains("only the CPU") && text.contains("4060 Ti") && text.contains("build-cuda"),
        "{text}"
    );
}

#[test]
fn a_device_that_is_listed_and_cannot_be_used_is_told_of_with_its_mend() {
    let machine = Machine::new(Some(&format!("driver 580.95.05\ncuda 13000\n{CARD}")));
    let cases = [
        ("CUDA0: CUDA-capable device(s) is/are busy or unavailable", "-c 0"),
        ("CUDA0: out of memory", "end them, or wait"),
        ("CUDA0: it has compute capability 6.1, but this build has code only for 89-real", "--cuda-arch"),
        ("CUDA0: the provided PTX was compiled with an unsupported toolchain.", "update it"),
    ];
    for (fault, mend) in cases {
        let evidence = Evidence { faults: vec![fault.to_string()], ..machine.evidence(None, "") };
        let found = reasons(&evidence);
        let [only] = &found[..] else { panic!("{found:?}") };
        assert!(only.what == fault && only.mend.contains(mend), "{only:?}");
    }
}

#[test]
fn what_takes_cublas_is_seen_in_the_models_matrices() {
    let kind = |name| gguf::GgmlType::from_name(name).expect("a type");
    let cases = [
        ("blk.0.attn_q.weight", &[64, 64][..], "q8_0", false),
        ("blk.0.attn_q.weight", &[64, 64], "f16", true),
        // Router of a mixture of experts whose experts are quantised.
        ("blk.0.ffn_gate_inp.weight", &[64, 8], "f32", true),
        ("blk.0.attn_norm.weight", &[64], "f32", false),
        ("token_embd.weight", &[64, 512], "f16", false),
        ("blk.0.ssm_conv1d.weight", &[4, 64], "f32", false),
    ];
    for (name, dims, of, expected) in cases {
        assert_eq!(super::is_float_product(name, dims, kind(of)), expected, "{name} {of}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    gguf::synth::write(&path, &gguf::synth::SynthOptions::new(gguf::synth::Preset::Tiny)).expect("a model");
    let file = gguf::GgufFile::open(&path).expect("a model");
    let of =
        |flash_attention, mul_mat| super::takes_cublas(&[&file], flash_attention, mul_mat).expect("cuBLAS");
    let auto = FlashAttention::Auto;
    for (found, words) in [
        (of(auto, "auto"), "is F16"),
        (of(FlashAttention::Off, "auto"), "-fa off"),
        (of(auto, "cublas"), "this build's"),
    ] {
        assert!(found.to_lowercase().contains(&words.to_lowercase()), "{words}: {found}");
    }
}

#[test]
fn reasons_are_an_errors_causes() {
    let error = llama::error::Error::NoGpu {
        what: "cannot run m".into(),
        because: Reason::chain(vec![Reason::new("one", "mend it"), Reason::new("two", "")]).map(Box::new),
    };
    assert_eq!(build_info::words::chain(&error), ["cannot run m", "one: mend it", "two"]);
}

#[test]
fn a_build_for_a_gpu_requires_one_unless_it_is_told_not_to() {
    // Cases: true if the build promises a GPU; the flag; the resulting value; its source.
    let cases = [
        (false, None, RequireGpu::No, Source::Default),
        (true, None, RequireGpu::Yes, Source::BuildInfo),
        (true, Some(RequireGpu::No), RequireGpu::No, Source::Flag),
        (true, Some(RequireGpu::Full), RequireGpu::Full, Source::Flag),
        (false, Some(RequireGpu::Yes), RequireGpu::Yes, Source::Flag),
    ];
    // A request for the CPU needs no additional flag.
    let for_cpu = [
        Requested { gpu_layers: Some(GpuLayers::Some(0)), ..Requested::default() },
        Requested { devices: Some(Devices::None), ..Requested::default() },
    ];
    for requested in for_cpu {
        let settings = Settings::resolve(&requested, &cuda_build()).expect("valid");
        assert_eq!(settings.require_gpu.value, RequireGpu::No, "{requested:?}");
        let insisting = Requested { require_gpu: Some(RequireGpu::Yes), ..requested };
        let settings = Settings::resolve(&insisting, &cuda_build()).expect("valid");
        assert_eq!(settings.require_gpu.value, RequireGpu::Yes, "{insisting:?}");
    }
    for (promised, require_gpu, value, source) in cases {
        let runtime_host = if promised { cuda_build() } else { RuntimeHost::default() };
        let settings = Settings::resolve(&Requested { require_gpu, ..Requested::default() }, &runtime_host)
            .expect("valid");
        let found = (settings.require_gpu.value, settings.require_gpu.source);
        assert_eq!(found, (value, source), "{promised} {require_gpu:?}");
        let explained = settings.explain();
        let line = explained.iter().find(|line| line.name == "require-gpu").expect("a line");
        assert_eq!((line.value.as_str(), line.source), (value.name(), source));
    }
}
