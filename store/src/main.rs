//! `store`: one order on standard input, one reply on standard output. `cargo xtask publish`, `build --store` and
//! `install --store` are how people speak to it.

use std::io::{IsTerminal, Read, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use build_info::words;
use ship::exit;
use store::order::Failed;
use store::{Order, Reply};

fn main() -> ExitCode {
    let done = ship::catch_signals().and_then(|()| order()).and_then(|order| store::carry_out(&order));
    let (code, reply) = match done {
        Ok(answer) => (0, Reply::Done(answer)),
        Err(error) => {
            let code = exit::code_of(&error);
            (code, Reply::Failed(Failed { code, said: words::chain(error.as_ref()) }))
        }
    };
    let text = serde_json::to_string(&reply).unwrap_or_default();
    if let Err(error) = writeln!(std::io::stdout(), "{text}") {
        let _ = writeln!(std::io::stderr(), "error: cannot write the reply to stdout\n  caused by: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::from(code)
}

/// The order that somebody gives.
fn order() -> Result<Order> {
    let mut stdin = std::io::stdin();
    if stdin.is_terminal() || std::env::args_os().len() > 1 {
        return Err(exit::usage(
            "store takes an order as JSON on its standard input, and no arguments; `cargo xtask publish --help` is for \
             people",
        ));
    }
    let mut text = Vec::new();
    stdin.read_to_end(&mut text).context("cannot read the order")?;
    serde_json::from_slice(&text)
        .map_err(|error| exit::usage(format!("cannot understand the order: {error}")))
}
