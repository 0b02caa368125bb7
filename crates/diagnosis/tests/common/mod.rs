//! A healthy observation, which the tests change.

use build_info::host::{Cache, Core, CoreKind, Limits, Memory, NumaNode};
use build_info::roofline::{Rates, VERSION};
use build_info::{Bytes, Host, Roofline};
use diagnosis::{KernelFacts, Observation, ProgramKind, SeenSpeed, ServedModel, ThreadFacts};

/// Returns a machine with `cores` cores of `siblings` CPUs each. The siblings of core 0 are CPUs 0 and `cores`.
pub fn machine(cores: u32, siblings: u32) -> Host {
    let core = |number: u32| Core {
        package: 0,
        node: 0,
        kind: CoreKind::Performance,
        cpus: (0..siblings).map(|sibling| number + sibling * cores).collect(),
        l1d: None,
        l2: None,
        l3: Some(Cache { size: Bytes::mib(32), shared_by: cores * siblings }),
    };
    let mut host = Host { arch: "x86_64".to_string(), ..Host::default() };
    let features = ["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"];
    host.cpu.features = features.into_iter().map(String::from).collect();
    host.topology.cores = (0..cores).map(core).collect();
    host.topology.nodes =
        vec![NumaNode { id: 0, cpus: (0..cores * siblings).collect(), memory: Bytes::gib(32) }];
    host.memory = Memory { total: Bytes::gib(32), available: Bytes::gib(20) };
    host.limits = Limits { affinity: (0..cores * siblings).collect(), ..Limits::default() };
    host
}

/// Returns `count` threads, one per CPU, that are busy all the time, and two threads that do nothing.
pub fn team(count: u32, cpus: u32) -> Vec<ThreadFacts> {
    let share = (f64::from(cpus) / f64::from(count)).min(1.0);
    let busy = (0..count).map(|number| ThreadFacts {
        tid: 100 + number,
        busy: 0.98 * share,
        waited: Some(if share < 1.0 { 1.0 - share } else { 0.01 }),
        cpu: number % cpus,
        ..ThreadFacts::default()
    });
    let idle =
        (0..2).map(|number| ThreadFacts { tid: 200 + number, waited: Some(0.0), ..ThreadFacts::default() });
    busy.chain(idle).collect()
}

/// Returns rates of memory that four threads saturate.
fn roofline() -> Roofline {
    let rates = |threads, read_bytes| Rates {
        threads,
        read_bytes,
        int8_macs: 1e12,
        int8_wide_macs: None,
        f32_macs: 1e11,
        bf16_macs: None,
    };
    Roofline {
        version: VERSION,
        date: "2026-06-01T00:00:00Z".to_string(),
        cpu: String::new(),
        affinity: Vec::new(),
        cpu_quota: None,
        rates: vec![rates(1, 12e9), rates(2, 24e9), rates(4, 40e9), rates(8, 42e9)],
    }
}

/// Returns a llama-server with a good build and a model of 4 GiB, which generates tokens with eight threads on eight
/// cores.
pub fn healthy() -> Observation {
    let sets = [("avx2", 4000), ("avx512f", 3000), ("avx512_vnni", 500)];
    Observation {
        pid: 4711,
        kind: ProgramKind::LlamaServer,
        program: "llama-server".to_string(),
        host: machine(8, 1),
        uptime_s: Some(3600.0),
        window_s: 1.5,
        threads: team(8, 8),
        stolen: Some(0.0),
        memory: diagnosis::ObservedMemory {
            resident: Bytes::gib(5),
            anonymous: Bytes::gib(1),
            file: Bytes::gib(4),
            huge: Some(Bytes(0)),
            read_bytes_per_s: Some(0.0),
            ..Default::default()
        },
        kernels: Some(KernelFacts {
            path: "/opt/llama/libggml-cpu.so".into(),
            found: 40,
            narrow: 0,
            instruction_sets: sets.into_iter().map(|(name, count)| (name.to_string(), count)).collect(),
            unoptimised: 0.0,
        }),
        model: Some(ServedModel {
            path: "/models/qwen.gguf".into(),
            architecture: Some("qwen2".to_string()),
            quantisation: Some("Q4_K_M".to_string()),
            weights: Bytes::gib(4),
            bytes_per_token: Some(4 << 30),
            cache: Some(Bytes::mib(512)),
            context: Some(8192),
            layers: Some(28),
            mapped: Bytes::gib(4),
            resident: Some(Bytes::gib(4)),
            file_system: Some("ext4".to_string()),
        }),
        roofline: Some(roofline()),
        speed: SeenSpeed {
            decode: Some(8.0),
            prefill: None,
            is_current: true,
            is_shared: false,
            source: "a request that generated 12 tokens".to_string(),
        },
        ..Observation::default()
    }
}
