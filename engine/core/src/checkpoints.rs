//! Checkpoints of prompts, for models whose memory cannot be truncated at an arbitrary token ([`PrefixReuse`]).
//!
//! A checkpoint is a copy, made after the first tokens of a prompt, of the part of the state that cannot be truncated.
//! A later prompt that begins with the same tokens continues from the checkpoint.
//!
//! [`PrefixReuse`]: llama::PrefixReuse

use build_info::Bytes;
use llama::{Model, Token};

/// Default maximum memory for the checkpoints of a context.
pub const DEFAULT_MEMORY: Bytes = Bytes(1 << 30);

/// Number of tokens between checkpoints in a long text, for prompts that share only a part of it.
const EVERY: usize = 4096;

/// Minimum number of tokens before a checkpoint. Evaluating fewer tokens takes about as long as restoring a state.
const LEAST: usize = 16;

/// Number of tokens at the end of a prompt that are searched for the beginning of the answer.
const TAIL: usize = 16;

/// Returns the numbers of tokens of `prompt` after which a checkpoint is worth its memory, in increasing order:
///
/// - after the first message, which other conversations share;
/// - after the last message: the next turn contains the messages, but not always the beginning of the answer (for
///   example, thoughts that the template left out);
/// - every [`EVERY`] tokens.
///
/// `ends` contains the [ends of the messages](crate::message_ends::message_ends). If the list is empty, a program may
/// still have rendered the prompt, and then messages end with an end token. If the last [`TAIL`] tokens contain no end
/// token, the answer begins with the first special token among them. If they contain no special token either, the last
/// checkpoint is before the last token, because the last token is always evaluated.
pub fn positions(model: &Model, prompt: &[Token], ends: &[usize]) -> Vec<usize> {
    match ends.is_empty() {
        true => positions_of(
            prompt,
            &ends_of(prompt, |token| model.is_end(token), |token| model.is_special(token)),
        ),
        false => positions_of(prompt, ends),
    }
}

fn positions_of(prompt: &[Token], ends: &[usize]) -> Vec<usize> {
    let most = prompt.len().saturating_sub(1);
    let steps = (1..=most / EVERY).map(|count| count * EVERY);
    let mut all: Vec<usize> = steps.chain(ends.iter().copied()).collect();
    all.retain(|position| (LEAST..=most).contains(position));
    all.sort_unstable();
    all.dedup();
    all
}

/// Finds the ends of the first and of the last message in the tokens of `prompt`.
fn ends_of(
    prompt: &[Token],
    is_end: impl Fn(Token) -> bool,
    is_special: impl Fn(Token) -> bool,
) -> Vec<usize> {
    let most = prompt.len().saturating_sub(1);
    let before = &prompt[..most];
    let tail = most.saturating_sub(TAIL);
    let after_end = |at: usize| at + 1;
    let first = before.iter().position(|token| is_end(*token)).map(after_end);
    let last = before.iter().rposition(|token| is_end(*token)).map(after_end);
    let begin = || before[tail..].iter().position(|token| is_special(*token)).map(|at| tail + at);
    let answer = last.filter(|last| *last >= tail).or_else(begin).unwrap_or(most);
    first.into_iter().chain([answer]).collect()
}

/// State after the first `tokens` tokens of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointState<'a> {
    /// Number of tokens.
    pub tokens: usize,
    /// State after these tokens ([`Context::save_checkpoint`](llama::Context::save_checkpoint)).
    pub state: &'a [u8],
}

/// Saved state after `tokens`.
struct Checkpoint<S> {
    scope: S,
    tokens: Vec<Token>,
    state: Vec<u8>,
    /// Counter value of the last use.
    used: u64,
}

impl<S> Checkpoint<S> {
    fn bytes(&self) -> u64 {
        (self.state.len() + size_of_val(&self.tokens[..])) as u64
    }
}

/// Checkpoints of prompts, in a bounded amount of memory. A checkpoint is found only by prompts of its scope `S`.
pub struct Checkpoints<S> {
    all: Vec<Checkpoint<S>>,
    uses: u64,
}

impl<S> Default for Checkpoints<S> {
    fn default() -> Self {
        Checkpoints { all: Vec::new(), uses: 0 }
    }
}

impl<S: Copy + PartialEq> Checkpoints<S> {
    /// Returns the number of checkpoints, and their size.
    pub fn size(&self) -> (usize, Bytes) {
        (self.all.len(), Bytes(self.all.iter().map(Checkpoint::bytes).sum()))
    }

    /// Returns the checkpoints that `prompt` begins with.
    pub fn of<'a>(&'a self, scope: S, prompt: &'a [Token]) -> impl Iterator<Item = CheckpointState<'a>> + 'a {
        let known = self.all.iter().filter(move |known| known.scope == scope);
        let known = known.filter(|known| prompt.starts_with(&known.tokens));
        known.map(|known| CheckpointState { tokens: known.tokens.len(), state: &known.state })
    }

    /// True if a checkpoint after exactly `tokens` exists.
    pub fn contains(&self, scope: S, tokens: &[Token]) -> bool {
        self.all.iter().any(|known| known.scope == scope && known.tokens == tokens)
    }

    /// Returns the state after exactly `tokens`, and marks it as used.
    pub fn state(&mut self, scope: S, tokens: &[Token]) -> Option<&[u8]> {
        self.uses += 1;
        let found = self.all.iter_mut().find(|known| known.scope == scope && known.tokens == tokens)?;
        found.used = self.uses;
        Some(&found.state)
    }

    /// Adds the `state` after `tokens`. Drops the least recently used checkpoints until all fit into `most` bytes, and
    /// returns their number. A checkpoint that alone exceeds `most` is not added and counts as dropped.
    pub fn add(&mut self, scope: S, tokens: Vec<Token>, state: Vec<u8>, most: Bytes) -> usize {
        self.uses += 1;
        let new = Checkpoint { scope, tokens, state, used: self.uses };
        if Bytes(new.bytes()) > most {
            return 1;
        }
        self.all.retain(|known| known.scope != scope || known.tokens != new.tokens);
        self.all.push(new);
        self.shrink(most)
    }

    /// Drops the least recently used checkpoints until all fit into `most` bytes, and returns their number.
    pub fn shrink(&mut self, most: Bytes) -> usize {
        let before = self.all.len();
        while self.size().1 > most {
            let oldest = self.all.iter().enumerate().min_by_key(|(_, known)| known.used);
            let Some(at) = oldest.map(|(at, _)| at) else { break };
            self.all.swap_remove(at);
        }
        before - self.all.len()
    }

    /// Drops the checkpoints of all scopes for which `keep` is false.
    pub fn retain(&mut self, keep: impl Fn(S) -> bool) {
        self.all.retain(|known| keep(known.scope));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Token that ends a message, and token that begins one.
    const END: Token = 1;
    const BEGIN: Token = 2;

    fn positions(prompt: &[Token]) -> Vec<usize> {
        positions_of(prompt, &ends_of(prompt, |token| token == END, |token| token <= BEGIN))
    }

    #[test]
    fn checkpoints_are_where_the_next_prompt_may_differ() {
        let text = |tokens: usize| vec![7; tokens];
        let chat = [text(20), vec![END], text(30), vec![END], text(40), vec![END, BEGIN, 7, 7]].concat();
        assert_eq!(positions(&chat), [21, 93]);
        // The user's message ends with a token that begins the answer.
        assert_eq!(positions(&[text(20), vec![END], text(40), vec![BEGIN, 7, 7]].concat()), [21, 61]);
        // A text without messages.
        assert_eq!(positions(&text(50)), [49]);
        assert_eq!(positions(&text(3)), [0_usize; 0]);
        assert_eq!(positions(&[]), [0_usize; 0]);
        // The end of a message that is far from the end of the prompt.
        assert_eq!(positions(&[text(20), vec![END], text(100)].concat()), [21, 120]);
        assert_eq!(positions(&text(10_001)), [4096, 8192, 10_000]);
    }

    #[test]
    fn a_checkpoint_is_found_by_its_scope_and_its_tokens() {
        let mut all = Checkpoints::default();
        assert_eq!(all.add('a', vec![1, 2], vec![0; 8], Bytes(100)), 0);
        assert_eq!(all.add('a', vec![1, 2, 3], vec![1; 8], Bytes(100)), 0);
        assert_eq!(all.add('b', vec![1, 2, 3, 4], vec![2; 8], Bytes(100)), 0);
        let lengths =
            |scope, prompt: &[Token]| all.of(scope, prompt).map(|cut| cut.tokens).collect::<Vec<_>>();
        assert_eq!(lengths('a', &[1, 2, 3, 4]), [2, 3]);
        assert_eq!(lengths('a', &[1, 2, 4]), [2]);
        assert_eq!(lengths('b', &[1, 2, 4]), [0_usize; 0]);
        assert_eq!(lengths('c', &[1, 2, 3, 4]), [0_usize; 0]);
        assert_eq!(all.state('a', &[1, 2, 3]), Some(&[1; 8][..]));
        assert_eq!(all.state('b', &[1, 2, 3]), None);
        all.retain(|scope| scope == 'b');
        assert_eq!(all.size(), (1, Bytes(8 + 16)));
    }

    #[test]
    fn the_least_recently_used_is_dropped() {
        let mut all = Checkpoints::default();
        // Each checkpoint takes 4 + 6 bytes.
        for token in 0..4 {
            assert_eq!(all.add((), vec![token], vec![0; 6], Bytes(40)), 0);
        }
        assert!(all.state((), &[0]).is_some());
        assert_eq!(all.add((), vec![4], vec![0; 6], Bytes(40)), 1);
        assert!(all.contains((), &[0]) && !all.contains((), &[1]));
        // The same tokens again replace the old state.
        assert_eq!(all.add((), vec![4], vec![9; 6], Bytes(40)), 0);
        assert_eq!((all.size(), all.state((), &[4])), ((4, Bytes(40)), Some(&[9; 6][..])));
        assert_eq!(all.shrink(Bytes(25)), 2);
        // A state that can never fit does not evict the others.
        assert_eq!(all.add((), vec![5], vec![0; 50], Bytes(40)), 1);
        assert_eq!(all.size(), (2, Bytes(20)));
    }
}
