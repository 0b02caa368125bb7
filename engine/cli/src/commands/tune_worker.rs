//! Command `anneal tune-worker`.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};

use anyhow::{Context as _, Result};
use engine_core::settings::Requested;

use super::flags::RequireFlag;

/// Run candidates for `anneal tune`: read JSON requests from stdin, one per line, and write the answers to stdout
#[derive(clap::Args, Debug)]
pub struct Args {
    /// GGUF model
    #[arg(short, long, value_name = "FILE")]
    model: PathBuf,
    #[command(flatten)]
    require: RequireFlag,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    // Ctrl-C on a terminal reaches every process. The driver handles the signal, and this process ends when its stdin
    // closes.
    crate::interrupt::leave_to_the_driver();
    let runtime_host = super::read_runtime_host();
    llama::start(false);
    let mut given = Requested::default();
    args.require.ask(&mut given);
    tune::tuner::worker::serve(
        &args.model,
        &given,
        &runtime_host,
        requests().into_iter(),
        io::stdout().lock(),
    )
    .context("cannot send the answer to the tuning process")?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the lines of stdin. When stdin closes, the process ends, even during a measurement. The driver has then
/// ended: it cannot stop this process, and no longer needs the answer.
fn requests() -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
        llama::exit_now(0);
    });
    receiver
}
