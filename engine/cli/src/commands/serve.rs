//! Command `anneal serve`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use build_info::words::printable;
use engine_core::settings::Settings;
use llama::notice;
use llama::options::FlashAttention;
use llama::start;
use serde_json::json;
use server::config::{self, Config};
use server::drafts::Who;
use server::log;
use server::models::{Resolve, Served};
use server::reload::ConfigSource;
use server::run::{Hooks, Ready};
use server::workloads::Workloads;

use super::flags::{
    ContextFlags, DeviceFlags, LoadFlags, SamplingFlags, ThreadFlags, TuningFlags, VariantFlags,
};
use super::hub::HubFlags;
use super::option_flags::option_flags;

option_flags! {
    /// Flags for the server's options.
    ServerFlags: Config = config::OPTIONS, Model Listening Requests PromptCache Drafts Log
}

/// Serve a model to other programs
///
/// Clients send lines of JSON over a Unix socket, or OpenAI-compatible HTTP requests. On SIGTERM or ctrl-C, the server
/// finishes running requests and exits; a second signal stops the server at once. SIGHUP reloads the --config file.
#[derive(clap::Args, Debug)]
#[command(after_help = super::LLAMA_FLAGS_HELP)]
pub struct Args {
    /// GGUF model
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    #[command(flatten)]
    hub: HubFlags,
    /// Configuration file; flags override it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print a configuration file that explains every key, and exit
    #[arg(long)]
    print_config: bool,
    #[command(flatten)]
    server: ServerFlags,
    /// Print the server's addresses to stdout, as one JSON object
    #[arg(long)]
    json: bool,
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
    if args.print_config {
        let mut stdout = io::stdout().lock();
        stdout.write_all(config::printed().as_bytes()).context("cannot write to stdout")?;
        return Ok(ExitCode::SUCCESS);
    }
    check_drafts(args)?;
    let model = args.hub.beside(args.model.as_deref(), args.config.is_some())?;
    let flags = Config { model, ..flags(args) };
    let read = |path| ConfigSource::read(path, flags.clone(), args.hub.fetch());
    let file = args.config.as_deref().map(read).transpose()?;
    let (mut source, config) = match file {
        Some((source, config)) => (Some(source), config),
        None => (None, flags.or(Config::default().under_environment(config::variables())?)),
    };
    let served = config.served()?;
    if let Some(wanted) = config.log() {
        log::start(wanted);
    }
    let ended = serve(args, &served, source.as_mut());
    if let (Err(error), true) = (&ended, notice::is_logged()) {
        tracing::error!("{}", printable(&build_info::words::chain(error.as_ref()).join(": ")));
    }
    log::flush(LAST_LINES);
    ended
}

/// Checks that draft flags are given together with a source of drafts. The configuration file may also set the source.
fn check_drafts(args: &Args) -> Result<()> {
    let given = &args.server.given;
    let drafts = given.draft_model.is_some() || given.speculative.is_some_and(|who| who != Who::Off);
    let alone = [
        ("--draft-max", given.draft_max.is_some()),
        ("--draft-p-min", given.draft_p_min.is_some()),
        ("--draft-near", given.draft_near.is_some()),
    ];
    match alone.iter().find(|(_, given)| *given && !drafts && args.config.is_none()) {
        None => Ok(()),
        Some((flag, _)) => Err(llama::error::Error::Usage(format!(
            "{flag} has no effect without drafts\nhint: choose a source of drafts with --speculative or \
            --draft-model FILE"
        ))
        .into()),
    }
}

/// Maximum time for writing the last lines of the log.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Returns the function that resolves the settings of a model, including its tuning record.
pub(super) fn resolve(tuning: &TuningFlags) -> Resolve {
    let tuning = tuning.clone();
    Arc::new(move |named, runtime_host| {
        let mut tuned = tuning.look_up(&named.options.model, &named.engine.variant, runtime_host);
        // `anneal tune` measures one request at a time. Without flash attention, each token is multiplied with the
        // cells of all slots. With flash attention, the results exclude the cells of other slots, and Anneal's kernels
        // skip these cells.
        if let Some(tuned) = tuned.as_mut().filter(|_| named.options.slots > 1)
            && tuned.flash_attention == Some(FlashAttention::Off)
        {
            tuned.flash_attention = None;
            notice::note(
                "the tuned setting \"no flash attention\" is ignored, because tuning measured only one request \
                at a time (slots = 1)",
            );
        }
        let settings = Settings::resolve_tuned(&named.engine, tuned.as_ref(), runtime_host)?;
        super::warn_of(&settings);
        super::warn_of_context(&named.options.model, &settings);
        Ok(settings)
    })
}

fn serve(args: &Args, served: &Served, source: Option<&mut ConfigSource>) -> Result<ExitCode> {
    let strange = Workloads::default().with_environment(config::variables());
    strange.iter().flat_map(|(_, strange)| strange).for_each(|words| notice::warn(words));
    let engine = served.models.first().map(|named| named.engine.clone());
    let runtime_host = super::placed_runtime_host(&engine.unwrap_or_default())?;
    start(args.load.verbose);
    let mut reload = source.map(|source| || read_again(source));
    let mut hooks = Hooks {
        on_ready: &mut |ready| say_ready(ready, args.json),
        reload: reload.as_mut().map(|reload| reload as &mut dyn FnMut() -> Option<Served>),
        warn: Arc::new(notice::warn),
        resolve: resolve(&args.tuning),
        inside: None,
    };
    server::run::run(served, runtime_host, &mut hooks)?;
    Ok(ExitCode::SUCCESS)
}

/// Reloads the configuration. `None` if the new configuration is invalid; the current one then remains in use.
fn read_again(source: &mut ConfigSource) -> Option<Served> {
    match source.again() {
        Ok(change) => {
            notice::note(&change.words);
            Some(change.served)
        }
        Err(error) => {
            notice::warn(&format!("the configuration is unchanged: {error}"));
            None
        }
    }
}

/// Builds the configuration from the flags.
fn flags(args: &Args) -> Config {
    let mut config = Config::default();
    args.server.ask(&mut config);
    args.sampling.ask(&mut config.engine);
    args.context.ask(&mut config.engine);
    args.threads.ask(&mut config.engine);
    args.load.ask(&mut config.engine);
    args.offload.ask(&mut config.engine);
    args.variant.ask(&mut config.engine);
    config
}

/// Prints the addresses of the server. Errors are ignored.
fn say_ready(ready: &Ready, as_json: bool) {
    let socket = ready.socket.as_ref().map(|path| path.display().to_string());
    let listen = ready.listen.map(|address| format!("http://{address}"));
    let health = ready.health.map(|address| format!("http://{address}"));
    let (model, context) = (ready.names.join(", "), ready.n_ctx);
    tracing::info!(model, context, socket, listen, health, "ready");
    if as_json {
        let mut line = json!({ "model": ready.names.first(), "context": ready.n_ctx, "socket": socket, "listen": listen });
        if health.is_some() {
            line["health"] = json!(health);
        }
        if ready.names.len() > 1 {
            line["models"] = json!(ready.names);
        }
        let mut stdout = engine_core::terminal::stdout();
        let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
        return;
    }
    if notice::is_logged() {
        return;
    }
    let places: Vec<String> = [socket, listen].into_iter().flatten().collect();
    let are = if ready.names.len() == 1 { "is" } else { "are" };
    let _ = writeln!(
        io::stderr(),
        "{} {are} served at {}",
        printable(&ready.names.join(", ")),
        printable(&places.join(" and "))
    );
}
