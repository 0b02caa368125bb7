//! `anneal`: links the engine with one build of llama.cpp. All else is [`engine::cli`]'s, which need not be compiled again
//! for another build.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    engine::cli::main(llama_link::required)
}
