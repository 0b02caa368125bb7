//! Combinations of settings that are given as lists of values.

use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::{Requested, Settings};

use super::args::Args;
use super::lists::flat;

/// Returns all combinations of the settings. Settings that require reloading the model vary slowest, and threads vary
/// fastest. Settings that are not given take their values from `tuned`, or their defaults.
///
/// # Errors
/// If a setting is invalid or contradicts `tuned`.
pub fn settings(
    args: &Args,
    tuned: Option<&Requested>,
    runtime_host: &RuntimeHost,
) -> llama::error::Result<Vec<Settings>> {
    let mut requested = Requested::default();
    args.placing.ask(&mut requested);
    args.load.ask(&mut requested);
    args.offload.ask(&mut requested);
    args.variant.ask(&mut requested);
    let mut all = vec![requested];
    each(&mut all, &args.load_mode, |requested, mode| requested.load_mode = Some(mode));
    each(&mut all, &args.repack, |requested, repack| requested.repack = Some(repack));
    each(&mut all, &flat(&args.batch_size), |requested, n| requested.n_batch = Some(n));
    each(&mut all, &flat(&args.ubatch_size), |requested, n| requested.n_ubatch = Some(n));
    each(&mut all, &args.cache_type_k, |requested, kind| requested.type_k = Some(kind));
    each(&mut all, &args.cache_type_v, |requested, kind| requested.type_v = Some(kind));
    each(&mut all, &args.flash_attn, |requested, mode| requested.flash_attention = Some(mode));
    each(&mut all, &flat(&args.poll), |requested, poll| requested.poll = Some(poll));
    each(&mut all, &flat(&args.threads_batch), |requested, n| requested.prefill_threads = Some(n));
    each(&mut all, &flat(&args.threads), |requested, n| requested.decode_threads = Some(n));
    all.iter()
        .map(|requested| {
            // Settings that contradict the tuning record are refused, because the result would not measure the tuned
            // settings.
            tuned.map_or(Ok(()), |tuned| Settings::goes_with(requested, tuned))?;
            Settings::resolve_tuned(requested, tuned, runtime_host)
        })
        .collect()
}

/// Combines each element of `all` with each of `values`. If there are no values, `all` stays unchanged.
fn each<T: Clone>(all: &mut Vec<Requested>, values: &[T], set: impl Fn(&mut Requested, T)) {
    if values.is_empty() {
        return;
    }
    let combined = all.iter().flat_map(|requested| {
        values.iter().map(|value| {
            let mut requested = requested.clone();
            set(&mut requested, value.clone());
            requested
        })
    });
    *all = combined.collect();
}
