//! Table of planted causes and of healthy processes. Each planted cause is reported first, and each healthy process is
//! reported as healthy.

mod common;

use build_info::Bytes;
use build_info::diagnosis::{CostBasis, HealthVerdict};
use build_info::host::{CoreKind, NumaNode};
use common::{healthy, machine, team};
use diagnosis::{
    ClockFacts, GpuFacts, LibraryFacts, LibraryPurpose, Neighbour, Observation, ProgramKind, RULES,
    SeenSpeed, ThreadFacts, diagnose, page,
};

/// Change to the healthy observation.
type Change = fn(&mut Observation);

fn neighbour(o: &mut Observation, cores: f64) {
    o.neighbours = vec![Neighbour { pid: 99, name: "cargo".to_string(), cores }];
}

fn library(o: &mut Observation, path: &str, purpose: LibraryPurpose, is_ggmls: bool) {
    o.libraries.push(LibraryFacts { path: path.into(), purpose, is_ggmls });
}

/// All threads of the team lose the share `lost` of their time to other processes.
fn wait(o: &mut Observation, lost: f64) {
    for thread in o.threads.iter_mut().filter(|thread| thread.busy > 0.5) {
        (thread.busy, thread.waited) = (1.0 - lost, Some(lost));
    }
}

fn block(o: &mut Observation, share: f64, faults: f64) {
    for thread in o.threads.iter_mut().filter(|thread| thread.busy > 0.5) {
        (thread.busy, thread.blocked) = (1.0 - share, share);
    }
    o.memory.major_faults_per_s = faults;
}

/// Four performance cores with two CPUs each and four efficiency cores.
fn hybrid(o: &mut Observation) {
    o.host = machine(8, 1);
    o.host.topology.cores.iter_mut().skip(4).for_each(|core| core.kind = CoreKind::Efficiency);
}

fn two_nodes(o: &mut Observation) {
    o.host.topology.cores.iter_mut().skip(4).for_each(|core| core.node = 1);
    o.host.topology.nodes = vec![
        NumaNode { id: 0, cpus: (0..4).collect(), memory: Bytes::gib(16) },
        NumaNode { id: 1, cpus: (4..8).collect(), memory: Bytes::gib(16) },
    ];
}

fn idle(o: &mut Observation) {
    o.threads
        .iter_mut()
        .for_each(|thread| *thread = ThreadFacts { tid: thread.tid, ..ThreadFacts::default() });
    o.speed = SeenSpeed::default();
}

/// Planted causes: the name of the first cause, a description, and the change.
const PLANTED: &[(&str, &str, Change)] = &[
    ("kernels-without-avx2", "a package for every x86-64 CPU", |o| {
        let kernels = o.kernels.as_mut().expect("kernels");
        kernels.instruction_sets.clear();
        kernels.narrow = 35;
    }),
    ("kernels-without-avx512", "a package for AVX2", |o| {
        let kernels = o.kernels.as_mut().expect("kernels");
        kernels.instruction_sets.retain(|set, _| set == "avx2");
        kernels.narrow = 6;
    }),
    ("kernels-unoptimised", "CMAKE_BUILD_TYPE=Debug", |o| {
        o.kernels.as_mut().expect("kernels").unoptimised = 0.9
    }),
    ("sanitizer", "a build with AddressSanitizer", |o| {
        library(o, "/lib/libasan.so.8", LibraryPurpose::Sanitizer, false);
    }),
    ("threads-over-quota", "8 threads in a container of 1.5 cores", |o| {
        o.host.limits.cpu_quota = Some(1.5);
        o.threads = team(8, 2);
        o.throttled = Some(0.95);
    }),
    ("threads-over-quota", "an idle server with -t 8 in a container of 2 cores", |o| {
        o.host.limits.cpu_quota = Some(2.0);
        o.flags.threads = Some(8);
        idle(o);
    }),
    ("threads-over-quota", "2 threads in a container of 1.5 cores", |o| {
        o.host.limits.cpu_quota = Some(1.5);
        o.threads = team(2, 2);
        o.throttled = Some(0.4);
    }),
    ("throttled", "another process in the container uses the quota", |o| {
        o.host.limits.cpu_quota = Some(8.0);
        o.throttled = Some(0.6);
        wait(o, 0.4);
        neighbour(o, 3.0);
    }),
    ("threads-over-affinity", "8 threads under taskset -c 0-3", |o| {
        o.host.limits.affinity = vec![0, 1, 2, 3];
        o.flags.threads = Some(8);
        o.threads = team(8, 4);
    }),
    ("threads-over-cpus", "-t 16 on 8 CPUs", |o| {
        o.flags.threads = Some(16);
        o.threads = team(16, 8);
    }),
    ("threads-on-siblings", "-t 16 on 8 cores with 16 CPUs", |o| {
        o.host = machine(8, 2);
        o.flags.threads = Some(16);
        o.threads = team(16, 16);
    }),
    ("threads-on-efficiency-cores", "5 threads on 4 performance and 4 efficiency cores", |o| {
        hybrid(o);
        o.threads = team(5, 5);
    }),
    ("single-thread", "-t 1 on 8 cores", |o| {
        o.flags.threads = Some(1);
        o.threads = team(1, 1);
        o.speed.decode = Some(2.6);
    }),
    ("few-threads", "-t 2 on 8 cores", |o| {
        o.flags.threads = Some(2);
        o.threads = team(2, 2);
        o.speed.decode = Some(5.0);
    }),
    ("busy-neighbours", "a compiler on the same cores", |o| {
        neighbour(o, 4.0);
        wait(o, 0.4);
    }),
    ("niced", "nice 10 beside a compiler", |o| {
        neighbour(o, 6.0);
        wait(o, 0.7);
        o.threads.iter_mut().for_each(|thread| thread.nice = 10);
    }),
    ("niced", "the idle policy beside a compiler", |o| {
        neighbour(o, 6.0);
        wait(o, 0.7);
        o.threads.iter_mut().for_each(|thread| thread.policy = 5);
    }),
    ("spinning-threads", "OMP_WAIT_POLICY=active beside another server", |o| {
        library(o, "/lib/libgomp.so.1", LibraryPurpose::OpenMp, true);
        o.environment.insert("OMP_WAIT_POLICY".to_string(), "ACTIVE".to_string());
        neighbour(o, 4.0);
        wait(o, 0.5);
    }),
    ("spinning-threads", "GOMP_SPINCOUNT=infinite beside another server", |o| {
        library(o, "/lib/libgomp.so.1", LibraryPurpose::OpenMp, true);
        o.environment.insert("GOMP_SPINCOUNT".to_string(), "infinite".to_string());
        neighbour(o, 4.0);
        wait(o, 0.5);
    }),
    ("blas-threads", "OpenBLAS with 64 threads", |o| {
        library(o, "/lib/libopenblas.so.0", LibraryPurpose::Blas, true);
        o.flags.threads = Some(8);
        o.environment.insert("OPENBLAS_NUM_THREADS".to_string(), "64".to_string());
        o.threads = team(24, 8);
    }),
    ("stolen-cpu-time", "an overbooked virtual machine", |o| o.stolen = Some(0.35)),
    ("traced", "strace -f -p", |o| o.tracer = Some(815)),
    ("model-over-memory", "a model of 4 GiB under memory.high of 2 GiB", |o| {
        o.memory_high = Some(Bytes::gib(2));
        block(o, 0.8, 3000.0);
        o.model.as_mut().expect("a model").resident = Some(Bytes::gib(2));
    }),
    ("model-over-memory", "a young server under a limit of 700 MiB, with large reads", |o| {
        o.host.limits.memory = Some(Bytes::mib(700));
        o.uptime_s = Some(20.0);
        o.speed = SeenSpeed::default();
        block(o, 0.6, 6.0);
        o.memory.read_bytes_per_s = Some(60e6);
    }),
    ("context-over-memory", "a context of 4 GiB under a limit of 6 GiB", |o| {
        o.host.limits.memory = Some(Bytes::gib(6));
        let model = o.model.as_mut().expect("a model");
        (model.cache, model.context) = (Some(Bytes::gib(4)), Some(65_536));
        o.memory.swapped = Bytes::gib(2);
        block(o, 0.6, 900.0);
    }),
    ("swapped", "a process that was swapped out", |o| {
        o.memory.swapped = Bytes::gib(1);
        block(o, 0.5, 400.0);
    }),
    ("evicted-weights", "a cold page cache", |o| {
        o.model.as_mut().expect("a model").resident = Some(Bytes::gib(2));
        block(o, 0.7, 500.0);
    }),
    ("swapped", "a young server whose speed is unknown", |o| {
        o.memory.swapped = Bytes::gib(1);
        o.uptime_s = Some(20.0);
        o.speed = SeenSpeed::default();
        block(o, 0.5, 400.0);
    }),
    ("evicted-weights", "a young server whose speed is unknown", |o| {
        o.model.as_mut().expect("a model").resident = Some(Bytes::gib(2));
        o.uptime_s = Some(20.0);
        o.speed = SeenSpeed::default();
        block(o, 0.7, 500.0);
    }),
    ("no-huge-pages", "--no-mmap without huge pages", |o| {
        o.flags.no_mmap = true;
        o.memory.huge_pages_off = true;
        o.memory.anonymous = Bytes::gib(5);
        o.model.as_mut().expect("a model").mapped = Bytes(0);
    }),
    ("no-huge-pages", "--no-mmap in a process without huge pages", |o| {
        o.flags.no_mmap = true;
        o.memory.huge_pages_denied = true;
        o.memory.anonymous = Bytes::gib(5);
        o.model.as_mut().expect("a model").mapped = Bytes(0);
    }),
    ("slow-storage", "loading from NFS", |o| {
        o.model.as_mut().expect("a model").file_system = Some("nfs4".to_string());
        idle(o);
        o.uptime_s = Some(20.0);
        o.memory.read_bytes_per_s = Some(60e6);
    }),
    ("slow-storage", "loading from FUSE, whose reads are not reads from a disk", |o| {
        o.model.as_mut().expect("a model").file_system = Some("fuse".to_string());
        idle(o);
        o.threads.iter_mut().take(1).for_each(|thread| thread.blocked = 0.9);
        o.uptime_s = Some(20.0);
        o.memory.file_bytes_per_s = Some(42e6);
    }),
    ("gpu-backend-missing", "-ngl 99 with a build for the CPU", |o| {
        o.flags.gpu_layers = Some(99);
        o.gpu.devices = 1;
    }),
    ("gpu-missing", "-ngl 99 in a container without the GPU", |o| {
        o.flags.gpu_layers = Some(99);
        library(o, "/opt/libggml-cuda.so", LibraryPurpose::Gpu, false);
    }),
    ("gpu-not-opened", "CUDA_VISIBLE_DEVICES is empty", |o| {
        o.flags.gpu_layers = Some(99);
        o.gpu.devices = 1;
        library(o, "/opt/libggml-cuda.so", LibraryPurpose::Gpu, false);
        o.environment.insert("CUDA_VISIBLE_DEVICES".to_string(), String::new());
    }),
    ("low-clocks", "the governor powersave of acpi-cpufreq", |o| {
        o.clocks = Some(ClockFacts {
            governor: Some("powersave".to_string()),
            mhz: 1200.0,
            most_mhz: 4000.0,
            heat_events: 0,
        });
    }),
    ("remote-memory", "all pages on node 0, threads on both nodes", |o| {
        two_nodes(o);
        o.bytes_by_node = [(0, Bytes::gib(5)), (1, Bytes::mib(10))].into();
    }),
    ("remote-memory", "threads on node 0, pages on node 1", |o| {
        two_nodes(o);
        o.threads = team(4, 4);
        o.bytes_by_node = [(0, Bytes::mib(10)), (1, Bytes::gib(5))].into();
    }),
];

/// Healthy processes, many of which resemble a planted cause.
const HEALTHY: &[(&str, Change)] = &[
    ("a good build at work", |_| {}),
    ("an idle server", idle),
    ("anneal on its own", |o| o.kind = ProgramKind::Anneal),
    ("7 of 8 threads", |o| {
        o.flags.threads = Some(7);
        o.threads = team(7, 7);
    }),
    ("4 of 8 threads, which saturate the memory", |o| {
        o.flags.threads = Some(4);
        o.threads = team(4, 4);
    }),
    ("8 threads on 8 cores with 16 CPUs", |o| o.host = machine(8, 2)),
    ("4 threads in a container of 4 cores", |o| {
        o.host.limits.cpu_quota = Some(4.0);
        o.threads = team(4, 4);
        o.throttled = Some(0.01);
    }),
    ("2 threads in a container of 1.5 cores that rests often enough", |o| {
        o.host.limits.cpu_quota = Some(1.5);
        o.threads = team(2, 2);
        o.throttled = Some(0.0);
    }),
    ("4 threads on the performance cores of a hybrid CPU", |o| {
        hybrid(o);
        o.threads = team(4, 4);
    }),
    ("nice 10 on a quiet machine", |o| o.threads.iter_mut().for_each(|thread| thread.nice = 10)),
    ("OMP_WAIT_POLICY=active on a quiet machine", |o| {
        library(o, "/lib/libgomp.so.1", LibraryPurpose::OpenMp, true);
        o.environment.insert("OMP_WAIT_POLICY".to_string(), "active".to_string());
    }),
    ("a neighbour on CPUs that nobody else needs", |o| {
        o.host = machine(16, 1);
        neighbour(o, 2.0);
    }),
    ("numpy's OpenBLAS, which ggml does not use", |o| {
        library(o, "/venv/numpy.libs/libscipy_openblas64_.so", LibraryPurpose::Blas, false);
        o.kind = ProgramKind::LlamaCppPython;
    }),
    ("memory in swap that nobody needs", |o| o.memory.swapped = Bytes::gib(1)),
    ("a repacked model, whose file was evicted", |o| {
        o.model.as_mut().expect("a model").resident = Some(Bytes::mib(10))
    }),
    ("a GPU with all layers and one busy thread", |o| {
        o.flags.gpu_layers = Some(99);
        o.gpu = GpuFacts { devices: 1, is_open: true };
        library(o, "/opt/libggml-cuda.so", LibraryPurpose::Gpu, false);
        o.threads = team(1, 1);
    }),
    ("a CPU with AVX2 only, and kernels for it", |o| {
        o.host.cpu.features.retain(|name| !name.starts_with("avx512"));
        o.kernels.as_mut().expect("kernels").instruction_sets.retain(|set, _| set == "avx2");
    }),
    ("a stripped program, whose kernels have no names", |o| {
        let kernels = o.kernels.as_mut().expect("kernels");
        (kernels.found, kernels.narrow) = (0, 0);
        kernels.instruction_sets.clear();
    }),
    ("the powersave governor of intel_pstate at full speed", |o| {
        o.clocks = Some(ClockFacts {
            governor: Some("powersave".to_string()),
            mhz: 3600.0,
            most_mhz: 4800.0,
            heat_events: 0,
        });
    }),
    ("pages and threads spread over two nodes", |o| {
        two_nodes(o);
        o.bytes_by_node = [(0, Bytes::gib(3)), (1, Bytes::gib(2))].into();
    }),
    ("a model on NFS that is in memory", |o| {
        o.model.as_mut().expect("a model").file_system = Some("nfs4".to_string())
    }),
    ("a small model, whose speed depends on sampling", |o| {
        let model = o.model.as_mut().expect("a model");
        (model.weights, model.bytes_per_token) = (Bytes::mib(290), Some(290 << 20));
        o.speed.decode = Some(40.0);
    }),
    ("a model that is not quantised", |o| {
        o.model.as_mut().expect("a model").quantisation = Some("F16".to_string())
    }),
];

fn changed(change: Change) -> Observation {
    let mut observation = healthy();
    change(&mut observation);
    observation
}

#[test]
fn each_planted_cause_is_named_first() {
    for (id, what, change) in PLANTED {
        let found = diagnose(&changed(*change));
        assert_eq!(
            found.causes.first().map(|cause| cause.id.as_str()),
            Some(*id),
            "{what}: {}",
            page(&found)
        );
        assert_eq!(found.verdict, HealthVerdict::Slow, "{what}");
        let cause = &found.causes[0];
        assert!(!cause.evidence.is_empty() && !cause.change.is_empty(), "{what}");
        assert_eq!(cause.slowdown.is_none(), cause.basis == CostBasis::Unknown, "{what}");
        assert!(found.causes.len() <= 2, "{what}: one change has many causes:\n{}", page(&found));
    }
}

#[test]
fn every_rule_has_a_planted_cause() {
    let without: Vec<&str> = RULES
        .iter()
        .map(|rule| rule.id)
        .filter(|id| !PLANTED.iter().any(|(planted, ..)| planted == id))
        .collect();
    assert!(without.is_empty(), "{without:?}");
}

#[test]
fn healthy_processes_are_said_to_be_healthy() {
    for (what, change) in HEALTHY {
        let found = diagnose(&changed(*change));
        assert_eq!(found.verdict, HealthVerdict::Healthy, "{what}:\n{}", page(&found));
    }
}

#[test]
fn a_low_speed_without_a_cause_is_not_called_healthy() {
    let mut observation = healthy();
    observation.speed.decode = Some(1.0);
    assert_eq!(diagnose(&observation).verdict, HealthVerdict::Unexplained);
    // The speed of a request is low if the server answers other requests at the same time.
    observation.speed.is_shared = true;
    assert_eq!(diagnose(&observation).verdict, HealthVerdict::Healthy);
    observation.speed.is_shared = false;
    // An average since the start includes times when the process was slow for other reasons.
    observation.speed.is_current = false;
    assert_eq!(diagnose(&observation).verdict, HealthVerdict::Healthy);
}

#[test]
fn a_process_that_could_not_be_read_is_not_called_healthy() {
    let mut observation = healthy();
    assert!(page(&diagnose(&observation)).contains("\nhealthy: "));
    observation.unread.push("the mapped files of process 4711".to_string());
    let found = diagnose(&observation);
    assert_eq!(found.verdict, HealthVerdict::Incomplete);
    let text = page(&found);
    assert!(!text.contains("healthy") && text.contains("some readings failed"), "{text}");
    let empty = diagnose(&Observation::default());
    assert!(empty.notes.iter().any(|note| note.contains("neither a model")), "{empty:?}");
}

#[test]
fn the_most_expensive_cause_is_first() {
    let mut observation = healthy();
    for id in ["no-huge-pages", "kernels-without-avx2", "traced"] {
        let (_, _, change) = PLANTED.iter().find(|(planted, ..)| *planted == id).expect("planted");
        change(&mut observation);
    }
    let ids: Vec<String> = diagnose(&observation).causes.into_iter().map(|cause| cause.id).collect();
    assert_eq!(ids, ["kernels-without-avx2", "traced", "no-huge-pages"]);
}

#[test]
fn the_limit_of_the_machine_is_bandwidth_per_token() {
    let found = diagnose(&healthy());
    let allowed = found.speed.allowed_decode.expect("a limit");
    assert!((allowed - 42e9 / (4u64 << 30) as f64).abs() < 1e-9, "{allowed}");
    let mut small = healthy();
    small.model.as_mut().expect("a model").weights = Bytes::mib(1);
    assert_eq!(diagnose(&small).speed.allowed_decode, None, "a model in the caches");
}

#[test]
fn observations_and_diagnoses_are_data() {
    for (_, what, change) in PLANTED {
        let observation = changed(*change);
        let text = serde_json::to_string(&observation).expect("JSON");
        let read: Observation = serde_json::from_str(&text).expect("an observation");
        assert_eq!(read, observation, "{what}");
        let found = diagnose(&read);
        let text = serde_json::to_string(&found).expect("JSON");
        assert_eq!(
            serde_json::from_str::<build_info::Diagnosis>(&text).expect("a diagnosis"),
            found,
            "{what}"
        );
    }
}

#[test]
fn names_of_processes_cannot_move_the_cursor() {
    let mut observation = healthy();
    neighbour(&mut observation, 4.0);
    wait(&mut observation, 0.4);
    observation.neighbours[0].name = "\u{1b}[2J".to_string();
    observation.model.as_mut().expect("a model").path = "/\u{1b}]0;x\u{7}.gguf".into();
    let text = page(&diagnose(&observation));
    assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
}
