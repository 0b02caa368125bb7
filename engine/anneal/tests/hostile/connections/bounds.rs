//! Tests of single limits: priorities, requests that are always answered, and idle times of connections.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{KEY, ask_and_stay, connect, get, health_address, keyed, open};
use crate::client::{Server, greedy, http, tcp};

/// Time limit for an immediate answer on a loaded machine.
const AT_ONCE: Duration = Duration::from_secs(5);

/// Starts a long answer that is read as it arrives, so that its connection stays in use.
fn long_answer(server: &Server) -> TcpStream {
    let mut request = greedy("red heat", 60_000);
    request["stream"] = true.into();
    let body = request.to_string();
    let mut stream = connect(&server.address());
    let length = body.len();
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{KEY}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
    .expect("sent");
    stream
}

/// Each connection requested `/health` once and stays open. The server allows no further connections.
#[test]
fn a_client_with_a_key_is_answered_beside_512_that_asked_for_health() {
    let server = keyed("max_connections_per_address = 512\nidle_unauthenticated_s = 300\n");
    let held: Vec<TcpStream> = (0..512)
        .map(|_| {
            let mut stream = connect(&server.address());
            write!(stream, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
            let mut head = [0; 12];
            stream.read_exact(&mut head).expect("an answer");
            stream
        })
        .collect();
    assert!(server.metric("anneal_connections") >= 512.0);
    let begin = Instant::now();
    let body = greedy("hello", 1).to_string();
    let (status, _, text) = tcp(&server, "POST", "/v1/completions", &[KEY], body.as_bytes());
    assert_eq!(status, 200, "{text}");
    assert!(begin.elapsed() < AT_ONCE, "{:?}", begin.elapsed());
    assert!(server.metric("anneal_connections_evicted_total{reason=\"unauthenticated\"}") >= 1.0);
    drop(held);
}

#[test]
fn probes_are_answered_while_all_slots_and_connections_are_taken() {
    let server = keyed("slots = 1\nctx_size = 65536\nmax_connections = 4\n");
    let taken: Vec<TcpStream> = (0..4).map(|_| long_answer(&server)).collect();
    server.wait_for("anneal_slots_busy", 1.0);
    server.wait_for("anneal_requests_waiting", 3.0);
    let (main, probes) = (server.address(), health_address(&server));
    for _ in 0..40 {
        assert_eq!(get(&main, "/health", &[]).0, 200);
        assert_eq!(get(&probes, "/health", &[]).0, 200);
    }
    assert_eq!(get(&main, "/metrics", &[KEY]).0, 200);
    assert_eq!(get(&probes, "/metrics", &[KEY]).0, 200);
    assert_eq!(get(&probes, "/metrics", &[]).0, 401, "as at the main address");
    assert_eq!(get(&probes, "/v1/models", &[KEY]).0, 404, "no other path is served");
    let (status, head, text) = get(&main, "/v1/models", &[KEY]);
    assert_eq!(status, 503, "{text}");
    assert!(head.to_ascii_lowercase().contains("\r\nretry-after: "), "{head}");
    assert!(text.contains("overloaded") && text.contains("4 connections are open"), "{text}");
    assert_eq!(server.metric("anneal_connections_refused_total{reason=\"total\"}"), 1.0);
    // A reserve connection serves only a single request.
    let mut stream = connect(&main);
    assert_eq!(ask_and_stay(&mut stream, "/health", &[]), 200);
    assert_eq!(stream.read(&mut [0; 1]).expect("its end"), 0);
    drop(taken);
}

#[test]
fn metrics_need_no_key_where_the_configuration_says_so() {
    let server = keyed("metrics_without_key = true\n");
    assert_eq!(get(&health_address(&server), "/metrics", &[]).0, 200);
    assert_eq!(get(&server.address(), "/metrics", &[]).0, 401);
}

#[test]
fn a_short_rest_is_for_those_who_have_not_proven_themselves() {
    for has_key in [true, false] {
        let config = "idle_unauthenticated_s = 0.5\n";
        let server = if has_key { keyed(config) } else { open(config) };
        let (mut health, mut proven) = (connect(&server.address()), connect(&server.address()));
        assert_eq!(ask_and_stay(&mut health, "/health", &[]), 200);
        assert_eq!(ask_and_stay(&mut proven, "/v1/models", &[KEY]), 200);
        let begin = Instant::now();
        let _ = health.read(&mut [0; 64]);
        assert!(begin.elapsed() < AT_ONCE, "{:?}", begin.elapsed());
        std::thread::sleep(Duration::from_millis(600));
        assert_eq!(ask_and_stay(&mut proven, "/v1/models", &[KEY]), 200);
        assert_eq!(server.metric("anneal_connections_timed_out_total{reason=\"idle\"}"), 1.0);
    }
}

/// Without keys, every user of the machine may send requests. Connections without a request are closed first.
#[test]
fn bodies_that_do_not_come_keep_nobody_out() {
    let server = open("max_connections = 8\n");
    let held: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut stream = connect(&server.address());
            let head =
                "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
            write!(stream, "{head}Content-Length: 100000\r\n\r\n{{").expect("sent");
            stream
        })
        .collect();
    let begin = Instant::now();
    let body = greedy("hello", 1).to_string();
    assert_eq!(tcp(&server, "POST", "/v1/completions", &[], body.as_bytes()).0, 200);
    assert!(begin.elapsed() < AT_ONCE, "{:?}", begin.elapsed());
    assert_eq!(server.ask(&greedy("hello", 1))["usage"]["completion_tokens"], 1);
    drop(held);
}

#[test]
fn one_address_does_not_take_all_connections() {
    let server =
        keyed("max_connections = 64\nmax_connections_per_address = 3\nslots = 1\nctx_size = 65536\n");
    let taken: Vec<TcpStream> = (0..3).map(|_| long_answer(&server)).collect();
    server.wait_for("anneal_requests_waiting", 2.0);
    let (status, _, text) = get(&server.address(), "/v1/models", &[KEY]);
    assert_eq!(status, 503, "{text}");
    assert!(text.contains("3 connections from this address are open"), "{text}");
    assert_eq!(get(&server.address(), "/health", &[]).0, 200);
    assert_eq!(server.metric("anneal_connections_refused_total{reason=\"address\"}"), 1.0);
    drop(taken);
}

#[test]
fn requests_that_wait_are_bounded_in_bytes() {
    let server =
        keyed("slots = 1\nctx_size = 65536\nmax_request_bytes = 262144\nmax_waiting_bytes = 524288\n");
    let running = long_answer(&server);
    server.wait_for("anneal_slots_busy", 1.0);
    assert_eq!(
        server.metric("anneal_waiting_request_bytes"),
        0.0,
        "a running request no longer counts as waiting"
    );
    let mut padded = greedy("hello", 1);
    padded["pad"] = "x".repeat(200_000).into();
    let body = padded.to_string();
    let ask = || tcp(&server, "POST", "/v1/completions", &[KEY], body.as_bytes());
    std::thread::scope(|scope| {
        let first = scope.spawn(ask);
        server.wait_for("anneal_requests_waiting", 1.0);
        // Each of the four values other than the prompt counts as 40 additional bytes.
        let charged = body.len() + 4 * 40;
        assert_eq!(server.metric("anneal_waiting_request_bytes"), charged as f64);
        let (status, head, text) = ask();
        assert_eq!(status, 503, "{text}");
        assert!(head.to_ascii_lowercase().contains("\r\nretry-after: 1"), "{head}");
        assert!(text.contains(&format!("total {charged} bytes, and adding this request")), "{text}");
        // The client of the socket is another client, which has its own share.
        let line = json!({ "prompt": "hello", "pad": "x".repeat(200_000), "id": 7 });
        assert_eq!(
            server.ask(&line)["error"]["param"],
            "pad",
            "the request is read, and refused because of its field"
        );
        drop(running);
        assert_eq!(first.join().expect("an answer").0, 200);
    });
    server.wait_for("anneal_waiting_request_bytes", 0.0);
    let stream = connect(&server.address());
    assert_eq!(http(stream, "POST", "/v1/completions", &[KEY], body.as_bytes()).0, 200);
}
