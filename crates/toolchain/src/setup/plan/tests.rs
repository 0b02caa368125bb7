use build_info::record::Tool;

use super::*;
use crate::tools::Compiler;
use crate::tools::CompilerKind;
use crate::tools::Cuda;
use crate::tools::Libclang;
use crate::tools::NvccHosts;
use crate::tools::Rustc;
use crate::tools::Version;

fn tool(version: &str) -> Tool {
    let llvm_major = version.split('.').next().and_then(|major| major.parse().ok());
    Tool { path: "/usr/bin/tool".into(), version: version.to_string(), llvm_major }
}

fn compiler(kind: CompilerKind, major: u32) -> Compiler {
    Compiler {
        kind,
        cc: "/usr/bin/cc".into(),
        cxx: "/usr/bin/c++".into(),
        version: Version::new(major, 1, 0),
    }
}

/// Returns a toolchain with only rustup and gcc.
fn bare() -> Toolchain {
    let rustc = Rustc {
        path: "rustc".into(),
        version: Version::new(1, 95, 0),
        host: "x86_64-unknown-linux-gnu".into(),
        llvm: Version::new(22, 1, 2),
    };
    Toolchain { compilers: vec![compiler(CompilerKind::Gcc, 12)], rustc: Some(rustc), ..Toolchain::default() }
}

fn debian_12() -> AptIndex {
    let mut lines = String::new();
    for version in [13, 14, 15, 16, 19, 22] {
        for stem in ["clang", "lld", "libclang1", "llvm", "bolt"] {
            lines += &format!("{stem}-{version} - of LLVM\n");
        }
        lines += &format!("libclang-common-{version}-dev - headers\nlibclang-rt-{version}-dev - runtime\n");
    }
    AptIndex::parse(&(lines + "g++-11 - GNU\ng++-12 - GNU\n"), "Candidate: 3.25.1-1")
}

fn facts(manager: Option<Manager>, rights: Rights) -> Facts {
    let python = Python { path: "/usr/bin/python3".into(), pip: true, venv: false };
    Facts {
        manager,
        rights,
        apt: if manager == Some(Manager::Apt) { debian_12() } else { AptIndex::default() },
        python: Some(python),
        own_tools: "target/anneal/tools".into(),
        ..Facts::default()
    }
}

const APT: &str = "env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=120";

/// Returns the command that installs cmake with the pip of `python`.
fn cmake_by_pip(python: &str) -> String {
    let install = format!(
        "printf '%s\\n' '{}' | {python} -m pip install --disable-pip-version-check --only-binary=:all: \
         --require-hashes --no-deps -r /dev/stdin --upgrade --target target/anneal/tools/packages",
        wheels::cmake()
    );
    format!("sh -c {}", base::shell_quote(&install))
}

fn commands(plan: &SetupPlan) -> Vec<String> {
    plan.steps.iter().map(InstallStep::to_string).collect()
}

#[test]
fn a_bare_machine_gets_all_of_a_native_build_from_any_manager() {
    let apt = |rest: &str| format!("{APT} {rest}");
    let cases: [(Manager, &[String]); 6] = [
        (
            Manager::Apt,
            &[
                "apt-get update".into(),
                apt("cmake ninja-build libclang1-22 libclang-common-22-dev"),
                apt("clang-22 lld-22"),
            ],
        ),
        (
            Manager::Dnf,
            &["dnf install -y cmake ninja-build clang-devel".into(), "dnf install -y clang lld".into()],
        ),
        (
            Manager::Pacman,
            &[
                "pacman -S --needed --noconfirm cmake ninja clang".into(),
                "pacman -S --needed --noconfirm lld".into(),
            ],
        ),
        (
            Manager::Zypper,
            &[
                "zypper --non-interactive install cmake ninja clang-devel".into(),
                "zypper --non-interactive install clang lld".into(),
            ],
        ),
        (
            Manager::Apk,
            &["apk update".into(), "apk add cmake samurai clang-dev".into(), "apk add clang lld".into()],
        ),
        (Manager::Brew, &["brew install cmake ninja llvm".into(), "brew install lld".into()]),
    ];
    for (manager, expected) in cases {
        let made = plan(&Needs::native(), &bare(), &facts(Some(manager), Rights::Root));
        assert_eq!(commands(&made), expected, "{manager}");
        assert_eq!(made.unavailable, [], "{manager}");
        assert_eq!(made.missing, [Requirement::Cmake, Requirement::Ninja, Requirement::Libclang]);
        assert_eq!(made.recommended, [Requirement::Clang, Requirement::Lld]);
        let optional: Vec<bool> = made.steps.iter().map(|step| step.optional).collect();
        assert!(
            optional.last() == Some(&true) && optional[0] != optional[optional.len() - 1],
            "{optional:?}"
        );
    }
}

#[test]
fn every_requirement_has_a_package_or_a_reason() {
    use Requirement::*;
    let all = [
        Compiler,
        Cmake,
        Ninja,
        Libclang,
        Clang,
        Lld,
        LlvmTools,
        Bolt,
        Git,
        Pip,
        Openblas,
        Blis,
        Make,
        QemuUser,
        Minisign,
        Procps,
        UtilLinux,
        Iproute,
        SystemCompiler,
    ];
    // Packages of each requirement, in the order above; `-` if the manager has no package.
    let cases = [
        (
            Manager::Apt,
            "g++-12 | cmake | ninja-build | libclang1-22 libclang-common-22-dev | clang-22 | lld-22 | llvm-22 libclang-rt-22-dev | bolt-22 | git | python3-pip | libopenblas-dev pkg-config | libblis-pthread-dev | make | qemu-user | minisign | procps | util-linux bsdutils mount | iproute2 | gcc g++",
        ),
        (
            Manager::Dnf,
            "gcc-c++ | cmake | ninja-build | clang-devel | clang | lld | llvm compiler-rt | llvm-bolt | git | python3-pip | openblas-devel pkgconf-pkg-config | blis-devel pkgconf-pkg-config | make | qemu-user | minisign | util-linux | util-linux | iproute | gcc gcc-c++",
        ),
        (
            Manager::Pacman,
            "gcc | cmake | ninja | clang | clang | lld | llvm compiler-rt | - | git | python-pip | openblas pkgconf | - | make | qemu-user | minisign | util-linux | util-linux | iproute2 | gcc",
        ),
        (
            Manager::Zypper,
            "gcc-c++ | cmake | ninja | clang-devel | clang | lld | llvm | - | git | python3-pip | pkgconfig(openblas) pkg-config | - | make | qemu-linux-user | minisign | util-linux | util-linux | iproute2 | gcc gcc-c++",
        ),
        (
            Manager::Apk,
            "build-base | cmake | samurai | clang-dev | clang | lld | llvm compiler-rt | - | git | py3-pip | openblas-dev pkgconf | - | make | qemu-x86_64 qemu-aarch64 | minisign | procps | util-linux | iproute2 | build-base",
        ),
        (
            Manager::Brew,
            "llvm | cmake | ninja | llvm | llvm | lld | llvm | - | git | python | openblas pkgconf | blis pkgconf | make | - | minisign | - | - | - | -",
        ),
    ];
    for (manager, expected) in cases {
        let versions = debian_12().choose(None, Some(22));
        let packages: Vec<String> = all
            .iter()
            .map(|requirement| {
                manager.packages(*requirement, &versions).map_or("-".into(), |names| names.join(" "))
            })
            .collect();
        assert_eq!(packages.join(" | "), expected, "{manager}");
    }
    let needs = Needs { required: vec![QemuUser], recommended: vec![] };
    let made = plan(&needs, &bare(), &facts(Some(Manager::Brew), Rights::None));
    assert_eq!(made.unavailable, [(QemuUser, "brew has no package for it".to_string())]);
    assert_eq!(made.steps, []);
}

#[test]
fn a_small_program_is_missing_until_all_of_its_names_are_there() {
    let needs = Needs { required: vec![Requirement::UtilLinux], recommended: vec![Requirement::Wget] };
    let mut toolchain = bare();
    toolchain.programs = ["flock", "mount", "script", "taskset"].into();
    let missing = |toolchain: &Toolchain| {
        let made = plan(&needs, toolchain, &facts(Some(Manager::Apt), Rights::Root));
        (made.missing, made.recommended)
    };
    assert_eq!(missing(&toolchain), (vec![Requirement::UtilLinux], vec![Requirement::Wget]));
    toolchain.programs.extend(["unshare", "wget"]);
    assert_eq!(missing(&toolchain), (vec![], vec![]));
}

#[test]
fn mkl_comes_from_pip_into_a_folder_of_its_own() {
    let needs = Needs { required: vec![Requirement::Mkl], recommended: vec![] };
    let made = plan(&needs, &bare(), &facts(Some(Manager::Apt), Rights::None));
    let [step] = &made.steps[..] else { panic!("{:?}", made.steps) };
    let command = &step.command[2];
    assert!(command.starts_with("printf '%s\\n' 'mkl-devel==2026.2.0 --hash=sha256:"), "{command}");
    assert!(
        command.ends_with("--ignore-installed --no-warn-script-location --prefix target/anneal/tools/mkl"),
        "{command}"
    );
    assert!(!made.lacks_rights(Rights::None), "nothing of the system changes");

    let mut arm = bare();
    arm.rustc.as_mut().unwrap().host = "aarch64-unknown-linux-gnu".to_string();
    let made = plan(&needs, &arm, &facts(Some(Manager::Apt), Rights::None));
    assert_eq!(made.unavailable, [(Requirement::Mkl, "it is only for x86-64".to_string())]);
    assert_eq!(made.steps, []);
}

#[test]
fn zig_comes_from_pip_in_one_version_and_no_other_wheel_is_taken() {
    let needs = Needs { required: vec![Requirement::Zig], recommended: vec![] };
    let made = plan(&needs, &bare(), &facts(Some(Manager::Apt), Rights::None));
    let [step] = &made.steps[..] else { panic!("{:?}", made.steps) };
    assert_eq!((step.needs_root, &step.command[..2]), (false, &["sh".to_string(), "-c".to_string()][..]));
    let command = &step.command[2];
    assert!(command.starts_with(&format!("printf '%s\\n' 'ziglang=={ZIG} --hash=sha256:")), "{command}");
    assert_eq!(command.matches("--hash=sha256:").count(), ZIG_WHEELS.len());
    assert!(
        command.contains("--require-hashes") && command.contains("target/anneal/tools/packages"),
        "{command}"
    );
    let mut there = bare();
    there.zig = Some(Tool { path: "/usr/bin/zig".into(), version: ZIG.to_string(), llvm_major: None });
    assert!(plan(&needs, &there, &facts(Some(Manager::Apt), Rights::None)).is_complete());
}

#[test]
fn cuda_comes_from_pip_and_only_where_it_is_missing_or_too_old() {
    let toolkit = |version: &str| Cuda {
        nvcc: Tool { path: "/usr/local/cuda/bin/nvcc".into(), version: version.into(), llvm_major: None },
        root: "/usr/local/cuda".into(),
        hosts: NvccHosts::default(),
        architectures: Vec::new(),
        include: Some("/usr/local/cuda/include".into()),
        cublas_include: Some("/usr/local/cuda/include".into()),
        runtime: Some("/usr/local/cuda/lib64/libcudart_static.a".into()),
        cublas: None,
        torn: Vec::new(),
    };
    let without_cublas = Cuda { cublas_include: None, ..toolkit("13.5.37") };
    let torn = Cuda { torn: vec!["ptxas".to_string()], ..toolkit("13.5.37") };
    // Installed toolkits, true if a build lacks a toolkit, and true if a user who requests the newest toolkit lacks
    // it.
    let cases = [
        (vec![], true, true),
        (vec![toolkit("12.4.131")], false, true),
        (vec![without_cublas], true, true),
        (vec![torn], true, true),
        (vec![toolkit("12.4.131"), toolkit("13.5.37")], false, false),
        (vec![toolkit("13.6.10")], false, false),
    ];
    for (cuda, lacks, lacks_new) in cases {
        let machine = Toolchain { cuda, ..bare() };
        for (requirement, lacks) in [(Requirement::Cuda, lacks), (Requirement::NewCuda, lacks_new)] {
            let needs = Needs { required: vec![requirement], recommended: vec![] };
            let made = plan(&needs, &machine, &facts(Some(Manager::Apt), Rights::None));
            assert_eq!(!made.is_complete(), lacks, "{requirement:?} with {:?}", machine.cuda);
            let Some(step) = made.steps.first() else { continue };
            let command = &step.command[2];
            assert!(!step.needs_root, "{command}");
            assert!(command.contains("--require-hashes") && command.ends_with("tools/cuda"), "{command}");
            // Each package has wheels for two architectures.
            let packages = command.matches("'nvidia-").count();
            assert_eq!((packages, command.matches("--hash=sha256:").count()), (6, 12), "{command}");
        }
    }
}

#[test]
fn what_builds_for_aarch64_comes_from_the_system_and_from_rustup() {
    let needs = Needs {
        required: vec![Requirement::EmulatorAarch64, Requirement::RustAarch64],
        recommended: Vec::new(),
    };
    let planned = |manager, rustup| {
        plan(&needs, &bare(), &Facts { rustup, refreshed: true, ..facts(Some(manager), Rights::Root) })
    };
    let rustup = "rustup target add aarch64-unknown-linux-gnu".to_string();
    let made = planned(Manager::Apt, true);
    assert_eq!(commands(&made), [format!("{APT} qemu-user libc6-arm64-cross"), rustup.clone()]);
    assert_eq!(made.unavailable, []);
    let made = planned(Manager::Dnf, true);
    assert_eq!((commands(&made), made.unavailable.len()), (vec![rustup], 1));
    let made = planned(Manager::Pacman, false);
    assert!(commands(&made)[0].ends_with("qemu-user aarch64-linux-gnu-glibc"), "{made:?}");
    assert_eq!(made.unavailable[0].0, Requirement::RustAarch64);
    assert!(
        made.unavailable[0]
            .1
            .contains("install rust-std for aarch64-unknown-linux-gnu, in the same version as rustc"),
        "{made:?}"
    );

    let mut there = bare();
    there.rust_targets = vec![crate::tools::AARCH64.to_string()];
    there.aarch64 =
        Some(crate::tools::Emulator { tool: tool("7.2.22"), sysroot: "/usr/aarch64-linux-gnu".into() });
    assert!(plan(&needs, &there, &facts(Some(Manager::Apt), Rights::Root)).is_complete());
}

#[test]
fn openmp_comes_for_the_clang_that_compiles() {
    let names = [
        (Manager::Apt, "libomp-22-dev"),
        (Manager::Dnf, "libomp-devel"),
        (Manager::Pacman, "openmp"),
        (Manager::Zypper, "libomp-devel"),
        (Manager::Apk, "openmp-dev"),
        (Manager::Brew, "libomp"),
    ];
    for (manager, expected) in names {
        let versions = debian_12().choose(None, Some(22));
        assert_eq!(manager.packages(Requirement::Openmp, &versions), Some(vec![expected.to_string()]));
    }
    let clang = |major| Compiler {
        kind: CompilerKind::Clang,
        cc: "/usr/bin/clang".into(),
        cxx: "/usr/bin/clang++".into(),
        version: Version::new(major, 1, 0),
    };
    // Installed clangs, major versions with a runtime, and true if a runtime is missing; gcc includes its own
    // runtime.
    let cases: [(&[u32], &[u32], bool); 5] = [
        (&[], &[], false),
        (&[22], &[], true),
        (&[22], &[19], true),
        (&[22, 19], &[22], false),
        (&[22], &[0], false),
    ];
    for (clangs, openmp, missing) in cases {
        let compilers = clangs.iter().map(|major| clang(*major)).collect();
        let tools = Toolchain { compilers, openmp: openmp.to_vec(), ..bare() };
        assert_eq!(Requirement::Openmp.is_missing(&tools, true), missing, "{clangs:?} {openmp:?}");
    }
}

/// Without a profile runtime for clang, an instrumented build fails at CMake's first test program.
#[test]
fn profiles_need_the_runtime_of_the_clang_that_compiles() {
    // Installed clang, versions with a profile runtime, and true if something is missing.
    let cases: [(Option<u32>, &[u32], bool); 4] =
        [(None, &[], false), (Some(22), &[], true), (Some(22), &[19], true), (Some(22), &[22, 19], false)];
    for (clang, runtimes, missing) in cases {
        let mut toolchain = Toolchain { profile_runtimes: runtimes.to_vec(), ..bare() };
        toolchain.compilers.extend(clang.map(|major| compiler(CompilerKind::Clang, major)));
        toolchain.llvm_profdata = vec![tool("22.1.8")];
        toolchain.llvm_ar = vec![tool("22.1.8")];
        let case = format!("{clang:?} {runtimes:?}");
        assert_eq!(Requirement::LlvmTools.is_missing(&toolchain, true), missing, "{case}");
        let needs = Needs { required: vec![Requirement::LlvmTools], recommended: vec![] };
        let made = plan(&needs, &toolchain, &facts(Some(Manager::Apt), Rights::Root));
        let installs = made.steps.iter().any(|step| step.to_string().contains("libclang-rt-22-dev"));
        assert_eq!(installs, missing, "{case}");
    }
}

#[test]
fn bolt_is_clangs_or_the_newest_that_will_do() {
    // Installed clang, installed llvm-bolts, and the package to install.
    let cases: [(Option<u32>, &[&str], Option<&str>); 5] = [
        (Some(22), &[], Some("bolt-22")),
        (Some(18), &[], Some("bolt-22")),
        (None, &["16.0.6"], Some("bolt-22")),
        (Some(22), &["21.1.0", "16.0.6"], None),
        (None, &["22.1.8"], None),
    ];
    for (clang, bolts, expected) in cases {
        let mut toolchain = bare();
        toolchain.compilers.extend(clang.map(|major| compiler(CompilerKind::Clang, major)));
        toolchain.llvm_bolt = bolts.iter().map(|version| tool(version)).collect();
        let needs = Needs { required: vec![Requirement::Bolt], recommended: vec![] };
        let made = plan(&needs, &toolchain, &facts(Some(Manager::Apt), Rights::Root));
        let last = made.steps.last().and_then(|step| step.command.last().cloned());
        assert_eq!(last.as_deref(), expected, "{clang:?} {bolts:?}");
    }
}

#[test]
fn rights_decide_on_sudo() {
    // Manager, rights, first word of the last command, and true if rights are lacking.
    let cases = [
        (Manager::Dnf, Rights::Root, "dnf", false),
        (Manager::Dnf, Rights::Sudo, "sudo", false),
        (Manager::Dnf, Rights::None, "dnf", true),
        (Manager::Brew, Rights::None, "brew", false),
        (Manager::Brew, Rights::Sudo, "brew", false),
    ];
    for (manager, rights, first, lacking) in cases {
        let made = plan(&Needs::native(), &bare(), &facts(Some(manager), rights));
        assert_eq!(made.steps.last().unwrap().command[0], first, "{manager} {rights:?}");
        assert_eq!(made.lacks_rights(rights), lacking, "{manager} {rights:?}");
    }
}

#[test]
fn cmake_comes_from_pip_where_the_systems_is_old() {
    let python = |pip, venv| Some(Python { path: "/usr/bin/python3".into(), pip, venv });
    let apt = |cmake: &str| Facts {
        apt: AptIndex { cmake: cmake.parse().ok(), ..debian_12() },
        refreshed: true,
        ..facts(Some(Manager::Apt), Rights::Root)
    };
    let with_pip = cmake_by_pip("/usr/bin/python3");
    let needs = Needs { required: vec![Requirement::Cmake], recommended: vec![] };
    // Name of the case, facts, installed cmake, and expected commands.
    let cases: [(&str, Facts, Option<&str>, Vec<String>); 9] = [
        ("new in the index", apt("3.25.1"), None, vec![format!("{APT} cmake")]),
        ("new in the index, old installed", apt("3.25.1"), Some("3.18.4"), vec![format!("{APT} cmake")]),
        ("old in the index", apt("3.22.1"), None, vec![with_pip.clone()]),
        ("old in the index and installed", apt("3.18.4"), Some("3.18.4"), vec![with_pip.clone()]),
        (
            "no pip yet",
            Facts { python: python(false, false), ..apt("3.18.4") },
            None,
            vec![format!("{APT} python3-pip"), with_pip.clone()],
        ),
        (
            "no Python yet",
            Facts { python: None, ..apt("3.18.4") },
            None,
            vec![format!("{APT} python3-pip"), cmake_by_pip("python3")],
        ),
        (
            "a venv brings pip",
            Facts { python: python(false, true), ..apt("3.18.4") },
            None,
            vec![
                "/usr/bin/python3 -m venv target/anneal/tools/venv".into(),
                cmake_by_pip("target/anneal/tools/venv/bin/python"),
            ],
        ),
        (
            "what zypper brought is old",
            facts(Some(Manager::Zypper), Rights::Root),
            Some("3.20.4"),
            vec![with_pip.clone()],
        ),
        ("no manager", facts(None, Rights::None), None, vec![with_pip]),
    ];
    for (case, facts, cmake, expected) in cases {
        let toolchain = Toolchain { cmake: cmake.map(tool), ..bare() };
        assert_eq!(commands(&plan(&needs, &toolchain, &facts)), expected, "{case}");
    }
    let nothing = Facts { python: None, ..facts(None, Rights::Root) };
    let made = plan(&needs, &bare(), &nothing);
    assert_eq!((made.steps.len(), made.unavailable.len()), (0, 1), "{made:?}");
}

#[test]
fn clang_is_asked_for_only_where_it_can_be_had() {
    let old = AptIndex::parse(
        "clang-14 -\nlld-14 -\nlibclang1-14 -\nlibclang-common-14-dev -\n",
        "Candidate: 3.25.1-1",
    );
    let with = |apt| Facts { apt, refreshed: true, ..facts(Some(Manager::Apt), Rights::Root) };
    let made = plan(&Needs::native(), &bare(), &with(old));
    assert_eq!(commands(&made), [format!("{APT} cmake ninja-build libclang1-14 libclang-common-14-dev")]);
    assert_eq!(made.unavailable[0].0, Requirement::Clang);

    // An installed clang determines the version of lld.
    let clang =
        Toolchain { compilers: vec![compiler(CompilerKind::Clang, 19)], lld: vec![tool("22.1.8")], ..bare() };
    let needs = Needs { required: vec![Requirement::Lld], recommended: vec![] };
    assert_eq!(commands(&plan(&needs, &clang, &with(debian_12()))), [format!("{APT} lld-19")]);

    // The installed gcc and apt's gcc are too old, so clang compiles.
    let gcc_10 = Toolchain { compilers: vec![compiler(CompilerKind::Gcc, 10)], ..bare() };
    let no_gcc = AptIndex {
        packages: debian_12().packages.into_iter().filter(|p| !p.starts_with("g++")).collect(),
        ..debian_12()
    };
    let needs = Needs { required: vec![Requirement::Compiler], recommended: vec![] };
    assert_eq!(commands(&plan(&needs, &gcc_10, &with(no_gcc))), [format!("{APT} clang-22 g++")]);

    // Without package lists, the lists are updated first; the following steps are a guess for the user to read.
    let empty = Facts { refreshed: false, ..with(AptIndex::default()) };
    let made = plan(&Needs::native(), &bare(), &empty);
    assert_eq!(
        commands(&made),
        [
            "apt-get update".into(),
            format!("{APT} cmake ninja-build libclang-dev"),
            format!("{APT} clang lld")
        ]
    );
    assert_eq!(made.steps[0].kind, StepKind::Refresh);
}

#[test]
fn what_is_there_is_not_installed() {
    let full = Toolchain {
        compilers: vec![compiler(CompilerKind::Clang, 22), compiler(CompilerKind::Gcc, 12)],
        cmake: Some(tool("3.25.1")),
        ninja: Some(tool("1.11.1")),
        lld: vec![tool("22.1.8")],
        libclang: vec![Libclang { dir: "/usr/lib".into(), version: Version::default() }],
        ..bare()
    };
    let made = plan(&Needs::native(), &full, &facts(Some(Manager::Apt), Rights::None));
    assert_eq!(made, SetupPlan::default());
    assert!(made.is_complete());
}

#[test]
fn words_are_quoted_for_a_shell() {
    let step = |words: &[&str]| InstallStep {
        kind: StepKind::Own,
        command: words.iter().map(|word| word.to_string()).collect(),
        why: String::new(),
        needs_root: false,
        optional: false,
    };
    assert_eq!(
        step(&["a", "cmake>=3.24", "", "it's", "g++"]).to_string(),
        r"a 'cmake>=3.24' '' 'it'\''s' g++"
    );
}

#[test]
fn pip_takes_nothing_without_a_hash() {
    use Requirement::{Cmake, Cuda, Mkl, NewCuda, Ninja, Zig};
    for requirement in [Cmake, Ninja, Zig, Cuda, NewCuda, Mkl] {
        let needs = Needs { required: vec![requirement], recommended: vec![] };
        let made = plan(&needs, &bare(), &facts(None, Rights::None));
        let [step] = &made.steps[..] else { panic!("{requirement:?}: {:?}", made.steps) };
        let command = &step.command[2];
        let Some((printed, pip)) = command.split_once(" | ") else { panic!("{command}") };
        assert!(
            pip.contains(" -m pip install ") && pip.contains(" --require-hashes --no-deps "),
            "{command}"
        );
        let pinned = printed.matches("==").count();
        assert!(pinned > 0 && printed.matches(" --hash=sha256:").count() >= pinned, "{command}");
    }
}
