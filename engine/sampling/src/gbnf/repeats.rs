//! Repetitions of parts that are not lexemes, with as few rules as possible. The parser keeps an item for each rule
//! that may be in progress.

use super::translate::{LexemePlan, Sym};

impl LexemePlan<'_> {
    pub(super) fn repeated(&mut self, item: Sym, least: u32, most: Option<u32>) -> Sym {
        let first = self.exactly(item, least);
        let more = match most {
            Some(most) => self.at_most(item, most.saturating_sub(least)),
            None => self.any_number(item),
        };
        self.in_sequence(&[first, more])
    }

    /// Returns a rule for any number of repetitions of `item`. The rule is left-recursive, because a right-recursive
    /// rule would need more parser items with each repetition.
    fn any_number(&mut self, item: Sym) -> Sym {
        let itself = self.new_rule();
        self.add(itself, vec![]);
        self.add(itself, vec![itself, item]);
        itself
    }

    /// Returns a rule for exactly `times` repetitions of `item`, built by halving the number.
    fn exactly(&mut self, item: Sym, times: u32) -> Sym {
        match times {
            0 => return self.in_sequence(&[]),
            1 => return item,
            _ => {}
        }
        if let Some(known) = self.repeats.get(&(item, times, true)) {
            return *known;
        }
        let half = self.exactly(item, times / 2);
        let made = match times % 2 {
            0 => self.in_sequence(&[half, half]),
            _ => self.in_sequence(&[half, half, item]),
        };
        self.repeats.insert((item, times, true), made);
        made
    }

    /// Returns a rule for at most `times` repetitions of `item`, built from powers of two: every number is a sum of
    /// powers of two in exactly one way.
    fn at_most(&mut self, item: Sym, times: u32) -> Sym {
        if times == 0 {
            return self.in_sequence(&[]);
        }
        if let Some(known) = self.repeats.get(&(item, times, false)) {
            return *known;
        }
        let power = 1 << times.ilog2();
        let many = self.exactly(item, power);
        let few = self.at_most(item, power - 1);
        let rest = self.at_most(item, times - power);
        let made = self.new_rule();
        self.add(made, vec![few]);
        self.add(made, vec![many, rest]);
        self.repeats.insert((item, times, false), made);
        made
    }
}
