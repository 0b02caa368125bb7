//! Workers on other machines: their addresses, and a check that the workers can be used.
//!
//! ggml's client ends the process if a worker does not answer, and waits forever while the worker serves another
//! client (ggml/src/ggml-rpc/ggml-rpc.cpp; ggml 0.26.0). Therefore, Anneal first queries each worker, in the
//! worker's own protocol, with a time limit.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::sync::Mutex;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::{devices, kernels, system};

/// Default port of `anneal worker`, which is also the default port of llama.cpp's RPC server.
pub const DEFAULT_PORT: u16 = 50052;

/// Message for workers in a build without RPC.
pub const NO_RPC: &str = "this build has no RPC support\nhint: use the profile `native` or `portable`, or `rpc = true` \
                          in another profile";

/// Time limit for an answer. A round trip to the other side of the world takes a third of a second.
const PATIENCE: Duration = Duration::from_secs(5);

/// First command of a client in ggml's RPC, `RPC_CMD_HELLO`. The command has the same number in every version.
const HELLO: u8 = 14;

/// Size in bytes of the client's capabilities in the first command. Anneal claims no capabilities.
const HELLO_SIZE: usize = 24;

/// Size in bytes of the answer: the version, a padding byte and the worker's capabilities.
const ANSWER_SIZE: usize = 28;

/// Address of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    host: String,
    port: u16,
}

impl Worker {
    /// True if the connection stays on this machine, judged by the host name.
    pub fn is_on_this_machine(&self) -> bool {
        self.host == "localhost" || self.host.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback())
    }

    /// Resolves the address.
    fn address(&self) -> std::result::Result<SocketAddrV4, String> {
        let found = (self.host.as_str(), self.port).to_socket_addrs().map_err(|why| {
            format!("cannot resolve {}: {why}\nhint: check the name, or use an IP address", self.host)
        })?;
        let v4 = found.filter_map(|address| match address {
            SocketAddr::V4(address) => Some(address),
            SocketAddr::V6(_) => None,
        });
        v4.into_iter().next().ok_or_else(|| {
            format!("{} has no IPv4 address, but llama.cpp connects to workers over IPv4 only", self.host)
        })
    }
}

impl fmt::Display for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl FromStr for Worker {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let how = || {
            format!("{text:?} is not a worker address\nhint: use an address such as 10.0.0.2:{DEFAULT_PORT}")
        };
        if text.starts_with('[') || text.matches(':').count() > 1 {
            return Err(format!(
                "{text:?}: llama.cpp connects to workers over IPv4 only\nhint: use an IPv4 address or a name"
            ));
        }
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, port.parse().ok().filter(|port| *port > 0).ok_or_else(how)?),
            None => (text, DEFAULT_PORT),
        };
        let possible = |c: char| c.is_ascii_alphanumeric() || ['.', '-', '_'].contains(&c);
        if host.is_empty() || !host.chars().all(possible) {
            return Err(how());
        }
        Ok(Worker { host: host.to_string(), port })
    }
}

/// Workers, in the order in which they receive layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workers(pub Vec<Worker>);

impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(Worker::to_string).collect();
        f.pad(if all.is_empty() { "none".to_string() } else { all.join(",") }.as_str())
    }
}

impl FromStr for Workers {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        Workers::new(text.split(',').map(|one| one.trim().parse()).collect::<std::result::Result<_, _>>()?)
    }
}

impl Workers {
    /// Checks and wraps the workers `all`.
    ///
    /// # Errors
    /// If a worker is listed twice, or if llama.cpp does not support that many workers. The error is a message for the
    /// user.
    pub fn new(all: Vec<Worker>) -> std::result::Result<Self, String> {
        if let Some((_, twice)) = all.iter().enumerate().find(|(at, one)| all[..*at].contains(one)) {
            return Err(format!("{twice} is listed twice\nhint: list each worker once"));
        }
        match all.len() > devices::MAX_DEVICES {
            true => Err(format!(
                "{} workers are too many: llama.cpp supports at most {}",
                all.len(),
                devices::MAX_DEVICES
            )),
            false => Ok(Workers(all)),
        }
    }

    /// Returns the warning to show before prompts are sent to the workers; `None` if all workers are on this machine.
    pub fn warning(&self) -> Option<String> {
        let far: Vec<String> =
            self.0.iter().filter(|one| !one.is_on_this_machine()).map(Worker::to_string).collect();
        let (are, them) = if far.len() == 1 { ("is", "it") } else { ("are", "them") };
        (!far.is_empty()).then(|| {
            format!(
                "{} {are} not on this machine: weights, prompts and answers reach {them} unencrypted and without \
                 authentication; use workers only on a network that you trust",
                far.join(", ")
            )
        })
    }
}

/// Worker whose devices were added to llama.cpp.
struct Known {
    worker: Worker,
    /// Endpoint as it was passed to ggml.
    endpoint: String,
}

static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

fn known() -> std::sync::MutexGuard<'static, Vec<Known>> {
    KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// True if the devices of at least one worker were added to llama.cpp.
pub fn any() -> bool {
    !known().is_empty()
}

/// Returns the address of a worker as given by the user, from ggml's name `endpoint`.
pub fn spoken(endpoint: &str) -> String {
    let known = known();
    let found = known.iter().find(|known| known.endpoint == endpoint);
    found.map_or_else(|| endpoint.to_string(), |known| known.worker.to_string())
}

/// True if the worker with ggml's name `endpoint` is also called `name`.
pub fn is_called(endpoint: &str, name: &str) -> bool {
    name.parse::<Worker>()
        .is_ok_and(|asked| endpoint == asked.to_string() || spoken(endpoint) == asked.to_string())
}

/// Adds the devices of `workers` to llama.cpp. Workers that were added earlier are not added again. Returns ggml's
/// names of the workers.
///
/// # Errors
/// [`Error::Usage`] in a build without RPC, [`Error::Worker`] if a worker cannot be used.
pub fn connect(workers: &Workers) -> Result<Vec<String>> {
    if workers.0.is_empty() {
        return Ok(Vec::new());
    }
    // The CPU's kernels must precede the workers in llama.cpp's list.
    system::start(false);
    kernels::load()?;
    let Some(version) = devices::rpc_version() else {
        return Err(Error::Usage(format!("--rpc {workers}: {NO_RPC}")));
    };
    let mut known = known();
    let mut endpoints = Vec::new();
    for worker in &workers.0 {
        if let Some(there) = known.iter().find(|known| known.worker == *worker) {
            endpoints.push(there.endpoint.clone());
            continue;
        }
        let failed = |why| Error::Worker { worker: worker.to_string(), why };
        let address = worker.address().map_err(failed)?;
        ask(address, version).map_err(failed)?;
        let endpoint = address.to_string();
        if known.iter().any(|known| known.endpoint == endpoint) {
            return Err(Error::Usage(format!(
                "--rpc {workers}: {worker} has the same address as another worker\nhint: list each worker once"
            )));
        }
        devices::add_worker(&endpoint, &worker.to_string()).map_err(failed)?;
        endpoints.push(endpoint.clone());
        known.push(Known { worker: worker.clone(), endpoint });
    }
    Ok(endpoints)
}

/// Checks that a worker answers at `address` and uses `version` (major, minor) of the protocol. The error contains the
/// reason and the remedy.
///
/// The connection is closed before ggml opens another, because a worker accepts only one connection. If another
/// client connects between the two connections, the worker serves that client first, and ggml waits without a time
/// limit.
fn ask(address: SocketAddrV4, version: (u8, u8)) -> std::result::Result<(), String> {
    let mut stream = TcpStream::connect_timeout(&address.into(), PATIENCE).map_err(|why| match why.kind() {
        io::ErrorKind::ConnectionRefused => format!(
            "no program is listening on this address\nhint: start `anneal worker --listen {address}` on that machine"
        ),
        io::ErrorKind::TimedOut => format!(
            "the machine did not answer within {} s\nhint: check the address, the machine and its firewall",
            PATIENCE.as_secs()
        ),
        _ => format!("cannot connect: {why}"),
    })?;
    let answer = hello(&mut stream).map_err(|why| match why.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!(
            "the program at this address accepted the connection but did not answer within {} s: either it is not a worker, or \
             it is serving another client (a worker serves one client at a time)",
            PATIENCE.as_secs()
        ),
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            "the program at this address is not a worker, uses a much older or newer llama.cpp, or belongs to another user of \
             its machine\nhint: start this version of `anneal worker` on that machine, as the same user as here"
                .to_string()
        }
        _ => format!("cannot read the worker's answer: {why}"),
    })?;
    // ggml's client compares versions in the same way.
    let (major, minor) = answer;
    match major == version.0 && minor <= version.1 {
        true => Ok(()),
        false => Err(format!(
            "it speaks version {major}.{minor} of the protocol, but this program speaks {}.{}\nhint: use builds of the same \
             llama.cpp on both sides",
            version.0, version.1
        )),
    }
}

/// Reads the version from the worker at the other end of `stream`.
fn hello(stream: &mut TcpStream) -> io::Result<(u8, u8)> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = vec![HELLO];
    request.extend((HELLO_SIZE as u64).to_le_bytes());
    request.extend([0; HELLO_SIZE]);
    stream.write_all(&request)?;
    let mut size = [0; 8];
    stream.read_exact(&mut size)?;
    if u64::from_le_bytes(size) != ANSWER_SIZE as u64 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut answer = [0; ANSWER_SIZE];
    stream.read_exact(&mut answer)?;
    Ok((answer[0], answer[1]))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_address_has_a_host_and_a_port() {
        let cases = [
            ("10.0.0.2:50052", Some(("10.0.0.2:50052", false))),
            ("box", Some(("box:50052", false))),
            ("localhost:1", Some(("localhost:1", true))),
            ("127.3.4.5", Some(("127.3.4.5:50052", true))),
            ("", None),
            (":1", None),
            ("a:0", None),
            ("a:x", None),
            ("a:70000", None),
            ("[::1]:50052", None),
            ("::1", None),
            ("http://a", None),
            ("a b", None),
        ];
        for (text, expected) in cases {
            let found = text.parse::<Worker>().ok();
            let found = found.map(|worker| (worker.to_string(), worker.is_on_this_machine()));
            let expected = expected.map(|(text, here)| (text.to_string(), here));
            assert_eq!(found, expected, "{text:?}");
        }
        assert_eq!("a,b:1".parse::<Workers>().map(|all| all.to_string()), Ok("a:50052,b:1".to_string()));
        assert!("a,a:50052".parse::<Workers>().is_err_and(|why| why.contains("twice")));
        assert!("a,".parse::<Workers>().is_err());
    }

    #[test]
    fn workers_elsewhere_are_warned_of() {
        let warning = |text: &str| text.parse::<Workers>().expect("workers").warning();
        assert_eq!(warning("127.0.0.1,localhost:7"), None);
        let words = warning("127.0.0.1,box,10.0.0.2:9").expect("a warning");
        assert!(words.starts_with("box:50052, 10.0.0.2:9 are not on this machine"), "{words}");
    }

    /// Returns the result of `ask` for a listener that sends `answer`, if any, and then closes the connection.
    fn asked(answer: Option<&[u8]>) -> std::result::Result<(), String> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let SocketAddr::V4(address) = listener.local_addr().expect("an address") else { unreachable!() };
        let Some(answer) = answer.map(<[u8]>::to_vec) else {
            drop(listener);
            return ask(address, (7, 0));
        };
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (mut stream, _) = listener.accept().expect("a client");
                let mut request = [0; 1 + 8 + HELLO_SIZE];
                stream.read_exact(&mut request).expect("a hello");
                stream.write_all(&answer).expect("answered");
            });
            ask(address, (7, 0))
        })
    }

    #[test]
    fn what_listens_must_be_a_worker_of_this_version() {
        let version = |major: u8, minor: u8| {
            let mut answer = (ANSWER_SIZE as u64).to_le_bytes().to_vec();
            answer.extend([major, minor]);
            answer.resize(8 + ANSWER_SIZE, 0);
            answer
        };
        assert_eq!(asked(Some(&version(7, 0))), Ok(()));
        let cases = [
            (Some(version(6, 9)), "version 6.9 of the protocol, but this program speaks 7.0"),
            (Some(version(7, 1)), "version 7.1"),
            (Some(b"HTTP/1.1 400 Bad Request".to_vec()), "not a worker"),
            (Some(Vec::new()), "not a worker"),
            (None, "no program is listening on this address\nhint: start `anneal worker --listen 127.0.0.1:"),
        ];
        for (answer, words) in cases {
            let found = asked(answer.as_deref()).expect_err(words);
            assert!(found.contains(words), "{found}");
        }
    }
}
