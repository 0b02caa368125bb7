//! `anneal serve`

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use build_info::Bytes;
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

use super::flags::{ContextFlags, LoadFlags, SamplingFlags, ThreadFlags, TuningFlags, whole};
use super::hub::HubFlags;
use super::offload::OffloadFlags;
use super::variant::{VariantFlags, warn_of_context};

/// Serve a model to other programs
///
/// Requests come as lines of JSON over a Unix socket, or over HTTP as OpenAI's clients send them. SIGTERM or ctrl-C ends
/// it when what runs is done; a second one ends it at once. SIGHUP reads --config again.
#[derive(clap::Args, Debug)]
#[command(after_help = super::LLAMA_FLAGS_HELP)]
pub struct Args {
    /// GGUF model
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    #[command(flatten)]
    hub: HubFlags,
    /// Configuration: what no flag says is taken from here
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print a configuration with every key explained, and nothing else
    #[arg(long)]
    print_config: bool,
    /// What clients call the model [default: its file's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Template for messages in place of the model's: chatml, gemma, llama3, mistral, plain, or a Jinja file
    #[arg(long, value_name = "NAME|FILE")]
    chat_template: Option<String>,
    /// Unix socket, for lines of JSON and for HTTP [default: $XDG_RUNTIME_DIR/anneal/anneal.sock without --listen]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Group that may use the socket as well; else only this user may
    #[arg(long, value_name = "GROUP")]
    socket_group: Option<String>,
    /// Address for HTTP, as 127.0.0.1:8080; one that others can reach needs --api-key-file
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Separate address for GET /health and GET /metrics, with its own connections [default: none]
    #[arg(long, value_name = "ADDRESS")]
    health_listen: Option<SocketAddr>,
    /// File with a key in each line; requests over TCP need one of them
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Requests that run at a time [default: 4]
    #[arg(long, visible_alias = "parallel", value_name = "N", value_parser = whole("1 to 256"))]
    slots: Option<u32>,
    /// Requests that wait at most [default: 64]
    #[arg(long, value_name = "N", value_parser = whole("0 or more"))]
    queue: Option<u32>,
    /// Most tokens of an answer where a request does not say [default: 512]
    #[arg(long, value_name = "N", value_parser = whole("1 or more"))]
    max_tokens: Option<u32>,
    /// Seconds that a request may take [default: 600]
    #[arg(long, value_name = "S", value_parser = seconds)]
    timeout: Option<f64>,
    /// Seconds for which requests may go on after SIGTERM [default: 30]
    #[arg(long, value_name = "S", value_parser = seconds)]
    drain: Option<f64>,
    /// Let all clients share evaluated prompts: a client can then find out what others have asked
    #[arg(long)]
    prompt_sharing: bool,
    /// Folder that keeps prompts on the disk when no slot has room for them [default: none]
    #[arg(long, value_name = "DIR")]
    prompt_cache: Option<PathBuf>,
    /// Most that it may take, as in 500MiB [default: 2GiB]
    #[arg(long, value_name = "SIZE", value_parser = engine_core::size::parse)]
    prompt_cache_size: Option<Bytes>,
    /// Only read it
    #[arg(long)]
    prompt_cache_ro: bool,
    /// Log to stderr in this form: text or json [default: no log, unless --log-level is given]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<log::Format>,
    /// Log to stderr what is as important as this: error, warn, info, debug (with llama.cpp's messages) or trace
    /// [default: info, where --log-format is given]. Prompts and answers are never part of it, see log_prompts
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<log::Level>,
    /// Speculative decoding: off, asked (requests that ask for it), lookup (what the text itself repeats, for all that do not
    /// say otherwise) or model (of --draft-model, likewise) [default: off, or model with --draft-model]
    #[arg(long, value_name = "WHO")]
    speculative: Option<Who>,
    /// Smaller model of the same vocabulary that drafts
    #[arg(long, visible_alias = "model-draft", value_name = "FILE")]
    draft_model: Option<PathBuf>,
    /// Least probability of a token that the smaller model drafts [default: 0.75]
    #[arg(long, value_name = "P")]
    draft_p_min: Option<f32>,
    /// Most tokens of a draft, 1 to 15 [default: 7]
    #[arg(long, value_name = "N", value_parser = whole("1 to 15"))]
    draft_max: Option<u32>,
    /// Draft also where a batch of tokens rounds otherwise than single tokens
    #[arg(long)]
    draft_near: bool,
    /// Print where it listens as one JSON object on stdout
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
    offload: OffloadFlags,
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

/// Flags that say how to draft want something that drafts; a configuration may name it.
fn check_drafts(args: &Args) -> Result<()> {
    let drafts = args.draft_model.is_some() || args.speculative.is_some_and(|who| who != Who::Off);
    let alone = [
        ("--draft-max", args.draft_max.is_some()),
        ("--draft-p-min", args.draft_p_min.is_some()),
        ("--draft-near", args.draft_near),
    ];
    match alone.iter().find(|(_, given)| *given && !drafts && args.config.is_none()) {
        None => Ok(()),
        Some((flag, _)) => Err(llama::error::Error::Usage(format!(
            "{flag} without drafts: say where they come from with --speculative or --draft-model FILE"
        ))
        .into()),
    }
}

/// How long the last lines of the log may take.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The settings of a model, with what the tuning record says of it.
pub(super) fn resolve(tuning: &TuningFlags) -> Resolve {
    let tuning = tuning.clone();
    Arc::new(move |named, live| {
        let mut tuned = tuning.look_up(&named.options.model, &named.engine.variant, live);
        // A record is of one request at a time. Without flash attention a token is multiplied with the cells of all slots;
        // with it those of others are at least not summed up, and skipped where our kernels do it.
        if let Some(tuned) = tuned.as_mut().filter(|_| named.options.slots > 1)
            && tuned.flash_attention == Some(FlashAttention::Off)
        {
            tuned.flash_attention = None;
            notice::note(
                "the tuning record's \"no flash attention\" is left out: it was measured with one request at a time (slots = 1)",
            );
        }
        let settings = Settings::resolve_tuned(&named.engine, tuned.as_ref(), live)?;
        super::warn_of(&settings);
        warn_of_context(&named.options.model, &settings);
        Ok(settings)
    })
}

fn serve(args: &Args, served: &Served, source: Option<&mut ConfigSource>) -> Result<ExitCode> {
    let strange = Workloads::default().with_environment(config::variables());
    strange.iter().flat_map(|(_, strange)| strange).for_each(|words| notice::warn(words));
    let live = super::read_live();
    start(args.load.verbose);
    let mut reload = source.map(|source| || read_again(source));
    let mut hooks = Hooks {
        on_ready: &mut |ready| say_ready(ready, args.json),
        reload: reload.as_mut().map(|reload| reload as &mut dyn FnMut() -> Option<Served>),
        warn: Arc::new(notice::warn),
        resolve: resolve(&args.tuning),
        inside: None,
    };
    server::run::run(served, live, &mut hooks)?;
    Ok(ExitCode::SUCCESS)
}

/// What the configuration asks for now; nothing changes where it is wrong.
fn read_again(source: &mut ConfigSource) -> Option<Served> {
    match source.again() {
        Ok(change) => {
            notice::note(&change.words);
            Some(change.served)
        }
        Err(error) => {
            notice::warn(&format!("the configuration stays as it was: {error}"));
            None
        }
    }
}

/// What the flags ask for.
fn flags(args: &Args) -> Config {
    let mut config = Config {
        name: args.name.clone(),
        chat_template: args.chat_template.clone(),
        socket: args.socket.clone(),
        socket_group: args.socket_group.clone(),
        listen: args.listen,
        health_listen: args.health_listen,
        api_key_file: args.api_key_file.clone(),
        slots: args.slots,
        queue: args.queue,
        max_tokens: args.max_tokens,
        timeout_s: args.timeout,
        drain_s: args.drain,
        prompt_cache: args.prompt_cache.clone(),
        prompt_cache_size: args.prompt_cache_size,
        prompt_cache_ro: args.prompt_cache_ro.then_some(true),
        prompt_sharing: args.prompt_sharing.then_some(true),
        log_format: args.log_format,
        log_level: args.log_level,
        speculative: args.speculative,
        draft_model: args.draft_model.clone(),
        draft_p_min: args.draft_p_min,
        draft_max: args.draft_max,
        draft_near: args.draft_near.then_some(true),
        ..Config::default()
    };
    args.sampling.ask(&mut config.engine);
    args.context.ask(&mut config.engine);
    args.threads.ask(&mut config.engine);
    args.load.ask(&mut config.engine);
    args.offload.ask(&mut config.engine);
    args.variant.ask(&mut config.engine);
    config
}

fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.0..=604_800.0).contains(number));
    number.ok_or_else(|| "use seconds, up to 604800".to_string())
}

/// A closed stderr is nobody's concern.
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
