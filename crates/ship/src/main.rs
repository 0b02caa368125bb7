//! `ship`: one order on standard input, one reply on standard output. `cargo xtask dist`, `install` and `uninstall` are
//! how people speak to it.

use std::process::ExitCode;

fn main() -> ExitCode {
    ship::speak(
        "ship takes an order as JSON on its standard input, and no arguments; `cargo xtask install --help` and `cargo xtask \
         dist --help` are for people",
        ship::carry_out,
    )
}
