//! Collection of importance matrices.

use std::sync::Arc;

use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::Settings;
use llama::error::Result;
use llama::{Collector, MatrixSums, Model};

use crate::eval::{ChunkContext, ChunkedText, OnProgress, each_chunk};

/// Sums that were collected from a text.
#[derive(Clone, Debug)]
pub struct Collected {
    /// Sums of squares, with the name of each matrix.
    pub entries: Vec<(String, MatrixSums)>,
    /// Number of chunks that were evaluated completely.
    pub chunks: usize,
}

/// Evaluates `text` with `model`, without the last token of each chunk, and sums the squared inputs of each matrix.
/// `with_output` includes the output matrix. After an interruption, the result covers the evaluated part.
///
/// # Errors
/// If the context cannot be created, or if evaluating or collecting fails.
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
        // Logits are requested for every token, because the last layer skips tokens without requested logits.
        let read = reader.chunk(chunk, 0, |_, _| Ok(()));
        collector.check()?;
        read
    })?;
    // The result includes the evaluated part of an interrupted chunk. This is correct, because the sums and the counts
    // cover the same tokens.
    Ok(Collected { entries: collector.entries(), chunks })
}
