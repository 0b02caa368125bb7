//! `anneal`: links the commands with one build of llama.cpp. All else is [`anneal_cli`]'s, which need not be compiled again
//! for another build.
#![deny(unsafe_code)]

mod auditable;

use std::process::ExitCode;

fn main() -> ExitCode {
    auditable::keep();
    anneal_cli::main(llama_link::required)
}
