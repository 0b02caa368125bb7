//! Prompt lookup: what followed when the last tokens of a sequence stood there before.

use std::collections::HashMap;

use llama::Token;

/// How many of the last tokens are looked for, the longest first: what followed more of the same is likelier to follow.
const SIZES: [usize; 3] = [4, 3, 2];

/// Tokens in a row, behind the others' places empty.
type Gram = [Token; 4];

/// Where each few tokens of a sequence stood last.
#[derive(Debug, Default)]
pub struct Lookup {
    /// For each of [`SIZES`]: the place after them.
    ends: [HashMap<Gram, usize>; SIZES.len()],
    /// How many tokens of the sequence are in there.
    read: usize,
}

impl Lookup {
    /// Up to `most` tokens that may follow `tokens`, a sequence that only grows; none where its end is new.
    ///
    /// Where what followed is the end itself, as in a list whose items repeat, it is followed around.
    pub fn draft(&mut self, tokens: &[Token], most: usize) -> Vec<Token> {
        // What ends with the last token has nothing after it yet.
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

/// The last `size` of `tokens`.
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
            // One token alone is no match.
            (&[1, 2, 3, 1], 4, &[]),
            (&[1, 2, 3, 4, 5, 1, 2], 3, &[3, 4, 5]),
            // The latest of equals.
            (&[1, 2, 7, 1, 2, 8, 1, 2], 1, &[8]),
            // The longer match, though it is older.
            (&[9, 1, 2, 7, 3, 1, 2, 8, 9, 1, 2], 1, &[7]),
            // On around the end.
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
