//! Thread pools of a context: the number of threads, and the CPUs on which they run.

use build_info::Host;
use llama::error::Result;
use llama::options::{Affinity, FlashAttention, KvType};
use llama::{Context, Threadpool, Threads};

use crate::settings::{Settings, Source};

/// CPUs for the threads of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// CPUs that the threads may use. If empty, the threads stay on the CPUs of the calling thread.
    pub cpus: Vec<u32>,
    /// True if each thread is bound to one CPU.
    pub strict: bool,
}

impl Placement {
    /// Returns the CPUs for `threads` threads on `host` under `settings`.
    pub fn new(settings: &Settings, host: Option<&Host>, threads: u32) -> Self {
        let cpus = &settings.cpus.value;
        // All CPUs are listed, because ggml would otherwise leave the threads on the CPUs of an earlier pool, and new
        // threads would inherit that placement.
        let unbound = || {
            let all = host.map_or(Vec::new(), |host| host.limits.affinity.clone());
            Placement { cpus: all, strict: false }
        };
        match settings.affinity.value {
            Affinity::Off => unbound(),
            // With more threads than CPUs, binding each thread to one CPU would put two threads on one CPU and leave
            // another CPU idle.
            Affinity::On => Placement { cpus: cpus.clone(), strict: threads as usize <= cpus.len() },
            Affinity::Auto
                if host.is_some_and(|host| host.topology.is_hybrid()) && threads as usize <= cpus.len() =>
            {
                Placement { cpus: cpus.clone(), strict: false }
            }
            Affinity::Auto => unbound(),
        }
    }
}

/// Creates separate thread pools for `context`. Without a pool, ggml starts and joins threads for every graph.
///
/// Both phases share a pool if they use the same number of threads; otherwise, each phase has its own pool. The
/// decode pool is created first. Creating a pool also binds the calling thread, so the last pool determines the CPU
/// of that thread. The calling thread therefore stays on a CPU that the smaller decode pool leaves free.
///
/// # Errors
/// If a pool cannot be created.
pub fn attach(context: &mut Context, settings: &Settings, host: Option<&Host>) -> Result<()> {
    context.take_threads(&pools(settings, host)?);
    llama::set_blas_threads(settings.blas_threads.value);
    Ok(())
}

/// Creates the pools that [`attach`] gives to a context.
///
/// # Errors
/// If a pool cannot be created.
pub fn pools(settings: &Settings, host: Option<&Host>) -> Result<Threads> {
    let (decode, prefill) = (settings.decode_threads.value, settings.prefill_threads.value);
    let pool = |threads| {
        let placement = Placement::new(settings, host, threads);
        Threadpool::new(threads, &placement.cpus, placement.strict, settings.poll.value)
    };
    let decode_pool = pool(decode)?;
    let prefill_pool = if decode == prefill { None } else { Some(pool(prefill)?) };
    Ok(Threads::new(decode_pool, prefill_pool, (decode, prefill)))
}

/// Lets decode use fewer threads while other programs use the cores, if that is faster. Has no effect if the user chose
/// the number of threads, or if the number of threads could change the text.
pub fn follow_load(context: &mut Context, settings: &Settings) {
    if may_follow_load(settings) {
        context.follow_load();
    }
}

fn may_follow_load(settings: &Settings) -> bool {
    let is_chosen = |source| matches!(source, Source::Flag | Source::ConfigFile | Source::Environment);
    // Anneal's attention kernels support these cache types. In llama.cpp's attention, the sums depend on the number of
    // threads.
    let own = [KvType::F32, KvType::F16, KvType::Bf16, KvType::Q8_0, KvType::Q4_0];
    let is_own = settings.flash_attention.value != FlashAttention::Off
        && own.contains(&settings.type_k.value)
        && own.contains(&settings.type_v.value);
    is_own && !is_chosen(settings.decode_threads.source) && !is_chosen(settings.policy.source)
}

#[cfg(test)]
mod tests {
    use build_info::Policy;

    use super::*;
    use crate::runtime_host::RuntimeHost;
    use crate::settings::Requested;

    #[test]
    fn threads_are_bound_only_where_asked_or_known_to_help() {
        let cpus = Some(vec![0, 2, 4]);
        let place = |affinity, threads| {
            let requested = Requested { affinity, cpus: cpus.clone(), ..Requested::default() };
            let settings = Settings::resolve(&requested, &RuntimeHost::default()).expect("valid");
            Placement::new(&settings, None, threads)
        };
        let bound = |strict| Placement { cpus: vec![0, 2, 4], strict };
        let cases = [
            (Some(Affinity::On), 3, bound(true)),
            (Some(Affinity::On), 4, bound(false)),
            (Some(Affinity::Off), 3, Placement::default()),
            (Some(Affinity::Auto), 3, Placement::default()),
            // A list of CPUs implies `--affinity on`.
            (None, 2, bound(true)),
        ];
        for (affinity, threads, expected) in cases {
            assert_eq!(place(affinity, threads), expected, "{affinity:?}, {threads} threads");
        }
    }

    #[test]
    fn the_number_follows_the_load_unless_it_was_chosen_or_could_change_the_text() {
        let follows = |requested: Requested, variable: Option<&str>| {
            let mut runtime_host = RuntimeHost::default();
            runtime_host.environment.threads = variable.map(String::from);
            may_follow_load(&Settings::resolve(&requested, &runtime_host).expect("valid"))
        };
        let none = Requested::default;
        assert!(follows(none(), None));
        assert!(follows(Requested { type_k: Some(KvType::Q8_0), ..none() }, None));
        assert!(follows(Requested { prefill_threads: Some(2), ..none() }, None));
        for variable in ["3", "shared"] {
            assert!(!follows(none(), Some(variable)), "{variable}");
        }
        for requested in [
            Requested { decode_threads: Some(2), ..none() },
            Requested { policy: Some(Policy::Max), ..none() },
            Requested { flash_attention: Some(FlashAttention::Off), ..none() },
            Requested { type_v: Some(KvType::Q5_1), ..none() },
        ] {
            assert!(!follows(requested.clone(), None), "{requested:?}");
        }
    }

    /// Returns the CPUs on which this thread may run.
    fn mask() -> String {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("proc(5)");
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        line.expect("a line").trim().to_string()
    }

    #[test]
    fn an_unbound_run_after_a_bound_one_has_all_cpus_again() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("tiny.gguf");
        let options = gguf::synth::SynthOptions::new(gguf::synth::Preset::Tiny);
        gguf::synth::write(&path, &options).expect("the tiny model");
        let runtime_host = RuntimeHost::read();
        let before = mask();
        let run = |affinity| {
            let requested = Requested {
                affinity: Some(affinity),
                decode_threads: Some(1),
                n_ctx: Some(256),
                ..Requested::default()
            };
            let settings = Settings::resolve(&requested, &runtime_host).expect("valid");
            let model = crate::model::open(&path, &settings, &runtime_host).expect("the model loads");
            let mut context =
                crate::model::context(&model, &settings, &runtime_host, false).expect("a context");
            // Some builds only bind the threads when they compute.
            context.decode(&[1]).expect("a token");
            context.synchronize();
            mask()
        };
        let bound = run(Affinity::On);
        assert!(!bound.contains(['-', ',']), "one thread on one CPU, not {bound}");
        for affinity in [Affinity::Off, Affinity::Auto] {
            assert_eq!(run(affinity), before, "{affinity:?}");
        }
    }
}
