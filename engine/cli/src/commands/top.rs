//! Command `anneal top`.

mod look;
mod screen;
mod view;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use base::exit::TRY_AGAIN;
use build_info::words::{self, printable};
use llama::error::Error;
use look::{Looker, Seen};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use serde_json::json;
use server::keys;
use view::View;

use crate::remote::{Failure, ServerAddress};

/// Watch a running server: slots, speed, queue, cache, threads, memory
///
/// Runs until you press q or ctrl-C. If stdout is a pipe, or with --once, prints the state once. With --json, prints
/// one line per update. The output never contains prompts or answers.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Socket or address of the server, for example http://127.0.0.1:8080 [default:
    /// $XDG_RUNTIME_DIR/anneal/anneal.sock]
    #[arg(value_name = "SOCKET|URL")]
    server: Option<String>,
    /// Print the state once and exit; the exit code is 75 if the server does not answer
    #[arg(long)]
    once: bool,
    /// Print one JSON object per update; with --once, only one
    #[arg(long)]
    json: bool,
    /// Interval between updates, in seconds
    #[arg(long, value_name = "S", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// File with API keys, for a server given as an address instead of a socket; the first key is used
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let key =
        args.api_key_file.as_deref().map(keys::read).transpose()?.and_then(|keys| keys.into_iter().next());
    let place = ServerAddress::read(args.server.as_deref(), key).map_err(Error::Usage)?;
    let mut looker = Looker::new(place.clone(), args.interval)?;
    match (args.json, args.once || !io::stdout().is_terminal()) {
        (true, _) => lines(&mut looker, args.once),
        (false, true) => once(&place, &mut looker),
        (false, false) => {
            screen::run(&place, looker)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Prints the state once. Queries the server twice, because computing rates requires two states.
fn once(place: &ServerAddress, looker: &mut Looker) -> Result<ExitCode> {
    let seen = looker.look().and_then(|_| {
        looker.rest();
        looker.look()
    });
    let seen = match seen {
        Ok(seen) => seen,
        Err(failure) => return fail(&failure),
    };
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let mut view = View::new(place.to_string(), false);
    view.see(Ok(seen));
    let width = columns.unwrap_or(80_u16).clamp(20, 500);
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, view.height(width)));
    view.draw(buffer.area, &mut buffer);
    let text: Vec<String> = rows(&buffer);
    let mut stdout = engine_core::terminal::stdout();
    writeln!(stdout, "{}", text.join("\n").trim_end()).context("cannot write to stdout")?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the text in `buffer`, line by line.
fn rows(buffer: &Buffer) -> Vec<String> {
    let row = |y| {
        let text: String = (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect();
        text.trim_end().to_string()
    };
    (0..buffer.area.height).map(row).collect()
}

/// Prints one line of JSON per update, or per failed query.
fn lines(looker: &mut Looker, once: bool) -> Result<ExitCode> {
    if once {
        let seen = looker.look().and_then(|_| {
            looker.rest();
            looker.look()
        });
        return match seen {
            Ok(seen) => line(&to_json(&seen)).map(|()| ExitCode::SUCCESS),
            Err(failure) => fail(&failure),
        };
    }
    loop {
        match looker.look() {
            Ok(seen) => line(&to_json(&seen))?,
            Err(failure) => line(&json!({ "error": words::with_inline_hint(&failure.to_string()) }))?,
        }
        looker.rest();
    }
}

fn line(value: &serde_json::Value) -> Result<()> {
    let mut stdout = engine_core::terminal::stdout();
    writeln!(stdout, "{value}").and_then(|()| stdout.flush()).context("cannot write to stdout")
}

/// Returns the server's state together with the rates.
fn to_json(seen: &Seen) -> serde_json::Value {
    let mut value = json!(seen.status);
    value["rates"] = json!(seen.rates);
    value
}

fn fail(failure: &Failure) -> Result<ExitCode> {
    const START: &str = "start the server with `anneal serve`, or give the socket or address of a running server, as \
                         in `anneal top http://127.0.0.1:8080`";
    let text = failure.to_string();
    let (text, hint) = words::split_hint(&text);
    let (code, hint) = match failure {
        Failure::Gone { connected: false, .. } => (ExitCode::from(TRY_AGAIN), Some(START)),
        Failure::Gone { .. } => (ExitCode::from(TRY_AGAIN), hint),
        _ => (ExitCode::FAILURE, hint),
    };
    let mut stderr = io::stderr().lock();
    let _ = writeln!(stderr, "error: {}", printable(text));
    if let Some(hint) = hint {
        let _ = writeln!(stderr, "hint: {}", printable(hint));
    }
    Ok(code)
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "use a number of seconds from 0.1 to 3600".to_string())
}
