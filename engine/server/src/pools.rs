//! Pools: several contexts of one model, each with its own cores. This module assigns cores and jobs to pools.
//!
//! Pools share the weights and the queue. Each pool posts a notice with its number of free slots and the prompts in
//! its slots. A job goes to the pool that already holds the largest part of its prompt. In a tie, the job goes to the
//! pool with the most free slots.

use std::collections::BTreeMap;
use std::sync::Arc;

use build_info::Host;
use engine_core::settings::{Settings, Source};
use llama::Token;
use llama::error::{Error, Result};
use llama::options::Affinity;

use crate::scope::Scope;

/// Minimum number of additional prompt tokens that a pool must hold for a job to wait for it. Evaluating fewer tokens
/// again is faster than waiting.
const WORTH: usize = 32;

/// Prompt that a slot holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotPrompt {
    /// Scope of the prompt. Prompts of different scopes are never compared.
    pub scope: Scope,
    /// Tokens of the prompt.
    pub tokens: Arc<[Token]>,
}

/// Notice that a pool posts for the other pools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notice {
    /// Number of slots without a running request.
    pub free: usize,
    /// Maximum length of a prompt that fits, in tokens.
    pub room: usize,
    /// Prompts that the slots hold.
    pub held: Vec<SlotPrompt>,
}

impl Notice {
    fn can_take(&self, prompt: &[Token]) -> bool {
        self.free > 0 && prompt.len() <= self.room
    }

    /// Returns the number of tokens of `prompt` that the pool holds. The prompt belongs to `scope`.
    fn has(&self, scope: Scope, prompt: &[Token]) -> usize {
        let common = |held: &SlotPrompt| {
            held.tokens.iter().zip(prompt).take_while(|(one, other)| one == other).count()
        };
        self.held.iter().filter(|held| held.scope == scope).map(common).max().unwrap_or(0)
    }
}

/// Notices of all pools.
#[derive(Debug, Default)]
pub struct PoolNotices(Vec<Notice>);

impl PoolNotices {
    /// Creates empty notices of `pools` pools.
    pub fn new(pools: usize) -> Self {
        PoolNotices(vec![Notice::default(); pools])
    }

    /// Replaces the notice of `pool`. Returns true if it changed.
    pub fn post(&mut self, pool: usize, notice: Notice) -> bool {
        match self.0.get_mut(pool) {
            Some(place) if *place != notice => {
                *place = notice;
                true
            }
            _ => false,
        }
    }

    /// Updates the notice of `pool` after it took a job.
    pub fn took(&mut self, pool: usize) {
        if let Some(notice) = self.0.get_mut(pool) {
            notice.free = notice.free.saturating_sub(1);
        }
    }

    /// True if no other pool is more suitable for a job of `scope` with this `prompt`.
    pub fn is_best(&self, pool: usize, scope: Scope, prompt: &[Token]) -> bool {
        let Some(own) = self.0.get(pool).filter(|own| own.can_take(prompt)) else { return false };
        let able = || self.0.iter().filter(|notice| notice.can_take(prompt));
        let most = able().map(|notice| notice.has(scope, prompt)).max().unwrap_or(0);
        let near = |notice: &&Notice| notice.has(scope, prompt) + WORTH > most;
        let free = able().filter(near).map(|notice| notice.free).max().unwrap_or(0);
        near(&own) && own.free == free
    }
}

/// Assigns the same number of cores to each of `pools` pools. If the NUMA nodes can be divided evenly, all cores of a
/// pool belong to one node; otherwise the cores are adjacent. Remaining cores stay unused.
///
/// # Errors
/// If there are fewer cores than pools.
pub fn cores(pools: u32, settings: &Settings, host: Option<&Host>) -> Result<Vec<Vec<u32>>> {
    let pools = pools.max(1) as usize;
    let cpus = &settings.cpus.value;
    // A CPU quota limits the number of busy cores, but does not select cores.
    let usable = match settings.cpus.source {
        source if source.is_asked() => cpus.len(),
        _ => host.map_or(cpus.len(), |host| {
            build_info::threads::budget(host, settings.policy.value).cores as usize
        }),
    };
    let usable = usable.min(cpus.len());
    let each = usable / pools;
    if each == 0 {
        return Err(Error::Usage(format!(
            "pools = {pools}: each pool needs its own core, but this process may use only {usable} cores\nhint: use \
            fewer pools"
        )));
    }
    Ok(divided(&cpus[..usable], pools, each, |cpu| node_of(cpu, host)))
}

fn node_of(cpu: u32, host: Option<&Host>) -> u32 {
    let core = host.and_then(|host| host.topology.cores.iter().find(|core| core.cpus.contains(&cpu)));
    core.map_or(0, |core| core.node)
}

/// Divides `cpus` into `pools` groups of `each` CPUs. If whole pools fit into the nodes, no pool spans two nodes.
fn divided(cpus: &[u32], pools: usize, each: usize, node: impl Fn(u32) -> u32) -> Vec<Vec<u32>> {
    let mut nodes: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for cpu in cpus {
        nodes.entry(node(*cpu)).or_default().push(*cpu);
    }
    let within: Vec<Vec<u32>> =
        nodes.values().flat_map(|cpus| cpus.chunks_exact(each)).map(<[u32]>::to_vec).collect();
    match within.len() >= pools {
        // The pools could also alternate between nodes, but users expect ascending order.
        true => within.into_iter().take(pools).collect(),
        false => cpus.chunks_exact(each).take(pools).map(<[u32]>::to_vec).collect(),
    }
}

/// Returns the settings of a pool on `cpus`. The number of threads is the requested number, or the policy's share of
/// these cores. The threads are pinned to the cores.
#[must_use]
pub fn settings(settings: &Settings, cpus: &[u32]) -> Settings {
    let cores = u32::try_from(cpus.len()).unwrap_or(u32::MAX);
    let mut own = settings.clone();
    own.cpus.value = cpus.to_vec();
    own.affinity.value = Affinity::On;
    let share = own.policy.value.decode_threads(cores);
    let threads =
        |value: u32, source: Source, share: u32| if source.is_asked() { value.min(cores) } else { share };
    own.decode_threads.value = threads(own.decode_threads.value, own.decode_threads.source, share);
    own.prefill_threads.value = threads(own.prefill_threads.value, own.prefill_threads.source, cores);
    own
}

#[cfg(test)]
mod tests {
    use engine_core::runtime_host::RuntimeHost;
    use engine_core::settings::Requested;

    use super::*;
    use crate::scope::Owner;

    /// Name of the case, notices of the pools, a prompt, and the pools that may take it.
    type Case<'a> = (&'a str, Vec<Notice>, &'a [Token], &'a [usize]);

    fn shown(owner: Owner, tokens: &[Token]) -> SlotPrompt {
        SlotPrompt { scope: Scope::new(owner, None), tokens: Arc::from(tokens) }
    }

    fn notice(free: usize, held: &[&[Token]]) -> Notice {
        Notice { free, room: 1000, held: held.iter().map(|tokens| shown(Owner::Server, tokens)).collect() }
    }

    #[test]
    fn a_job_goes_where_its_prompt_is_or_where_most_is_free() {
        let long: Vec<Token> = (0..100).collect();
        let with = |tail: Token| [&long[..], &[tail]].concat();
        let (asked, other) = (with(7), vec![-1; 50]);
        let cases: [Case; 7] = [
            ("the most free", vec![notice(1, &[]), notice(3, &[])], &asked, &[1]),
            ("a tie: either pool", vec![notice(2, &[]), notice(2, &[])], &asked, &[0, 1]),
            ("the prefix", vec![notice(1, &[&with(8)]), notice(4, &[&other])], &asked, &[0]),
            ("not a full pool", vec![notice(0, &[&with(8)]), notice(1, &[])], &asked, &[1]),
            ("the same prefix in both", vec![notice(1, &[&with(8)]), notice(4, &[&with(9)])], &asked, &[1]),
            ("a short prefix is not worth it", vec![notice(1, &[&long[..9]]), notice(2, &[])], &asked, &[1]),
            ("no pool", vec![notice(0, &[]), Notice { room: 10, ..notice(4, &[]) }], &asked, &[]),
        ];
        for (what, notices, prompt, expected) in cases {
            let notices = PoolNotices(notices);
            let found: Vec<usize> = (0..2)
                .filter(|pool| notices.is_best(*pool, Scope::new(Owner::Server, None), prompt))
                .collect();
            assert_eq!(found, expected, "{what}");
        }
    }

    #[test]
    fn the_prompt_of_another_scope_draws_no_job() {
        let long: Vec<Token> = (0..100).collect();
        let other = Notice { held: vec![shown(Owner::Open, &long)], ..notice(1, &[]) };
        let notices = PoolNotices(vec![other, notice(2, &[])]);
        let best = |owner| {
            let scope = Scope::new(owner, None);
            (0..2).filter(|pool| notices.is_best(*pool, scope, &long)).collect::<Vec<_>>()
        };
        assert_eq!((best(Owner::Open), best(Owner::Server)), (vec![0], vec![1]));
    }

    #[test]
    fn a_pool_has_the_policys_share_of_its_own_cores_or_what_was_asked_for() {
        let runtime_host = RuntimeHost::default();
        let cases = [(None, (3, 4)), (Some(2), (2, 2)), (Some(9), (4, 4))];
        for (decode_threads, expected) in cases {
            let requested = Requested { decode_threads, ..Requested::default() };
            let all = Settings::resolve(&requested, &runtime_host).expect("valid");
            let own = settings(&all, &[4, 5, 6, 7]);
            assert_eq!((own.decode_threads.value, own.prefill_threads.value), expected, "{decode_threads:?}");
            assert_eq!((own.cpus.value.as_slice(), own.affinity.value), (&[4, 5, 6, 7][..], Affinity::On));
        }
        let requested = Requested { cpus: Some(vec![0, 2]), ..Requested::default() };
        let two = Settings::resolve(&requested, &runtime_host).expect("valid");
        assert_eq!(cores(2, &two, None).expect("two"), [[0], [2]]);
        assert!(cores(3, &two, None).is_err());
    }

    #[test]
    fn pools_have_cores_of_their_own_in_one_node() {
        let halves = |cpu: u32| cpu / 8;
        let cases: [(u32, usize, usize, Vec<Vec<u32>>); 4] = [
            (16, 2, 8, vec![(0..8).collect(), (8..16).collect()]),
            (16, 4, 4, vec![(0..4).collect(), (4..8).collect(), (8..12).collect(), (12..16).collect()]),
            // Each pool has five CPUs. Two pools fit within a node, and the third pool spans both nodes.
            (16, 3, 5, vec![(0..5).collect(), (5..10).collect(), (10..15).collect()]),
            (4, 3, 1, vec![vec![0], vec![1], vec![2]]),
        ];
        for (cpus, pools, each, expected) in cases {
            let cpus: Vec<u32> = (0..cpus).collect();
            assert_eq!(divided(&cpus, pools, each, halves), expected, "{pools} pools");
        }
    }
}
