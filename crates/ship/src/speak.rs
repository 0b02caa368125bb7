//! Protocol of programs that take orders: one order on standard input, one reply on standard output.

use std::io::{IsTerminal, Read, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use base::exit;
use build_info::words;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::interrupt;
use crate::order::{Failed, Reply};

/// Reads an order, carries it out, writes the reply, and returns the exit code. A user who gives no order sees the
/// message `people`.
pub fn speak<O: DeserializeOwned, A: Serialize>(
    people: &str,
    carry_out: impl FnOnce(&O) -> Result<A>,
) -> ExitCode {
    let done = interrupt::catch_signals().and_then(|()| order(people)).and_then(|order| carry_out(&order));
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

/// Reads the order from standard input.
fn order<O: DeserializeOwned>(people: &str) -> Result<O> {
    let mut stdin = std::io::stdin();
    if stdin.is_terminal() || std::env::args_os().len() > 1 {
        return Err(exit::usage(people));
    }
    let mut text = Vec::new();
    stdin.read_to_end(&mut text).context("cannot read the request from stdin")?;
    serde_json::from_slice(&text)
        .map_err(|error| exit::usage(format!("cannot parse the request on stdin: {error}")))
}
