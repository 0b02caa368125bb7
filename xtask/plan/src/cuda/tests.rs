use build_info::Defaults;
use build_info::host::Gpu as Card;
use toolchain::CompilerKind;

use super::*;
use crate::plan::Plan;
use crate::profile::Profile;
use crate::reference_toolchain;
use crate::testing::{host, plan_of, profile};

/// Profiles of docs/src/build/cuda-variants.md.
const VARIANTS: [&str; 6] =
    ["cuda-mmq-moe", "cuda-dense", "cuda-cublas-dense", "cuda-hybrid", "cpu-cuda-hybrid", "cpu-hybrid"];

/// Returns a Ryzen 7950X with `cards`: names, compute capabilities, drivers.
fn machine(cards: &[(&str, &str, &str)]) -> Host {
    let card = |(name, capability, driver): &(&str, &str, &str)| Card {
        name: name.to_string(),
        compute_capability: capability.to_string(),
        memory: build_info::Bytes(8 << 30),
        driver: driver.to_string(),
    };
    Host { gpus: cards.iter().map(card).collect(), ..host("ryzen-7950x") }
}

const RTX_4060_TI: (&str, &str, &str) = ("NVIDIA GeForce RTX 4060 Ti", "8.9", "570.133.07");
const RTX_4090: (&str, &str, &str) = ("NVIDIA GeForce RTX 4090", "8.9", "590.44.01");
const H200: (&str, &str, &str) = ("NVIDIA H200", "9.0", "590.44.01");
const V100: (&str, &str, &str) = ("Tesla V100", "7.0", "590.44.01");
const K80: (&str, &str, &str) = ("NVIDIA K80", "3.7", "590.44.01");
/// Fictional GPU with a future compute capability. [`ODD`] is fictional too.
const NEXT: (&str, &str, &str) = ("NVIDIA Next", "13.0", "690.44.01");
const ODD: (&str, &str, &str) = ("NVIDIA Odd", "8.4", "590.44.01");
const GTX_1080: (&str, &str, &str) = ("NVIDIA GeForce GTX 1080", "6.1", "570.133.07");

fn cuda_of(profile: &Profile, host: &Host, toolchain: &Toolchain) -> Result<(CudaPlan, Vec<String>)> {
    let plan = plan_of(profile, host, toolchain)?;
    Ok((plan.cuda.unwrap(), plan.notes))
}

fn refusal(profile: &Profile, host: &Host, toolchain: &Toolchain) -> String {
    format!("{:#}", cuda_of(profile, host, toolchain).unwrap_err())
}

#[test]
fn a_card_that_would_take_the_ptx_for_another_is_told() {
    let of = |names: &[&str]| {
        super::mistaken(&names.iter().map(|name| name.to_string()).collect::<Vec<_>>()).is_some()
    };
    assert!(of(&["100-virtual", "120a-real"]));
    for fine in [
        &["120a-real"][..],
        &["100-virtual", "120a-real", "121a-real"],
        &["90", "89-real"],
        &["100-real", "120a-real"],
    ] {
        assert!(!of(fine), "{fine:?}");
    }
}

#[test]
fn plans_of_all_variants_and_of_cards_of_four_generations() {
    let reference = reference_toolchain("x86_64").unwrap();
    for name in VARIANTS {
        let plan = plan_of(&profile(name), &machine(&[RTX_4060_TI]), &reference).unwrap();
        insta::assert_snapshot!(format!("{name}@4060-ti"), plan);
    }
    for (card, of) in [("4090", RTX_4090), ("h200", H200), ("gtx-1080", GTX_1080)] {
        let plan = plan_of(&profile("cuda-mmq-moe"), &machine(&[of]), &reference).unwrap();
        insta::assert_snapshot!(format!("cuda-mmq-moe@{card}"), plan);
    }
}

#[test]
fn the_first_toolkit_that_suits_the_card_and_its_driver_is_taken_with_a_compiler_that_it_takes() {
    let toolchain = reference_toolchain("x86_64").unwrap();
    // GPUs; then the toolkit, its host compiler and the architectures.
    let cases = [
        // The driver belongs to CUDA 12.8.
        (vec![RTX_4060_TI], "12.9.86", CompilerKind::Gcc, vec!["89-real"]),
        (vec![RTX_4090], "13.5.37", CompilerKind::Clang, vec!["89-real"]),
        (vec![H200, H200], "13.5.37", CompilerKind::Clang, vec!["90-real"]),
        // CUDA 13 does not support Pascal.
        (vec![GTX_1080], "12.9.86", CompilerKind::Gcc, vec!["61-real"]),
        (vec![RTX_4060_TI, GTX_1080], "12.9.86", CompilerKind::Gcc, vec!["61-real", "89-real"]),
    ];
    for (cards, version, kind, architectures) in cases {
        let (cuda, _) = cuda_of(&profile("cuda-dense"), &machine(&cards), &toolchain).unwrap();
        assert_eq!((cuda.nvcc.version.as_str(), cuda.host_compiler.kind), (version, kind), "{cards:?}");
        assert_eq!(cuda.architectures, architectures, "{cards:?}");
    }
}

/// Advice for cases that `setup` can fix, and for cases that it cannot fix.
const SETUP: &str = "`cargo xtask setup --cuda` installs CUDA 13.5 into this checkout";
const PASCAL: &str =
    "CUDA 12 is the last version that compiles for compute capability 5.0 to 7.2: install 12.9 from https://";

#[test]
fn what_no_toolkit_can_make_is_told_before_anything_is_compiled() {
    let both = reference_toolchain("x86_64").unwrap();
    let none = Toolchain { cuda: Vec::new(), ..both.clone() };
    let only = |at: usize| Toolchain { cuda: vec![both.cuda[at].clone()], ..both.clone() };
    let old = Toolchain {
        cuda: vec![Cuda { architectures: vec![50, 60, 70, 75, 80, 86], ..both.cuda[1].clone() }],
        ..both.clone()
    };
    let bare = Cuda { cublas_include: None, torn: vec!["ptxas".to_string()], ..both.cuda[0].clone() };
    let bare = Toolchain { cuda: vec![bare], ..both.clone() };
    let new_compilers = Toolchain {
        cuda: vec![Cuda {
            hosts: toolchain::NvccHosts { gcc: Some(11), clang: Some(12) },
            ..both.cuda[0].clone()
        }],
        ..both.clone()
    };
    let cases = [
        (
            RTX_4090,
            &none,
            "cannot find a CUDA toolkit in this checkout, on the path, in /usr/local/cuda or in /opt/cuda, and CUDA_HOME is not set",
            SETUP,
        ),
        (
            RTX_4060_TI,
            &only(0),
            "require NVIDIA driver 580 or later, but NVIDIA GeForce RTX 4060 Ti has 570.133.07",
            "580 or later (NVIDIA GeForce RTX 4060 Ti has 570.133.07): update the driver, or install CUDA 12 from https://",
        ),
        (
            GTX_1080,
            &only(0),
            "compute capabilities 7.5 to 12.1; it is too new for 6.1 (NVIDIA GeForce GTX 1080)",
            PASCAL,
        ),
        (V100, &none, "cannot find a CUDA toolkit", PASCAL),
        (K80, &both, "5.0 to 12.1; it is too new for 3.7 (NVIDIA K80)", "install 11.8 from https://"),
        (NEXT, &both, "7.5 to 12.1; it is too old for 13.0 (NVIDIA Next)", "install a toolkit for 13.0 from"),
        (ODD, &both, "7.5 to 12.1, but not for 8.4 (NVIDIA Odd)", SETUP),
        (H200, &old, "compute capabilities 5.0 to 8.6; it is too old for 9.0 (NVIDIA H200)", SETUP),
        (H200, &bare, "it lacks cuBLAS's headers, ptxas", SETUP),
        (H200, &new_compilers, "old enough to be its host compiler (up to gcc 11, clang 12)", SETUP),
    ];
    for (card, toolchain, words, mend) in cases {
        let error = refusal(&profile("cuda-dense"), &machine(&[card]), toolchain);
        assert!(error.contains(words), "{error}");
        assert!(error.contains(mend), "{error}");
        // A command that cannot help is not suggested.
        assert!(mend != PASCAL || !error.contains("setup --cuda"), "{error}");
    }
}

#[test]
fn what_setup_would_install_for_nothing_is_refused_before() {
    let both = reference_toolchain("x86_64").unwrap();
    let none = Toolchain { cuda: Vec::new(), ..both.clone() };
    let torn = Cuda { torn: vec!["ptxas".to_string()], ..both.cuda[1].clone() };
    let torn = Toolchain { cuda: vec![torn], ..both.clone() };
    let check = |name: &str, cards: &[_], toolchain: &Toolchain| {
        check_before_setup(&profile(name), &machine(cards), toolchain)
    };
    check("cuda-dense", &[RTX_4090], &none).unwrap();
    check("native", &[GTX_1080], &none).unwrap();
    check("cuda-dense+cuda_arch:all", &[], &torn).unwrap();
    check("cuda-dense", &[GTX_1080], &both).unwrap();
    for (toolchain, card, words) in
        [(&none, GTX_1080, PASCAL), (&torn, V100, PASCAL), (&none, RTX_4060_TI, "update the driver")]
    {
        let error = format!("{:#}", check("cuda-dense", &[card], toolchain).unwrap_err());
        assert!(error.contains(words), "{error}");
    }
    let error = check("cuda-dense", &[GTX_1080], &torn).unwrap_err().to_string();
    assert!(error.contains("CUDA 12.9.86 in /usr/local/cuda-12.9: it lacks ptxas"), "{error}");
    let error = check("cuda-dense", &[], &none).unwrap_err();
    assert_eq!(exit::code_of(&error), 2, "{error:#}");
}

#[test]
fn the_toolkit_that_the_user_names_is_missed_where_it_is_not_taken() {
    let both = reference_toolchain("x86_64").unwrap();
    let named = |fault: Option<&str>| toolchain::CudaHome {
        variable: "CUDA_HOME".to_string(),
        path: "/opt/x".into(),
        fault: fault.map(str::to_string),
    };
    let with = |fault: Option<&str>| Toolchain { cuda_home: Some(named(fault)), ..both.clone() };
    // GPU, toolkits, and expected note.
    let cases = [
        (RTX_4090, with(None), None),
        (
            RTX_4090,
            with(Some("there is no such folder")),
            Some(
                "CUDA_HOME=/opt/x contains no toolkit (there is no such folder): using the CUDA toolkit in /usr/local/cuda-13.5",
            ),
        ),
        (
            GTX_1080,
            with(None),
            Some(
                "CUDA_HOME=/opt/x contains CUDA 13.5.37, which is not suitable (it compiles for compute capabilities 7.5 to 12.1; it is too new \
                 for 6.1 (NVIDIA GeForce GTX 1080)): using the CUDA toolkit in /usr/local/cuda-12.9",
            ),
        ),
        (GTX_1080, both.clone(), None),
    ];
    for (card, toolchain, expected) in cases {
        let (_, notes) = cuda_of(&profile("cuda-dense"), &machine(&[card]), &toolchain).unwrap();
        let found = notes.iter().find(|note| note.contains("using the CUDA toolkit in")).map(String::as_str);
        assert_eq!(found, expected, "{notes:?}");
    }
    let faulty = with(Some("it has no bin/nvcc"));
    let none = Toolchain { cuda: Vec::new(), ..faulty.clone() };
    let only_new = Toolchain { cuda: vec![both.cuda[0].clone()], ..faulty };
    for toolchain in [none, only_new] {
        let error = refusal(&profile("cuda-dense"), &machine(&[GTX_1080]), &toolchain);
        assert!(error.contains("CUDA_HOME=/opt/x contains no toolkit (it has no bin/nvcc)"), "{error}");
    }
}

#[test]
fn architectures_are_asked_of_the_cards_or_named() {
    let toolchain = reference_toolchain("x86_64").unwrap();
    let with = |arch: &[&str]| {
        let mut profile = profile("cuda-dense");
        profile.cuda.arch = arch.iter().map(|arch| arch.to_string()).collect();
        profile
    };
    let nobody = machine(&[]);
    let of = |arch: &[&str]| cuda_of(&with(arch), &nobody, &toolchain).unwrap().0.architectures;
    assert_eq!(of(&["89"]), ["89-real"]);
    assert_eq!(of(&["90", "86", "90"]), ["86-real", "90-real"]);
    assert_eq!(of(&["100-virtual", "89-real"]), ["89-real", "100-virtual"]);
    // The spelling follows ggml's changes.
    assert_eq!(of(&["120", "121-real", "120a-real", "100f"]), ["100f-real", "120a-real", "121a-real"]);
    // For `all`, the newest architecture has PTX in addition to its binary.
    assert_eq!(
        of(&["all"]),
        ["75-real", "80-real", "86-real", "89-real", "90-real", "100-real", "103", "120a-real", "121a-real"]
    );
    let wrong: [(&[&str], &str); 8] = [
        (&["native"], "none was found (`cargo xtask doctor` shows the reason)"),
        (&["0"], "\"0\" is not an architecture"),
        (&["9000"], "is not an architecture"),
        (&["900-virtual"], "is not an architecture"),
        (&["native", "89"], "must be the only value"),
        (&["sm_89"], "is not an architecture"),
        (&["89-ptx"], "is not an architecture"),
        (&[], "`cuda_arch` is empty"),
    ];
    for (arch, words) in wrong {
        let error = cuda_of(&with(arch), &nobody, &toolchain).unwrap_err();
        assert_eq!(exit::code_of(&error), 2, "{error:#}");
        assert!(format!("{error:#}").contains(words), "{error:#}");
    }
}

#[test]
fn mmq_is_forced_where_that_changes_something_and_said_where_it_does_not() {
    let toolchain = reference_toolchain("x86_64").unwrap();
    // CUDA 12 compiles for all of these GPUs. A Volta uses PTX for Pascal if the program contains no other code for
    // it.
    let cases = [
        ("50", false),
        ("60-virtual", false),
        ("61", false),
        ("61-virtual", true),
        ("70", true),
        ("61,72", true),
        ("70,90", true),
        ("75-virtual", false),
        ("89", false),
        ("90", false),
    ];
    for (architectures, forced) in cases {
        let mut profile = profile("cuda-mmq-moe");
        profile.cuda.arch = architectures.split(',').map(str::to_string).collect();
        let (cuda, notes) = cuda_of(&profile, &machine(&[]), &toolchain).unwrap();
        assert_eq!(cuda.mul_mat == CudaMulMat::Mmq, forced, "{architectures}");
        assert_eq!(
            notes.iter().any(|note| note.contains("only changes the kernels for Volta")),
            !forced,
            "{architectures}"
        );
        let defined = cuda.definitions().iter().any(|(name, _)| *name == "GGML_CUDA_FORCE_MMQ");
        assert_eq!(defined, forced, "{architectures}");
    }
}

#[test]
fn kernels_of_attention_are_named_by_pairs() {
    let toolchain = reference_toolchain("x86_64").unwrap();
    let with = |pairs: &[&str]| {
        let mut profile = profile("cuda-dense");
        profile.cuda.fa_quants = pairs.iter().map(|pair| pair.to_string()).collect();
        profile
    };
    let definition = |pairs: &[&str], name: &str| {
        let (cuda, _) = cuda_of(&with(pairs), &machine(&[H200]), &toolchain).unwrap();
        cuda.definitions().into_iter().find(|(found, _)| *found == name).map(|(_, value)| value)
    };
    assert_eq!(definition(&["q8_0-q8_0", "f16-f16"], "GGML_CUDA_FA_QUANTS").unwrap(), "q8_0-q8_0;f16-f16");
    assert_eq!(definition(&["all"], "GGML_CUDA_FA_QUANTS").unwrap(), "all");
    assert_eq!(definition(&["none"], "GGML_CUDA_FA").unwrap(), "OFF");
    assert_eq!(definition(&["none"], "GGML_CUDA_FA_QUANTS"), None);
    for pairs in [&["q8_0"][..], &["q8_0-q3_k"], &["all", "f16-f16"], &[]] {
        let error = cuda_of(&with(pairs), &machine(&[H200]), &toolchain).unwrap_err();
        assert_eq!(exit::code_of(&error), 2, "{error:#}");
        assert!(format!("{error:#}").contains("`cuda_fa_quants`"), "{error:#}");
    }
}

#[test]
fn builds_without_gpus_have_nothing_of_it_and_refuse_its_keys() {
    let toolchain = reference_toolchain("x86_64").unwrap();
    let native = plan_of(&profile("native"), &machine(&[H200]), &toolchain).unwrap();
    assert_eq!(native.cuda, None);
    assert!(native.definitions.keys().all(|name| !name.contains("CUDA")), "{:?}", native.definitions);
    let set =
        crate::testing::load_with(&crate::testing::profiles(), "native", &["cuda_arch=89".parse().unwrap()]);
    let error = plan_of(&set.unwrap(), &machine(&[H200]), &toolchain).unwrap_err();
    assert!(error.to_string().contains("`cuda_arch=89` requires `gpu = \"cuda\"`"), "{error}");
    for keys in ["cuda-dense+linkage:shared", "cuda-dense+compiler:zig+glibc:2.28"] {
        let error = plan_of(&profile(keys), &machine(&[H200]), &toolchain).unwrap_err();
        assert_eq!(exit::code_of(&error), 2, "{keys}: {error:#}");
    }
}

#[test]
fn what_a_variant_does_at_run_time_is_in_its_plan_and_makes_no_other_build() {
    let toolchain = reference_toolchain("x86_64").unwrap();
    let of = |name: &str| plan_of(&profile(name), &machine(&[RTX_4060_TI]), &toolchain).unwrap();
    let layers = |name: &str| of(name).defaults.gpu_layers.unwrap().to_string();
    let expected = ["all", "all", "all", "auto", "auto", "0"];
    assert_eq!(VARIANTS.map(layers), expected, "docs/src/build/cuda-variants.md has them in a table");
    let dense = of("cuda-dense");
    for name in VARIANTS {
        // The profiles have no other difference, as docs/src/build/cuda-variants.md says.
        let defaults = Defaults { gpu_layers: dense.defaults.gpu_layers, ..of(name).defaults };
        assert_eq!(defaults, dense.defaults, "{name}");
    }
    let mut other = dense.clone();
    other.defaults = Defaults::default();
    assert_eq!(other.hash(), dense.hash());
    let json = serde_json::to_value(&dense).unwrap();
    assert_eq!(json["defaults"]["gpu_layers"], "all");
    assert_eq!(serde_json::from_value::<Plan>(json).unwrap().defaults, dense.defaults);
    let native = serde_json::to_value(of("native")).unwrap();
    assert_eq!(native.get("defaults"), None);
}

#[test]
fn defaults_that_a_build_cannot_obey_are_refused() {
    let toolchain = reference_toolchain("x86_64").unwrap();
    let cases = [
        ("native+defaults.gpu_layers:all", Some("`defaults.gpu_layers = all` requires `gpu = \"cuda\"`")),
        ("native+defaults.gpu_layers:3", Some("use --gpu-layers with --rpc")),
        ("native+defaults.cuda_graphs:false", Some("require `gpu = \"cuda\"`")),
        (
            "native+rpc:false+defaults.kv_offload:false",
            Some("`defaults.kv_offload` requires `gpu = \"cuda\"` or `rpc = true`"),
        ),
        ("native+defaults.kv_offload:false", None),
        ("native+defaults.gpu_layers:0+defaults.flash_attention:off", None),
        (
            "cuda-trimmed+defaults.flash_attention:on",
            Some("without GPU kernels for flash attention, the CPU would compute it"),
        ),
        ("cuda-dense+defaults.flash_attention:on+defaults.cuda_fusion:false", None),
    ];
    for (keys, words) in cases {
        let plan = plan_of(&profile(keys), &machine(&[H200]), &toolchain);
        match words {
            None => assert!(!plan.unwrap().defaults.is_empty(), "{keys}"),
            Some(words) => {
                let error = plan.unwrap_err();
                assert!(exit::code_of(&error) == 2 && error.to_string().contains(words), "{keys}: {error:#}");
            }
        }
    }
}
