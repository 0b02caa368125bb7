//! Command `anneal why`.

mod ask;

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use build_info::words::printable;
use diagnosis::{Observation, ProcessTarget, ProcessWatch, SeenSpeed, Window, diagnose, find, observe, page};
use host::Root;
use host::process::{Listener, ProcFolder};
use llama::error::Error;
use server::keys;
use tune::bench::work::Work;
use tune::roofline_cache::{self, CachedRoofline};

use crate::remote::ServerAddress;
use ask::{AskedSpeed, Asker};

/// Find out why a running server is slow
///
/// Observes a process that runs llama.cpp (llama-server, ollama, llama-cpp-python, llamafile or anneal), and compares
/// its speed with the limit of this machine. Lists the causes of low speed, each with its evidence and a fix, but
/// changes nothing. Observing a process of another user requires root.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Process ID, program name, URL or Unix socket of the server
    #[arg(value_name = "PID|NAME|URL|SOCKET")]
    process: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Measure the speed with a short request [default: only for a URL or a socket]
    #[arg(long, conflicts_with = "no_request")]
    request: bool,
    /// Send no request that generates text
    #[arg(long)]
    no_request: bool,
    /// Duration of the observation, in seconds
    #[arg(long, value_name = "S", default_value = "1.5", value_parser = duration)]
    seconds: Duration,
    /// File with API keys, for a server that requires a key; the first key is used
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
}

/// Root folder of this machine's files.
const ROOT: &str = "/";

/// Minimum duration of an observation.
const LEAST: Duration = Duration::from_millis(300);

pub fn run(args: &Args) -> Result<ExitCode> {
    let key =
        args.api_key_file.as_deref().map(keys::read).transpose()?.and_then(|keys| keys.into_iter().next());
    let (target, address) = target(&args.process, key.clone())?;
    let pid = find(Path::new(ROOT), &target)?;
    let is_named = address.is_some();
    let address = address.or_else(|| address_of(pid, key));
    let asks = args.request || is_named && !args.no_request;
    if args.request && address.is_none() {
        if ProcFolder::of(pid).are_sockets_hidden() {
            bail!(
                "cannot find the address of process {pid}\nhint: run this command as root, or give the server's URL"
            );
        }
        bail!("cannot send a request: process {pid} accepts no connections\nhint: omit --request");
    }
    let (window, speed) = watch(pid, address, asks, args.seconds)?;
    let host = host::detect(&Root::live().without_gpus()).host;
    let bytes_per_token = |path: &Path| Some(Work::of(path)?.bytes_per_token());
    let mut observation = observe(Path::new(ROOT), &host, window, speed, bytes_per_token);
    if observation.is_stranger() {
        bail!(
            "process {pid} ({}) does not run llama.cpp: it maps neither a model nor a library of ggml\nhint: name the \
             process that loaded the model",
            printable(&observation.program)
        );
    }
    add_roofline(&mut observation, roofline_cache::find(&host));
    let diagnosis = diagnose(&observation);
    let mut stdout = engine_core::terminal::stdout();
    let written = match args.json {
        true => writeln!(stdout, "{}", serde_json::to_string(&diagnosis).context("cannot write JSON")?),
        false => write!(stdout, "{}", page(&diagnosis)),
    };
    written.and_then(|()| stdout.flush()).context("cannot write to stdout")?;
    Ok(ExitCode::SUCCESS)
}

/// Observes process `pid` while it works. If `asks` is true, sends a short request to `address` meanwhile.
fn watch(
    pid: u32,
    address: Option<ServerAddress>,
    asks: bool,
    seconds: Duration,
) -> Result<(Window, SeenSpeed)> {
    let ended = || anyhow::anyhow!("process {pid} has ended");
    // The speed of one request is not the speed of a server that answers other requests at the same time.
    let is_shared = asks && is_busy(pid).with_context(ended)?;
    let mut watch = ProcessWatch::begin(Path::new(ROOT), pid).with_context(ended)?;
    let asker = address.map(|address| Asker::start(address, asks, seconds)).transpose()?;
    // After its request has ended, the process is idle, so the observation ends too.
    let is_answered = || asks && asker.as_ref().is_some_and(Asker::has_ended);
    watch.sample_until(|elapsed| elapsed >= seconds || elapsed >= LEAST && is_answered());
    let window = watch.end().with_context(ended)?;
    let answer = match asker {
        Some(asker) => asker.finish(),
        None if ProcFolder::of(pid).are_sockets_hidden() => {
            AskedSpeed { seen: None, why: "this user may not read its connections".to_string() }
        }
        None => AskedSpeed { seen: None, why: "it accepts no connections".to_string() },
    };
    let unknown = SeenSpeed { source: answer.why, ..SeenSpeed::default() };
    let mut speed = answer.seen.unwrap_or(unknown);
    if is_shared && speed.decode.is_some() {
        speed.is_shared = true;
        speed.source.push_str(", while the server answered other requests");
    }
    Ok((window, speed))
}

/// True if process `pid` computes before any request was sent to it; `None` if the process has ended.
fn is_busy(pid: u32) -> Option<bool> {
    const TIME: Duration = Duration::from_millis(200);
    const CORES: f64 = 0.1;
    let mut watch = ProcessWatch::begin(Path::new(ROOT), pid)?;
    watch.sample_until(|elapsed| elapsed >= TIME);
    Some(watch.end()?.threads.iter().map(|thread| thread.busy).sum::<f64>() > CORES)
}

/// Adds the limits of this machine.
fn add_roofline(observation: &mut Observation, found: CachedRoofline) {
    const MEASURE: &str =
        "measure the machine's limits with anneal bench --roofline, while no server is busy";
    match found {
        CachedRoofline::Fresh(roofline) => observation.roofline = Some(roofline),
        CachedRoofline::Unfit(why) => {
            let why = build_info::words::without_hint(&why);
            observation.no_roofline = Some(format!("{why}; {MEASURE}"));
        }
        CachedRoofline::Nothing => observation.no_roofline = Some(MEASURE.to_string()),
    }
}

/// Parses the argument. A URL or a socket is also the address of the server.
fn target(text: &str, key: Option<String>) -> Result<(ProcessTarget, Option<ServerAddress>)> {
    if let Ok(pid) = text.parse() {
        return Ok((ProcessTarget::Pid(pid), None));
    }
    let is_address = text.contains("://") || text.parse::<SocketAddr>().is_ok() || text.contains('/');
    if !is_address {
        return Ok((ProcessTarget::Name(text.to_string()), None));
    }
    let address = ServerAddress::read(Some(text), key).map_err(Error::Usage)?;
    let target = match &address {
        ServerAddress::Socket(path) => {
            ProcessTarget::Socket(std::path::absolute(path).with_context(|| format!("cannot find {text}"))?)
        }
        ServerAddress::Address { authority, .. } => {
            let resolved =
                authority.to_socket_addrs().with_context(|| format!("cannot resolve {authority}"))?;
            let resolved: Vec<SocketAddr> = resolved.collect();
            // A name such as localhost may have an IPv4 and an IPv6 address, and the server may listen on only one.
            match resolved.as_slice() {
                [one] => ProcessTarget::Address(*one),
                [one, ..] => {
                    ProcessTarget::Address(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), one.port()))
                }
                [] => bail!("{authority} has no address\nhint: check the name"),
            }
        }
        ServerAddress::Inside(_) => {
            bail!("internal error: the server runs in this process, which `anneal why` cannot observe")
        }
    };
    Ok((target, Some(address)))
}

/// Returns an address at which process `pid` accepts connections, preferably a loopback address.
fn address_of(pid: u32, key: Option<String>) -> Option<ServerAddress> {
    let mut listeners = ProcFolder::of(pid).listeners();
    listeners.sort_by_key(|listener| !matches!(listener, Listener::Tcp(at) if at.ip().is_loopback()));
    Some(match listeners.into_iter().next()? {
        Listener::Unix(path) => ServerAddress::Socket(path),
        Listener::Tcp(at) => {
            let ip = match at.ip() {
                ip if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
                ip => ip,
            };
            ServerAddress::Address { authority: SocketAddr::new(ip, at.port()).to_string(), key }
        }
    })
}

fn duration(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.5..=60.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "use a number of seconds from 0.5 to 60".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_a_number_a_name_or_an_address() {
        let at = |text: &str| ProcessTarget::Address(text.parse().expect("an address"));
        let cases = [
            ("4711", ProcessTarget::Pid(4711), false),
            ("llama-server", ProcessTarget::Name("llama-server".to_string()), false),
            ("http://127.0.0.1:8080", at("127.0.0.1:8080"), true),
            ("127.0.0.1:8080", at("127.0.0.1:8080"), true),
            ("/run/a.sock", ProcessTarget::Socket("/run/a.sock".into()), true),
        ];
        for (text, expected, has_address) in cases {
            let (target, address) = target(text, None).expect("valid");
            assert_eq!((target, address.is_some()), (expected, has_address), "{text}");
        }
        assert!(target("https://127.0.0.1", None).is_err());
    }

    #[test]
    fn durations_are_short() {
        assert_eq!(duration("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0.4", "61", "x", "nan", "-1"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
