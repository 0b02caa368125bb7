//! Program `ship`: reads one order from standard input and writes one reply to standard output. Users run `ship`
//! through `cargo xtask dist`, `install` and `uninstall`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ship::speak(
        "ship reads one request as JSON from standard input and takes no arguments\nhint: use `cargo xtask install` \
         or `cargo xtask dist`",
        ship::carry_out,
    )
}
