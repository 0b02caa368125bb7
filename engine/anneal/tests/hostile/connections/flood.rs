//! Test of thousands of hostile connections of eight kinds, at the same time as a client with a key.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

use super::{KEY, get, health_address, keyed};
use crate::client::{Server, greedy};
use crate::effort::choose;

/// Kind of hostile connection.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Idle,
    Health,
    SlowHead,
    SlowBody,
    HalfClosed,
    Pipelined,
    Reset,
    Tls,
}

const KINDS: [Kind; 8] = [
    Kind::Idle,
    Kind::Health,
    Kind::SlowHead,
    Kind::SlowBody,
    Kind::HalfClosed,
    Kind::Pipelined,
    Kind::Reset,
    Kind::Tls,
];

/// Number of IP addresses from which the connections come.
const ADDRESSES: usize = 16;

const HEALTH: &[u8] = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Beginning of a TLS 1.3 ClientHello.
const CLIENT_HELLO: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";

/// Opens one hostile connection after the other until the flood ends.
async fn attack(number: usize, address: std::net::SocketAddr) {
    let kind = KINDS[number % KINDS.len()];
    let source = std::net::Ipv4Addr::new(127, 0, 1, 1 + (number / KINDS.len() % ADDRESSES) as u8);
    loop {
        // Errors of an attack are ignored, because the attack is repeated.
        let _ = timeout(Duration::from_secs(20), once(kind, source, address)).await;
        sleep(Duration::from_secs(1)).await;
    }
}

async fn once(kind: Kind, source: std::net::Ipv4Addr, address: std::net::SocketAddr) -> std::io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((source, 0).into())?;
    let mut stream = socket.connect(address).await?;
    match kind {
        Kind::Idle => {}
        Kind::Health => stream.write_all(HEALTH).await?,
        Kind::SlowHead => drip(&mut stream, b"GET /v1/models HTTP/1.1\r\n").await?,
        Kind::SlowBody => {
            let head =
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                         Authorization: Bearer not-a-key-of-it\r\nContent-Length: 1000000\r\n\r\n";
            stream.write_all(head).await?;
            drip(&mut stream, b"{\"prompt\": \"").await?;
        }
        Kind::HalfClosed => {
            stream.write_all(&HEALTH[..20]).await?;
            stream.shutdown().await?;
        }
        Kind::Pipelined => stream.write_all(&HEALTH.repeat(500)).await?,
        Kind::Reset => {
            stream.write_all(&HEALTH[..20]).await?;
            sleep(Duration::from_millis(200)).await;
            stream.set_zero_linger()?;
            return Ok(());
        }
        Kind::Tls => stream.write_all(CLIENT_HELLO).await?,
    }
    if matches!(kind, Kind::Pipelined) {
        // This client never reads.
        sleep(Duration::from_secs(20)).await;
    }
    let mut read = [0; 256];
    while stream.read(&mut read).await? > 0 {}
    Ok(())
}

/// Writes `bytes` one by one, repeatedly.
async fn drip(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    for byte in bytes.iter().cycle() {
        stream.write_all(&[*byte]).await?;
        sleep(Duration::from_millis(500)).await;
    }
    Ok(())
}

/// Raises this process's limit of open files to `files`, as far as the system allows. The server raises its own
/// limit.
fn allow_files(files: u64) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < files) {
        let current = limit.maximum.map_or(files, |maximum| maximum.min(files));
        setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..limit }).expect("a limit");
    }
}

/// Returns the time from connecting to the first byte of an answer to a request with a key.
fn first_byte(server: &Server) -> Duration {
    use std::io::{Read, Write};

    let mut request = greedy("hello", 2);
    request["stream"] = true.into();
    let body = request.to_string();
    let begin = Instant::now();
    let mut stream = super::connect(&server.address());
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{KEY}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("sent");
    let mut head = [0; 12];
    stream.read_exact(&mut head).expect("an answer");
    let time = begin.elapsed();
    assert_eq!(&head, b"HTTP/1.1 200", "a client with a key is answered");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("all of the answer");
    assert!(rest.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"), "the answer is not cut: {rest:?}");
    time
}

/// Sends requests one after the other for the duration `time`, and returns their times to the first byte.
fn ask_for(server: &Server, time: Duration) -> Vec<Duration> {
    let begin = Instant::now();
    let mut times = Vec::new();
    while begin.elapsed() < time {
        times.push(first_byte(server));
        std::thread::sleep(Duration::from_millis(20));
    }
    times
}

fn percentile(times: &mut [Duration]) -> Duration {
    times.sort();
    times[(times.len() * 99).div_ceil(100) - 1]
}

#[test]
fn hostile_connections_of_eight_kinds_slow_down_nobody() {
    let (count, time, most) = choose((400, 4, 128), (2000, 25, 512));
    allow_files(count as u64 + 256);
    let server = keyed(&format!("max_connections = {most}\nlog_level = \"error\"\n"));
    let address: std::net::SocketAddr = server.address().parse().expect("an address");
    let (main, probes) = (server.address(), health_address(&server));
    let over = AtomicBool::new(false);
    // Baseline: the same requests on this machine without the flood.
    let mut alone = ask_for(&server, Duration::from_secs(2));
    let (mut times, mut health) = (Vec::new(), Vec::new());
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                (0..count).for_each(|number| drop(tokio::spawn(attack(number, address))));
                while !over.load(Ordering::Relaxed) {
                    sleep(Duration::from_millis(50)).await;
                }
            });
            // The connections close when their runtime ends, whatever they are doing.
        });
        let probing = scope.spawn(|| {
            let mut times = Vec::new();
            while !over.load(Ordering::Relaxed) {
                for address in [&main, &probes] {
                    let begin = Instant::now();
                    assert_eq!(get(address, "/health", &[]).0, 200);
                    times.push(begin.elapsed());
                }
                std::thread::sleep(Duration::from_millis(100));
            }
            times
        });
        // Gives the flood time to start.
        std::thread::sleep(Duration::from_secs(1));
        times = ask_for(&server, Duration::from_secs(time));
        over.store(true, Ordering::Relaxed);
        health = probing.join().expect("probes are answered");
        flood.join().expect("the flood ends");
    });
    let (before, ttfb, probe) = (percentile(&mut alone), percentile(&mut times), percentile(&mut health));
    let evicted = server.metric("anneal_connections_evicted_total{reason=\"unauthenticated\"}");
    println!(
        "{count} hostile connections, {evicted} evicted; 99th percentile: {ttfb:?} of {} requests ({before:?} before), {probe:?} of {} \
         probes",
        times.len(),
        health.len()
    );
    assert!(evicted >= (count - most) as f64 / 2.0, "there was no flood: {evicted} evicted");
    // The limit grows on a machine that is slow even without a flood.
    let most = Duration::from_secs(1).max(before * 3);
    assert!(ttfb <= most, "99th percentile {ttfb:?} of {}, {before:?} before", times.len());
    assert!(probe <= Duration::from_secs(5), "99th percentile of /health {probe:?}");
    // No hostile connection remains.
    server.wait_for("anneal_connections", 1.0);
}
