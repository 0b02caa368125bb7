//! Tests of `--numa`. A machine without NUMA reports one node.

use std::fs;

use crate::client::{Server, greedy};

#[test]
fn threads_and_memory_are_placed_on_nodes() {
    let request = greedy("hello", 8);
    let expected = Server::start(&[]).ask(&request)["text"].clone();
    for (placement, policy) in
        [("node:0", Some("bind:0")), ("interleave", Some("interleave:0")), ("spread", None)]
    {
        let server = Server::start(&["--numa", placement]);
        assert_eq!(server.ask(&request)["text"], expected, "{placement}");
        let process = format!("/proc/{}", server.child.id());
        let Ok(maps) = fs::read_to_string(format!("{process}/numa_maps")) else {
            skipped::because("this kernel has no NUMA policies");
            continue;
        };
        if let Some(policy) = policy {
            assert!(maps.lines().any(|line| line.contains(policy)), "{placement}: {maps}");
        }
    }
}
