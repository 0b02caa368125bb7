//! `anneal worker`

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use engine::settings::Requested;

/// Run candidates for `anneal tune`: requests in JSON, one a line, on stdin; answers on stdout
#[derive(clap::Args, Debug)]
pub struct Args {
    /// GGUF model
    #[arg(short, long, value_name = "FILE")]
    model: PathBuf,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    // Ctrl-C on a terminal reaches every process; the driver decides what becomes of it, and this one ends with its
    // stdin.
    crate::interrupt::leave_to_the_driver();
    let live = super::read_live();
    engine::ffi::start(false);
    engine::tune::worker::serve(
        &args.model,
        &Requested::default(),
        &live,
        io::stdin().lock(),
        io::stdout().lock(),
    )
    .context("cannot answer the driver")?;
    Ok(ExitCode::SUCCESS)
}
