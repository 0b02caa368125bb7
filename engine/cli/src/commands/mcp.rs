//! Command `anneal mcp`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use build_info::words::printable;
use llama::start;
use server::config::Config;
use server::run::Ready;

use super::flags::{
    ContextFlags, DeviceFlags, LoadFlags, SamplingFlags, ThreadFlags, TuningFlags, VariantFlags, whole,
};
use super::hub::HubFlags;
use crate::remote::ServerAddress;

/// Offer a model to agents as MCP tools over stdin and stdout
///
/// MCP clients, such as desktop programs and editors, start this command themselves. The tools are generate, chat,
/// embed, tokenize and info. The command opens no network port. It exits when stdin closes, or on SIGTERM or ctrl-C.
#[derive(clap::Args, Debug)]
#[command(after_help = super::LLAMA_FLAGS_HELP)]
pub struct Args {
    /// GGUF model
    #[arg(short, long, value_name = "FILE", required_unless_present_any = ["hf", "connect"])]
    model: Option<PathBuf>,
    #[command(flatten)]
    hub: HubFlags,
    /// Use the `anneal serve` process at this socket instead of loading a model, so that several clients share one
    /// model
    #[arg(long, value_name = "SOCKET", conflicts_with_all = ["model", "hf"])]
    connect: Option<PathBuf>,
    /// Model name that clients see [default: the model's file name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Chat template to use instead of the model's: chatml, gemma, llama3, mistral, plain, or a Jinja file
    #[arg(long, value_name = "NAME|FILE")]
    chat_template: Option<String>,
    /// Maximum number of concurrent calls [default: 4]
    #[arg(long, visible_alias = "parallel", value_name = "N", value_parser = whole("1 to 256"))]
    slots: Option<u32>,
    /// Maximum number of tokens in an answer, for calls that do not set one [default: 512]
    #[arg(short = 'n', long, value_name = "N", value_parser = whole("1 or more"))]
    max_tokens: Option<u32>,
    #[command(flatten)]
    sampling: SamplingFlags,
    #[command(flatten)]
    context: ContextFlags,
    #[command(flatten)]
    threads: ThreadFlags,
    #[command(flatten)]
    variant: VariantFlags,
    #[command(flatten)]
    load: LoadFlags,
    #[command(flatten)]
    offload: DeviceFlags,
    #[command(flatten)]
    tuning: TuningFlags,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    if let Some(socket) = &args.connect {
        crate::mcp::connect(ServerAddress::Socket(socket.clone()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut served = config(args)?.served()?;
    served.models.iter_mut().for_each(|named| named.options.socket = None);
    let engine = served.models.first().map(|named| named.engine.clone());
    let runtime_host = super::placed_runtime_host(&engine.unwrap_or_default())?;
    start(args.load.verbose);
    crate::mcp::own(
        &served,
        super::serve::resolve(&args.tuning),
        runtime_host,
        &mut say_ready,
        Arc::new(warn),
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Builds the configuration from the flags.
fn config(args: &Args) -> Result<Config> {
    let mut config = Config {
        model: args.hub.any(args.model.as_deref())?,
        name: args.name.clone(),
        chat_template: args.chat_template.clone(),
        slots: args.slots,
        max_tokens: args.max_tokens,
        // The empty path prevents a search for the default path, which may fail. The empty path is removed later.
        socket: Some(PathBuf::new()),
        ..Config::default()
    };
    args.sampling.ask(&mut config.engine);
    args.context.ask(&mut config.engine);
    args.threads.ask(&mut config.engine);
    args.load.ask(&mut config.engine);
    args.offload.ask(&mut config.engine);
    args.variant.ask(&mut config.engine);
    Ok(config)
}

/// Prints that the model is loaded. Errors are ignored.
fn say_ready(ready: &Ready) {
    let (name, n_ctx) = (ready.names.join(", "), ready.n_ctx.unwrap_or(0));
    let _ = writeln!(io::stderr(), "{} is loaded, context {n_ctx}", printable(&name));
}

fn warn(words: &str) {
    // A warning must fit on a single line.
    let _ = writeln!(io::stderr(), "warning: {}", printable(words));
}
