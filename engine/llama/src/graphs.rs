//! Counts of computed, reused and captured graphs.

use llama_sys as sys;
use serde::Serialize;

use crate::context::Context;

/// Counts of a context's graphs, taken while the graphs are computed. Unlike a setting, they show what actually
/// happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Graphs {
    /// Number of computed graphs: one for each generated token, and one for each `n_ubatch` tokens of a prompt.
    pub computed: u64,
    /// Number of computed graphs that reused the previous graph with new inputs. A reused graph is neither built nor
    /// planned again.
    pub reused: u64,
}

impl Graphs {
    /// Returns the difference between these counts and the counts in `before`.
    #[must_use]
    pub fn since(self, before: Graphs) -> Graphs {
        Graphs {
            computed: self.computed.saturating_sub(before.computed),
            reused: self.reused.saturating_sub(before.reused),
        }
    }

    /// Returns the sum of these counts and the counts in `other`.
    #[must_use]
    pub fn and(self, other: Graphs) -> Graphs {
        Graphs { computed: self.computed + other.computed, reused: self.reused + other.reused }
    }
}

/// CUDA graphs of the process, counted from ggml's log messages; ggml does not count launches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CudaGraphs {
    /// Number of captures. After a capture, equal graphs are launched as one unit until the capture is dropped.
    pub captured: u64,
    /// Number of captures that were dropped because the graph changed. The graph's operations are then launched
    /// individually again.
    pub dropped: u64,
}

/// Returns the counts of CUDA graphs so far; `None` if no CUDA graph was captured, as on the CPU or on a GPU older
/// than Volta.
pub fn cuda_graphs() -> Option<CudaGraphs> {
    let mut graphs = CudaGraphs::default();
    // SAFETY: writes two numbers.
    unsafe { sys::anneal_cuda_graphs(&mut graphs.captured, &mut graphs.dropped) }
    (graphs != CudaGraphs::default()).then_some(graphs)
}

impl Context {
    /// Returns the counts of graphs so far.
    pub fn graphs(&self) -> Graphs {
        // SAFETY: reads counters.
        let perf = unsafe { sys::llama_perf_context(self.raw.as_ptr()) };
        Graphs { computed: self.evaluated, reused: u64::try_from(perf.n_reused).unwrap_or(0) }
    }

    /// Counts the graphs for `tokens` tokens of one sequence that were evaluated in one call.
    pub(super) fn note_graphs(&mut self, tokens: usize) {
        self.evaluated += (tokens as u64).div_ceil(u64::from(self.n_ubatch().max(1)));
    }
}
