//! Tests of reports on graphs like llama.cpp's, with a simulated GPU.

use build_info::Bytes;
use llama::{Buffer, GraphsSeen, Kept, Operation};
use serde_json::json;

use super::report::{PlacementReport, TensorRole, Why};

const HOST: usize = 0;
const GPU: usize = 1;
const PINNED: usize = 2;

fn places() -> Vec<Buffer> {
    let place = |device: &str, buffer: &str, is_host| Buffer {
        device: device.to_string(),
        description: String::new(),
        buffer: buffer.to_string(),
        is_host,
    };
    // Pinned memory has the GPU's name, but the CPU computes with it.
    vec![place("CPU", "CPU_Mapped", true), place("CUDA0", "CUDA0", false), place("CUDA0", "CUDA_Host", true)]
}

/// Graph under construction.
#[derive(Default)]
struct Graph {
    seen: GraphsSeen,
    phase: usize,
}

impl Graph {
    fn new() -> Self {
        Self { seen: GraphsSeen { buffers: places(), ..GraphsSeen::default() }, phase: 0 }
    }

    fn held(&mut self, name: &str, place: usize, bytes: u64) -> usize {
        let all = &mut self.seen.held;
        all.iter().position(|held| held.name == name && held.place == place).unwrap_or_else(|| {
            all.push(Kept { name: name.to_string(), place, bytes, is_cache: name.starts_with("cache_") });
            all.len() - 1
        })
    }

    fn op(&mut self, op: &str, name: &str, place: usize, held: &[usize]) -> &mut Operation {
        let is_weight = |index: &&usize| !self.seen.held[**index].is_cache;
        let weight_bytes = held.iter().filter(is_weight).map(|index| self.seen.held[*index].bytes).sum();
        let op = Operation {
            phase: self.phase,
            op: op.to_string(),
            name: name.to_string(),
            place,
            bytes: 10,
            weight_bytes,
            held: held.to_vec(),
            ..Operation::default()
        };
        self.seen.ops.push(op);
        self.seen.ops.last_mut().expect("one")
    }

    /// Adds the lookup of the token embeddings, which is always on the host.
    fn input(&mut self) {
        let embeddings = self.held("token_embd.weight", HOST, 1000);
        self.op("GET_ROWS", "embd", PINNED, &[embeddings]).weight_bytes = 10;
    }

    /// Adds a layer: `weights` and `cache` are the buffers of its weights and its cache, and `attention` is the
    /// device that computes its attention.
    fn layer(&mut self, layer: u32, weights: usize, cache: usize, attention: usize) {
        let norm = self.held(&format!("blk.{layer}.attn_norm.weight"), weights, 4);
        self.op("RMS_NORM", &format!("norm-{layer}"), weights, &[]);
        self.op("MUL", &format!("attn_norm-{layer}"), weights, &[norm]);
        let k = self.held(&format!("cache_k_l{layer}"), cache, 100);
        let v = self.held(&format!("cache_v_l{layer}"), cache, 100);
        let attn = self.held(&format!("blk.{layer}.attn_q.weight"), weights, 200);
        self.op("MUL_MAT", &format!("Qcur-{layer}"), weights, &[attn]);
        self.op("SET_ROWS", &format!("cache_k_l{layer} (view)"), cache, &[k]);
        self.op("FLASH_ATTN_EXT", &format!("kqv-{layer}"), attention, &[k, v]);
        let experts = self.held(&format!("blk.{layer}.ffn_down_exps.weight"), weights, 500);
        self.op("MUL_MAT_ID", &format!("ffn_moe_down-{layer}"), weights, &[experts]);
    }

    fn output(&mut self, place: usize) {
        let (norm, output) =
            (self.held("output_norm.weight", place, 4), self.held("output.weight", place, 900));
        self.op("MUL", "result_norm", place, &[norm]);
        self.op("MUL_MAT", "result_output", place, &[output]);
    }

    fn report(&self) -> PlacementReport {
        PlacementReport::new(&self.seen, &[("decode", 1)], vec!["NVIDIA H200".to_string()])
    }
}

#[test]
fn a_model_that_is_all_on_a_gpu_has_no_fault() {
    let mut graph = Graph::new();
    graph.input();
    (0..3).for_each(|layer| graph.layer(layer, GPU, GPU, GPU));
    graph.output(GPU);
    let report = graph.report();
    assert_eq!(report.faults(), []);
    assert_eq!(report.to_json()["faults"], json!([]));
    assert_eq!((report.layers.on_devices, report.layers.all), (4, 4));
    // The input layer is reported, but is not a fault.
    let [input] = &report.host_ops[..] else { panic!("{:?}", report.host_ops) };
    assert_eq!((input.why, input.ops, input.weight_bytes), (Why::InputLayer, 1, Bytes(10)));
    let [decode] = &report.phases[..] else { panic!("{:?}", report.phases) };
    assert_eq!((decode.splits, decode.ops), (2, 1 + 3 * 6 + 2));
    let devices: Vec<(&str, usize)> =
        decode.devices.iter().map(|share| (share.device.as_str(), share.ops)).collect();
    assert_eq!(devices, [("CUDA0", 20), ("host", 1)]);
    let text = report.to_string();
    assert!(
        text.contains("always") && text.contains("nothing else: the whole decode path is on devices"),
        "{text}"
    );
}

#[test]
fn what_lands_on_the_host_is_told_with_its_reason() {
    // Function that causes the fault. It is followed by the expected reason, the number of operations, their layers,
    // and words from the fault.
    type Make = fn(&mut Graph);
    type Case<'a> = (&'a str, Make, &'a [(Why, &'a str, usize)], &'a [&'a str]);
    let cases: [Case<'_>; 4] = [
        (
            "two of three layers",
            |graph| {
                graph.layer(0, GPU, GPU, GPU);
                (1..3).for_each(|layer| graph.layer(layer, HOST, HOST, HOST));
                graph.output(GPU);
            },
            &[(Why::Weights, "MUL_MAT", 2), (Why::Cache, "FLASH_ATTN_EXT", 2), (Why::Layer, "RMS_NORM", 2)],
            &["1.4 KiB of weights are on the host (layers 1-2)", "400 B of KV cache", "12 decode operations"],
        ),
        (
            "the cache",
            |graph| {
                (0..2).for_each(|layer| graph.layer(layer, GPU, PINNED, PINNED));
                graph.output(GPU);
            },
            &[(Why::Cache, "SET_ROWS", 2), (Why::Cache, "FLASH_ATTN_EXT", 2)],
            &["400 B of KV cache are on the host (layers 0-1)", "4 decode operations"],
        ),
        (
            "attention that the device has no kernel for",
            |graph| {
                graph.layer(0, GPU, GPU, PINNED);
                graph.output(GPU);
            },
            &[(Why::Unsupported, "FLASH_ATTN_EXT", 1)],
            &["1 decode operation is computed on the host (FLASH_ATTN_EXT)"],
        ),
        (
            "the output",
            |graph| {
                graph.layer(0, GPU, GPU, GPU);
                graph.output(HOST);
            },
            &[(Why::Weights, "MUL_MAT", 1)],
            &["904 B of weights are on the host (norms, output)", "2 decode operations"],
        ),
    ];
    for (what, make, expected, words) in cases {
        let mut graph = Graph::new();
        graph.input();
        make(&mut graph);
        let report = graph.report();
        for (why, op, count) in expected {
            let found = report.host_ops.iter().find(|ops| ops.why == *why && ops.op == *op);
            assert_eq!(found.map(|ops| ops.ops), Some(*count), "{what}, {op}: {:?}", report.host_ops);
        }
        let faults = report.faults();
        assert_eq!(faults.len(), words.len(), "{what}: {faults:?}");
        for (fault, words) in faults.iter().zip(words) {
            assert!(fault.what.contains(words), "{what}: {fault:?}");
        }
        let told = report.to_json();
        assert_eq!((&told["faults"], &told["devices"]), (&json!(faults), &json!(["NVIDIA H200"])), "{what}");
        assert!(told["faults"][0]["what"].as_str().is_some_and(|words| words == faults[0].what), "{told}");
        let text = report.to_string();
        assert!(!text.contains("nothing else"), "{what}: {text}");
    }
}

#[test]
fn an_output_that_shares_its_matrix_with_the_input_is_the_outputs() {
    // Placement of the output, expected number of layers on devices, and expected number of faults.
    for (place, on_devices, faults) in [(GPU, 2, 0), (HOST, 1, 2)] {
        let mut graph = Graph::new();
        graph.input();
        graph.layer(0, GPU, GPU, GPU);
        // On a device, llama.cpp creates a copy with the same name.
        let matrix = graph.held("token_embd.weight", place, 1000);
        graph.op("MUL_MAT", "result_output", place, &[matrix]);
        let report = graph.report();
        assert_eq!((report.layers.on_devices, report.layers.all), (on_devices, 2));
        let outputs = report.weights.iter().filter_map(|stored| stored.kinds.get(&TensorRole::Output));
        assert_eq!(outputs.collect::<Vec<_>>(), [&Bytes(1000)]);
        assert_eq!(report.faults().len(), faults, "{:?}", report.faults());
    }
}

#[test]
fn splits_and_copies_are_counted_by_phase() {
    let mut graph = Graph::new();
    for phase in 0..2 {
        graph.phase = phase;
        graph.input();
        graph.layer(0, GPU, GPU, GPU);
        graph.layer(1, HOST, HOST, HOST);
        graph.output(GPU);
    }
    let last = graph.seen.ops.last_mut().expect("the output");
    (last.copies, last.copied_bytes) = (2, 77);
    let report =
        PlacementReport::new(&graph.seen, &[("prefill", 64), ("decode", 1)], vec!["NVIDIA H200".to_string()]);
    let splits: Vec<usize> = report.phases.iter().map(|phase| phase.splits).collect();
    // The splits are the input, a layer on the GPU, a layer on the host, and the output.
    assert_eq!(splits, [4, 4]);
    let copied: Vec<(usize, u64)> =
        report.phases.iter().map(|phase| (phase.copies, phase.copied_bytes.0)).collect();
    assert_eq!(copied, [(0, 0), (2, 77)]);
    // Both phases use the same weights.
    let weights: u64 = report.weights.iter().map(|stored| stored.bytes.0).sum();
    assert_eq!(weights, 1000 + 2 * 704 + 904);
    let host = report.weights.iter().find(|stored| stored.host).expect("the host's");
    assert_eq!(host.kinds.get(&TensorRole::Experts), Some(&Bytes(500)));
    assert_eq!(host.kinds.get(&TensorRole::Embedding), Some(&Bytes(1000)));
}

#[test]
fn without_devices_everything_is_the_hosts_and_it_is_said() {
    let mut graph = Graph::new();
    graph.input();
    graph.layer(0, HOST, HOST, HOST);
    graph.output(HOST);
    let report = PlacementReport::new(&graph.seen, &[("decode", 1)], Vec::new());
    assert!(!report.uses_devices());
    assert!(report.host_ops.iter().all(|ops| matches!(ops.why, Why::NoDevice | Why::InputLayer)));
    let text = report.to_string();
    assert!(
        text.contains("none: everything is on the host") && text.contains("No device is available"),
        "{text}"
    );
}
