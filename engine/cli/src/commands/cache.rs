//! Flags for the prompt cache, and its report in the output of `anneal run`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use build_info::Bytes;
use build_info::words::printable;
use engine_core::cache::{PromptCache, PromptCacheReport, PromptCacheRequest, Store};
use engine_core::generate::Generation;
use engine_core::runtime_host::RuntimeHost;
use engine_core::session::Session;
use engine_core::settings::Settings;
use engine_core::size;
use llama::Model;
use llama::error::{Error, Result};
use serde_json::{Value, json};

/// Flags for the prompt cache.
#[derive(clap::Args, Debug, Default)]
#[command(next_help_heading = "Prompt cache")]
pub struct CacheFlags {
    /// File that stores the evaluated prompt, so that later runs can skip a shared prefix; give a folder to store
    /// several prompts
    #[arg(long, value_name = "FILE|DIR")]
    pub prompt_cache: Option<PathBuf>,
    /// Maximum size of the prompt cache's folder, for example 500MiB; the least recently used prompts are deleted first
    /// [default: 2GiB]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub prompt_cache_size: Option<Bytes>,
    /// Read the prompt cache, but never write to it
    #[arg(long)]
    pub prompt_cache_ro: bool,
}

impl CacheFlags {
    /// Prepares the requested cache for the model at `model`. `None` if no cache is requested.
    ///
    /// # Errors
    /// If the cache or the model cannot be used, or if a flag is given without `--prompt-cache`.
    pub fn want(&self, model: &Path) -> Result<Option<PromptCacheRequest>> {
        let Some(path) = &self.prompt_cache else {
            let alone = [
                (self.prompt_cache_size.is_some(), "--prompt-cache-size"),
                (self.prompt_cache_ro, "--prompt-cache-ro"),
            ];
            return match alone.iter().find(|(given, _)| *given) {
                None => Ok(None),
                Some((_, flag)) => Err(Error::Usage(format!(
                    "{flag} has no effect without --prompt-cache\nhint: add --prompt-cache"
                ))),
            };
        };
        let store = Store::at(path, self.prompt_cache_size, self.prompt_cache_ro)?;
        PromptCacheRequest::new(store, model).map(Some)
    }
}

/// Opens the cache for `session`. `None`, with a warning, if the model does not support prompt caches.
pub fn open(
    wanted: PromptCacheRequest,
    model: &Model,
    session: &Session,
    settings: &Settings,
    runtime_host: &RuntimeHost,
) -> Option<PromptCache> {
    match wanted.open(model, session.n_ctx(), settings, runtime_host) {
        Ok((store, key)) => Some(PromptCache::new(store, key)),
        Err(error) => {
            warn(&error.to_string());
            None
        }
    }
}

fn warn(text: &str) {
    let _ = writeln!(std::io::stderr(), "warning: {}", printable(text));
}

/// Prints the number of tokens read and written, and any warnings, to stderr.
pub fn say(report: &PromptCacheReport, generation: &Generation) {
    report.notes.iter().for_each(|note| warn(note));
    let milliseconds = |time: &Duration| time.as_secs_f64() * 1e3;
    let mut parts = Vec::new();
    if let Some((size, time)) = &report.read {
        let (cached, all) = (generation.cached_tokens, generation.prompt_tokens);
        parts.push(format!("{cached} of {all} tokens read ({size}) in {:.1} ms", milliseconds(time)));
    }
    if let Some((tokens, size, time)) = &report.written {
        parts.push(format!("{tokens} tokens written ({size}) in {:.1} ms", milliseconds(time)));
    }
    if !parts.is_empty() {
        let _ = writeln!(std::io::stderr(), "prompt cache: {}", parts.join(", "));
    }
}

/// Returns the report as JSON, for `--json`.
pub fn to_json(report: &PromptCacheReport) -> Value {
    let milliseconds = |time: &Duration| time.as_secs_f64() * 1e3;
    json!({
        "read_bytes": report.read.as_ref().map(|(size, _)| size),
        "read_ms": report.read.as_ref().map(|(_, time)| milliseconds(time)),
        "written_bytes": report.written.as_ref().map(|(_, size, _)| size),
        "write_ms": report.written.as_ref().map(|(_, _, time)| milliseconds(time)),
    })
}
