//! A small checkout to build in.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use build_info::BuildInfo;

const CMAKE: &str = r#"
cmake_minimum_required(VERSION 3.14)
project(llama C CXX)
set(LLAMA_VERSION_MAJOR 9)
set(LLAMA_VERSION_MINOR 8)
set(LLAMA_VERSION_PATCH 7)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
option(GGML_NATIVE "" ON)
add_subdirectory(ggml)
add_library(llama src/llama.c)
target_link_libraries(llama ggml)
if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/slow)
    add_custom_target(wait COMMAND sleep 60)
    add_dependencies(llama wait)
endif()
install(TARGETS llama ggml ggml-cpu ggml-base)
"#;

const GGML_CMAKE: &str = r#"
set(GGML_VERSION_MAJOR 6)
set(GGML_VERSION_MINOR 5)
set(GGML_VERSION_PATCH 4)
add_library(ggml-base src/base.c)
add_library(ggml-cpu src/ggml-cpu/ops.c)
add_library(ggml src/ggml.c)
target_link_libraries(ggml ggml-cpu ggml-base)
if(GGML_NATIVE)
    target_compile_options(ggml-cpu PRIVATE -march=native)
else()
    foreach(name AVX2 FMA F16C BMI2)
        if(GGML_${name})
            string(TOLOWER -m${name} flag)
            target_compile_options(ggml-cpu PRIVATE ${flag})
        endif()
    endforeach()
endif()
"#;

/// Prints what the smoke test reads. `FAKE_ANNEAL=flaky` never says the same twice.
const ENGINE: &str = r#"
fn main() {
    let flaky = std::env::var_os("FAKE_ANNEAL").is_some_and(|value| value == "flaky");
    let last = if flaky { std::process::id() } else { 63 };
    let tokens: Vec<String> = (0..63).chain([last]).map(|token| token.to_string()).collect();
    println!(
        "{{\"isa_required\":[\"avx2\"],\"tokens\":[{}],\"timings\":{{\"prefill_tokens_per_second\":2.5,\"decode_tokens_per_second\":1.5}}}}",
        tokens.join(",")
    );
}
"#;

/// The fake engine has no kernel, or one that a test gives it.
const AUDIT: &str = r#"
least_kernels = 0
[[kernel]]
symbols = ["ggml_vec_dot_f32"]
xmm = ["sse3"]
"#;

/// A checkout and the sources it builds.
pub struct Checkout {
    _folder: tempfile::TempDir,
    pub root: PathBuf,
    pub source: PathBuf,
}

/// What a run of xtask gave.
pub struct Run {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or_else(|| -output.status.signal().unwrap_or(0)),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Run {
    /// Fails the test unless the exit code is `code` and standard error holds `part`.
    #[track_caller]
    pub fn expect(self, code: i32, part: &str) -> Self {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        assert!(self.err.contains(part), "no {part:?} in:\n{}", self.err);
        assert!(!self.err.contains("panicked"), "{}", self.err);
        self
    }
}

impl Checkout {
    /// A checkout in a folder of the name `name`.
    pub fn new(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join(name);
        let source = folder.path().join("llama of mine");
        for (file, text) in [
            ("CMakeLists.txt", CMAKE),
            ("src/llama.c", "int llama(void) { return 1; }"),
            ("ggml/CMakeLists.txt", GGML_CMAKE),
            ("ggml/src/base.c", "int base(void) { return 1; }"),
            ("ggml/src/ggml.c", "int ggml(void) { return 1; }"),
            ("ggml/src/ggml-cpu/ops.c", "int ops(void) { return 1; }"),
        ] {
            write(&source.join(file), text);
        }
        for (file, text) in [
            (
                "Cargo.toml",
                "[workspace]\nresolver = \"3\"\nmembers = [\"engine\"]\n[profile.engine]\ninherits = \"release\"\n",
            ),
            ("Cargo.lock", "version = 4\n\n[[package]]\nname = \"engine\"\nversion = \"0.1.0\"\n"),
            (
                "engine/Cargo.toml",
                "[package]\nname = \"engine\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[[bin]]\nname = \"anneal\"\npath = \"main.rs\"\n",
            ),
            ("engine/main.rs", ENGINE),
            ("profiles/audit.toml", AUDIT),
            ("build-info/x", ""),
            ("gguf/x", ""),
            ("host/x", ""),
            ("vendor/llama-sys/x", ""),
        ] {
            write(&root.join(file), text);
        }
        let profiles = Path::new(env!("CARGO_MANIFEST_DIR")).join("../profiles/build");
        for entry in std::fs::read_dir(profiles).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            write(&root.join("profiles/build").join(path.file_name().unwrap()), &text);
        }
        Self { _folder: folder, root, source }
    }

    /// `cargo xtask` with `args`, not started.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command
            .args(args)
            .env("ANNEAL_WORKSPACE", &self.root)
            .current_dir(&self.root)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// `cargo xtask` with `args`, to its end.
    pub fn xtask(&self, args: &[&str]) -> Run {
        self.command(args).output().unwrap().into()
    }

    /// A build of `profile` from the checkout's own sources, not started.
    pub fn build_command(&self, profile: &str) -> Command {
        self.command(&["build", "--profile", profile, "--path", self.source.to_str().unwrap()])
    }

    /// A build of `profile` from the checkout's own sources, to its end.
    pub fn build(&self, profile: &str) -> Run {
        self.build_command(profile).output().unwrap().into()
    }

    /// The current build of `profile`.
    pub fn current(&self, profile: &str) -> PathBuf {
        self.root.join("target/anneal").join(profile)
    }

    /// The record of the current build of `profile`.
    #[track_caller]
    pub fn record(&self, profile: &str) -> BuildInfo {
        BuildInfo::read(&self.current(profile).join("build_info.json")).unwrap()
    }
}

/// Writes a file and the folders above it.
pub fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}
