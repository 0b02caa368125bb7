//! Check that lexemes can be distinguished as GBNF requires.
//!
//! llguidance's lexer extends a lexeme as long as it can, while GBNF follows all alternatives at once. The results
//! are equal under one condition: if a lexeme could end before a byte that may follow it, then this byte must not
//! continue this lexeme or another lexeme. The lexer then has only one choice. The condition is tested for all pairs
//! of lexemes, including pairs that never occur at the same position.

use llguidance::derivre::{HashSet, Regex, StateID};

use super::grammar::Gbnf;
use super::translate::{Lexeme, Sym};

/// Maximum number of pairs of states to test in total. When this number is reached, the untested lexemes are split into
/// smaller lexemes.
const MAX_PAIRS: usize = 40_000;

/// Maximum cost of building one automaton.
const FUEL: u64 = 200_000;

/// Maximum cost of all automata together, in derivre's steps, over all rounds of splitting. Derivatives of long
/// repetitions are large, so even a few pairs of states can take many seconds. The limit is ten times the cost of the
/// largest grammar in the tests.
const WORK: u64 = 1_000_000;

/// Remaining part of [`WORK`].
pub(super) struct Budget(u64);

impl Budget {
    pub(super) fn new() -> Self {
        Self(WORK)
    }

    pub(super) fn is_spent(&self) -> bool {
        self.0 == 0
    }

    /// Subtracts the increase of `cost` since `before`.
    fn spend(&mut self, before: u64, cost: u64) {
        self.0 = self.0.saturating_sub(cost.saturating_sub(before));
    }
}

/// Set of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Bytes([u64; 4]);

impl Bytes {
    fn add(&mut self, byte: u8) {
        self.0[usize::from(byte / 64)] |= 1 << (byte % 64);
    }

    fn has(self, byte: u8) -> bool {
        self.0[usize::from(byte / 64)] >> (byte % 64) & 1 == 1
    }

    /// Adds the bytes of `other`. Returns true if the set grew.
    fn join(&mut self, other: Bytes) -> bool {
        let before = *self;
        self.0.iter_mut().zip(other.0).for_each(|(mine, others)| *mine |= others);
        *self != before
    }

    fn meets(self, other: Bytes) -> bool {
        self.0.iter().zip(other.0).any(|(mine, others)| mine & others != 0)
    }
}

/// Returns the `lexemes` of `grammar` that must be split. Single characters cannot be split. `rules` are the
/// alternatives of each rule, with the start rule first. The result is invalid if the `budget` is exhausted.
pub(super) fn to_be_cut(
    grammar: &Gbnf,
    lexemes: &[Lexeme],
    rules: &[Vec<Vec<Sym>>],
    budget: &mut Budget,
) -> Result<Vec<usize>, String> {
    if lexemes.iter().all(|lexeme| lexeme.is_character) {
        return Ok(Vec::new());
    }
    let mut ending = Vec::with_capacity(lexemes.len());
    for lexeme in lexemes {
        let automaton = lexeme.automaton(grammar, FUEL)?;
        budget.spend(0, automaton.cost());
        if budget.is_spent() {
            return Ok(Vec::new());
        }
        ending.push(automaton);
    }
    let firsts: Vec<Bytes> = ending.iter_mut().map(first_bytes).collect();
    let after = bytes_after(&firsts, rules);
    let mut pairs = 0;
    let mut cut = Vec::new();
    for (second, lexeme) in lexemes.iter().enumerate() {
        if lexeme.is_character {
            continue;
        }
        let mut going_on = ending[second].clone();
        for first in 0..lexemes.len() {
            if firsts[first].meets(firsts[second])
                && meet(&mut ending[first], &mut going_on, after[first], &mut pairs, budget)
            {
                cut.push(second);
                break;
            }
        }
    }
    Ok(cut)
}

/// True if some text matches `first` and, followed by a byte in `after`, is a prefix of a match of `second`.
fn meet(first: &mut Regex, second: &mut Regex, after: Bytes, pairs: &mut usize, budget: &mut Budget) -> bool {
    // One representative byte of each equivalence class.
    let mut kinds = HashSet::default();
    let bytes: Vec<u8> = (0..=255)
        .filter(|byte| kinds.insert((first.alpha().map(*byte), second.alpha().map(*byte))))
        .collect();
    let ends: Vec<u8> = (0..=255).filter(|byte| after.has(*byte)).collect();
    let start = (first.initial_state(), second.initial_state());
    let mut todo: Vec<(StateID, StateID)> = vec![start];
    let mut seen = HashSet::default();
    while let Some((one, other)) = todo.pop() {
        let before = first.cost() + second.cost();
        for byte in &bytes {
            let (one, other) = (first.transition(one, *byte), second.transition(other, *byte));
            if one.is_dead() || other.is_dead() || !seen.insert((one.as_u32(), other.as_u32())) {
                continue;
            }
            *pairs += 1;
            if *pairs > MAX_PAIRS
                || first.is_accepting(one) && ends.iter().any(|end| !second.transition(other, *end).is_dead())
            {
                return true;
            }
            todo.push((one, other));
        }
        budget.spend(before, first.cost() + second.cost());
        if budget.is_spent() {
            return true;
        }
    }
    false
}

fn first_bytes(automaton: &mut Regex) -> Bytes {
    let start = automaton.initial_state();
    let mut bytes = Bytes::default();
    (0..=255).filter(|byte| !automaton.transition(start, *byte).is_dead()).for_each(|byte| bytes.add(byte));
    bytes
}

/// Bytes that may follow each lexeme, computed from the FIRST and FOLLOW sets of parser theory.
fn bytes_after(lexemes: &[Bytes], rules: &[Vec<Vec<Sym>>]) -> Vec<Bytes> {
    let mut first = vec![(Bytes::default(), false); rules.len()];
    let of = |first: &[(Bytes, bool)], sym: Sym| match sym {
        Sym::Rule(rule) => first[rule],
        Sym::Lexeme(lexeme) => (lexemes[lexeme], false),
        Sym::Token(_) => (Bytes::default(), false),
    };
    let mut grew = true;
    while grew {
        grew = false;
        // Rules mostly refer to later rules, so the reverse order needs fewer rounds.
        for (rule, ways) in rules.iter().enumerate().rev() {
            for way in ways {
                let mut all_empty = true;
                for sym in way {
                    let (bytes, empty) = of(&first, *sym);
                    grew |= first[rule].0.join(bytes);
                    all_empty &= empty;
                    if !empty {
                        break;
                    }
                }
                grew |= all_empty && !first[rule].1;
                first[rule].1 |= all_empty;
            }
        }
    }
    let mut after_rules = vec![Bytes::default(); rules.len()];
    let mut after = vec![Bytes::default(); lexemes.len()];
    grew = true;
    while grew {
        grew = false;
        for (rule, ways) in rules.iter().enumerate() {
            for way in ways {
                let mut next = after_rules[rule];
                for sym in way.iter().rev() {
                    match sym {
                        Sym::Rule(other) => grew |= after_rules[*other].join(next),
                        Sym::Lexeme(lexeme) => {
                            after[*lexeme].join(next);
                        }
                        Sym::Token(_) => {}
                    }
                    let (bytes, empty) = of(&first, *sym);
                    if empty {
                        next.join(bytes);
                    } else {
                        next = bytes;
                    }
                }
            }
        }
    }
    after
}
