//! Causes related to memory: too little memory, swap, evicted pages, small pages.

use build_info::Bytes;
use build_info::diagnosis::{ProcessActivity, SlowPhase};

use super::finding::{Finding, Rule, Slowdown, of_lost_time, percent};
use crate::observation::Observation;

/// The weights fit into memory, but the weights and the context do not.
pub const CONTEXT_OVER_MEMORY: Rule = Rule {
    id: "context-over-memory",
    explains: &["model-over-memory", "swapped", "evicted-weights"],
    judge: context_over_memory,
};
/// The weights do not fit into memory.
pub const MODEL_OVER_MEMORY: Rule =
    Rule { id: "model-over-memory", explains: &["swapped", "evicted-weights"], judge: model_over_memory };
/// Memory that the process needs is in swap.
pub const SWAPPED: Rule = Rule { id: "swapped", explains: &["evicted-weights"], judge: swapped };
/// Weights were evicted although they fit.
pub const EVICTED: Rule = Rule { id: "evicted-weights", explains: &[], judge: evicted };
/// Weights in small pages.
pub const NO_HUGE_PAGES: Rule = Rule { id: "no-huge-pages", explains: &[], judge: no_huge_pages };

/// Options that keep the weights in memory. Recent versions of llama-server have only `--load-mode`.
const LOCK: &str = "--load-mode mmap+mlock (older llama-server: --mlock; anneal: --load-mode mmap_mlock)";

/// Memory that a process needs in addition to the weights and the cache: code, buffers, the vocabulary.
const REST: Bytes = Bytes::mib(64);

/// Returns evidence that the process waits for pages, and the slowdown.
fn faults(o: &Observation) -> Option<(Vec<String>, Slowdown)> {
    let (faults, blocked) = (o.memory.major_faults_per_s, o.blocked_share());
    if !o.reads_pages() || o.activity() == ProcessActivity::Idle {
        return None;
    }
    let bytes = o.memory.read_bytes_per_s.map(|bytes| format!(", and it read {:.0} MB/s", bytes / 1e6));
    let bytes = bytes.unwrap_or_default();
    let mut evidence = vec![format!("{faults:.0} page faults per second were served from a disk{bytes}")];
    if blocked > 0.0 {
        evidence.push(format!("a thread waited for the disk in {} of the samples", percent(blocked)));
    }
    let slowdown = if blocked > 0.05 { of_lost_time(blocked) } else { Slowdown::Unknown };
    Some((evidence, slowdown))
}

fn context_over_memory(o: &Observation) -> Option<Finding> {
    let model = o.model.as_ref()?;
    let (cache, (limit, name)) = (model.cache?, o.memory_limit()?);
    let weights = Bytes(model.weights.0.saturating_add(REST.0));
    if weights > limit || weights.0.saturating_add(cache.0) <= limit.0 {
        return None;
    }
    let (mut evidence, slowdown) = faults(o)?;
    let context = model.context.map(|context| format!(" for {context} tokens")).unwrap_or_default();
    evidence.insert(
        0,
        format!("the weights take {} and the context{context} {cache}, but {name} is {limit}", model.weights),
    );
    Some(Finding {
        title: "the context does not fit into memory alongside the weights".to_string(),
        phase: SlowPhase::Both,
        slowdown,
        evidence,
        change: format!(
            "use a smaller context (-c {}), or -ctk q8_0 -ctv q8_0",
            smaller(model.context, cache, weights, limit)
        ),
    })
}

/// Returns the number of tokens whose cache fits alongside the weights, in steps of 256.
fn smaller(context: Option<u32>, cache: Bytes, weights: Bytes, limit: Bytes) -> u32 {
    let context = u128::from(context.unwrap_or(4096));
    let room = u128::from(limit.0.saturating_sub(weights.0));
    let fits = context * room / u128::from(cache.0.max(1));
    u32::try_from(fits / 256 * 256).unwrap_or(u32::MAX).max(256)
}

fn model_over_memory(o: &Observation) -> Option<Finding> {
    let model = o.model.as_ref()?;
    let (limit, name) = o.memory_limit()?;
    if model.weights.0.saturating_add(REST.0) <= limit.0 {
        return None;
    }
    let (mut evidence, slowdown) = faults(o)?;
    evidence.insert(0, format!("the weights take {}, but {name} is {limit}", model.weights));
    Some(Finding {
        title: "the model does not fit into memory".to_string(),
        phase: SlowPhase::Both,
        slowdown,
        evidence,
        change: "use a smaller quantisation or a smaller model, or raise the limit".to_string(),
    })
}

fn swapped(o: &Observation) -> Option<Finding> {
    const SHARE: f64 = 0.02;
    let memory = &o.memory;
    let all = memory.resident.0.saturating_add(memory.swapped.0);
    if memory.swapped < Bytes::mib(16) || (memory.swapped.0 as f64) < SHARE * all as f64 {
        return None;
    }
    let (mut evidence, slowdown) = faults(o)?;
    evidence
        .insert(0, format!("{} of its memory is in swap, {} is resident", memory.swapped, memory.resident));
    Some(Finding {
        title: "memory that it needs is in swap".to_string(),
        phase: SlowPhase::Both,
        slowdown,
        evidence,
        change: format!(
            "free memory or raise its limit, then restart it; {LOCK} keeps the weights in memory"
        ),
    })
}

fn evicted(o: &Observation) -> Option<Finding> {
    const RESIDENT: f64 = 0.95;
    let model = o.model.as_ref()?;
    let resident = model.resident.filter(|_| model.mapped.0 > 0)?;
    // Weights that were repacked or copied to a GPU are no longer read from the file.
    let is_missing = (resident.0 as f64) < RESIDENT * model.mapped.0 as f64;
    if !is_missing || !o.is_working() || o.is_on_gpu() {
        return None;
    }
    let (mut evidence, slowdown) = faults(o)?;
    evidence.insert(0, format!("only {resident} of the {} model file is in memory", model.mapped));
    Some(Finding {
        title: "weights are read from the disk repeatedly".to_string(),
        phase: SlowPhase::Both,
        slowdown,
        evidence,
        change: format!("stop programs that fill the memory, or lock the weights with {LOCK}"),
    })
}

fn no_huge_pages(o: &Observation) -> Option<Finding> {
    /// Typical gain of huge pages for weights in anonymous memory.
    const GAIN: f64 = 1.05;
    let (memory, least) = (&o.memory, Bytes::gib(1));
    let is_small = memory.huge.is_some_and(|huge| huge.0 < memory.anonymous.0 / 20);
    let holds_weights = o.model.as_ref().is_some_and(|model| memory.anonymous >= model.weights);
    let has_none = memory.huge_pages_off || memory.huge_pages_denied;
    if !o.flags.no_mmap || !has_none || !is_small || memory.anonymous < least || !holds_weights {
        return None;
    }
    let (reason, change) = match memory.huge_pages_off {
        true => (
            "transparent huge pages are off on this machine (never)",
            "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, or always; then restart it",
        ),
        false => (
            "transparent huge pages are disabled for this process (THP_enabled: 0 in its status)",
            "start it from a program that does not set PR_SET_THP_DISABLE",
        ),
    };
    Some(Finding {
        title: "the weights are in pages of 4 KiB".to_string(),
        phase: SlowPhase::Decode,
        slowdown: Slowdown::Estimated(GAIN),
        evidence: vec![
            format!(
                "it reads the model instead of mapping it, and has {} of anonymous memory",
                memory.anonymous
            ),
            reason.to_string(),
        ],
        change: change.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_suggested_context_fits() {
        let (cache, weights, limit) = (Bytes::gib(8), Bytes::gib(4), Bytes::gib(6));
        assert_eq!(smaller(Some(65_536), cache, weights, limit), 16_384);
        assert_eq!(smaller(None, Bytes(0), weights, limit), u32::MAX / 256 * 256 + 255);
        assert_eq!(smaller(Some(512), cache, limit, weights), 256);
    }
}
