//! Prompt lookup: drafts the tokens that followed an earlier occurrence of the last tokens.

use std::collections::HashMap;

use llama::Token;

/// Lengths of the sequences to look up, the longest first, because a longer match predicts the following tokens better.
const SIZES: [usize; 3] = [4, 3, 2];

/// Consecutive tokens; a shorter sequence is padded with -1.
type Gram = [Token; 4];

/// Index of the last occurrence of each short sequence of tokens.
#[derive(Debug, Default)]
pub struct Lookup {
    /// Position after the last occurrence of each sequence: one map for each length in [`SIZES`].
    ends: [HashMap<Gram, usize>; SIZES.len()],
    /// Number of tokens that are indexed.
    read: usize,
}

impl Lookup {
    /// Drafts up to `most` tokens that may follow `tokens`, which must only grow between calls. Returns no tokens if
    /// the end of the sequence did not occur earlier.
    ///
    /// If the tokens that followed reach the end of the sequence, as in a list of repeated items, the draft repeats
    /// these tokens.
    pub fn draft(&mut self, tokens: &[Token], most: usize) -> Vec<Token> {
        // No tokens follow a match that ends with the last token.
        self.read_to(tokens, tokens.len().saturating_sub(1));
        let found = SIZES.iter().zip(&self.ends).find_map(|(&size, ends)| ends.get(&gram(tokens, size)?));
        let Some(&from) = found else { return Vec::new() };
        let period = tokens.len() - from;
        (0..most).map(|at| tokens[from + at % period]).collect()
    }

    fn read_to(&mut self, tokens: &[Token], end: usize) {
        for last in self.read..end {
            for (&size, ends) in SIZES.iter().zip(&mut self.ends) {
                if let Some(gram) = gram(&tokens[..=last], size) {
                    ends.insert(gram, last + 1);
                }
            }
        }
        self.read = self.read.max(end);
    }
}

/// Returns the last `size` tokens of `tokens`.
fn gram(tokens: &[Token], size: usize) -> Option<Gram> {
    let mut gram = [-1; 4];
    gram[..size].copy_from_slice(&tokens[tokens.len().checked_sub(size)?..]);
    Some(gram)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_followed_before_is_drafted_after_the_longest_match_and_the_latest() {
        let cases: [(&[Token], usize, &[Token]); 9] = [
            (&[], 4, &[]),
            (&[1], 4, &[]),
            (&[1, 2, 3, 4], 4, &[]),
            // A single token does not count as a match.
            (&[1, 2, 3, 1], 4, &[]),
            (&[1, 2, 3, 4, 5, 1, 2], 3, &[3, 4, 5]),
            // Of matches of equal length, the latest match is used.
            (&[1, 2, 7, 1, 2, 8, 1, 2], 1, &[8]),
            // The longer match is used, although it is older.
            (&[9, 1, 2, 7, 3, 1, 2, 8, 9, 1, 2], 1, &[7]),
            // The draft continues after the end by repeating.
            (&[5, 6, 5, 6], 5, &[5, 6, 5, 6, 5]),
            (&[7, 7, 7], 3, &[7, 7, 7]),
        ];
        for (tokens, most, expected) in cases {
            assert_eq!(Lookup::default().draft(tokens, most), expected, "{tokens:?}");
        }
    }

    #[test]
    fn a_sequence_that_grows_is_drafted_as_one_that_is_new() {
        let mut number = 1u64;
        let mut tokens = Vec::new();
        let mut grown = Lookup::default();
        for _ in 0..400 {
            number = number.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            tokens.push((number >> 33) as Token % 4);
            assert_eq!(grown.draft(&tokens, 6), Lookup::default().draft(&tokens, 6), "{tokens:?}");
        }
    }
}
