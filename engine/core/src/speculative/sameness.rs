//! Compares the logits of a batch with the logits of the same tokens evaluated one by one.
//!
//! With Anneal's own kernels, all bits are equal, and nothing is compared. llama.cpp's kernels sum in an order that
//! depends on the number of rows, and split attention over a long context differently for a single token. The kernels
//! that a model uses depend on the build, the CPU, the layout of the weights, the types of the cache, and the number of
//! tokens in the cache. Therefore, tokens that were generated one by one are evaluated again as a batch, and the logits
//! are compared bit for bit. The comparison is made once for each batch size, and again each time the context doubles
//! in length.

use std::collections::HashMap;
use std::sync::Arc;

use llama::error::Result;
use llama::{Context, Model, Token};

use super::report::{MIXTURE, NOT_TAKEN_BACK};

/// Sizes of the batches that verify a draft. A batch contains the draft and the token before it. The list is short,
/// because every size must be compared with single tokens.
pub const WIDTHS: [usize; 4] = [2, 4, 8, 16];

/// Number of cells of the smallest graph. llama.cpp grows the used part of the cache in steps of this size.
const CELLS: usize = 256;

/// Result of comparing a batch with single tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BatchComparison {
    /// All bits are equal.
    Same,
    /// Some bits differ. The value is the largest difference between two logits.
    Differs(f32),
}

/// Known results, by batch size and class of context length.
pub struct Sameness {
    model: Arc<Model>,
    is_mixture: bool,
    known: HashMap<(usize, u32), BatchComparison>,
}

impl Sameness {
    /// Creates an empty list of results for contexts of `model`.
    pub fn new(model: &Arc<Model>) -> Self {
        Sameness { model: Arc::clone(model), is_mixture: is_mixture(model), known: HashMap::new() }
    }

    /// Returns the known result for batches of `width` tokens after `held` other tokens.
    pub fn of(&self, width: usize, held: usize) -> Option<BatchComparison> {
        match self.model.is_batch_invariant() {
            true => Some(BatchComparison::Same),
            false => self.known.get(&(width, length(held + width))).copied(),
        }
    }

    /// True if a batch of `width` tokens after `held` others moves the context into another length class. A result for
    /// one class does not apply to another, and cannot be measured before the context reaches that length.
    pub fn is_between(&self, width: usize, held: usize) -> bool {
        !self.model.is_batch_invariant() && crosses_length(width, held)
    }

    /// True if no comparison can show that batches are the same. A mixture-of-experts model sends each token to
    /// different matrices, so equal bits in one batch prove nothing about the next batch.
    pub fn is_unknowable(&self) -> bool {
        self.is_mixture && !self.model.is_batch_invariant()
    }

    /// Returns the reason why drafts are impossible for the model; `None` if they are possible. With `near`, batches
    /// that round differently are accepted.
    pub fn forbids(&self, near: bool) -> Option<&'static str> {
        match (self.model.can_take_back(), near || !self.is_unknowable()) {
            (false, _) => Some(NOT_TAKEN_BACK),
            (true, false) => Some(MIXTURE),
            (true, true) => None,
        }
    }

    /// Compares a batch with single tokens. `tokens` are the last tokens in `context`, which were evaluated one by
    /// one, and are evaluated one by one again afterwards.
    ///
    /// # Errors
    /// If the evaluation fails.
    pub fn look(&mut self, context: &mut Context, tokens: &[Token]) -> Result<BatchComparison> {
        let (width, held) = (tokens.len(), context.held());
        let before = held - width;
        context.keep(before);
        let mut rows = Vec::with_capacity(width);
        context.decode_all(tokens, |row| -> Result<()> {
            rows.push(row.to_vec());
            Ok(())
        })?;
        context.keep(before);
        let mut found = BatchComparison::Same;
        for (token, row) in tokens.iter().zip(&rows) {
            context.decode(&[*token])?;
            found = worse(found, compare(row, context.logits()?));
        }
        self.known.insert((width, length(held)), found);
        Ok(found)
    }

    /// Records the result of `rows` for batches of `width` tokens after `held` others. Each entry of `rows` is a pair:
    /// the logits from a batch, and the logits from a single token.
    pub fn learn(&mut self, width: usize, held: usize, rows: Vec<(Vec<f32>, Vec<f32>)>) -> BatchComparison {
        let found = rows.iter().map(|(one, other)| compare(one, other)).fold(BatchComparison::Same, worse);
        self.known.insert((width, length(held + width)), found);
        found
    }

    /// True if any comparison found a difference.
    pub fn any_differs(&self) -> bool {
        self.known.values().any(|found| matches!(found, BatchComparison::Differs(_)))
    }
}

/// True if the model is a mixture of experts.
fn is_mixture(model: &Model) -> bool {
    let experts = model
        .metadata("general.architecture")
        .and_then(|architecture| model.metadata(&format!("{architecture}.expert_count")));
    experts.is_some_and(|experts| experts.trim() != "0")
}

fn crosses_length(width: usize, held: usize) -> bool {
    length(held) != length(held + width)
}

/// Returns the class of context length, which increases each time the context doubles.
fn length(tokens: usize) -> u32 {
    tokens.next_multiple_of(CELLS).ilog2()
}

fn compare(one: &[f32], other: &[f32]) -> BatchComparison {
    let pairs = || one.iter().zip(other);
    if pairs().all(|(one, other)| one.to_bits() == other.to_bits()) {
        return BatchComparison::Same;
    }
    BatchComparison::Differs(pairs().map(|(one, other)| (one - other).abs()).fold(0.0, f32::max))
}

fn worse(one: BatchComparison, other: BatchComparison) -> BatchComparison {
    match (one, other) {
        (BatchComparison::Differs(one), BatchComparison::Differs(other)) => {
            BatchComparison::Differs(one.max(other))
        }
        (BatchComparison::Same, found) | (found, BatchComparison::Same) => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_compared_and_the_worst_is_told() {
        assert_eq!(compare(&[1.0, -2.0], &[1.0, -2.0]), BatchComparison::Same);
        assert_eq!(compare(&[1.0, 0.0], &[1.0, -0.0]), BatchComparison::Differs(0.0));
        assert_eq!(compare(&[1.0, 2.5, 0.0], &[1.5, 2.0, 0.125]), BatchComparison::Differs(0.5));
        let cases = [
            (BatchComparison::Same, BatchComparison::Same, BatchComparison::Same),
            (BatchComparison::Same, BatchComparison::Differs(0.5), BatchComparison::Differs(0.5)),
            (BatchComparison::Differs(0.25), BatchComparison::Differs(0.5), BatchComparison::Differs(0.5)),
        ];
        for (one, other, expected) in cases {
            assert_eq!((worse(one, other), worse(other, one)), (expected, expected));
        }
    }

    #[test]
    fn what_is_between_two_lengths_is_of_neither() {
        let cases = [(240, false), (241, true), (256, true), (257, false), (752, false), (753, true)];
        for (held, expected) in cases {
            assert_eq!(crosses_length(16, held), expected, "{held}");
        }
    }

    #[test]
    fn a_context_twice_as_long_is_looked_at_again() {
        let lengths: Vec<u32> = [1, 256, 257, 512, 513, 1024, 1025].map(length).to_vec();
        assert_eq!(lengths, [8, 8, 9, 9, 9, 10, 10]);
    }
}
