//! Settings to try on a machine, in stages. Each stage changes one aspect of the best settings so far. These functions
//! have no side effects.

use std::collections::BTreeSet;

use build_info::host::CoreKind;
use build_info::tuning::{Chosen, ModelShape};
use build_info::{Bytes, Host, Policy, threads, words};
use gguf::memory::{CacheShape, head_lengths};
use llama::options::KvType;

use super::objective::Objective;

/// Phases that a stage measures. If a stage measures only one phase, its changes do not affect the other phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phases {
    /// Prompt and generation.
    Both,
    /// Prompt only.
    Prefill,
    /// Generation only.
    Decode,
}

/// Change to the best settings so far.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Description of the change.
    pub name: String,
    /// New values of settings. A change never removes a setting.
    pub set: Chosen,
}

/// Alternatives for one aspect of the settings.
#[derive(Clone, Debug, PartialEq)]
pub struct TuningStage {
    /// Name of the aspect that the stage decides.
    pub name: &'static str,
    /// Phases that the stage measures.
    pub phases: Phases,
    /// Alternatives to the current settings.
    pub changes: Vec<Change>,
    /// Minimum prompt length, in tokens, for which the changes make a difference.
    pub least_prompt: u32,
}

/// Conditions that the candidates depend on.
#[derive(Clone, Debug)]
pub struct Surroundings<'a> {
    /// Machine to tune for.
    pub host: &'a Host,
    /// Objective of the tuning run.
    pub objective: &'a Objective,
    /// True if ggml's own pool runs the threads, so that `poll` has an effect.
    pub own_threads: bool,
    /// True if this build requests huge pages.
    pub huge_pages: bool,
    /// Names of the CPU variants that could be loaded instead of the current one, the most promising first.
    pub cpu_variants: &'a [String],
    /// True if Anneal's kernels compute products and attention.
    pub own_kernels: bool,
    /// Kernels for products and attention that this CPU can run instead of the current kernels, as a value of
    /// `--kernels`.
    pub other_kernels: Option<&'static str>,
    /// True if settings that lose accuracy may be tried.
    pub allow_lossy: bool,
}

/// Returns the stages in decreasing order of expected gain.
pub fn stages(around: &Surroundings<'_>) -> Vec<TuningStage> {
    let mut stages = vec![
        layout(around),
        stage("flash attention", Phases::Both, flash_attention()),
        decode_threads(around),
        prefill_threads(around),
    ];
    stages.extend(ubatch(around));
    stages.push(stage("CPU variant", Phases::Both, cpu_variants(around)));
    if around.huge_pages {
        let off = Chosen { huge_pages: Some(false), ..Chosen::default() };
        stages.push(stage("huge pages", Phases::Both, vec![change("small pages", off)]));
    }
    if around.own_threads {
        stages.push(stage("waiting", Phases::Both, polling()));
    }
    stages.push(stage("affinity", Phases::Both, affinity()));
    stages.push(stage("load mode", Phases::Both, load_modes()));
    if around.allow_lossy {
        stages.push(stage("KV cache", Phases::Both, kv_types()));
    }
    stages.retain(|stage| !stage.changes.is_empty() && is_of_use(stage, around.objective));
    stages
}

/// True if the objective weighs the phase that the stage changes, and the objective's prompts are long enough.
fn is_of_use(stage: &TuningStage, objective: &Objective) -> bool {
    match stage.phases {
        Phases::Both => true,
        Phases::Prefill => objective.prompt > 0 && objective.usual_prompt() >= stage.least_prompt,
        Phases::Decode => objective.generate > 0,
    }
}

fn stage(name: &'static str, phases: Phases, changes: Vec<Change>) -> TuningStage {
    TuningStage { name, phases, changes, least_prompt: 0 }
}

fn change(name: impl Into<String>, set: Chosen) -> Change {
    Change { name: name.into(), set }
}

fn layout(around: &Surroundings<'_>) -> TuningStage {
    let mut changes = vec![change("no repacking", Chosen { repack: Some(false), ..Chosen::default() })];
    if let Some(name) = around.other_kernels {
        let set = Chosen { kernels: Some(name.to_string()), ..Chosen::default() };
        changes.push(change(format!("kernels {name}"), set));
    }
    if around.own_kernels {
        // llama.cpp's tiled kernels are not used.
        return stage("layout", Phases::Both, changes);
    }
    changes.push(change("no tiled kernels", Chosen { tiled: Some(false), ..Chosen::default() }));
    stage("layout", Phases::Both, changes)
}

/// Returns other CPU variants to try. ggml ranks kernels by the CPU features that they use. More features are not
/// always faster: some CPUs lower their clock for 512-bit registers.
fn cpu_variants(around: &Surroundings<'_>) -> Vec<Change> {
    let of = |name: &String| Chosen { cpu_variant: Some(name.clone()), ..Chosen::default() };
    around.cpu_variants.iter().map(|name| change(format!("kernels for {name}"), of(name))).collect()
}

fn decode_threads(around: &Surroundings<'_>) -> TuningStage {
    let now = threads::budget(around.host, Policy::default()).decode;
    let changes = thread_counts(around.host).into_iter().filter(|threads| *threads != now).map(|threads| {
        let set = Chosen { decode_threads: Some(threads), ..Chosen::default() };
        change(words::count(threads, "decode thread"), set)
    });
    stage("decode threads", Phases::Decode, changes.collect())
}

fn prefill_threads(around: &Surroundings<'_>) -> TuningStage {
    let now = threads::budget(around.host, Policy::default()).prefill;
    // Half of the cores never evaluate a prompt faster than all cores. However, slightly fewer threads may be faster if
    // a quota or heat limits the speed.
    let changes =
        thread_counts(around.host).into_iter().filter(|threads| *threads != now && 2 * *threads > now);
    let changes = changes.map(|threads| {
        let set = Chosen { prefill_threads: Some(threads), ..Chosen::default() };
        change(words::count(threads, "prefill thread"), set)
    });
    stage("prefill threads", Phases::Prefill, changes.collect())
}

/// Returns the numbers of threads to try, up to the quota:
///
/// - half, three quarters and all of the cores, and one less than all;
/// - the performance cores alone;
/// - every logical CPU, including SMT siblings and efficiency cores.
fn thread_counts(host: &Host) -> BTreeSet<u32> {
    let cores = threads::budget(host, Policy::Max).cores;
    let logical = u32::try_from(host.limits.affinity.len()).unwrap_or(u32::MAX);
    let performance = host.topology.cores.iter().filter(|core| {
        core.kind == CoreKind::Performance && core.cpus.iter().any(|cpu| host.limits.affinity.contains(cpu))
    });
    let performance = u32::try_from(performance.count()).ok().filter(|count| *count > 0).unwrap_or(cores);
    // If a quota is not a whole number, one more thread may use the fraction.
    let quota = host.limits.cpu_quota.map_or(u32::MAX, |quota| (quota.ceil() as u32).max(1));
    let shares =
        [cores.div_ceil(2), (3 * cores).div_ceil(4), cores.saturating_sub(1), cores, performance, logical];
    shares.into_iter().map(|threads| threads.min(quota).max(1)).collect()
}

fn load_modes() -> Vec<Change> {
    let mode = |mode: &str| Chosen { load_mode: Some(mode.to_string()), ..Chosen::default() };
    // The other modes affect only the load time, and whether the model stays in memory.
    vec![change("read into memory", mode("none")), change("mapped", mode("mmap"))]
}

fn flash_attention() -> Vec<Change> {
    let off = Chosen { flash_attention: Some("off".to_string()), ..Chosen::default() };
    vec![change("no flash attention", off)]
}

/// Returns a stage that tries other graph sizes, with prompts that fill the graphs.
fn ubatch(around: &Surroundings<'_>) -> Option<TuningStage> {
    let longest = around.objective.usual_prompt();
    let changes: Vec<Change> = [128u32, 256, 1024, 2048]
        .into_iter()
        .filter(|tokens| *tokens <= longest)
        .map(|tokens| {
            let set = Chosen { n_ubatch: Some(tokens), ..Chosen::default() };
            change(format!("graphs of {tokens} tokens"), set)
        })
        .collect();
    // The prompt must fill a graph of every candidate size and of the default size, 512. Otherwise, the sizes would
    // make no difference.
    let fill = changes.iter().filter_map(|change| change.set.n_ubatch).chain([512]).max()?;
    Some(TuningStage { least_prompt: fill, ..stage("graph size", Phases::Prefill, changes) })
}

fn affinity() -> Vec<Change> {
    let bound = Chosen { affinity: Some("on".to_string()), ..Chosen::default() };
    vec![change("threads bound to cores", bound)]
}

fn polling() -> Vec<Change> {
    let poll = |poll| Chosen { poll: Some(poll), ..Chosen::default() };
    vec![change("threads sleep while they wait", poll(0)), change("threads spin while they wait", poll(100))]
}

fn kv_types() -> Vec<Change> {
    let both = |kind: KvType| Chosen {
        type_k: Some(kind.name().to_string()),
        type_v: Some(kind.name().to_string()),
        flash_attention: Some("on".to_string()),
        ..Chosen::default()
    };
    vec![change("KV cache in q8_0", both(KvType::Q8_0)), change("KV cache in q4_0", both(KvType::Q4_0))]
}

/// Returns `chosen` with the settings of `change`, including settings that equal the untuned settings.
pub fn with(chosen: &Chosen, change: &Chosen) -> Chosen {
    let text = |new: &Option<String>, old: &Option<String>| new.clone().or_else(|| old.clone());
    Chosen {
        decode_threads: change.decode_threads.or(chosen.decode_threads),
        prefill_threads: change.prefill_threads.or(chosen.prefill_threads),
        n_batch: change.n_batch.or(chosen.n_batch),
        n_ubatch: change.n_ubatch.or(chosen.n_ubatch),
        repack: change.repack.or(chosen.repack),
        tiled: change.tiled.or(chosen.tiled),
        load_mode: text(&change.load_mode, &chosen.load_mode),
        flash_attention: text(&change.flash_attention, &chosen.flash_attention),
        type_k: text(&change.type_k, &chosen.type_k),
        type_v: text(&change.type_v, &chosen.type_v),
        affinity: text(&change.affinity, &chosen.affinity),
        poll: change.poll.or(chosen.poll),
        huge_pages: change.huge_pages.or(chosen.huge_pages),
        cpu_variant: text(&change.cpu_variant, &chosen.cpu_variant),
        kernels: text(&change.kernels, &chosen.kernels),
    }
}

/// True if the settings change the order of sums, so that the last digits may differ from the untuned output.
pub fn changes_numerics(chosen: &Chosen) -> bool {
    let numbers = chosen.repack.is_some()
        || chosen.tiled.is_some()
        || chosen.cpu_variant.is_some()
        || chosen.kernels.is_some()
        || chosen.n_ubatch.or(chosen.n_batch).is_some();
    numbers || chosen.flash_attention.is_some() || is_lossy(chosen)
}

/// True if the settings lose accuracy by design.
pub fn is_lossy(chosen: &Chosen) -> bool {
    chosen.type_k.is_some() || chosen.type_v.is_some()
}

/// Estimates the memory that a run needs, to compare it with the ceiling. The estimate covers the weights, the KV cache
/// of `context` tokens, and a graph's buffers, which mostly hold the logits and the feed-forward network's values. The
/// actual memory is read after each run. `cargo xtask recommend` reads the model's file and can therefore estimate
/// smaller buffers; this function only knows the sizes in the tuning record.
pub fn memory(model: &ModelShape, chosen: &Chosen, context: u32) -> Bytes {
    let kind =
        |text: &Option<String>| text.as_ref().and_then(|text| text.parse().ok()).unwrap_or(KvType::F16);
    let (key, value) = head_lengths(model.embedding.into(), model.heads.max(1).into(), None, None);
    let shape = CacheShape { layers: model.layers.into(), kv_heads: model.kv_heads.into(), key, value };
    let [type_k, type_v] = [&chosen.type_k, &chosen.type_v].map(|text| kind(text).bytes_per_32());
    let cache = shape.bytes(context.into(), type_k, type_v).0;
    let graph = u64::from(chosen.n_ubatch.unwrap_or(512).min(context.max(1)));
    let values =
        model.vocabulary.saturating_add(4 * (u64::from(model.feed_forward) + u64::from(model.embedding)));
    let buffers = graph.saturating_mul(values).saturating_mul(4);
    Bytes(model.weights.0.saturating_add(cache).saturating_add(buffers))
}

#[cfg(test)]
mod tests {
    use build_info::host::{Core, CoreKind, Cpu, Limits, Memory, Os, Topology};

    use super::*;

    fn host(cores: u32, siblings: u32, quota: Option<f64>) -> Host {
        let core = |index: u32| Core {
            package: 0,
            node: 0,
            cpus: (0..siblings).map(|sibling| index + sibling * cores).collect(),
            kind: CoreKind::Performance,
            l1d: None,
            l2: None,
            l3: None,
        };
        Host {
            arch: "x86_64".to_string(),
            hostname: None,
            os: Os::default(),
            cpu: Cpu::default(),
            topology: Topology { cores: (0..cores).map(core).collect(), ..Topology::default() },
            memory: Memory::default(),
            limits: Limits { affinity: (0..cores * siblings).collect(), cpu_quota: quota, memory: None },
            gpus: Vec::new(),
        }
    }

    #[test]
    fn numbers_of_threads_are_those_that_the_machine_has() {
        let cases: [(u32, u32, Option<f64>, &[u32]); 6] = [
            (1, 1, None, &[1]),
            (2, 1, None, &[1, 2]),
            (4, 2, None, &[2, 3, 4, 8]),
            (8, 1, Some(1.5), &[1, 2]),
            (16, 2, None, &[8, 12, 15, 16, 32]),
            (16, 2, Some(4.0), &[2, 3, 4]),
        ];
        for (cores, siblings, quota, expected) in cases {
            let found: Vec<u32> = thread_counts(&host(cores, siblings, quota)).into_iter().collect();
            assert_eq!(found, expected, "{cores} cores of {siblings}, quota {quota:?}");
        }
        // Two performance cores and seven efficiency cores, all of which are usable.
        let mut hybrid = host(9, 1, None);
        hybrid.topology.cores[2..].iter_mut().for_each(|core| core.kind = CoreKind::Efficiency);
        assert_eq!(Vec::from_iter(thread_counts(&hybrid)), [2, 5, 7, 8, 9]);
        hybrid.limits.affinity.retain(|cpu| *cpu >= 2);
        assert_eq!(Vec::from_iter(thread_counts(&hybrid)), [4, 6, 7]);
    }

    #[test]
    fn stages_follow_the_purpose_and_the_build() {
        let host = host(2, 1, None);
        let names = |objective: &str, own_threads, huge_pages, allow_lossy| -> Vec<&'static str> {
            let objective = objective.parse().expect("known");
            let around = Surroundings {
                host: &host,
                objective: &objective,
                own_threads,
                huge_pages,
                cpu_variants: &[],
                own_kernels: false,
                other_kernels: None,
                allow_lossy,
            };
            stages(&around).iter().map(|stage| stage.name).collect()
        };
        let (first, last) = (["layout", "flash attention", "decode threads"], ["affinity", "load mode"]);
        assert_eq!(names("chat", false, false, false), [&first[..], &last].concat());
        let all = ["graph size", "huge pages", "waiting"];
        assert_eq!(names("rag", true, true, true), [&first[..], &all, &last, &["KV cache"]].concat());
        // Nothing is generated, so the number of decode threads does not matter.
        assert!(!names("512:0", true, true, true).contains(&"decode threads"));
    }

    #[test]
    fn nothing_lossy_is_tried_unasked() {
        let (host, objective) = (host(8, 2, None), "rag".parse().expect("known"));
        let around = Surroundings {
            host: &host,
            objective: &objective,
            own_threads: true,
            huge_pages: true,
            cpu_variants: &["haswell".to_string()],
            own_kernels: true,
            other_kernels: Some("ggml"),
            allow_lossy: false,
        };
        for stage in stages(&around) {
            for change in &stage.changes {
                assert!(change.set.type_k.is_none() && change.set.type_v.is_none(), "{change:?}");
                assert!(!change.set.is_default(), "{change:?}");
            }
        }
    }

    #[test]
    fn a_change_leaves_what_was_decided_before() {
        let chosen = Chosen { repack: Some(false), poll: Some(0), ..Chosen::default() };
        let change = Chosen { poll: Some(100), n_ubatch: Some(256), ..Chosen::default() };
        let expected =
            Chosen { repack: Some(false), poll: Some(100), n_ubatch: Some(256), ..Chosen::default() };
        assert_eq!(with(&chosen, &change), expected);
    }

    #[test]
    fn memory_is_weights_cache_and_buffers() {
        let model = ModelShape {
            architecture: "llama".to_string(),
            layers: 2,
            embedding: 64,
            feed_forward: 128,
            heads: 4,
            kv_heads: 2,
            vocabulary: 256,
            quantisation: "F16".to_string(),
            weights: Bytes(1_000_000),
        };
        // 2 layers × 2 heads × 16 values × 2 bytes, for K and for V; 100 × (256 + 4 × 192) floats
        let expected = 1_000_000 + 100 * (2 * 2 * 16 * 2) * 2 + 100 * 1024 * 4;
        assert_eq!(memory(&model, &Chosen::default(), 100), Bytes(expected));
        let huge = ModelShape { vocabulary: u64::MAX, weights: Bytes(u64::MAX), ..model };
        assert_eq!(memory(&huge, &Chosen::default(), u32::MAX), Bytes(u64::MAX));
    }
}
