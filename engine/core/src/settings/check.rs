//! Checks the requested values before anything is loaded.

use llama::MAX_THREADS;
use llama::error::{Error, Result};
use llama::offload::Offload;
use llama::options::{FlashAttention, MAX_CTX, SplitMode};

use super::options::Requested;
use crate::runtime_host::RuntimeHost;

/// Checks that every value is valid and compatible with the other values.
///
/// # Errors
/// If a value is invalid, or conflicts with another value.
pub fn check(requested: &Requested) -> Result<()> {
    for (flag, threads) in [("-t", requested.decode_threads), ("-tb", requested.prefill_threads)] {
        if let Some(threads) = threads.filter(|threads| !(1..=MAX_THREADS).contains(threads)) {
            return usage(format!(
                "{flag} {threads}: llama.cpp supports 1 to {MAX_THREADS} threads\nhint: omit the flag to use the \
                 machine's cores"
            ));
        }
    }
    if let Some(threads) = requested.blas_threads.filter(|threads| *threads > MAX_THREADS) {
        return usage(format!(
            "--blas-threads {threads}: use 1 to {MAX_THREADS}, or 0 to use the thread count of the \
             current phase (prefill or decode)"
        ));
    }
    for (flag, tokens) in [("-b", requested.n_batch), ("-ub", requested.n_ubatch)] {
        if let Some(tokens) = tokens.filter(|tokens| !(1..=1 << 20).contains(tokens)) {
            return usage(format!("{flag} {tokens}: use 1 to {} tokens", 1 << 20));
        }
    }
    if let Some(n_ctx) = requested.n_ctx.filter(|n_ctx| *n_ctx > MAX_CTX) {
        return usage(format!("-c {n_ctx}: use at most {MAX_CTX} tokens"));
    }
    let type_v = requested.type_v.unwrap_or_default();
    if requested.flash_attention == Some(FlashAttention::Off) && type_v.is_quantised() {
        return usage(format!(
            "-fa off with -ctv {type_v}: llama.cpp reads a quantised V cache only with flash attention\nhint: remove \
             -fa off, or use -ctv f16"
        ));
    }
    if requested.flash_attention == Some(FlashAttention::Off)
        && requested.split_mode == Some(SplitMode::Tensor)
    {
        return usage(
            "-fa off with --split-mode tensor: llama.cpp splits attention across devices only with flash attention\n\
             hint: remove one of the two options"
                .to_string(),
        );
    }
    if let Some(poll) = requested.poll.filter(|poll| *poll > 100) {
        return usage(format!("--poll {poll}: use 0 (sleep) to 100 (spin)"));
    }
    if let Some(cpu) = requested.cpus.iter().flatten().find(|cpu| **cpu >= MAX_THREADS) {
        let last = MAX_THREADS - 1;
        return usage(format!(
            "--cpu-list {cpu}: llama.cpp can bind threads to CPUs 0 to {last}\nhint: choose smaller numbers, or \
             omit --cpu-list to use all CPUs of this process"
        ));
    }
    offload(requested).check().map_err(Error::Usage)?;
    requested.variant.rope.check()?;
    let fractions = [("--top-p", requested.top_p), ("--min-p", requested.min_p)];
    for (flag, value) in fractions {
        if let Some(value) = value.filter(|value| !(0.0..=1.0).contains(value)) {
            return usage(format!("{flag} {value}: use a probability from 0 to 1"));
        }
    }
    if let Some(value) = requested.temperature.filter(|value| !(0.0..=100.0).contains(value)) {
        return usage(format!("--temp {value}: use 0 (most likely token) to 100"));
    }
    Ok(())
}

/// Returns the requested placement on devices.
fn offload(requested: &Requested) -> Offload {
    Offload {
        split_mode: requested.split_mode.unwrap_or_default(),
        tensor_split: requested.tensor_split.clone().unwrap_or_default(),
        main_gpu: requested.main_gpu.unwrap_or(0),
        ..Offload::default()
    }
}

/// Checks that this process may use all requested CPUs. Without this check, llama.cpp would only print a warning and
/// continue without binding threads.
///
/// # Errors
/// If a CPU is not available.
pub(super) fn cpus(requested: &Requested, runtime_host: &RuntimeHost) -> Result<()> {
    let allowed = runtime_host.host.as_ref().map_or(&[][..], |host| &host.limits.affinity);
    match requested.cpus.iter().flatten().find(|cpu| !allowed.is_empty() && !allowed.contains(cpu)) {
        None => Ok(()),
        Some(cpu) => {
            let allowed: Vec<String> = allowed.iter().map(u32::to_string).collect();
            usage(format!(
                "--cpu-list {cpu}: this process may only use the CPUs {}\nhint: choose from these CPUs, or omit \
                 --cpu-list to use all of them",
                allowed.join(",")
            ))
        }
    }
}

fn usage<T>(message: String) -> Result<T> {
    Err(Error::Usage(message))
}
