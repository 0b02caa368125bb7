//! Observations that explain the speed but are not faults.

use build_info::Bytes;
use build_info::diagnosis::ProcessActivity;

use crate::observation::{LibraryPurpose, Observation};

/// All notes.
const NOTES: &[fn(&Observation) -> Option<String>] =
    &[stranger, idle, loading, large_types, partial_offload, swapped, niced, unknown_kernels, blas];

/// Returns the notes about `observation`.
pub fn notes(observation: &Observation) -> Vec<String> {
    NOTES.iter().filter_map(|note| note(observation)).collect()
}

fn stranger(o: &Observation) -> Option<String> {
    o.maps_nothing().then(|| "neither a model nor a library of ggml was found in this process".to_string())
}

fn idle(o: &Observation) -> Option<String> {
    (o.activity() == ProcessActivity::Idle).then(|| {
        "the process was idle, so only its settings were checked; run this command while it generates text, or with \
         --request"
            .to_string()
    })
}

fn loading(o: &Observation) -> Option<String> {
    (o.activity() == ProcessActivity::Loading).then(|| "the process is loading its model".to_string())
}

fn large_types(o: &Observation) -> Option<String> {
    let model = o.model.as_ref()?;
    let kind = model.quantisation.as_deref().filter(|kind| matches!(*kind, "F32" | "F16" | "BF16"))?;
    let (bits, times) = if kind == "F32" { (32, "four to seven") } else { (16, "two to three and a half") };
    Some(format!(
        "the model is not quantised ({kind}, {bits} bits per weight); Q8_0 to Q4_K_M would decode {times} times as fast"
    ))
}

fn partial_offload(o: &Observation) -> Option<String> {
    let (asked, layers) = (o.flags.gpu_layers?, o.model.as_ref()?.layers?);
    (o.is_on_gpu() && asked > 0 && asked < layers).then(|| {
        format!(
            "the GPU has {asked} of {layers} layers; the CPU computes the other layers and limits the speed"
        )
    })
}

fn swapped(o: &Observation) -> Option<String> {
    (o.memory.swapped >= Bytes::mib(64) && !o.reads_pages()).then(|| {
        format!(
            "{} of its memory is in swap, but it did not need that memory during the observation",
            o.memory.swapped
        )
    })
}

fn niced(o: &Observation) -> Option<String> {
    let nice = o
        .threads
        .iter()
        .map(|thread| thread.nice)
        .max()
        .filter(|nice| *nice > 0 && !super::limits::is_held_up(o))?;
    Some(format!(
        "its nice value is {nice}: if other processes need the CPUs, it gets less time than they do"
    ))
}

fn unknown_kernels(o: &Observation) -> Option<String> {
    let kernels = o.kernels.as_ref().filter(|kernels| kernels.found < 8)?;
    Some(format!(
        "{} has no symbols of ggml's kernels, so their instruction sets are unknown",
        kernels.path.display()
    ))
}

fn blas(o: &Observation) -> Option<String> {
    let library = o.ggmls(LibraryPurpose::Blas)?;
    Some(format!(
        "ggml uses BLAS ({}) for prompts; compare with a build without BLAS",
        library.path.display()
    ))
}
