//! Tests of several contexts of one model, each on its own cores.

use engine_core::runtime_host::RuntimeHost;
use serde_json::json;

use crate::client::{configured, greedy};
use crate::common::{ANNEAL, parts, tiny};

#[test]
fn pools_share_the_queue_and_answer_as_one() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        // A single core cannot be divided, and the server reports this.
        return more_pools_than_cores_are_wrong_usage();
    }
    let server = configured("model = \"a.gguf\"\npools = 2\nslots = 2\nctx_size = 512\n", &["a.gguf"]);
    assert_eq!(server.metric("anneal_slots"), 4.0);
    let expected = server.ask(&greedy("hello", 8))["text"].clone();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..3 {
                    assert_eq!(server.ask(&greedy("hello", 8))["text"], expected);
                }
            });
        }
    });
    // A conversation continues in the pool where it began.
    let long = "red heat and a glowing iron ".repeat(12);
    let first = server.ask(&greedy(&long, 4));
    let cached = first["usage"]["cached_tokens"].clone();
    let again = server.ask(&greedy(&long, 4));
    assert!(again["usage"]["cached_tokens"].as_u64() > cached.as_u64(), "{first} {again}");
    let mut several = greedy("hello there", 3);
    several["n"] = json!(3);
    let (status, answer) = server.post("/v1/completions", &several);
    assert_eq!((status, answer["choices"].as_array().map(Vec::len)), (200, Some(3)), "{answer}");
    server.wait_for("anneal_slots_busy", 0.0);
}

#[test]
fn more_pools_than_cores_are_wrong_usage() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = folder.path().join("server_config.toml");
    let model = tiny().display();
    std::fs::write(&config, format!("model = \"{model}\"\npools = 64\nlisten = \"127.0.0.1:0\"\n"))
        .expect("written");
    // The first CPU that this process may use is not necessarily CPU 0.
    let host = RuntimeHost::read().host.expect("a host");
    let cpu = host.limits.affinity.first().expect("a CPU").to_string();
    let mut command = std::process::Command::new("taskset");
    command.args(["-c", &cpu, ANNEAL, "serve", "--config"]).arg(&config);
    let (code, _, stderr) = parts(&command.output().expect("taskset runs"));
    assert!(
        code == Some(2) && stderr.contains("pools = 64: each pool needs its own core"),
        "{code:?}: {stderr}"
    );
}
