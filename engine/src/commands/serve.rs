//! `anneal serve`

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use engine::ffi::start;
use engine::serve::listen;
use engine::serve::run::{Options, Ready};
use engine::serve::scheduler::Rules;
use engine::serve::server::Limits;
use engine::settings::{Requested, Settings};
use serde_json::json;

use super::flags::{ContextFlags, LoadFlags, SamplingFlags, ThreadFlags, TuningFlags, whole};

/// Serve a model to other programs
///
/// Requests come as lines of JSON over a Unix socket, or over HTTP as OpenAI's clients send them. SIGTERM or ctrl-C ends
/// it when what runs is done; a second one ends it at once.
#[derive(clap::Args, Debug)]
#[command(after_help = super::LLAMA_FLAGS_HELP)]
pub struct Args {
    /// GGUF model
    #[arg(short, long, value_name = "FILE")]
    model: PathBuf,
    /// What clients call the model [default: its file's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Unix socket, for lines of JSON and for HTTP [default: $XDG_RUNTIME_DIR/anneal/anneal.sock without --listen]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Group that may use the socket as well; else only this user may
    #[arg(long, value_name = "GROUP", requires = "socket")]
    socket_group: Option<String>,
    /// Address for HTTP, as 127.0.0.1:8080; one that others can reach needs --api-key-file
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Requests that run at a time [default: 4]
    #[arg(long, visible_alias = "parallel", value_name = "N", value_parser = whole("1 to 256"))]
    slots: Option<u32>,
    /// Requests that wait at most [default: 64]
    #[arg(long, value_name = "N", value_parser = whole("0 or more"))]
    queue: Option<u32>,
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
    load: LoadFlags,
    #[command(flatten)]
    tuning: TuningFlags,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let mut requested = Requested::default();
    args.sampling.ask(&mut requested);
    args.context.ask(&mut requested);
    args.threads.ask(&mut requested);
    args.load.ask(&mut requested);
    let live = super::read_live();
    let tuned = args.tuning.look_up(&args.model, &live);
    let settings = Settings::resolve_tuned(&requested, tuned.as_ref(), &live)?;
    super::warn_of(&settings);
    let options = options(args)?;
    start(args.load.verbose);
    engine::serve::run::run(&options, &settings, live, &mut |ready| say_ready(ready, args.json))?;
    Ok(ExitCode::SUCCESS)
}

fn options(args: &Args) -> Result<Options> {
    let socket = match (&args.socket, args.listen) {
        (Some(path), _) => Some(path.clone()),
        (None, Some(_)) => None,
        (None, None) => Some(listen::default_path()?),
    };
    let stem = args.model.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    Ok(Options {
        model: args.model.clone(),
        name: args.name.clone().or(stem).unwrap_or_default(),
        socket,
        group: args.socket_group.as_deref().map(listen::group).transpose()?,
        listen: args.listen,
        keys: Vec::new(),
        slots: args.slots.unwrap_or(4),
        queue: args.queue.unwrap_or(64) as usize,
        max_tokens: 512,
        deadline: Duration::from_secs(600),
        limits: Limits {
            request: 8 << 20,
            connections: 512,
            idle: Duration::from_secs(300),
            stall: Duration::from_secs(30),
            drain: Duration::from_secs(30),
        },
        rules: Rules { reuse: true, step: Duration::from_millis(250), stall: Duration::from_secs(30) },
    })
}

/// A closed stderr is nobody's concern.
fn say_ready(ready: &Ready, as_json: bool) {
    let socket = ready.socket.as_ref().map(|path| path.display().to_string());
    let listen = ready.listen.map(|address| format!("http://{address}"));
    if as_json {
        let line = json!({ "model": ready.name, "context": ready.n_ctx, "socket": socket, "listen": listen });
        let mut stdout = io::stdout().lock();
        let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
        return;
    }
    let places: Vec<String> = [socket, listen].into_iter().flatten().collect();
    let _ = writeln!(io::stderr(), "{} is served at {}", ready.name, places.join(" and "));
}
