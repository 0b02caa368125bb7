//! How many graphs were computed, and how many of them had to be made first.

use llama_sys as sys;
use serde::Serialize;

use crate::context::Context;

/// Graphs of a context, counted where they are computed: a flag says what is wanted, not what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Graphs {
    /// Computed: one for each token that is generated, and one for each `n_ubatch` tokens of a prompt.
    pub computed: u64,
    /// Of these, those that were the last one again, with other inputs: nothing was built or planned for them.
    pub reused: u64,
}

impl Graphs {
    /// Those since `before`.
    #[must_use]
    pub fn since(self, before: Graphs) -> Graphs {
        Graphs {
            computed: self.computed.saturating_sub(before.computed),
            reused: self.reused.saturating_sub(before.reused),
        }
    }

    /// These and `other`.
    #[must_use]
    pub fn and(self, other: Graphs) -> Graphs {
        Graphs { computed: self.computed + other.computed, reused: self.reused + other.reused }
    }
}

/// CUDA graphs of the process, as ggml's own messages tell of them; it has no counter of launches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CudaGraphs {
    /// Captured: from then on each graph that is the same is launched as one, until it is dropped.
    pub captured: u64,
    /// Dropped, since the graph was another one: its operations are launched one by one again.
    pub dropped: u64,
}

/// The CUDA graphs so far; `None` where there never was one, as on the CPU or a GPU older than Volta.
pub fn cuda_graphs() -> Option<CudaGraphs> {
    let mut graphs = CudaGraphs::default();
    // SAFETY: writes two numbers.
    unsafe { sys::anneal_cuda_graphs(&mut graphs.captured, &mut graphs.dropped) }
    (graphs != CudaGraphs::default()).then_some(graphs)
}

impl Context {
    /// Its graphs so far.
    pub fn graphs(&self) -> Graphs {
        // SAFETY: reads counters.
        let perf = unsafe { sys::llama_perf_context(self.raw.as_ptr()) };
        Graphs { computed: self.evaluated, reused: u64::try_from(perf.n_reused).unwrap_or(0) }
    }

    /// Notes that `tokens` tokens of one sequence were evaluated in one call.
    pub(super) fn note_graphs(&mut self, tokens: usize) {
        self.evaluated += (tokens as u64).div_ceil(u64::from(self.n_ubatch().max(1)));
    }
}
