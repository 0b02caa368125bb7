//! Plans for the machines of the fixtures.

use std::path::PathBuf;

use build_info::record::{Patch, Source, Tool};
use toolchain::{CompilerKind, NamedCpu, Toolchain};

use crate::profile::{Blas, Lto, PgoScope};
use crate::testing::{host, hosts, load, plan_for, plan_with, profiles, reference_plan, root, source};
use crate::variant::{self, Profdata, Subject};
use crate::{Plan, plan, reference_toolchain};

fn gcc_only() -> Toolchain {
    let path = root().join("fixtures/toolchains/debian-12-gcc-12.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn plans_of_all_fixtures() {
    let hosts = hosts();
    assert_eq!(hosts.len(), 9, "a fixture was added or lost: review its snapshots");
    for (name, host) in hosts {
        for profile in ["native", "portable"] {
            insta::assert_snapshot!(format!("{profile}@{name}"), plan_for(profile, &host).unwrap());
        }
    }
}

#[test]
fn plans_of_the_other_profiles() {
    let host = host("zen5-vm");
    for profile in ["upstream-default", "native-llama-bench", "native-lto", "dev"] {
        insta::assert_snapshot!(format!("{profile}@zen5-vm"), plan_for(profile, &host).unwrap());
    }
}

#[test]
fn plans_of_all_blas_vendors() {
    let host = host("zen5-vm");
    let mut profile = load(&profiles(), "native-blas").unwrap();
    let mut toolchain = reference_toolchain(&host.arch).unwrap();
    let built = toolchain::BlasLibrary {
        version: "0.3.29".to_string(),
        pkg_config: None,
        libraries: vec!["/blas/lib/libopenblas.a".into()],
        include: "/blas/include".into(),
        source: Some("ab".repeat(32)),
        ..toolchain.blas[0].clone()
    };
    toolchain.blas.push(built);
    for blas in [Blas::Openblas, Blas::OpenblasSource, Blas::Blis, Blas::Mkl] {
        profile.blas = blas;
        let plan = plan(&host, &profile, &source(), &toolchain).unwrap();
        insta::assert_snapshot!(format!("native-blas-{blas}@zen5-vm"), plan);
    }
}

#[test]
fn gcc_is_taken_where_there_is_no_clang_and_its_shortfall_is_told() {
    insta::assert_snapshot!(plan_with("native", &host("zen5-vm"), &gcc_only()).unwrap());
}

#[test]
fn gcc_is_kept_from_amx_and_clang_is_not() {
    let mut host = host("zen5-vm");
    host.cpu.features.extend(["amx_tile", "amx_int8", "amx_bf16"].map(str::to_string));
    let clang = reference_toolchain(&host.arch).unwrap();
    for (profile, toolchain, spared) in
        [("native", &gcc_only(), true), ("upstream-default", &gcc_only(), true), ("native", &clang, false)]
    {
        let plan = plan_with(profile, &host, toolchain).unwrap();
        assert_eq!(plan.codegen.cxx.iter().any(|flag| flag == "-mno-amx-tile"), spared, "{profile}");
        assert_eq!(plan.isa.required.iter().any(|feature| feature == "amx_tile"), !spared, "{profile}");
        assert_eq!(plan.notes.iter().any(|note| note.contains("AMX")), spared, "{profile}: {:?}", plan.notes);
    }
    let portable = plan_with("portable", &host, &gcc_only()).unwrap();
    assert!(portable.codegen.cxx.iter().all(|flag| !flag.contains("amx")), "{:?}", portable.codegen.cxx);
}

/// Returns the reference toolchain with the CPU `name`, as a compiler might describe it, and with qemu if `qemu`.
fn knowing(name: &str, features: &[&str], qemu: bool) -> Toolchain {
    let tool = |path: &str| Tool { path: path.into(), version: "7.2.22".to_string(), llvm_major: None };
    Toolchain {
        named_cpu: Some(NamedCpu {
            name: name.to_string(),
            features: features.iter().map(|feature| feature.to_string()).collect(),
        }),
        qemu_user: qemu.then(|| tool("/usr/bin/qemu-x86_64")),
        ..reference_toolchain("x86_64").unwrap()
    }
}

const ZNVER1: &[&str] =
    &["sse3", "sse4_2", "avx", "avx2", "bmi2", "fma", "f16c", "aes", "sse4a", "clzero", "rdrand"];

#[test]
fn a_named_cpu_sets_every_flag_and_is_emulated_where_the_host_lacks_it() {
    let plan = |host: &str, qemu: bool| {
        plan_with("native+isa:znver1", &self::host(host), &knowing("znver1", ZNVER1, qemu)).unwrap()
    };
    let emulated = plan("i3-6100", true);
    insta::assert_snapshot!("znver1@i3-6100", emulated);
    assert_eq!(emulated.emulator_command(), ["/usr/bin/qemu-x86_64", "-cpu", "EPYC"]);
    assert_eq!(emulated.isa.other_cpu.as_ref().unwrap().lacking, ["sse4a"]);
    assert!(emulated.isa.names_cpu() && !reference_plan("native").isa.names_cpu());

    let untested = plan("i3-6100", false);
    assert!(untested.emulator_command().is_empty() && untested.isa.other_cpu.is_some());
    assert!(untested.notes.iter().any(|note| note.contains("the gate do not run")), "{:?}", untested.notes);
    let own = plan("ryzen-7950x", true);
    assert!(own.isa.other_cpu.is_none() && own.emulator_command().is_empty());
    // The program is the same, wherever it is tested.
    assert!([&untested, &own].iter().all(|plan| plan.hash() == emulated.hash()));

    let error = crate::bolt::tools(&emulated, &knowing("znver1", ZNVER1, true), &mut Vec::new()).unwrap_err();
    assert!(
        error.to_string().contains("lacks sse4a") && error.to_string().contains("on a znver1 CPU"),
        "{error}"
    );
}

#[test]
fn a_cpu_without_a_model_of_its_own_is_emulated_with_all_that_qemu_has() {
    let host = host("i3-6100");
    let tools = knowing("x86-64-v4", &["avx2", "avx512f"], true);
    let plan = plan_with("native+isa:x86-64-v4", &host, &tools).unwrap();
    assert_eq!(plan.emulator_command(), ["/usr/bin/qemu-x86_64", "-cpu", "max"]);
    // A plan for another machine knows only the reference tools.
    let error = plan_for("native+isa:x86-64-v4", &host).unwrap_err();
    assert!(error.to_string().contains("no compiler was queried"), "{error}");
    let error = plan_for("native+isa:znver1", &self::host("neoverse")).unwrap_err();
    assert!(error.to_string().contains("only builds for x86-64 can name a CPU"), "{error}");
}

#[test]
fn a_portable_plan_holds_nothing_of_the_build_host() {
    let plans: Vec<Plan> = hosts()
        .iter()
        .filter(|(_, host)| host.arch == "x86_64")
        .map(|(_, host)| plan_for("portable", host).unwrap())
        .collect();
    assert!(plans.len() > 5);
    assert!(plans.iter().all(|plan| plan.hash() == plans[0].hash()));
}

#[test]
fn native_plans_of_different_cpus_have_different_folders() {
    let names = ["i3-6100", "ryzen-7950x", "xeon-e5-2680", "epyc-2s", "zen5-vm"];
    let mut folders: Vec<String> =
        names.iter().map(|name| plan_for("native", &host(name)).unwrap().folder_name()).collect();
    folders.sort();
    folders.dedup();
    assert_eq!(folders.len(), names.len());
}

#[test]
fn notes_are_for_people_and_no_part_of_the_hash() {
    let mut plan = plan_for("native", &host("zen5-vm")).unwrap();
    let hash = plan.hash();
    plan.notes.push("something".to_string());
    assert_eq!(plan.hash(), hash);
    plan.codegen.rust.push("-Copt-level=1".to_string());
    assert_ne!(plan.hash(), hash);
}

#[test]
fn a_missing_or_old_tool_is_named_with_the_mend() {
    let complete = gcc_only();
    let mut cases = Vec::new();
    let mut without = |expected: &'static str, change: &dyn Fn(&mut Toolchain)| {
        let mut toolchain = complete.clone();
        change(&mut toolchain);
        cases.push((expected, toolchain));
    };
    without("cannot find cmake 3.24.0 or later", &|tools| tools.cmake = None);
    without("cannot find ninja", &|tools| tools.ninja = None);
    without("cannot find rustc on the path", &|tools| tools.rustc = None);
    without("(found: none)", &|tools| tools.compilers.clear());
    without("(found: gcc 10.2.0)", &|tools| tools.compilers[0].version = "10.2.0".parse().unwrap());
    without("has version 3.18.4", &|tools| {
        tools.cmake.as_mut().unwrap().version = "3.18.4".to_string();
    });
    for (expected, toolchain) in cases {
        let error = plan_with("native", &host("i3-6100"), &toolchain).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
        assert!(error.contains("cargo xtask setup") || error.contains("rustup"), "no remedy: {error}");
    }
}

#[test]
fn a_universal_plan_holds_nothing_of_the_build_host() {
    let [one, other] = ["i3-6100", "epyc-2s"].map(|name| plan_for("universal", &host(name)).unwrap());
    assert_eq!(one.hash(), other.hash());
    insta::assert_snapshot!("universal@any", one);
}

#[test]
fn a_build_for_aarch64_is_planned_anywhere_and_holds_nothing_of_the_build_host() {
    let [one, other] = ["i3-6100", "epyc-2s"].map(|name| plan_for("portable-aarch64", &host(name)).unwrap());
    assert_eq!(one.hash(), other.hash());
    insta::assert_snapshot!("portable-aarch64@any-x86-64", one);
    // On an aarch64 machine, this profile gives an ordinary build.
    let at_home = plan_for("portable-aarch64", &host("neoverse")).unwrap();
    assert_eq!(at_home.cross, None);
    assert_eq!((&at_home.isa, &at_home.codegen), (&one.isa, &one.codegen));
    insta::assert_snapshot!("portable-aarch64@neoverse", at_home);
    // Either name gives the level that corresponds to x86-64-v3.
    let portable = plan_for("portable+target:aarch64-unknown-linux-gnu", &host("i3-6100")).unwrap();
    assert_eq!(portable.isa, one.isa);
}

#[test]
fn a_native_build_for_aarch64_asks_for_what_its_cpu_has() {
    let native = plan_for("native", &host("neoverse")).unwrap();
    let asks = |name: &str| native.isa.required.iter().any(|found| found == name);
    assert!(asks("asimddp") && asks("i8mm") && asks("sve") && !asks("sve2"), "{:?}", native.isa.required);
    assert!(!asks("evtstrm") && !asks("cpuid"), "no compiler emits these: {:?}", native.isa.required);
}

#[test]
fn what_a_build_for_another_machine_lacks_is_named_with_the_mend() {
    let host = host("i3-6100");
    let complete = reference_toolchain("x86_64").unwrap();
    type Change<'a> = &'a dyn Fn(&mut Toolchain);
    let cases: [(&str, Change); 4] = [
        ("`rustup target add aarch64-unknown-linux-gnu`", &|tools| tools.rust_targets.truncate(0)),
        ("cannot find qemu-aarch64", &|tools| tools.aarch64 = None),
        ("cannot find llvm-strip", &|tools| tools.llvm_ar.clear()),
        ("cannot find zig", &|tools| tools.zig = None),
    ];
    for (expected, change) in cases {
        let mut toolchain = complete.clone();
        change(&mut toolchain);
        let error = plan_with("portable-aarch64", &host, &toolchain).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("setup --profile portable-aarch64"), "{error}");
        // A machine of the target's architecture needs none of these tools.
        let rustc = toolchain.rustc.as_mut().unwrap();
        rustc.host = toolchain::AARCH64.to_string();
        let at_home = plan_with("portable-aarch64", &self::host("neoverse"), &toolchain);
        assert_eq!(at_home.is_err(), expected == "cannot find zig", "{expected}");
    }
}

#[test]
fn what_does_not_go_with_a_profile_is_told_before_anything_is_built() {
    let host = host("i3-6100");
    let cases = [
        ("native+glibc:2.28", "requires `compiler = \"zig\"`"),
        ("portable+glibc:host", "requires a glibc version to build for"),
        ("portable+lto:thin", "requires `lto = \"off\"`"),
        ("native+variants:x64,haswell", "requires `isa = \"all-variants\"`"),
        ("universal+linkage:shared", "requires `linkage = \"static\"`"),
        ("universal+variants:x64;rm", "is not a valid variant name"),
        ("native+target:aarch64-unknown-linux-gnu", "requires `compiler = \"zig\"`"),
        ("portable-aarch64+isa:native+reproducible:false", "depends on this machine's CPU"),
        ("portable-aarch64+blas:openblas", "requires `blas = \"off\"`"),
        ("portable-aarch64+target:host", "is for aarch64, but this build is for x86_64"),
        ("universal+target:aarch64-unknown-linux-gnu", "only supports x86-64"),
    ];
    for (profile, expected) in cases {
        let error = plan_for(profile, &host).unwrap_err();
        assert!(error.to_string().contains(expected), "{profile}: {error}");
        assert_eq!(base::exit::code_of(&error), 2, "{profile}");
    }
    let mut toolchain = gcc_only();
    toolchain.zig = None;
    let error = plan_with("portable", &host, &toolchain).unwrap_err().to_string();
    assert!(
        error.contains("cannot find zig 0.17.1") && error.contains("setup --profile portable"),
        "{error}"
    );
}

#[test]
fn a_build_for_this_host_cannot_be_called_reproducible() {
    let mut profile = load(&profiles(), "native").unwrap();
    profile.reproducible = true;
    let host = host("i3-6100");
    let error = plan(&host, &profile, &source(), &gcc_only()).unwrap_err();
    assert_eq!(base::exit::code_of(&error), 2);
    assert!(error.to_string().contains("conflicts with"), "{error}");
}

#[test]
fn another_content_of_a_patch_is_another_plan() {
    let with = |digit: &str| {
        let patch = Patch { name: "0001.patch".to_string(), sha256: digit.repeat(64).try_into().unwrap() };
        let source = Source { patches: vec![patch], ..source() };
        let profile = load(&profiles(), "native").unwrap();
        plan(&host("i3-6100"), &profile, &source, &gcc_only()).unwrap().hash()
    };
    assert_ne!(with("a"), with("b"));
}

#[test]
fn only_upstreams_own_build_and_the_reference_are_without_our_patches() {
    let host = host("zen5-vm");
    let cases = [
        ("native", true, true),
        ("portable", true, true),
        ("native+prefetch:false", false, true),
        ("native+patched_kernels:false", true, false),
        ("upstream-default", false, false),
        ("reference", false, false),
    ];
    for (profile, prefetch, kernels) in cases {
        let flags = plan_for(profile, &host).unwrap().cmake_flags();
        let on = |name: &str| flags.iter().any(|flag| *flag == format!("-D{name}=ON"));
        assert_eq!(
            (on("GGML_CPU_PREFETCH"), on("GGML_CPU_PATCHED_KERNELS")),
            (prefetch, kernels),
            "{profile}"
        );
    }
}

#[test]
fn a_flag_with_a_space_is_quoted_for_cmake() {
    let mut plan = plan_for("native", &host("zen5-vm")).unwrap();
    plan.codegen.cxx = vec!["-fprofile-use=/a b/c.profdata".to_string(), "-O3".to_string()];
    let flags = plan.cmake_flags();
    let flag = "-DCMAKE_CXX_FLAGS='-fprofile-use=/a b/c.profdata' -O3";
    assert!(flags.iter().any(|found| found == flag), "{flags:?}");
}

#[test]
fn switches_reach_cmake_the_compilers_and_the_linker() {
    let host = host("zen5-vm");
    let plain = plan_for("native", &host).unwrap();
    /// Key and value, then the expected CMake definition, C++ flag and linker flag.
    type Case = (&'static str, Option<&'static str>, Option<&'static str>, Option<&'static str>);
    let cases: [Case; 10] = [
        ("threading=openmp", Some("-DGGML_OPENMP=ON"), None, None),
        ("repack=false", Some("-DGGML_CPU_REPACK=OFF"), None, None),
        ("llamafile=false", Some("-DGGML_LLAMAFILE=OFF"), None, None),
        // Another test checks that these switches are on by default.
        ("prefetch=false", None, None, None),
        ("patched_kernels=false", None, None, None),
        ("allocator=mimalloc", None, None, None),
        ("allocator=jemalloc", None, None, None),
        ("huge_pages=false", None, None, None),
        ("extra_flags=-fno-plt", None, Some("-fno-plt"), None),
        ("fast_math=true", None, Some("-fno-finite-math-only"), None),
    ];
    for (set, cmake, cxx, link) in cases {
        let plan = plan_for(&format!("native+{set}"), &host).unwrap();
        assert_ne!(plan.hash(), plain.hash(), "{set}");
        assert_ne!(plan.to_string(), plain.to_string(), "{set}");
        let has =
            |list: &[String], word: Option<&str>| word.is_none_or(|word| list.iter().any(|one| one == word));
        assert!(has(&plan.cmake_flags(), cmake), "{set}: {plan}");
        assert!(has(&plan.codegen.cxx, cxx) && has(&plan.codegen.link, link), "{set}: {plan}");
        let for_shim = plan
            .cmake_flags()
            .iter()
            .any(|flag| flag.starts_with("-DCMAKE_CXX_FLAGS=") && cxx.is_none_or(|cxx| flag.contains(cxx)));
        assert!(for_shim, "{set}: {plan}");
        assert_eq!(set == "fast_math=true", !plan.notes.is_empty(), "{set}: {:?}", plan.notes);
    }
}

#[test]
fn huge_pages_are_for_static_builds() {
    let host = host("zen5-vm");
    let wraps = |plan: &Plan| plan.codegen.link.iter().any(|flag| flag == "-Wl,--wrap=ggml_aligned_malloc");
    let plan = plan_for("native", &host).unwrap();
    assert!(plan.switches.huge_pages && wraps(&plan), "{plan}");
    let plan = plan_for("native+huge_pages=false", &host).unwrap();
    assert!(!plan.switches.huge_pages && !wraps(&plan), "{plan}");
    let plan = plan_for("native+linkage=shared", &host).unwrap();
    assert!(!plan.switches.huge_pages && !wraps(&plan), "{plan}");
    assert!(plan.notes.iter().any(|note| note.contains("`huge_pages` is ignored")), "{:?}", plan.notes);
    let error = plan_for("native+huge_pages=true+linkage=shared", &host).unwrap_err();
    assert!(format!("{error:#}").contains("`huge_pages = true` requires"), "{error:#}");
}

#[test]
fn switches_that_cannot_be_had_are_refused() {
    let all = reference_toolchain("x86_64").unwrap();
    let bare = Toolchain { openmp: vec![19], ..all.clone() };
    // Keys, tools, exit code, and part of the message
    let cases = [
        ("threading=openmp", &bare, 1, "libomp-22-dev"),
        ("extra_flags=-O2", &all, 2, "build_type"),
        ("extra_flags=-ffast-math", &all, 2, "has its own key\nhint: set the key fast_math"),
        ("extra_flags=-march=haswell", &all, 2, "has its own key\nhint: set the key isa"),
        ("extra_flags=-DA B", &all, 2, "must begin with `-`, and must not contain spaces"),
        ("extra_flags=file.c", &all, 2, "must begin with `-`, and must not contain spaces"),
    ];
    for (set, tools, code, part) in cases {
        let error = plan_with(&format!("native+{set}"), &host("zen5-vm"), tools).unwrap_err();
        assert!(error.to_string().contains(part), "{set}: {error}");
        assert_eq!(base::exit::code_of(&error), code, "{set}");
    }
    // gcc has its own runtime.
    assert!(plan_with("native+threading=openmp", &host("zen5-vm"), &gcc_only()).is_ok());
}

#[test]
fn where_bitcode_of_both_sides_fits_together_lto_goes_across() {
    let all = reference_toolchain("x86_64").unwrap();
    type Change<'a> = &'a dyn Fn(&mut Toolchain);
    let planned = |lto, change: Change| {
        let mut profile = load(&profiles(), "native").unwrap();
        profile.lto = lto;
        let mut toolchain = all.clone();
        change(&mut toolchain);
        plan(&host("zen5-vm"), &profile, &source(), &toolchain)
    };
    let gcc = |tools: &mut Toolchain| tools.compilers.retain(|found| found.kind == CompilerKind::Gcc);
    let rust_21 = |tools: &mut Toolchain| tools.rustc.as_mut().unwrap().llvm = "21.1.0".parse().unwrap();
    /// Mode, change of the tools, true if C++ can be inlined into Rust, a flag for C++, a flag for rustc, cargo's
    /// `lto`.
    type Case<'a> = (Lto, Change<'a>, bool, &'a str, &'a str, Option<&'a str>);
    let cases: [Case; 4] = [
        (Lto::Thin, &|_| {}, true, "-flto=thin", "-Clinker-plugin-lto", None),
        (Lto::Full, &|_| {}, false, "-flto=full", "-Clinker-plugin-lto", None),
        (Lto::Thin, &rust_21, false, "-flto=thin", "-Clinker=/usr/bin/clang-22", Some("thin")),
        (Lto::Full, &gcc, false, "-flto=auto", "-Clinker=/usr/bin/gcc", Some("fat")),
    ];
    for (lto, change, across, cxx, rust, cargo_lto) in cases {
        let plan = planned(lto, change).unwrap();
        let has = |start: &str| plan.codegen.rust.iter().any(|flag| flag.starts_with(start));
        // lld links everything that contains such objects, including the shared object of a dependency.
        assert_eq!(has("-Clinker-plugin-lto"), has("-Clink-arg=--ld-path="), "{lto} {plan}");
        let found = (plan.lto.across, plan.codegen.cargo_lto.as_deref());
        assert_eq!(found, (across, cargo_lto), "{lto} {plan}");
        assert!(plan.codegen.cxx.iter().any(|flag| flag == cxx), "{lto} {plan}");
        assert!(plan.codegen.rust.iter().any(|flag| flag == rust), "{lto} {plan}");
        assert_eq!(across, plan.notes.is_empty(), "no note about separate optimisation: {:?}", plan.notes);
    }
    let without: [(&str, Change); 2] = [
        ("requires lld 22", &|tools| tools.lld.clear()),
        ("requires llvm-ar 22", &|tools| tools.llvm_ar.clear()),
    ];
    for (expected, change) in without {
        let error = planned(Lto::Thin, change).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("cargo xtask setup"), "{error}");
    }
}

#[test]
fn a_profile_reaches_the_compilers_of_its_scope() {
    let clang = plan_for("native", &host("zen5-vm")).unwrap();
    let gcc = plan_with("native", &host("zen5-vm"), &gcc_only()).unwrap();
    let profdata = |gcda: Option<&str>| Profdata {
        path: "/p/0123.profdata".into(),
        digest: "5".repeat(64).try_into().unwrap(),
        gcda: gcda.map(PathBuf::from),
    };
    /// Plain plan, scope and gcc's counts; then flags for C++ and rustc, first instrumented, then with the profile.
    type Case<'a> = (&'a Plan, PgoScope, Option<&'a str>, [Option<&'a str>; 4]);
    let (rust_generate, rust_use) = (Some("-Cprofile-generate"), Some("-Cprofile-use=/p/0123.profdata"));
    let clang_use = Some("-fprofile-use=/p/0123.profdata");
    let cases: [Case; 4] = [
        (&clang, PgoScope::All, None, [Some("-fprofile-generate"), rust_generate, clang_use, rust_use]),
        (&clang, PgoScope::Cpp, None, [Some("-fprofile-generate"), rust_generate, clang_use, None]),
        (&clang, PgoScope::Rust, None, [None, rust_generate, None, rust_use]),
        (
            &gcc,
            PgoScope::All,
            Some("/p/1.gcda"),
            [Some("-fprofile-update=single"), rust_generate, Some("-fprofile-use"), rust_use],
        ),
    ];
    for (plain, scope, gcda, expected) in cases {
        let with = profdata(gcda);
        let subject = Subject { scope, kernels: false };
        let (instrumented, profiled) = (plain.instrumented(subject), plain.profiled(subject, &with));
        let found = [
            (&instrumented.codegen.cxx, "profile"),
            (&instrumented.codegen.own_rust, "profile"),
            (&profiled.codegen.cxx, "profile"),
            (&profiled.codegen.own_rust, "profile"),
        ];
        for ((flags, sign), expected) in found.into_iter().zip(expected) {
            match expected {
                Some(flag) => {
                    assert!(flags.iter().any(|found| found == flag), "{scope}: no {flag} in {flags:?}")
                }
                None => assert!(!flags.iter().any(|found| found.contains(sign)), "{scope}: {flags:?}"),
            }
        }
        assert!(
            instrumented.folder_name().starts_with("native-pgo-train-"),
            "{}",
            instrumented.folder_name()
        );
        assert!(profiled.folder_name().starts_with("native-pgo-"), "{}", profiled.folder_name());
        assert_eq!(profiled.base(), plain.hash());
        assert_eq!(profiled.relocatable().base(), plain.hash(), "a variant of a variant has the same base");
        let variant = profiled.relocatable().variant.unwrap();
        assert_eq!((variant.profile, variant.gcda), (Some(with.digest.clone()), with.gcda.clone()));
        let other = Profdata { digest: "6".repeat(64).try_into().unwrap(), ..profdata(gcda) };
        assert_ne!(plain.profiled(subject, &other).hash(), profiled.hash());
        let with_kernels = plain.profiled(Subject { kernels: true, ..subject }, &with);
        assert_eq!(with_kernels.hash() != profiled.hash(), scope.cpp(), "kernels are C++");
    }
}

#[test]
fn tools_that_write_other_profiles_are_refused_with_the_package() {
    let complete = reference_toolchain("x86_64").unwrap();
    let plan = plan_for("native", &host("zen5-vm")).unwrap();
    let found = variant::profdata_tool(&plan, PgoScope::All, &complete).unwrap();
    assert_eq!(found.llvm_major, Some(22));

    let mut old = complete.clone();
    old.llvm_profdata[0].version = "14.0.6".to_string();
    old.llvm_profdata[0].llvm_major = Some(14);
    let mut none = complete.clone();
    none.llvm_profdata.clear();
    for (toolchain, expected) in [(&old, "only version 14.0.6 is installed"), (&none, "none is installed")] {
        let error = variant::profdata_tool(&plan, PgoScope::All, toolchain).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("llvm-22"), "{error}");
    }
    // Only C++ needs the runtime of clang.
    let lame = Toolchain { profile_runtimes: vec![21], ..complete.clone() };
    let error = variant::profdata_tool(&plan, PgoScope::All, &lame).unwrap_err().to_string();
    assert!(
        error.contains("clang 22 has no profile runtime") && error.contains("libclang-rt-22-dev"),
        "{error}"
    );
    assert!(variant::profdata_tool(&plan, PgoScope::Rust, &lame).is_ok());
    let mut plan = plan;
    plan.rustc.llvm = "21.1.0".parse().unwrap();
    let error = variant::profdata_tool(&plan, PgoScope::All, &complete).unwrap_err().to_string();
    assert!(error.contains("clang 22 and rustc (LLVM 21)") && error.contains("clang-21"), "{error}");
}

/// Checks the reference of switches; `UPDATE_DOCS=1` writes the rows.
#[test]
fn the_reference_has_every_switch() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/build/profiles.md");
    let text = std::fs::read_to_string(path).unwrap();
    let head = "| key | CMake's option | what |\n| --- | --- | --- |\n";
    let row = |switch: &build_info::switches::CmakeSwitch| {
        format!("| `{}` | `{}` | {} |\n", switch.key, switch.option, switch.help)
    };
    let rows: String = build_info::switches::CMAKE.iter().map(row).collect();
    generated::check(path, &generated::with_part(&text, "switches", &format!("{head}{rows}")));
}
