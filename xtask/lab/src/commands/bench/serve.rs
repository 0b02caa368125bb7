//! The `bench serve` command.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use base::exit;
use build::compare::Provenance;
use build::process;
use build::ui::Ui;
use build::workspace::Workspace;
use build_info::words::count;
use load::Interface;

use crate::serving::soak::Soak;
use crate::serving::{MeasuredServer, Race, ServerKind};

/// Options of `bench serve`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// GGUF model
    #[arg(short, long, value_name = "FILE")]
    model: PathBuf,
    /// Build of anneal's server: a profile (its current build), the path of a build folder or program, or LABEL=PATH
    #[arg(long, value_name = "BUILD", default_value = "native")]
    build: String,
    /// Server to compare with: llama-server=PATH, or another build
    #[arg(long, value_name = "SERVER")]
    against: Option<String>,
    /// Numbers of concurrent clients, measured one after the other
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,4,16,64")]
    clients: Vec<u32>,
    /// Maximum number of slots per server; with fewer clients, one slot per client
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=256))]
    most_slots: u32,
    /// Length of each prompt in tokens
    #[arg(short = 'p', long, value_name = "N", default_value_t = 128)]
    prompt: u32,
    /// Length of each answer in tokens
    #[arg(short = 'n', long, value_name = "N", default_value_t = 64)]
    generate: u32,
    /// Number of requests per client, sent one after the other
    #[arg(short, long, value_name = "N", default_value_t = 2)]
    requests: u32,
    /// Number of rounds; in each round, every server runs once with each number of clients
    #[arg(long, value_name = "N", default_value_t = 10)]
    pairs: usize,
    /// Number of threads per server [default: as many as the engine uses for decode]
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..=crate::commands::threads::MOST_THREADS))]
    threads: Option<u32>,
    /// Use prompts with a common prefix, and let the servers cache evaluated prompts
    #[arg(long)]
    warm_prefix: bool,
    /// Send JSON lines to `anneal serve` over its Unix socket instead of HTTP
    #[arg(long)]
    socket: bool,
    /// In rounds with one client, also run the `anneal bench` command of the --build program
    #[arg(long)]
    bench: bool,
    /// Soak the server instead: send this many valid and invalid requests of all kinds; fail if an answer is wrong, a
    /// slot is stuck or memory grows
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(u64).range(1..), conflicts_with_all = ["against", "bench", "socket", "warm_prefix", "pairs"])]
    soak: Option<u64>,
    /// Also write the result with all samples to this file, which is updated after each round
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Remark to add to the result
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
}

/// Measures servers, or soaks one server.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    process::begins_anew();
    let workspace = Workspace::find()?;
    let host = build::tools::host(ui);
    let threads = args
        .threads
        .unwrap_or_else(|| build_info::threads::budget(&host, build_info::Policy::Balanced).decode);
    let ours = MeasuredServer::named(&workspace, &args.build)?;
    if ours.kind != ServerKind::Anneal && (args.bench || args.soak.is_some()) {
        return Err(exit::usage("--bench and --soak require a build of anneal for --build"));
    }
    let provenance = Provenance::now(&host, command(&args, threads));
    args.out.as_deref().map_or(Ok(()), build::overwrite_guard::check_record)?;
    if let Some(requests) = args.soak {
        return soak(&args, requests, ours, threads, provenance, ui);
    }
    let mut subjects = vec![ours];
    if let Some(text) = &args.against {
        subjects.push(MeasuredServer::named(&workspace, text)?);
    }
    let race = Race {
        subjects,
        bench: args.bench,
        model: args.model.clone(),
        clients: args.clients.clone(),
        most_slots: args.most_slots,
        prompt: args.prompt,
        generate: args.generate,
        requests: args.requests,
        pairs: args.pairs,
        threads,
        warm_prefix: args.warm_prefix,
        interface: if args.socket { Interface::Lines } else { Interface::Http },
        out: args.out.clone(),
        provenance,
        note: args.note.clone(),
    };
    race.check()?;
    super::sources::warn_of_sources(
        &race.subjects.iter().map(|subject| &subject.build).collect::<Vec<_>>(),
        ui,
    );
    measure::conditions::look().iter().for_each(|condition| ui.warn(condition));
    let served = race.run(ui)?;
    served.remarks().iter().for_each(|remark| ui.say(remark));
    let (failed, words) = served.failed();
    ui.result(&Short(&served), served.table())?;
    if failed > 0 {
        bail!(
            "{} failed, so the figures cover only the successful requests: {}",
            count(failed, "request"),
            words.join("; ")
        );
    }
    Ok(())
}

/// Result without its runs. Only `--out` writes the runs.
struct Short<'a>(&'a crate::serving::Served);

impl serde::Serialize for Short<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let short = crate::serving::Served { runs: Vec::new(), ..self.0.clone() };
        short.serialize(serializer)
    }
}

fn soak(
    args: &Args,
    requests: u64,
    subject: MeasuredServer,
    threads: u32,
    provenance: Provenance,
    ui: &Ui,
) -> Result<()> {
    // Use only the first number of clients, because the server is soaked once.
    let clients = match args.clients.as_slice() {
        [1, 4, 16, 64] => 8,
        [number, ..] => (*number).clamp(1, 256),
        [] => return Err(exit::usage("--clients needs at least one number")),
    };
    let soak = Soak { subject, model: args.model.clone(), requests, clients, threads, provenance };
    let soaked = soak.run(ui)?;
    if let Some(path) = &args.out {
        build::fs::write_atomically(path, &serde_json::to_vec_pretty(&soaked)?)?;
    }
    ui.result(&soaked, soaked.text())?;
    match soaked.complaints.as_slice() {
        [] => Ok(()),
        complaints => bail!("{}", complaints.join("; ")),
    }
}

/// Returns the command that repeats this measurement, with file names instead of full paths.
fn command(args: &Args, threads: u32) -> String {
    let quote = base::shell_quote;
    let file = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let build = |text: &str| match text.split_once('=') {
        Some((label, path)) => format!("{label}={}", file(Path::new(path))),
        None => file(Path::new(text)),
    };
    let list = |numbers: &[u32]| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let mut words = vec![format!(
        "cargo xtask bench serve -m {} --build {}",
        quote(&file(&args.model)),
        quote(&build(&args.build))
    )];
    if let Some(requests) = args.soak {
        words.push(format!("--soak {requests} --clients {} -t {threads}", list(&args.clients)));
        return words.join(" ");
    }
    words.extend(args.against.iter().map(|text| format!("--against {}", quote(&build(text)))));
    words.push(format!(
        "--clients {} --most-slots {} -p {} -n {} -r {} --pairs {} -t {threads}",
        list(&args.clients),
        args.most_slots,
        args.prompt,
        args.generate,
        args.requests,
        args.pairs
    ));
    for (on, flag) in
        [(args.warm_prefix, "--warm-prefix"), (args.socket, "--socket"), (args.bench, "--bench")]
    {
        if on {
            words.push(flag.to_string());
        }
    }
    words.join(" ")
}
