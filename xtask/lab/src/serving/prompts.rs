//! Prompts as tokens. All prompts have the same length and differ from each other. Both servers get the same prompts.

use std::path::Path;

use anyhow::{Context, Result, bail};
use gguf::GgufFile;
use load::Ask;

/// Number of unique tokens at the end of a prompt, if all prompts share a prefix.
pub const OWN: u32 = 8;

/// Generator of prompts from ordinary text tokens.
#[derive(Clone, Debug)]
pub struct Prompts {
    /// Ordinary tokens of the vocabulary.
    tokens: Vec<u32>,
    /// Number of tokens of a prompt.
    length: u32,
    /// True if prompts share a prefix that the server may have in its cache.
    warm: bool,
}

impl Prompts {
    /// Reads the vocabulary of `model`.
    pub fn of(model: &Path, length: u32, warm: bool) -> Result<Self> {
        let file =
            GgufFile::open(model).with_context(|| format!("cannot use the model {}", model.display()))?;
        // 1 is a normal token (`enum llama_token_type`); control tokens and unused tokens have other values.
        let kinds = file.numbers("tokenizer.ggml.token_type")?;
        let kinds = kinds.with_context(|| {
            format!("{} does not contain token types (tokenizer.ggml.token_type)", model.display())
        })?;
        let tokens: Vec<u32> =
            (0u32..).zip(&kinds).filter(|(_, kind)| **kind == 1).map(|(token, _)| token).collect();
        Self::new(tokens, length, warm)
    }

    fn new(tokens: Vec<u32>, length: u32, warm: bool) -> Result<Self> {
        if tokens.len() < 2 {
            bail!(
                "the model's vocabulary has only {} ordinary tokens; prompts need at least 2",
                tokens.len()
            );
        }
        Ok(Self { tokens, length, warm })
    }

    /// Returns prompt number `seed`.
    pub fn prompt(&self, seed: u64) -> Vec<u32> {
        let shared = if self.warm { self.length.saturating_sub(OWN) } else { 0 };
        let (mut common, mut own) = (Random(0x5eed), Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0xab));
        (0..self.length)
            .map(|at| self.tokens[if at < shared { &mut common } else { &mut own }.below(self.tokens.len())])
            .collect()
    }

    /// Returns the requests of each client, each for `tokens` tokens. Requests differ between values of `round`.
    pub fn clients(&self, round: u64, clients: u32, requests: u32, tokens: u32) -> Vec<Vec<Ask>> {
        let ask = |client: u32, request: u32| {
            let seed = (round << 40) | (u64::from(client) << 20) | u64::from(request);
            Ask { prompt: self.prompt(seed), tokens, cache_prompt: self.warm }
        };
        (0..clients).map(|client| (0..requests).map(|request| ask(client, request)).collect()).collect()
    }
}

/// SplitMix64. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
#[derive(Clone, Copy, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns the next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`, or 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.draw()) * n as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_of_one_length_and_unlike_unless_they_are_to_begin_alike() {
        let tokens: Vec<u32> = (10..5000).collect();
        for warm in [false, true] {
            let prompts = Prompts::new(tokens.clone(), 32, warm).unwrap();
            let all: Vec<Vec<u32>> = [prompts.clients(1, 3, 2, 4), prompts.clients(2, 3, 2, 4)]
                .concat()
                .into_iter()
                .flatten()
                .map(|ask| ask.prompt)
                .collect();
            assert_eq!(all.len(), 12);
            for (number, prompt) in all.iter().enumerate() {
                assert_eq!(prompt.len(), 32);
                assert!(prompt.iter().all(|token| tokens.contains(token)));
                for other in &all[..number] {
                    let alike = prompt.iter().zip(other).take_while(|(one, other)| one == other).count();
                    assert!(prompt != other && alike >= if warm { 24 } else { 0 }, "{alike}");
                    assert!(warm || alike < 4, "{alike}");
                }
            }
            // The other server gets the same prompts.
            assert_eq!(prompts.clients(1, 3, 2, 4), prompts.clients(1, 3, 2, 4));
        }
        assert!(Prompts::new(vec![1], 4, false).is_err());
    }
}
