//! Program `store`: reads one order from standard input and writes one reply to standard output. Users run `store`
//! through `cargo xtask publish`, `build --store` and `install --store`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ship::speak(
        "store reads one request as JSON from standard input and takes no arguments\nhint: use `cargo xtask publish`",
        store::carry_out,
    )
}
