//! llama.cpp's messages, line by line.

use std::ffi::{CStr, c_char};
use std::panic::catch_unwind;
use std::sync::OnceLock;

use llama_sys as sys;

/// How grave a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Something failed.
    Error,
    /// Something is odd.
    Warn,
    /// Something was done.
    Info,
    /// For those who work on it.
    Debug,
}

/// What gets the lines.
type Sink = fn(LogLevel, &str);

static SINK: OnceLock<Sink> = OnceLock::new();

/// Hands every line that llama.cpp logs from now on to `sink`; the first call counts. Nothing goes to stderr any more.
pub fn log_to(sink: Sink) {
    if SINK.set(sink).is_ok() {
        // SAFETY: a function that takes a level and a text that ends with a zero, and lives for ever.
        unsafe { sys::anneal_log_to(Some(on_line)) };
    }
}

unsafe extern "C" fn on_line(level: i32, line: *const c_char) {
    // Of ggml.h: GGML_LOG_LEVEL_DEBUG is 1.
    let level = match level {
        1 => LogLevel::Debug,
        3 => LogLevel::Warn,
        4 => LogLevel::Error,
        _ => LogLevel::Info,
    };
    // SAFETY: the shim hands over a text that ends with a zero, and keeps it until this returns.
    let line = unsafe { CStr::from_ptr(line) }.to_string_lossy();
    // Into C++ no panic goes.
    let _ = catch_unwind(|| {
        if let Some(sink) = SINK.get() {
            sink(level, &line);
        }
    });
}
