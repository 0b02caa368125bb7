//! `anneal quantize`

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use engine::Error;
use engine::ffi::{exit_now, interrupted, start};
use engine::quantize::{Type, quantize};
use engine::settings::{Requested, Settings};

use super::flags::{THREADS, whole};
use crate::interrupt;

/// Quantize a model
///
/// The output appears only when it is complete; ctrl-C leaves nothing behind.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Model to read
    input: PathBuf,
    /// Model to write
    output: PathBuf,
    /// Type, by llama-quantize's names: Q4_K_M, Q8_0, F16, … (a wrong one prints them all)
    #[arg(value_name = "TYPE")]
    kind: Type,
    /// Threads [default: every core]
    #[arg(short = 't', long, value_name = "N", value_parser = whole(THREADS))]
    threads: Option<u32>,
    /// Quantize even what is quantised already, though that loses twice
    #[arg(long)]
    allow_requantize: bool,
    /// Let llama.cpp's log through to stderr
    #[arg(short, long)]
    verbose: bool,
    /// Say nothing
    #[arg(short, long)]
    quiet: bool,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let live = super::read_live();
    let requested = Requested { prefill_threads: args.threads, ..Requested::default() };
    let threads = Settings::resolve(&requested, &live)?.prefill_threads.value;
    start(args.verbose);
    interrupt::stop_in_order();
    let mut bar =
        Bar { on: !args.quiet && !args.verbose, terminal: std::io::stderr().is_terminal(), said: 0 };
    let mut on_progress = |done, total| {
        bar.show(done, total);
        !interrupted()
    };
    let result =
        quantize(&args.input, &args.output, args.kind, threads, args.allow_requantize, &mut on_progress);
    bar.end();
    match result {
        Err(Error::Interrupted) => {
            let _ =
                writeln!(std::io::stderr(), "interrupted: nothing was written to {}", args.output.display());
            // llama.cpp is still at work in another thread.
            exit_now(i32::from(interrupt::CODE))
        }
        other => other?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Counts tensors: in place on a terminal, a line each quarter elsewhere.
struct Bar {
    on: bool,
    terminal: bool,
    said: u32,
}

impl Bar {
    fn show(&mut self, done: u32, total: u32) {
        if !self.on || done == self.said || total == 0 {
            return;
        }
        let quarter = |done: u32| 4 * done / total;
        let mut stderr = std::io::stderr().lock();
        if self.terminal {
            let _ = write!(stderr, "\rquantize {done}/{total} tensors").and_then(|()| stderr.flush());
        } else if quarter(done) > quarter(self.said) {
            let _ = writeln!(stderr, "quantize {done}/{total} tensors");
        }
        self.said = done;
    }

    fn end(&self) {
        if self.on && self.terminal && self.said > 0 {
            let _ = writeln!(std::io::stderr());
        }
    }
}
