//! `store`: one order on standard input, one reply on standard output. `cargo xtask publish`, `build --store` and
//! `install --store` are how people speak to it.

use std::process::ExitCode;

fn main() -> ExitCode {
    ship::speak(
        "store takes an order as JSON on its standard input, and no arguments; `cargo xtask publish --help` is for people",
        store::carry_out,
    )
}
