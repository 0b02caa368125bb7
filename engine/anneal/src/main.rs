//! Program `anneal`: links the commands with one build of llama.cpp. All other code is in [`anneal_cli`], which another
//! build of llama.cpp does not recompile.
#![deny(unsafe_code)]

mod auditable;

use std::process::ExitCode;

fn main() -> ExitCode {
    auditable::keep();
    anneal_cli::main(llama_link::required)
}
