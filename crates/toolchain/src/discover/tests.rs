use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::testing::Machine;
use crate::tools::NvccHosts;

const GCC_12: &str =
    "gcc (Debian 12.2.0-14+deb12u1) 12.2.0\nCopyright (C) 2022 Free Software Foundation, Inc.";
const GCC_13: &str =
    "gcc-13 (Ubuntu 13.2.0-23ubuntu4) 13.2.0\nCopyright (C) 2023 Free Software Foundation, Inc.";
const CLANG_22: &str = "Debian clang version 22.1.8 (1~deb12u1)\nTarget: x86_64-pc-linux-gnu";

/// Creates a Debian 12 with clang 22, gcc 12 and an old LLVM 14.
fn debian() -> Machine {
    let machine = Machine::new();
    machine.tool("usr/lib/gcc-12-driver", GCC_12);
    for name in ["cc", "c++", "gcc", "gcc-12", "g++", "g++-12"] {
        machine.link(&format!("usr/bin/{name}"), "../lib/gcc-12-driver");
    }
    machine.tool("usr/lib/llvm-22/bin/clang", CLANG_22);
    machine.link("usr/lib/llvm-22/bin/clang++", "clang");
    machine.link("usr/bin/clang-22", "../lib/llvm-22/bin/clang");
    machine.link("usr/bin/clang++-22", "../lib/llvm-22/bin/clang++");
    machine.tool("usr/lib/llvm-22/bin/ld.lld", "Debian LLD 22.1.8 (compatible with GNU linkers)");
    machine.tool("usr/lib/llvm-22/bin/llvm-profdata", "Debian LLVM version 22.1.8\n  Optimized build.");
    machine.script(
        "usr/lib/llvm-14/bin/llvm-profdata",
        "[ \"$1\" = merge ] && echo 'Debian LLVM version 14.0.6' || exit 1",
    );
    machine.link("usr/bin/llvm-profdata", "../lib/llvm-14/bin/llvm-profdata");
    machine.tool("usr/bin/cmake", "cmake version 3.25.1");
    machine.tool("usr/bin/ninja", "1.11.1");
    machine
}

fn found(compilers: &[Compiler]) -> Vec<String> {
    compilers
        .iter()
        .map(|found| {
            format!("{} {} {} {}", found.kind, found.version, file_name(&found.cc), file_name(&found.cxx))
        })
        .collect()
}

#[test]
fn only_the_pinned_zig_is_taken() {
    let machine = Machine::new();
    let tell = |version: &str| format!("[ \"$1\" = version ] && echo {version} || exit 1");
    machine.script("usr/bin/zig", &tell("0.13.0"));
    assert_eq!(discover(&machine.search(), None).zig, None);
    machine.script("target/tools/packages/ziglang/zig", &tell(&ZIG.to_string()));
    let mut search = machine.search();
    search.own_tools = Some(machine.root().join("target/tools"));
    let found = discover(&search, None).zig.expect("the checkout's own");
    assert_eq!(found.path, machine.root().join("target/tools/packages/ziglang/zig"));
}

#[test]
fn an_emulator_without_a_c_library_is_none() {
    let machine = debian();
    machine.tool("usr/bin/qemu-aarch64", "qemu-aarch64 version 7.2.22 (Debian 1:7.2+dfsg-7)");
    assert_eq!(discover(&machine.search(), None).aarch64, None);
    // Tests the library of a multiarch system, then the library of a cross compiler.
    for (library, sysroot) in
        [("lib", ""), ("usr/aarch64-linux-gnu/lib", "usr/aarch64-linux-gnu")].map(|(l, s)| (l.to_string(), s))
    {
        machine.file(&format!("{library}/ld-linux-aarch64.so.1"), "");
        let found = discover(&machine.search(), None).aarch64.expect("an emulator");
        assert_eq!((found.tool.version.as_str(), found.sysroot), ("7.2.22", machine.root().join(sysroot)));
    }
}

#[test]
fn rustc_tells_where_its_libraries_lie() {
    let machine = Machine::new();
    let sysroot = machine.root().join("opt/rust");
    let version = "rustc 1.95.0\nhost: x86_64-unknown-linux-gnu\nrelease: 1.95.0\nLLVM version: 22.1.2";
    let rustc = format!(
        "if [ \"$1\" = --print ]; then echo '{}'; else printf '%s\\n' '{version}'; fi",
        sysroot.display()
    );
    machine.script("usr/bin/rustc", &rustc);
    assert!(discover(&machine.search(), None).rust_targets.is_empty());
    for target in ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"] {
        machine.file(&format!("opt/rust/lib/rustlib/{target}/lib/libstd-0.rlib"), "");
    }
    machine.file("opt/rust/lib/rustlib/etc/lldb_commands", "");
    let toolchain = discover(&machine.search(), None);
    assert_eq!(toolchain.rust_targets, ["aarch64-unknown-linux-gnu", "x86_64-unknown-linux-gnu"]);
    assert!(toolchain.rustc.is_some());
}

#[test]
fn a_debian_machine_is_read() {
    let machine = debian();
    let toolchain = discover(&machine.search(), None);
    assert_eq!(found(&toolchain.compilers), ["clang 22.1.8 clang-22 clang++-22", "gcc 12.2.0 gcc-12 g++-12"]);
    assert_eq!(found(toolchain.default_compiler.as_slice()), ["gcc 12.2.0 cc c++"]);
    assert_eq!(toolchain.cmake.unwrap().version, "3.25.1");
    assert_eq!(toolchain.ninja.unwrap().path, machine.root().join("usr/bin/ninja"));
    assert_eq!(toolchain.lld[0].path, machine.root().join("usr/lib/llvm-22/bin/ld.lld"));
    let profdata: Vec<Option<u32>> = toolchain.llvm_profdata.iter().map(|tool| tool.llvm_major).collect();
    assert_eq!(profdata, [Some(22), Some(14)], "newest first, regardless of the path");
    assert_eq!(toolchain.cuda, []);
    assert_eq!(toolchain.rustc, None);
}

#[test]
fn compilers_are_pairs_of_the_same_version() {
    // Files on the machine, and the compilers that are found.
    type Files = &'static [(&'static str, &'static str)];
    let cases: [(&str, Files, &[&str]); 7] = [
        ("nothing", &[], &[]),
        ("C alone", &[("gcc", GCC_12)], &[]),
        (
            "two versions",
            &[("gcc-12", GCC_12), ("g++-12", GCC_12), ("gcc-13", GCC_13), ("g++-13", GCC_13)],
            &["gcc 13.2.0 gcc-13 g++-13", "gcc 12.2.0 gcc-12 g++-12"],
        ),
        ("C and C++ of different versions", &[("gcc", GCC_12), ("g++", GCC_13)], &[]),
        ("C++ of another version", &[("gcc-13", GCC_13), ("g++-12", GCC_12)], &[]),
        ("gcc that is clang", &[("gcc", CLANG_22), ("g++", CLANG_22)], &["clang 22.1.8 gcc g++"]),
        ("rubbish", &[("gcc", "\u{1}\u{2} no compiler"), ("g++", GCC_12)], &[]),
    ];
    for (case, files, expected) in cases {
        let machine = Machine::new();
        for (name, says) in files {
            machine.tool(&format!("usr/bin/{name}"), says);
        }
        assert_eq!(found(&discover(&machine.search(), None).compilers), expected, "{case}");
    }
}

#[test]
fn a_compiler_cache_is_no_compiler() {
    let machine = debian();
    machine.tool("usr/lib/ccache-program/ccache", "ccache version 4.8");
    for name in ["gcc", "g++", "cc", "c++", "ccache"] {
        machine.link(&format!("opt/ccache/{name}"), "../../usr/lib/ccache-program/ccache");
    }
    let mut search = machine.search();
    search.dirs.insert(0, machine.root().join("opt/ccache"));
    let toolchain = discover(&search, None);
    assert_eq!(toolchain.ccache.unwrap().version, "4.8.0");
    assert_eq!(toolchain.default_compiler.unwrap().cc, machine.root().join("usr/bin/cc"));
    assert!(toolchain.compilers.iter().all(|compiler| !compiler.cc.starts_with(machine.root().join("opt"))));
}

#[test]
fn a_cmake_that_is_new_enough_is_preferred() {
    // CMake on the path, CMake that setup installed, and the chosen CMake.
    let cases = [
        (Some("3.22.1"), Some("4.1.0"), Some("4.1.0")),
        (Some("3.25.1"), Some("4.1.0"), Some("3.25.1")),
        (Some("3.22.1"), None, Some("3.22.1")),
        (None, Some("3.20.0"), Some("3.20.0")),
        (Some("3.20.0"), Some("3.22.0"), Some("3.22.0")),
        (None, None, None),
    ];
    for (system, own, expected) in cases {
        let machine = Machine::new();
        for (path, version) in
            [("usr/bin/cmake", system), ("target/tools/packages/cmake/data/bin/cmake", own)]
        {
            version.map(|version| machine.tool(path, &format!("cmake version {version}")));
        }
        let cmake = discover(&machine.search(), None).cmake.map(|cmake| cmake.version);
        assert_eq!(cmake.as_deref(), expected, "{system:?} {own:?}");
    }
}

#[test]
fn broken_tools_are_passed_over() {
    let machine = debian();
    machine.script("opt/broken tools/cmake", "kill -SEGV $$");
    machine.script("opt/broken tools/ninja", "exit 1");
    machine.script("opt/broken tools/mold", "sleep 60");
    machine.script("opt/broken tools/llvm-bolt", "head -c 300 /dev/urandom");
    machine.file("opt/broken tools/gcc", "not executable");
    machine.link("opt/broken tools/clang", "gone");
    fs::create_dir_all(machine.root().join("opt/broken tools/sccache")).unwrap();
    let unreadable = machine.root().join("opt/unreadable");
    fs::create_dir_all(&unreadable).unwrap();
    fs::set_permissions(&unreadable, fs::Permissions::from_mode(0o000)).unwrap();
    let mut search = machine.search();
    let strange = ["opt/broken tools", "opt/unreadable", "opt/missing", "opt/broken tools/gcc"];
    search.dirs.splice(0..0, strange.map(|dir| machine.root().join(dir)));
    search.dirs.insert(0, "relative".into());
    search.dirs.insert(0, "".into());
    let begin = std::time::Instant::now();
    let mut found = discover(&search, None);
    let hangs = std::mem::take(&mut found.silent);
    assert_eq!(hangs, [machine.root().join("opt/broken tools/mold")]);
    assert_eq!(found, discover(&machine.search(), None));
    assert!(begin.elapsed().as_secs() < 50, "a hanging tool held it up for {:?}", begin.elapsed());
}

#[test]
fn rustc_is_seen_through_rustup() {
    let says = |llvm: &str| format!("release: 1.95.0\nhost: x86_64-unknown-linux-gnu\nLLVM version: {llvm}");
    let machine = Machine::new();
    machine.tool("home/.cargo/bin/rustup", &says("22.1.2"));
    machine.link("home/.cargo/bin/rustc", "rustup");
    machine.tool("home/.rustup/toolchains/nightly/bin/rustc", &says("23.0.0"));
    let settings = machine.file("home/.rustup/settings.toml", "default = 1");
    let cache = machine.root().join("tools.json");
    let mut search = machine.search();
    let llvm = |search: &SearchPath| discover(search, Some(&cache)).rustc.map(|rustc| rustc.llvm.major);
    assert_eq!(llvm(&search), Some(22), "the proxy's answer");

    // The default toolchain changes, but the proxy does not.
    machine.tool("home/.cargo/bin/rustup", &says("24.1.2"));
    let stamp = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    let before = stamp(&settings);
    machine.file("home/.rustup/settings.toml", "default = 22");
    assert!(stamp(&settings) >= before);
    assert_eq!(llvm(&search), Some(24));

    search.rustup_toolchain = Some("nightly".into());
    let rustc = discover(&search, Some(&cache)).rustc.unwrap();
    assert_eq!(rustc.llvm.major, 23, "the compiler itself is asked");
    assert_eq!(rustc.path, machine.root().join("home/.cargo/bin/rustc"), "and called as before");
    search.rustup_toolchain = Some("gone".into());
    assert_eq!(llvm(&search), Some(24), "an unknown toolchain is left to the proxy");
}

/// Creates a toolkit in `folder`, in the layout of NVIDIA's installer.
fn toolkit(machine: &Machine, folder: &str, version: &str) {
    let codes = "echo sm_90; echo sm_75";
    let release = format!("echo 'Cuda compilation tools, release {version}, V{version}.131'");
    machine.script(
        &format!("{folder}/bin/nvcc"),
        &format!("case $1 in --version) {release};; *) {codes};; esac"),
    );
    for program in ["nvvm/bin/cicc", "bin/ptxas", "bin/cudafe++", "bin/fatbinary"] {
        machine.script(&format!("{folder}/{program}"), "");
    }
    machine.file(
        &format!("{folder}/include/crt/host_config.h"),
        "#if __GNUC__ > 13\n#if (__clang_major__ >= 18)\n",
    );
    for header in ["cuda_runtime.h", "cublas_v2.h"] {
        machine.file(&format!("{folder}/include/{header}"), "");
    }
    machine.file(&format!("{folder}/lib64/libcudart_static.a"), "");
    machine.file(&format!("{folder}/lib64/libcublas.so.12"), "");
}

#[test]
fn a_toolkit_is_found_with_what_it_takes_and_compiles_for() {
    let machine = Machine::new();
    toolkit(&machine, "opt/cuda-12.4", "12.4");
    machine.link("usr/local/cuda", "../../opt/cuda-12.4");
    let found = discover(&machine.search(), None).cuda;
    let [cuda] = &found[..] else { panic!("{found:?}") };
    let root = std::fs::canonicalize(machine.root().join("opt/cuda-12.4")).unwrap();
    assert_eq!((cuda.nvcc.version.as_str(), &cuda.root), ("12.4.131", &root));
    assert_eq!(cuda.hosts, NvccHosts { gcc: Some(13), clang: Some(17) });
    assert_eq!(cuda.architectures, [75, 90]);
    assert!(cuda.is_whole());
    assert_eq!(cuda.cublas.as_deref(), Some(root.join("lib64/libcublas.so.12").as_path()));
    std::fs::remove_file(root.join("lib64/libcudart_static.a")).unwrap();
    assert!(!discover(&machine.search(), None).cuda[0].is_whole());
}

#[test]
fn the_toolkit_that_the_user_names_goes_before_ours_and_ours_before_the_machines() {
    let machine = Machine::new();
    toolkit(&machine, "usr/local/cuda", "12.4");
    toolkit(&machine, "target/tools/cuda/nvidia/cu13", "13.5");
    toolkit(&machine, "home/cuda", "12.9");
    let versions = |search: &SearchPath| -> Vec<String> {
        discover(search, None).cuda.into_iter().map(|cuda| cuda.nvcc.version).collect()
    };
    assert_eq!(versions(&machine.search()), ["13.5.131", "12.4.131"]);
    let named = |folder: &str| SearchPath {
        cuda_home: Some(("CUDA_HOME", machine.root().join(folder))),
        ..machine.search()
    };
    assert_eq!(versions(&named("home/cuda")), ["12.9.131", "13.5.131", "12.4.131"]);
    // The toolkit is found through a link, too.
    machine.link("home/linked/bin/nvcc", "../../cuda/bin/nvcc");
    assert_eq!(versions(&named("home/linked")), ["12.9.131", "13.5.131", "12.4.131"]);
    let home = discover(&named("home/linked"), None).cuda_home.unwrap();
    assert_eq!((home.variable.as_str(), home.fault), ("CUDA_HOME", None));
}

#[test]
fn what_nvcc_runs_and_reads_itself_belongs_to_a_toolkit() {
    let machine = Machine::new();
    let lacks = || {
        discover(&machine.search(), None).cuda[0].lacks().into_iter().map(str::to_string).collect::<Vec<_>>()
    };
    toolkit(&machine, "usr/local/cuda", "12.4");
    assert_eq!(lacks(), [""; 0]);
    for file in ["bin/ptxas", "nvvm/bin/cicc", "include/crt/host_config.h"] {
        std::fs::remove_file(machine.root().join("usr/local/cuda").join(file)).unwrap();
    }
    assert_eq!(lacks(), ["cicc", "ptxas", "crt/host_config.h"]);
    // A distribution's package may put the programs anywhere, and puts the headers among the system's headers.
    let machine = Machine::new();
    toolkit(&machine, "usr/lib/nvidia-cuda-toolkit", "11.8");
    let own = machine.root().join("usr/lib/nvidia-cuda-toolkit");
    std::fs::rename(own.join("include"), machine.root().join("usr/include")).unwrap();
    std::fs::rename(own.join("lib64"), machine.root().join("usr/lib64")).unwrap();
    std::fs::remove_dir_all(own.join("nvvm")).unwrap();
    machine.link("usr/bin/nvcc", "../lib/nvidia-cuda-toolkit/bin/nvcc");
    assert_eq!(discover(&machine.search(), None).cuda[0].lacks(), [""; 0]);
}

#[test]
fn what_is_wrong_with_the_toolkit_that_the_user_names_is_told() {
    let machine = Machine::new();
    toolkit(&machine, "usr/local/cuda", "12.4");
    machine.file("home/empty/readme", "");
    machine.file("home/text/bin/nvcc", "");
    machine.script("home/garbage/bin/nvcc", "echo hello");
    machine.script("home/broken/bin/nvcc", "exit 1");
    machine.script("home/slow/bin/nvcc", "sleep 60");
    let cases = [
        ("home/gone", "the folder does not exist"),
        ("usr/local/cuda/bin/nvcc", "it is a file, not a folder"),
        ("home/empty", "it has no bin/nvcc"),
        ("home/text", "its bin/nvcc is not executable"),
        ("home/garbage", "its bin/nvcc prints no CUDA version"),
        ("home/broken", "its bin/nvcc fails when it is run with --version"),
        ("home/slow", "its bin/nvcc did not print its version in time"),
    ];
    let of = |path: std::path::PathBuf| {
        let search = SearchPath { cuda_home: Some(("CUDA_PATH", path)), ..machine.search() };
        let found = discover(&search, None);
        assert_eq!(found.cuda.len(), 1, "the machine's own is there all the same");
        found.cuda_home.unwrap()
    };
    for (path, expected) in cases {
        let home = of(machine.root().join(path));
        assert_eq!(home.fault.as_deref(), Some(expected), "{path}");
        assert!(home.to_string().starts_with("CUDA_PATH=/") && home.to_string().ends_with(path), "{home}");
    }
    assert_eq!(of("cuda".into()).fault.as_deref(), Some("it is not an absolute path"));
    assert_eq!(of(machine.root().join("usr/local/cuda")).fault, None);
    assert_eq!(discover(&machine.search(), None).cuda_home, None);
}

/// Checks that this machine's tools are the same from the cache. The machine has at least a compiler and the rustc
/// that compiled the tests.
#[test]
fn this_machine_is_read_the_same_from_the_cache() {
    let folder = Machine::new();
    let cache = folder.root().join("tools.json");
    let search = SearchPath::live(&folder.root().join("tools"));
    let cold = discover(&search, Some(&cache));
    let warm = discover(&search, Some(&cache));
    assert_eq!(cold, warm);
    let rustc = cold.rustc.expect("rustc compiled this test");
    assert!(rustc.llvm.major >= 18, "{rustc:?}");
    assert!(!cold.compilers.is_empty(), "rustc linked this test with one");
    assert!(cold.default_compiler.is_some(), "it is called cc");
}
