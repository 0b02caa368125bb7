//! Command `anneal worker`.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use build_info::words::printable;
use engine_core::gpu;
use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::{Requested, Settings, THREADS};
use llama::error::Error;
use llama::offload::{DEFAULT_PORT, Devices, without_faulty};
use llama::{Device, DeviceKind};
use server::address::not_an_address;

use super::flags::{RequireFlag, whole};
use crate::interrupt;

/// Run model layers for other machines that use --rpc
///
/// The worker serves llama.cpp's RPC to one client at a time. RPC has no passwords and no encryption, and trusts its
/// clients: anyone who can connect to the port can take over this process. By default, the worker therefore listens
/// only on loopback, and serves only processes of its own user or of root. To use the worker from another machine,
/// set up a tunnel (ssh -L) or, on a private network, use --trust-network.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Address to listen on: an IPv4 address and a port
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = SocketAddrV4::new(Ipv4Addr::LOCALHOST, DEFAULT_PORT), value_parser = address)]
    listen: SocketAddrV4,
    /// Allow listening on an address that other machines can reach. Anyone who can reach the address can then read the
    /// computed data, and run programs as this user
    #[arg(long)]
    trust_network: bool,
    /// Serve every user on this machine. Any user can then read the computed data, and run programs as this user
    #[arg(long)]
    trust_users: bool,
    /// Number of threads that compute on the CPU [default: one per core]
    #[arg(short = 't', long, value_name = "N", value_parser = whole(THREADS))]
    threads: Option<u32>,
    /// Devices to compute on, as named by `anneal info` [default: every GPU, or the CPU if there is no GPU]
    #[arg(long, visible_aliases = ["device", "dev"], value_name = "LIST")]
    devices: Option<Devices>,
    /// Print llama.cpp's log and ggml's RPC messages to stderr
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    require: RequireFlag,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    check(args)?;
    let runtime_host = super::read_runtime_host();
    let mut requested = Requested { decode_threads: args.threads, ..Requested::default() };
    args.require.ask(&mut requested);
    let settings = Settings::resolve(&requested, &runtime_host)?;
    super::warn_of(&settings);
    llama::start(args.verbose);
    if llama::rpc_version().is_none() {
        return Err(Error::Usage(format!("anneal worker: {}", llama::offload::NO_RPC)).into());
    }
    // Clients cannot see which devices this worker uses, so the worker itself checks the GPU requirement. If the user
    // specified devices, the choice has already been made.
    if matches!(args.devices, None | Some(Devices::Auto)) {
        gpu::require_device_for("run layers for other machines on a GPU", &settings, &runtime_host)?;
    }
    let devices = chosen(args.devices.as_ref(), llama::devices()).map_err(Error::Usage)?;
    let threads = settings.prefill_threads.value;
    // The address is checked first, because ggml reports no reason for a failure.
    drop(TcpListener::bind(args.listen).map_err(|why| cannot_listen(args.listen, &why))?);
    if !args.listen.ip().is_loopback() {
        llama::notice::warn(&format!(
            "anyone who can reach {} can read the computed data and take over this process \
            (--trust-network)\nhint: use a firewall that admits only the worker's clients",
            args.listen
        ));
    }
    guard(args)?;
    interrupt::end_at_once();
    let told = told(args.listen, &devices, threads, &runtime_host);
    listen_to_ggml(args.listen, told, args.verbose).context("cannot redirect ggml's output")?;
    Err(llama::serve_devices(&args.listen.to_string(), threads, &devices).err().map_or_else(
        || Error::Serve("ggml's server ended unexpectedly".to_string()).into(),
        anyhow::Error::from,
    ))
}

/// Refuses other users of this machine, unless they are trusted. The user behind a connection from another machine is
/// unknown.
///
/// # Errors
/// If the users who connect cannot be determined.
fn guard(args: &Args) -> llama::error::Result<()> {
    let (at, own) = (args.listen, args.listen.ip().is_loopback());
    if own && args.trust_users {
        llama::notice::warn(&format!(
            "every user on this machine can reach {at}, read the computed data and take over this process \
            (--trust-users)"
        ));
    }
    match !own || args.trust_users || llama::refuse_other_users(at.port()) {
        true => Ok(()),
        false => Err(Error::Listen {
            at: at.to_string(),
            why: "cannot determine which users connect, because /proc/net/tcp or /proc/self/fd cannot be read; \
                 other users on this machine could take over the worker\nhint: mount /proc, or allow all users \
                 with --trust-users"
                .to_string(),
        }),
    }
}

fn check(args: &Args) -> llama::error::Result<()> {
    match args.trust_network || args.listen.ip().is_loopback() {
        true => Ok(()),
        false => Err(Error::Usage(format!(
            "--listen {}: other machines can reach this address and take over the worker, because llama.cpp's RPC \
            has no passwords\nhint: listen on 127.0.0.1 and connect through a tunnel from the other machine (ssh -L \
            {}:127.0.0.1:{} HOST), or use --trust-network if you trust every machine on this network",
            args.listen,
            args.listen.port(),
            args.listen.port(),
        ))),
    }
}

fn address(text: &str) -> Result<SocketAddrV4, String> {
    let wrong = |_| not_an_address::<Ipv4Addr>(text, "an IPv4 address", DEFAULT_PORT);
    let named = text.strip_prefix("localhost").map(|rest| format!("{}{rest}", Ipv4Addr::LOCALHOST));
    let address: SocketAddrV4 = named.as_deref().unwrap_or(text).parse().map_err(wrong)?;
    match address.port() {
        0 => {
            Err("with port 0, clients would not know the port\nhint: choose a port other than 0".to_string())
        }
        _ => Ok(address),
    }
}

/// Returns the devices that run layers for clients.
///
/// # Errors
/// If a named device does not exist or cannot be used.
fn chosen(asked: Option<&Devices>, all: Vec<Device>) -> std::result::Result<Vec<Device>, String> {
    let cpu = |device: &Device| device.kind == DeviceKind::Cpu && device.backend == "CPU";
    let of = |wanted: &dyn Fn(&Device) -> bool| -> Vec<Device> {
        all.iter().filter(|device| wanted(device)).cloned().collect()
    };
    match asked {
        None | Some(Devices::Auto) => {
            let gpus = without_faulty(of(&|device| device.kind == DeviceKind::Gpu));
            Ok(if gpus.is_empty() { of(&cpu) } else { gpus })
        }
        Some(Devices::None) => Ok(of(&cpu)),
        Some(Devices::Named(names)) => names
            .iter()
            .map(|name| {
                let found = all.iter().find(|device| device.name.eq_ignore_ascii_case(name));
                if let Some(why) = found.and_then(Device::fault) {
                    return Err(format!("--devices {name}: this device cannot be used: {why}"));
                }
                found.cloned().ok_or_else(|| {
                    let there: Vec<&str> = all.iter().map(|device| device.name.as_str()).collect();
                    format!("--devices {name}: no such device\nhint: available devices: {}", there.join(", "))
                })
            })
            .collect(),
    }
}

fn cannot_listen(at: SocketAddrV4, why: &io::Error) -> Error {
    let why = match why.kind() {
        io::ErrorKind::AddrInUse => {
            "another program is already listening on this address\nhint: stop that program, or choose another port with --listen"
                .to_string()
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine does not have this address\nhint: list the addresses of this machine with `ip address`".to_string()
        }
        _ => why.to_string(),
    };
    Error::Listen { at: at.to_string(), why }
}

/// Returns the message to print when clients can connect.
fn told(at: SocketAddrV4, devices: &[Device], threads: u32, runtime_host: &RuntimeHost) -> String {
    let one = |device: &Device| {
        let threads = match (device.kind, threads) {
            (DeviceKind::Gpu, _) => String::new(),
            (DeviceKind::Cpu, 1) => ", 1 thread".to_string(),
            (DeviceKind::Cpu, threads) => format!(", {threads} threads"),
        };
        // For the CPU, ggml reports all memory as free.
        let free = match device.kind {
            DeviceKind::Cpu => runtime_host.memory(),
            DeviceKind::Gpu => device.memory().map(|(_, free)| free),
        };
        let memory = free.map_or(String::new(), |free| format!(", {free} free"));
        format!("{} ({}{threads}{memory})", device.name, printable(&device.description))
    };
    let devices: Vec<String> = devices.iter().map(one).collect();
    format!("worker listens at {at} with {}", devices.join(", "))
}

/// Maximum time between the last line that ggml prints and the opening of the socket.
const SOON: Duration = Duration::from_secs(5);

/// Redirects stdout, to which ggml prints. Prints a message once ggml listens and, if `verbose`, ggml's lines.
///
/// # Errors
/// If the pipe or the thread cannot be created.
fn listen_to_ggml(at: SocketAddrV4, told: String, verbose: bool) -> io::Result<()> {
    let (reader, writer) = io::pipe()?;
    rustix::stdio::dup2_stdout(&writer)?;
    let listen = move || {
        for line in BufReader::new(reader).lines().map_while(std::result::Result::ok) {
            if verbose {
                let _ = writeln!(io::stderr(), "{}", printable(line.trim_end()));
            }
            if line.starts_with("Accepted ") {
                llama::watch_clients(at.port());
            }
            // ggml prints this line last, before it opens its socket.
            if line.trim_start().starts_with("transport ") {
                let begin = Instant::now();
                while !is_listened_at(at) && begin.elapsed() < SOON {
                    std::thread::sleep(Duration::from_millis(2));
                }
                let _ = writeln!(io::stderr(), "{told}");
            }
        }
    };
    std::thread::Builder::new().name("output".to_string()).spawn(listen).map(drop)
}

/// True if the system reports a listener at `at`. A test connection is not possible, because it would count as a
/// client.
fn is_listened_at(at: SocketAddrV4) -> bool {
    let Ok(sockets) = fs::read_to_string("/proc/net/tcp") else { return true };
    has_listener(&sockets, at)
}

fn has_listener(sockets: &str, at: SocketAddrV4) -> bool {
    // In the kernel's format: the address bytes as a native integer, and the state TCP_LISTEN.
    let local = format!("{:08X}:{:04X}", u32::from_ne_bytes(at.ip().octets()), at.port());
    sockets.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(1) == Some(&local.as_str()) && fields.get(3) == Some(&"0A")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_ipv4_with_a_port() {
        for (text, expected) in
            [("127.0.0.1:1", "127.0.0.1:1"), ("localhost:50", "127.0.0.1:50"), ("0.0.0.0:9", "0.0.0.0:9")]
        {
            assert_eq!(address(text).map(|address| address.to_string()), Ok(expected.to_string()));
        }
        for text in ["", "127.0.0.1", "[::1]:50052", "box:1", "127.0.0.1:0"] {
            assert!(address(text).is_err(), "{text:?} was taken");
        }
        for (text, expected) in [
            ("10.0.0.5", "10.0.0.5:50052"),
            ("50053", "127.0.0.1:50053"),
            (":50053", "127.0.0.1:50053"),
            ("localhost", "127.0.0.1:50052"),
            ("[::1]:50052", "127.0.0.1:50052"),
        ] {
            let why = address(text).expect_err(text);
            assert!(
                why.ends_with(&format!("with a port\nhint: use an address such as {expected}")),
                "{text}: {why}"
            );
        }
    }

    #[test]
    fn a_listener_is_found_among_the_sockets() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let std::net::SocketAddr::V4(at) = listener.local_addr().expect("an address") else { unreachable!() };
        assert!(is_listened_at(at));
        drop(listener);
        let begin = Instant::now();
        while is_listened_at(at) {
            assert!(begin.elapsed() < SOON, "it stays");
        }
        let line = "   0: 0100007F:C384 00000000:0000 01 00000000:00000000";
        assert!(
            !has_listener(line, "127.0.0.1:50052".parse().expect("an address")),
            "connected, not listening"
        );
    }

    #[test]
    fn the_cpu_computes_where_there_is_no_gpu() {
        let device = |name: &str, backend: &str, kind| Device {
            index: 0,
            name: name.to_string(),
            description: String::new(),
            backend: backend.to_string(),
            kind,
            shares_memory: false,
        };
        let blas = device("BLAS", "BLAS", DeviceKind::Cpu);
        let cpu = device("CPU", "CPU", DeviceKind::Cpu);
        let gpu = device("CUDA0", "CUDA", DeviceKind::Gpu);
        let here = vec![blas.clone(), cpu.clone()];
        let both = vec![gpu.clone(), blas, cpu.clone()];
        assert_eq!(chosen(None, here), Ok(vec![cpu.clone()]));
        assert_eq!(chosen(None, both.clone()), Ok(vec![gpu.clone()]));
        assert_eq!(chosen(Some(&Devices::None), both.clone()), Ok(vec![cpu.clone()]));
        let named = |text: &str| chosen(text.parse().ok().as_ref(), both.clone());
        assert_eq!(named("cpu,CUDA0"), Ok(vec![cpu, gpu]));
        assert!(named("CUDA1").is_err_and(|why| why.contains("available devices: CUDA0, BLAS, CPU")));
    }
}
