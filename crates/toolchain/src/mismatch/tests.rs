use build_info::record::Tool;

use super::*;
use crate::tools::Cuda;
use crate::tools::CudaHome;
use crate::tools::Libclang;
use crate::tools::NvccHosts;
use crate::tools::Rustc;
use crate::tools::Version;

fn tool(version: &str) -> Tool {
    let llvm_major = version.split('.').next().and_then(|major| major.parse().ok());
    Tool { path: format!("/usr/bin/tool-{version}").into(), version: version.to_string(), llvm_major }
}

fn compiler(kind: CompilerKind, major: u32) -> Compiler {
    let path = |name: &str| format!("/usr/bin/{name}-{major}").into();
    Compiler { kind, cc: path("cc"), cxx: path("c++"), version: Version::new(major, 1, 0) }
}

/// Returns tools that fit together: LLVM 22 throughout, and gcc 12.
fn fitting() -> Toolchain {
    let gcc = compiler(CompilerKind::Gcc, 12);
    Toolchain {
        compilers: vec![compiler(CompilerKind::Clang, 22), gcc.clone()],
        default_compiler: Some(gcc),
        cmake: Some(tool("3.25.1")),
        lld: vec![tool("22.1.8")],
        llvm_profdata: vec![tool("22.1.8")],
        libclang: vec![Libclang { dir: "/usr/lib".into(), version: Version::new(22, 0, 0) }],
        rustc: Some(Rustc {
            path: "rustc".into(),
            version: Version::new(1, 95, 0),
            host: "x86_64-unknown-linux-gnu".into(),
            llvm: Version::new(22, 1, 2),
        }),
        ..Toolchain::default()
    }
}

fn cuda(version: &str, gcc: u32, clang: u32) -> Vec<Cuda> {
    vec![Cuda {
        nvcc: tool(version),
        root: "/usr/local/cuda".into(),
        hosts: NvccHosts { gcc: Some(gcc), clang: Some(clang) },
        architectures: vec![75, 90],
        include: None,
        cublas_include: None,
        runtime: None,
        cublas: None,
        torn: Vec::new(),
    }]
}

fn cuda_home(fault: Option<&str>) -> CudaHome {
    CudaHome { variable: "CUDA_PATH".into(), path: "/opt/gone".into(), fault: fault.map(str::to_string) }
}

#[test]
fn tools_that_fit_are_left_alone() {
    assert_eq!(mismatches(&fitting(), Some(Manager::Apt)), []);
    // An absent tool is missing, not mismatched. bindgen's library is the exception, because no other check reports
    // it.
    let found = mismatches(&Toolchain::default(), None);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].what.contains("libclang"));
}

#[test]
fn each_pair_that_does_not_fit_is_named_with_its_mend() {
    use Severity::*;
    type Change = fn(&mut Toolchain);
    type Found = &'static [(Severity, &'static str, &'static str)];
    // Change of the fitting tools, and the severity, tools and remedy of the expected mismatch.
    let cases: [(Change, Found); 15] = [
        (
            |t| t.llvm_profdata = vec![tool("14.0.6")],
            &[(
                Costs,
                "llvm-profdata 14.0.6 (/usr/bin/tool-14.0.6) and rustc's LLVM 22",
                "llvm-22 libclang-rt-22-dev",
            )],
        ),
        (
            |t| t.llvm_profdata.push(tool("14.0.6")),
            &[(Note, "llvm-profdata 14.0.6", "builds use /usr/bin/tool-22.1.8")],
        ),
        (|t| t.llvm_profdata = vec![], &[]),
        (
            |t| t.lld = vec![tool("19.1.7"), tool("14.0.6")],
            &[(Costs, "lld 19.1.7 (/usr/bin/tool-19.1.7) and clang 22.1.0", "lld-22")],
        ),
        (
            |t| t.compilers[0].version.major = 19,
            &[(Costs, "clang 19.1.0 and rustc's LLVM 22", "clang-22"), (Costs, "lld 22.1.8", "lld-19")],
        ),
        (|t| t.compilers.push(compiler(CompilerKind::Clang, 19)), &[]),
        (
            |t| t.compilers[0].version.major = 23,
            &[
                (Costs, "clang 23", "clang-22"),
                (Costs, "lld 22.1.8", "lld-23"),
                (Costs, "llvm-profdata 22.1.8 (/usr/bin/tool-22.1.8) and clang 23", "llvm-23"),
            ],
        ),
        (|t| t.cmake = Some(tool("3.22.1")), &[(Blocks, "cmake 3.22.1", "cargo xtask setup")]),
        (
            |t| t.libclang = vec![],
            &[(Blocks, "libclang or its headers are missing", "libclang1-22 libclang-common-22-dev")],
        ),
        (
            |t| t.libclang[0].version = Version::new(7, 0, 1),
            &[(Blocks, "libclang 7.0.1 (/usr/lib)", "libclang1-22")],
        ),
        (
            |t| t.compilers = vec![compiler(CompilerKind::Gcc, 10)],
            &[(Blocks, "gcc 10.1.0 (/usr/bin/cc-10)", "clang-22")],
        ),
        (|t| t.cuda = cuda("12.4.131", 13, 17), &[]),
        (
            |t| t.cuda = cuda("11.4.48", 11, 12),
            &[(Costs, "nvcc 11.4.48 and gcc 12.1.0", "sudo apt-get install g++-11")],
        ),
        (|t| t.cuda_home = Some(cuda_home(None)), &[]),
        (
            |t| t.cuda_home = Some(cuda_home(Some("the folder does not exist"))),
            &[(Costs, "CUDA_PATH=/opt/gone", "unset CUDA_PATH")],
        ),
    ];
    for (number, (change, expected)) in cases.into_iter().enumerate() {
        let mut toolchain = fitting();
        change(&mut toolchain);
        let found = mismatches(&toolchain, Some(Manager::Apt));
        assert_eq!(found.len(), expected.len(), "case {number}: {found:#?}");
        for (found, (severity, what, mend)) in found.iter().zip(expected) {
            assert_eq!(found.severity, *severity, "case {number}: {found:?}");
            assert!(found.what.contains(what), "case {number}: {found:?}");
            assert!(found.mend.contains(mend), "case {number}: {found:?}");
        }
    }
}

#[test]
fn the_mend_is_this_machines_command() {
    let old = Toolchain { llvm_profdata: vec![tool("14.0.6")], ..fitting() };
    let cases = [
        (Some(Manager::Dnf), "sudo dnf install llvm compiler-rt"),
        (Some(Manager::Brew), "brew install llvm"),
        (None, "install llvm-profdata and llvm-ar of rustc's LLVM, with clang's profile runtime (LLVM 22)"),
    ];
    for (manager, expected) in cases {
        assert_eq!(mismatches(&old, manager)[0].mend, expected, "{manager:?}");
    }
}

#[test]
fn another_compiler_serves_cuda() {
    let mut toolchain = fitting();
    toolchain.compilers.push(compiler(CompilerKind::Gcc, 11));
    toolchain.cuda = cuda("11.4.48", 11, 12);
    assert_eq!(mismatches(&toolchain, Some(Manager::Apt)), [], "a build takes gcc 11 by itself");
}
