//! Log of `anneal serve`: `tracing` events as lines on stderr, as text or JSON.
//!
//! Without [`start`], nothing is logged, and messages for the user are printed as in every other command. Single
//! tokens are never logged. Prompts and answers are logged only if [`LogOptions::prompts`] is set.

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

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Human-readable text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Minimum severity of logged events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// Errors of the server.
    Error,
    /// Warnings for the user.
    Warn,
    /// Finished requests, loading of models, start-up and shutdown.
    #[default]
    Info,
    /// Steps of requests, and llama.cpp's messages.
    Debug,
    /// llama.cpp's debugging messages.
    Trace,
}

/// Options of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// Format of the lines.
    pub format: LogFormat,
    /// Minimum severity.
    pub level: Level,
    /// True if prompts and answers are logged.
    pub prompts: bool,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            other => Err(format!("unknown log format {other:?}: use text or json")),
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
            other => Err(format!("unknown log level {other:?}: use error, warn, info, debug or trace")),
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

/// Log of this process.
struct Log {
    sink: Sink,
    prompts: bool,
}

static LOG: OnceLock<Log> = OnceLock::new();

/// Starts the log of this process, including llama.cpp's messages. Only the first call has an effect.
pub fn start(wanted: LogOptions) {
    if LOG.get().is_some() {
        return;
    }
    let Some(sink) = Sink::start() else {
        return notice::warn("logging is off: the log thread cannot be started");
    };
    let _ = LOG.set(Log { sink: sink.clone(), prompts: wanted.prompts });
    let filter = LevelFilter::from(wanted.level);
    // Errors when writing to stderr are ignored.
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

/// True if prompts and answers are logged.
pub fn has_prompts() -> bool {
    LOG.get().is_some_and(|log| log.prompts)
}

/// Waits until all log lines are written, but at most for `most`.
pub fn flush(most: Duration) {
    if let Some(log) = LOG.get() {
        log.sink.flush(most);
    }
}

/// Logs a line of llama.cpp.
fn of_llama(level: llama::LogLevel, line: &str) {
    const TARGET: &str = "llama.cpp";
    match level {
        // A full context is not an error: the scheduler makes room or skips the draft.
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
