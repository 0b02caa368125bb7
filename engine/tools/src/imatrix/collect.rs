//! Collecting an importance matrix.

use std::sync::Arc;

use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::Settings;
use llama::error::Result;
use llama::{Collector, MatrixSums, Model};

use crate::eval::{ChunkContext, ChunkedText, OnProgress, each_chunk};

/// What was collected.
#[derive(Clone, Debug)]
pub struct Collected {
    /// By the names of the matrices.
    pub entries: Vec<(String, MatrixSums)>,
    /// Chunks that were whole.
    pub chunks: usize,
}

/// Sends `text` through `model`, all of each chunk but its last token, and sums up what each matrix is given; `with_output`
/// the output's matrix too. When it is interrupted, what there was until then.
pub fn collect(
    model: &Arc<Model>,
    text: &ChunkedText,
    with_output: bool,
    settings: &Settings,
    runtime_host: &RuntimeHost,
    on_progress: OnProgress<'_>,
) -> Result<Collected> {
    let collector = Collector::new(with_output)?;
    let mut reader = ChunkContext::collecting(model, text, settings, runtime_host, &collector)?;
    let chunks = each_chunk(text, on_progress, |chunk| {
        // With logits of every token: the last layer would leave out the others.
        let read = reader.chunk(chunk, 0, |_, _| Ok(()));
        collector.check()?;
        read
    })?;
    // Half a chunk of an interruption counts too: sums and counts go together.
    Ok(Collected { entries: collector.entries(), chunks })
}
