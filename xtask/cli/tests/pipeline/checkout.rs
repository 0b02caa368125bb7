//! Small checkout for test builds.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use build_info::{BuildInfo, Logits};

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

/// Part of every fake engine: reports huge pages according to its link flags, and answers the gate with the
/// reference's own logits, which are stored next to its source. With the fault `wrong`, one logit in every row is
/// wrong; with `nan`, one logit is NaN.
pub const ANSWERS: &str = r#"
fn huge_pages() -> bool {
    include_str!(concat!(env!("ANNEAL_LLAMA_PREFIX"), "/link.json")).contains("--wrap=ggml_aligned_malloc")
}

fn value(name: &str) -> Option<String> {
    std::env::args().skip_while(|word| word != name).nth(1)
}

fn logits(fault: &str) {
    let model = value("-m").unwrap();
    let probe = std::path::Path::new(&model).file_stem().unwrap().to_str().unwrap().to_string();
    let mode = if std::env::args().any(|word| word == "--step") { "decode" } else { "prefill" };
    let kept = format!("{}/logits/{probe}-{mode}", env!("CARGO_MANIFEST_DIR"));
    let mut bytes = std::fs::read(kept).unwrap();
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let (vocabulary, rows) = (number(8), number(12));
    let wrong: f32 = if fault == "nan" { f32::NAN } else { 9.0 };
    if fault == "wrong" || fault == "nan" {
        for row in 0..rows {
            let at = 16 + 4 * rows + 4 * vocabulary * row;
            bytes[at..at + 4].copy_from_slice(&wrong.to_le_bytes());
        }
    }
    std::fs::write(value("--out").unwrap(), bytes).unwrap();
}
"#;

/// Fake engine that prints the values that the smoke test reads. With `FAKE_ANNEAL=flaky`, every run prints different
/// tokens; with `small-pages`, the engine reports no huge pages. [`ANSWERS`] handles the other faults.
const ENGINE: &str = r#"
fn main() {
    let fault = std::env::var("FAKE_ANNEAL").unwrap_or_default();
    if std::env::args().nth(1).is_some_and(|command| command == "logits") {
        return logits(&fault);
    }
    let last = if fault == "flaky" { std::process::id() } else { 63 };
    let tokens: Vec<String> = (0..63).chain([last]).map(|token| token.to_string()).collect();
    println!(
        "{{\"huge_pages\":{},\"isa_required\":[\"avx2\"],\"tokens\":[{}],\"timings\":{{\"prefill_tokens_per_second\":2.5,\"decode_tokens_per_second\":1.5}}}}",
        huge_pages() && fault != "small-pages",
        tokens.join(",")
    );
}
"#;

/// Audit rules for the fake engine, which only has kernels that a test adds.
const AUDIT: &str = r#"
least_kernels = 0
[[kernel]]
symbols = ["ggml_vec_dot_f32"]
xmm = ["sse3"]
"#;

/// Checkout and the sources that it builds.
pub struct Checkout {
    _folder: tempfile::TempDir,
    pub root: PathBuf,
    pub source: PathBuf,
}

/// Result of a run of xtask.
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
    /// Fails the test unless the exit code is `code` and standard error contains `part`.
    #[track_caller]
    pub fn expect(self, code: i32, part: &str) -> Self {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        assert!(self.err.contains(part), "no {part:?} in:\n{}", self.err);
        assert!(!self.err.contains("panicked"), "{}", self.err);
        self
    }
}

impl Checkout {
    /// Creates a checkout in a folder called `name`.
    pub fn new(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join(name);
        let source = folder.path().join("llama of mine");
        for (file, text) in [
            ("CMakeLists.txt", CMAKE),
            ("include/llama.h", "int llama(void);"),
            ("src/llama.c", "int llama(void) { return 1; }"),
            ("ggml/CMakeLists.txt", GGML_CMAKE),
            ("ggml/include/ggml.h", "int ggml(void);"),
            ("ggml/src/base.c", "int base(void) { return 1; }"),
            ("ggml/src/ggml.c", "int ggml(void) { return 1; }"),
            ("ggml/src/ggml-cpu/ops.c", "int ops(void) { return 1; }"),
        ] {
            write(&source.join(file), text);
        }
        for (file, text) in [
            (
                "Cargo.toml",
                "[workspace]\nresolver = \"3\"\nmembers = [\"engine/anneal\"]\n[profile.engine]\ninherits = \"release\"\n",
            ),
            ("Cargo.lock", "version = 4\n\n[[package]]\nname = \"anneal\"\nversion = \"0.1.0\"\n"),
            (
                "engine/anneal/Cargo.toml",
                "[package]\nname = \"anneal\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[[bin]]\nname = \"anneal\"\npath = \"main.rs\"\n",
            ),
            ("engine/anneal/main.rs", &format!("{ENGINE}{ANSWERS}")),
            ("profiles/audit.toml", AUDIT),
        ] {
            write(&root.join(file), text);
        }
        // The digest of the engine's sources covers the folders of the real workspace.
        for member in members() {
            write(&root.join(member).join("x"), "");
        }
        write_reference_logits(&root.join("engine/anneal/logits"));
        let profiles = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles/build");
        for entry in std::fs::read_dir(profiles).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            // These tests use the system's compilers, because the pinned zig is a large download and would first have
            // to compile a C++ runtime.
            let of_zig = ["compiler = \"zig\"", "glibc = \"2", "cargo_profile = \"dist\""];
            let kept = text.lines().filter(|line| !of_zig.iter().any(|key| line.starts_with(key)));
            let text: String = kept.map(|line| format!("{line}\n")).collect();
            write(&root.join("profiles/build").join(path.file_name().unwrap()), &text);
        }
        Self { _folder: folder, root, source }
    }

    /// Returns the command `cargo xtask` with `args`.
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

    /// Runs `cargo xtask` with `args`.
    pub fn xtask(&self, args: &[&str]) -> Run {
        self.command(args).output().unwrap().into()
    }

    /// Returns the command that builds `profile` from the checkout's own sources.
    pub fn build_command(&self, profile: &str) -> Command {
        self.command(&["build", "--profile", profile, "--path", self.source.to_str().unwrap()])
    }

    /// Builds `profile` from the checkout's own sources.
    pub fn build(&self, profile: &str) -> Run {
        self.build_command(profile).output().unwrap().into()
    }

    /// Returns the path of the current build of `profile`.
    pub fn current(&self, profile: &str) -> PathBuf {
        self.root.join("target/anneal").join(profile)
    }

    /// Returns the record of the current build of `profile`.
    #[track_caller]
    pub fn record(&self, profile: &str) -> BuildInfo {
        BuildInfo::read(&self.current(profile).join("build_info.json")).unwrap()
    }
}

/// Returns the folders of the crates in the real workspace.
fn members() -> Vec<String> {
    let manifest: toml::Table = toml::from_str(include_str!("../../../../Cargo.toml")).unwrap();
    manifest["workspace"]["members"].clone().try_into().unwrap()
}

/// Writes a file after creating its parent folders.
pub fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// Writes the gate's reference as logits files, as an engine would write them.
fn write_reference_logits(folder: &Path) {
    let kept = include_bytes!("../../../build/src/stages/gate/reference.bin");
    let end = kept.iter().position(|&byte| byte == b'\n').unwrap();
    let header: serde_json::Value = serde_json::from_slice(&kept[..end]).unwrap();
    let mut cells = kept[end + 1..].chunks_exact(2).map(|cell| u16::from_le_bytes([cell[0], cell[1]]));
    std::fs::create_dir_all(folder).unwrap();
    for probe in header["probes"].as_array().unwrap() {
        let size = |key: &str| probe[key].as_u64().unwrap() as usize;
        let mut logits = Logits::new(size("vocabulary"));
        for _ in 0..size("positions") {
            let row: Vec<f32> =
                cells.by_ref().take(size("vocabulary")).map(|cell| -f32::from(cell) / 2048.0).collect();
            logits.push(0, &row);
        }
        let name = probe["name"].as_str().unwrap();
        std::fs::write(folder.join(format!("{name}-prefill")), logits.to_bytes()).unwrap();
        for token in probe["greedy"].as_array().unwrap() {
            logits.push(token.as_u64().unwrap() as u32, &[]);
        }
        std::fs::write(folder.join(format!("{name}-decode")), logits.to_bytes()).unwrap();
    }
}
