//! Helpers for tests of the executable: a tiny model, and functions that run the program.
#![allow(dead_code, reason = "each test file uses only some of the helpers")]

pub mod worker;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::{Requested, Settings};
use llama::Model;

/// Path of the executable under test.
pub const ANNEAL: &str = env!("CARGO_BIN_EXE_anneal");

/// Returns a model of a few megabytes with random weights, written once per process. The model's bytes are the same
/// in every run.
pub fn tiny() -> &'static Path {
    static MODEL: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = MODEL.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("tiny.gguf");
        let options = gguf::synth::SynthOptions::new(gguf::synth::Preset::Tiny);
        gguf::synth::write(&path, &options).expect("a tiny model");
        (folder, path)
    });
    path
}

/// Returns the file `name` in a folder of this process. The first call runs `write` with the file's path. Only one test
/// at a time writes, because a model that is replaced while another test loads it is refused.
pub fn written_once(name: &str, write: impl FnOnce(&Path)) -> PathBuf {
    static FOLDER: Mutex<Option<tempfile::TempDir>> = Mutex::new(None);
    let mut folder = FOLDER.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = folder.get_or_insert_with(|| tempfile::tempdir().expect("a temporary folder"));
    let path = folder.path().join(name);
    if !path.exists() {
        write(&path);
    }
    path
}

/// Returns the tiny model quantised to `kind`, written once per process. The kernels for AVX2 and NEON repack Q4_0
/// weights.
pub fn quantised(kind: &str) -> PathBuf {
    written_once(&format!("{kind}.gguf"), |path| {
        let files = [tiny().as_os_str(), path.as_os_str(), kind.as_ref()];
        let (code, _, stderr) = parts(&anneal(std::iter::once("quantize".as_ref()).chain(files)));
        assert_eq!(code, Some(0), "{stderr}");
    })
}

/// Returns the tiny model, loaded once per process.
pub fn the_model() -> &'static Arc<Model> {
    static MODEL: OnceLock<Arc<Model>> = OnceLock::new();
    MODEL.get_or_init(|| {
        let runtime_host = RuntimeHost::read();
        let settings = Settings::resolve(&Requested::default(), &runtime_host).expect("valid settings");
        engine_core::model::open(tiny(), &settings, &runtime_host).expect("the tiny model")
    })
}

/// Writes a variant of the tiny model to `folder`. Its last norm is so large that the logits are sums of infinities
/// of both signs. The weights themselves are finite, because llama.cpp refuses to quantise other weights.
pub fn nan(folder: &Path) -> PathBuf {
    let path = folder.join("nan.gguf");
    let mut bytes = std::fs::read(tiny()).expect("a model");
    let file = gguf::GgufFile::open(tiny()).expect("a model");
    let norm =
        file.tensors().iter().find(|tensor| tensor.name == "output_norm.weight").expect("the last norm");
    assert_eq!(norm.kind.name(), "f32");
    let (at, len) = (norm.offset as usize, norm.bytes.0 as usize);
    bytes[at..at + len].copy_from_slice(&f32::MAX.to_le_bytes().repeat(len / 4));
    std::fs::write(&path, bytes).expect("written");
    path
}

/// Returns a command for `anneal` with a separate state folder, so that the user's measurements, tuning and verdicts
/// do not affect tests.
pub fn command() -> Command {
    hear_hang_ups();
    let mut command = Command::new(ANNEAL);
    command.env("ANNEAL_STATE_DIR", tiny().with_file_name("state")).env_remove("ANNEAL_TUNING");
    command
}

/// Restores the default action of SIGHUP for child processes, because they would inherit the ignored signal if
/// `nohup` started this process.
fn hear_hang_ups() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if base::signals::hang_up_is_ignored() {
            signal_hook::flag::register(libc::SIGHUP, Arc::default()).expect("a handler");
        }
    });
}

/// Returns the instruction sets that the program's CPU guard checks.
pub fn isa_required() -> &'static [String] {
    static REQUIRED: OnceLock<Vec<String>> = OnceLock::new();
    REQUIRED.get_or_init(|| {
        let (code, stdout, stderr) = parts(&anneal(["info", "--json"]));
        assert_eq!(code, Some(0), "{stderr}");
        let info: serde_json::Value = serde_json::from_str(&stdout).expect("one JSON object");
        serde_json::from_value(info["isa_required"].clone()).expect("names")
    })
}

/// True if this CPU uses Anneal's own kernels by default. The results of these kernels do not depend on batches and
/// threads. Otherwise, the running test is reported as skipped.
pub fn has_exact_kernels() -> bool {
    let (code, info, stderr) = parts(&anneal(["info", "--json"]));
    assert_eq!(code, Some(0), "{stderr}");
    let info: serde_json::Value = serde_json::from_str(&info).expect("JSON");
    let exact = info["matrix_kernels"]["name"] != "ggml";
    if !exact {
        skipped::because("on this CPU, llama.cpp's kernels are used, and their results depend on the batch");
    }
    exact
}

/// True if this build has kernels that repack Q4_0 weights, such as those for AVX2 and for NEON dot products. In
/// other builds, a model has only one layout.
pub fn repacks_q4_0() -> bool {
    isa_required().iter().any(|name| name == "avx2" || name == "asimddp")
}

/// Runs `anneal` with `arguments`.
pub fn anneal<I, S>(arguments: I) -> Output
where
    I: IntoIterator<Item = S>,
    S: AsRef<std::ffi::OsStr>,
{
    command().args(arguments).output().expect("the executable runs")
}

/// Returns the exit code, stdout and stderr of `output`.
pub fn parts(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Runs `command` on the tiny model, which must succeed. Returns stdout.
pub fn on_tiny(command: &str, arguments: &[&str]) -> String {
    let mut all = vec![command, "-m", tiny().to_str().expect("a path in UTF-8")];
    all.extend(arguments);
    let (code, stdout, stderr) = parts(&anneal(&all));
    assert_eq!(code, Some(0), "{all:?}: {stderr}");
    stdout
}

/// Copies `model` to `path`, with additional text metadata before the model's own metadata.
pub fn with_text(model: &Path, path: &Path, texts: &[(&str, &str)]) {
    let bytes = std::fs::read(model).expect("a model");
    // The first part contains the magic, the version and the number of tensors. The number of keys follows.
    let (head, rest) = bytes.split_at(16);
    let (keys, rest) = rest.split_at(8);
    let keys = u64::from_le_bytes(keys.try_into().expect("8 bytes")) + texts.len() as u64;
    let mut copy = [head, &keys.to_le_bytes()].concat();
    for (key, text) in texts {
        // The rest must stay aligned to 32 bytes, so the last text is padded with a template comment that consists
        // of spaces.
        let size = 8 + key.len() + 4 + 8 + text.len() + "{##}".len();
        let text = format!("{text}{{#{}#}}", " ".repeat(size.next_multiple_of(32) - size));
        copy.extend((key.len() as u64).to_le_bytes());
        copy.extend(key.as_bytes());
        copy.extend(8u32.to_le_bytes()); // a string
        copy.extend((text.len() as u64).to_le_bytes());
        copy.extend(text.as_bytes());
    }
    copy.extend(rest);
    std::fs::write(path, copy).expect("written");
}

/// Returns the exit code of `child`, which must end within `patience`.
pub fn code(child: &mut Child, patience: Duration) -> Option<i32> {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return status.code();
        }
        assert!(begin.elapsed() < patience, "it does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}
