//! Commands, one per file. Each has `Args`, whose doc comment is the help text, and `run`.

pub mod bench;
pub mod chat;
pub mod eval;
pub mod imatrix;
pub mod info;
pub mod logits;
pub mod mcp;
pub mod pages;
pub mod quantize;
pub mod run;
pub mod serve;
pub mod tokenize;
pub mod top;
pub mod tune;
pub mod tune_worker;
pub mod why;
pub mod worker;

mod bar;
mod cache;
mod device;
mod flags;
mod hub;
mod option_flags;
mod outlet;
mod sampling;
mod speculative;
mod sql;
mod table;

use std::ffi::OsString;
use std::path::Path;

use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::{Requested, Settings};
use llama::error::Error;

/// llama.cpp's short flags with several letters. clap would parse each of them as several flags.
const LLAMA_FLAGS: [&str; 16] = [
    "-tb", "-ub", "-ctk", "-ctv", "-fa", "-pg", "-lm", "-ngl", "-ncmoe", "-fitt", "-dev", "-sm", "-ts",
    "-mg", "-kvo", "-nkvo",
];

/// Text at the end of the help of commands that accept these flags.
const LLAMA_FLAGS_HELP: &str = "llama.cpp's short flags -tb, -ub, -ctk, -ctv, -fa, -lm, -pg, -ngl, -ncmoe, -fitt, \
                               -dev, -sm, -ts, -mg, -kvo and -nkvo also work.";

/// Turns a flag such as `-ub` into `--ub`, which is an alias of the long flag.
pub fn long_form(argument: OsString) -> OsString {
    match argument.to_str() {
        Some(text) if LLAMA_FLAGS.contains(&text) => format!("-{text}").into(),
        _ => argument,
    }
}

/// Prints the warnings of `settings`.
fn warn_of(settings: &Settings) {
    settings.warnings.iter().for_each(|warning| llama::notice::warn(warning));
}

/// Warns if the context is longer than the model at `path` was trained for.
fn warn_of_context(path: &Path, settings: &Settings) {
    if let Some(warning) = engine_core::settings::context_warning(path, settings) {
        llama::notice::warn(&warning);
    }
}

/// Reads the state of the host, and prints its warnings to stderr.
fn read_runtime_host() -> RuntimeHost {
    let runtime_host = RuntimeHost::read();
    runtime_host.switch_cuda();
    tell(runtime_host)
}

/// Reads the state of the host for a command that loads a model with `requested` options. Places the process on NUMA
/// nodes first.
///
/// # Errors
/// If the placement is impossible.
fn placed_runtime_host(requested: &Requested) -> Result<RuntimeHost, Error> {
    place_on_nodes(requested, read_runtime_host())
}

/// Places the process on the NUMA nodes in `requested`. Returns the part of the machine that the process may use.
fn place_on_nodes(requested: &Requested, runtime_host: RuntimeHost) -> Result<RuntimeHost, Error> {
    match requested.numa {
        Some(placement) => engine_core::numa::place(placement, runtime_host),
        None => Ok(runtime_host),
    }
}

/// Reads the state of the host, including the NVIDIA GPUs, for a command that prints information about the machine.
fn read_live_with_gpus() -> RuntimeHost {
    let mut runtime_host = RuntimeHost::read();
    // ggml's CUDA variables are set before the driver is queried, because the querying thread may outlast its time
    // limit.
    runtime_host.switch_cuda();
    runtime_host.ask_for_gpus();
    tell(runtime_host)
}

fn tell(runtime_host: RuntimeHost) -> RuntimeHost {
    runtime_host.warnings.iter().for_each(|warning| llama::notice::warn(warning));
    runtime_host
}

/// Returns the error for a failure to read `what` from `path`. Adds `hint` only if the path is wrong.
fn unread(what: &str, path: &Path, error: std::io::Error, hint: &str) -> anyhow::Error {
    let hint = if base::is_wrong_path(&error) { format!("\nhint: {hint}") } else { String::new() };
    anyhow::Error::new(error).context(format!("cannot read {what} {}{hint}", path.display()))
}

/// Reads the text file at `path`.
///
/// # Errors
/// If the file cannot be read or is not UTF-8.
fn read_text(path: &Path) -> anyhow::Result<String> {
    const LARGEST: u64 = 1 << 30;
    let read = std::fs::File::open(path).and_then(|file| base::to_end(file, LARGEST));
    let bytes = read.map_err(|error| unread("the text", path, error, "check the path"))?;
    String::from_utf8(bytes).map_err(|error| {
        anyhow::anyhow!(
            "the text in {} is not valid UTF-8: byte {} is invalid\nhint: convert it, for example with iconv -t UTF-8",
            path.display(),
            error.utf8_error().valid_up_to()
        )
    })
}
