//! Whether a batch of tokens gives the bits that the same tokens give one by one: looked at, not believed.
//!
//! Kernels sum up in another order for another number of rows, and attention over a long context is cut otherwise for a
//! single token. Which of them a model runs depends on the build, the CPU, the layout of the weights, the types of the
//! cache and how full it is. So tokens that were generated one by one are evaluated once more as a batch, and the logits
//! of both compared bit for bit; once for each width, and again whenever the context has become twice as long.

use std::collections::HashMap;

use llama::error::Result;
use llama::{Context, Token};

/// Tokens of a batch that verifies a draft, the draft's and the one before it. Few widths, since each is looked at.
pub const WIDTHS: [usize; 4] = [2, 4, 8, 16];

/// Cells of the smallest graph: llama.cpp's steps.
const CELLS: usize = 256;

/// What a look at a batch found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BatchComparison {
    /// The same bits.
    Same,
    /// Others; how far the logits were from each other at most.
    Differs(f32),
}

/// What is known of each width at each length of the context.
#[derive(Debug, Default)]
pub struct Sameness {
    known: HashMap<(usize, u32), BatchComparison>,
}

impl Sameness {
    /// What is known of batches of `width` tokens after `held` others.
    pub fn of(&self, width: usize, held: usize) -> Option<BatchComparison> {
        self.known.get(&(width, length(held + width))).copied()
    }

    /// Whether a batch of `width` tokens after `held` others makes the context one of another length. What is known of
    /// one length says nothing of the other, and it cannot be looked at before it is there.
    pub fn is_between(width: usize, held: usize) -> bool {
        length(held) != length(held + width)
    }

    /// Looks at it by the last tokens that `context` holds, `tokens`, which were evaluated one by one, and are again
    /// afterwards.
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

    /// Notes what `rows` say of batches of `width` tokens after `held` others: each as a part of a batch and alone.
    pub fn learn(&mut self, width: usize, held: usize, rows: Vec<(Vec<f32>, Vec<f32>)>) -> BatchComparison {
        let found = rows.iter().map(|(one, other)| compare(one, other)).fold(BatchComparison::Same, worse);
        self.known.insert((width, length(held + width)), found);
        found
    }

    /// Whether anything was found to differ.
    pub fn any_differs(&self) -> bool {
        self.known.values().any(|found| matches!(found, BatchComparison::Differs(_)))
    }
}

/// A number for each doubling of the context.
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
            assert_eq!(Sameness::is_between(16, held), expected, "{held}");
        }
    }

    #[test]
    fn a_context_twice_as_long_is_looked_at_again() {
        let lengths: Vec<u32> = [1, 256, 257, 512, 513, 1024, 1025].map(length).to_vec();
        assert_eq!(lengths, [8, 8, 9, 9, 9, 10, 10]);
    }
}
