//! The log of `anneal serve`: events of `tracing`, one line each on stderr, as text or as JSON.
//!
//! Without [`start`] there is none: what the user should know is said in plain words, as by every other command. Nothing
//! is logged for a token, and neither prompts nor answers are, unless [`LogOptions::prompts`] asks for them.

mod sink;

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use build_info::words::printable;
use llama::notice;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::{fmt as lines, registry};

use sink::Sink;

/// What lines look like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object each.
    Json,
}

/// Which lines there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// What failed here.
    Error,
    /// What the user should know.
    Warn,
    /// Each request when it is over, loading, the start and the end.
    #[default]
    Info,
    /// What becomes of requests until then, and llama.cpp's messages.
    Debug,
    /// llama.cpp's debugging.
    Trace,
}

/// A log that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// What lines look like.
    pub format: LogFormat,
    /// Which there are.
    pub level: Level,
    /// Whether prompts and answers are in it.
    pub prompts: bool,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            other => Err(format!("{other:?} is no format of the log: use text or json")),
        }
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "error" => Ok(Level::Error),
            "warn" => Ok(Level::Warn),
            "info" => Ok(Level::Info),
            "debug" => Ok(Level::Debug),
            "trace" => Ok(Level::Trace),
            other => Err(format!("{other:?} is no level of the log: use error, warn, info, debug or trace")),
        }
    }
}

impl From<Level> for LevelFilter {
    fn from(level: Level) -> Self {
        match level {
            Level::Error => LevelFilter::ERROR,
            Level::Warn => LevelFilter::WARN,
            Level::Info => LevelFilter::INFO,
            Level::Debug => LevelFilter::DEBUG,
            Level::Trace => LevelFilter::TRACE,
        }
    }
}

/// The log of this process.
struct Log {
    sink: Sink,
    prompts: bool,
}

static LOG: OnceLock<Log> = OnceLock::new();

/// Starts the log of this process; the first call counts. llama.cpp's messages are part of it.
pub fn start(wanted: LogOptions) {
    if LOG.get().is_some() {
        return;
    }
    let Some(sink) = Sink::start() else {
        return notice::warn("there is no log: no thread could be started for it");
    };
    let _ = LOG.set(Log { sink: sink.clone(), prompts: wanted.prompts });
    let filter = LevelFilter::from(wanted.level);
    // A stderr that nobody reads is nobody's concern.
    let all = lines::layer().with_writer(sink).with_ansi(false).log_internal_errors(false);
    let set = match wanted.format {
        LogFormat::Text => tracing::subscriber::set_global_default(registry().with(filter).with(all)),
        LogFormat::Json => {
            let all = all.json().flatten_event(true).with_current_span(false).with_span_list(false);
            tracing::subscriber::set_global_default(registry().with(filter).with(all))
        }
    };
    if set.is_ok() {
        llama::log_to(of_llama);
    }
}

/// Whether prompts and answers are part of it.
pub fn has_prompts() -> bool {
    LOG.get().is_some_and(|log| log.prompts)
}

/// Waits until what was logged is written, for `most` at most.
pub fn flush(most: Duration) {
    if let Some(log) = LOG.get() {
        log.sink.flush(most);
    }
}

/// A line of llama.cpp.
fn of_llama(level: llama::LogLevel, line: &str) {
    const TARGET: &str = "llama.cpp";
    match level {
        // No fault: the scheduler makes room, or does without a draft.
        llama::LogLevel::Warn if line.contains("failed to find a memory slot") => {
            tracing::debug!(target: TARGET, "{}", printable(line));
        }
        llama::LogLevel::Error => tracing::error!(target: TARGET, "{}", printable(line)),
        llama::LogLevel::Warn => tracing::warn!(target: TARGET, "{}", printable(line)),
        llama::LogLevel::Info => tracing::debug!(target: TARGET, "{}", printable(line)),
        llama::LogLevel::Debug => tracing::trace!(target: TARGET, "{}", printable(line)),
    }
}

impl fmt::Display for Level {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        LevelFilter::from(*self).fmt(out)
    }
}
