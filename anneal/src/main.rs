//! `anneal`: links the engine with one build of llama.cpp. All else is [`engine::cli`]'s, which need not be compiled again
//! for another build.
#![deny(unsafe_code)]

mod auditable;

use std::process::ExitCode;

fn main() -> ExitCode {
    auditable::keep();
    engine::cli::main(llama_link::required)
}
