//! One file per command: `Args`, whose doc comment is the help, and `run`.

pub mod bench;
pub mod info;
pub mod logits;
pub mod quantize;
pub mod run;
pub mod tune;
pub mod worker;

mod flags;
mod sql;
mod table;

use std::ffi::OsString;
use std::io::Write;

use engine::live::Live;
use engine::settings::Settings;
use engine::split::Layouts;

/// llama.cpp's short flags of several letters, which clap would take for several flags.
const LLAMA_FLAGS: [&str; 7] = ["-tb", "-ub", "-ctk", "-ctv", "-fa", "-pg", "-lm"];

/// Said at the end of the help of the commands that take them.
const LLAMA_FLAGS_HELP: &str = "llama.cpp's spellings -tb, -ub, -ctk, -ctv, -fa, -lm and -pg are taken too.";

/// `-ub` as `--ub`, an alias of the flag.
pub fn long_form(argument: OsString) -> OsString {
    match argument.to_str() {
        Some(text) if LLAMA_FLAGS.contains(&text) => format!("-{text}").into(),
        _ => argument,
    }
}

/// Says what the user should know before `settings` run.
fn warn_of(settings: &Settings) {
    for warning in &settings.warnings {
        let _ = writeln!(std::io::stderr(), "warning: {warning}");
    }
}

/// Says why weights are not there in two layouts, where that was asked for.
fn warn_of_one_layout(layouts: &Layouts) {
    if let Some(why) = layouts.why_not() {
        let _ = writeln!(std::io::stderr(), "warning: the split layout is not used: {why}");
    }
}

/// What every command looks at first; warnings go to stderr once.
fn read_live() -> Live {
    let live = Live::read();
    for warning in &live.warnings {
        let _ = writeln!(std::io::stderr(), "warning: {warning}");
    }
    live
}
