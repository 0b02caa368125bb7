//! Regular parts of a grammar, each of which can be one lexeme.

use llguidance::derivre::{ExprRef, HashMap, RegexAst, RegexBuilder};

use super::grammar::{Gbnf, Id, Node};

/// Maximum number of characters and classes in one lexeme, with repetitions expanded.
pub(super) const MAX_SIZE: u64 = 10_000;

/// Number of characters of a literal that count as one unit of size. Literals are cheap.
const TEXT: usize = 16;

impl Gbnf {
    /// Returns the size of each part; `None` if the part is too large or not regular.
    pub(super) fn sizes(&self) -> Vec<Option<u64>> {
        let mut waits_for = vec![0; self.rules.len()];
        let mut named_by = vec![Vec::new(); self.rules.len()];
        for (rule, body) in self.rules.iter().enumerate() {
            let mut named = Vec::new();
            self.names(*body, &mut named);
            named.sort_unstable();
            named.dedup();
            waits_for[rule] = named.len();
            named.into_iter().for_each(|other| named_by[other].push(rule));
        }
        // Recursive rules keep `None`, because their parts never become known.
        let mut rules = vec![None; self.rules.len()];
        let mut known = vec![None; self.nodes.len()];
        let mut ready: Vec<usize> = (0..rules.len()).filter(|rule| waits_for[*rule] == 0).collect();
        while let Some(rule) = ready.pop() {
            rules[rule] = self.size(self.rules[rule], &rules, &mut known);
            for other in &named_by[rule] {
                waits_for[*other] -= 1;
                if waits_for[*other] == 0 {
                    ready.push(*other);
                }
            }
        }
        (0..self.nodes.len()).map(|id| self.size(id, &rules, &mut known)).collect()
    }

    /// Collects the rules to which a part refers.
    fn names(&self, id: Id, named: &mut Vec<usize>) {
        match &self.nodes[id] {
            Node::Rule(rule) => named.push(*rule),
            Node::Seq(items) | Node::Any(items) => items.iter().for_each(|item| self.names(*item, named)),
            Node::Repeat(item, ..) => self.names(*item, named),
            Node::Class(_) | Node::Text(_) | Node::Token { .. } => {}
        }
    }

    /// Returns the size of one part. Each size is computed only once.
    fn size(&self, id: Id, rules: &[Option<u64>], known: &mut [Option<Option<u64>>]) -> Option<u64> {
        if let Some(size) = known[id] {
            return size;
        }
        let size = self.count(id, rules, known);
        known[id] = Some(size);
        size
    }

    fn count(&self, id: Id, rules: &[Option<u64>], known: &mut [Option<Option<u64>>]) -> Option<u64> {
        let size = match &self.nodes[id] {
            Node::Class(_) => 1,
            Node::Text(text) => 1 + (text.len() / TEXT) as u64,
            Node::Token { .. } => return None,
            Node::Rule(rule) => rules[*rule]?,
            Node::Seq(items) | Node::Any(items) => {
                let mut sum = 1_u64;
                for item in items {
                    sum = sum.saturating_add(self.size(*item, rules, known)?);
                }
                sum
            }
            Node::Repeat(item, least, most) => {
                let times = u64::from(most.unwrap_or(0).max(*least)).max(1);
                self.size(*item, rules, known)?.saturating_mul(times)
            }
        };
        (size <= MAX_SIZE).then_some(size)
    }

    /// Turns rules that end or begin with a reference to themselves into repetitions: `a ::= x a | y` becomes `x* y`. A
    /// repetition is regular if its parts are regular. Even if a repetition is not regular, the parser processes it
    /// faster than a recursive rule.
    pub(super) fn without_plain_recursion(&mut self) {
        for rule in 0..self.rules.len() {
            let alternatives = match &self.nodes[self.rules[rule]] {
                Node::Any(items) => items.clone(),
                _ => vec![self.rules[rule]],
            };
            if let Some(body) = self
                .as_repetition(rule, &alternatives, true)
                .or_else(|| self.as_repetition(rule, &alternatives, false))
            {
                self.rules[rule] = body;
            }
        }
    }

    fn as_repetition(&mut self, rule: usize, alternatives: &[Id], at_end: bool) -> Option<Id> {
        let (mut again, mut others) = (Vec::new(), Vec::new());
        for alternative in alternatives {
            if !self.is_named(rule, *alternative) {
                others.push(*alternative);
                continue;
            }
            let Node::Seq(items) = &self.nodes[*alternative] else { return None };
            let (itself, rest) = if at_end { items.split_last()? } else { items.split_first()? };
            if self.nodes[*itself] != Node::Rule(rule) || rest.iter().any(|item| self.is_named(rule, *item)) {
                return None;
            }
            again.push(rest.to_vec());
        }
        if again.is_empty() {
            return None;
        }
        let again = again.into_iter().map(|items| self.add(Node::Seq(items))).collect();
        let again = self.add(Node::Any(again));
        let again = self.add(Node::Repeat(again, 0, None));
        let others = self.add(Node::Any(others));
        Some(self.add(Node::Seq(if at_end { vec![again, others] } else { vec![others, again] })))
    }

    fn is_named(&self, rule: usize, id: Id) -> bool {
        let mut named = Vec::new();
        self.names(id, &mut named);
        named.contains(&rule)
    }
}

/// Builder of regular expressions for regular parts.
pub(super) struct Regexes<'a> {
    pub(super) grammar: &'a Gbnf,
    pub(super) builder: &'a mut RegexBuilder,
    pub(super) rules: HashMap<usize, ExprRef>,
}

impl Regexes<'_> {
    /// Returns the expression of a part whose size is known.
    pub(super) fn of(&mut self, id: Id) -> Result<ExprRef, String> {
        let ast = match &self.grammar.nodes[id] {
            Node::Class(ranges) => class(ranges),
            Node::Text(text) => RegexAst::Literal(text.clone()),
            Node::Rule(rule) => {
                if let Some(known) = self.rules.get(rule) {
                    return Ok(*known);
                }
                let expr = self.of(self.grammar.rules[*rule])?;
                self.rules.insert(*rule, expr);
                return Ok(expr);
            }
            Node::Seq(items) => return self.all_of(items),
            Node::Any(items) => return self.one_of(items),
            Node::Repeat(item, least, most) => {
                let item = RegexAst::ExprRef(self.of(*item)?);
                RegexAst::Repeat(Box::new(item), *least, most.unwrap_or(u32::MAX))
            }
            Node::Token { .. } => RegexAst::NoMatch,
        };
        self.make(&ast)
    }

    /// Returns the concatenation of `items`.
    pub(super) fn all_of(&mut self, items: &[Id]) -> Result<ExprRef, String> {
        let items = self.each_of(items)?;
        self.make(&if items.is_empty() { RegexAst::EmptyString } else { RegexAst::Concat(items) })
    }

    /// Returns the alternation of `items`.
    pub(super) fn one_of(&mut self, items: &[Id]) -> Result<ExprRef, String> {
        let items = self.each_of(items)?;
        self.make(&if items.is_empty() { RegexAst::NoMatch } else { RegexAst::Or(items) })
    }

    fn each_of(&mut self, items: &[Id]) -> Result<Vec<RegexAst>, String> {
        items.iter().map(|item| self.of(*item).map(RegexAst::ExprRef)).collect()
    }

    pub(super) fn make(&mut self, ast: &RegexAst) -> Result<ExprRef, String> {
        self.builder.mk(ast).map_err(|error| error.to_string())
    }
}

fn class(ranges: &[(char, char)]) -> RegexAst {
    if ranges.is_empty() {
        return RegexAst::NoMatch;
    }
    let ranges = ranges.iter().map(|(from, to)| format!("\\x{{{:X}}}-\\x{{{:X}}}", *from as u32, *to as u32));
    RegexAst::Regex(format!("[{}]", ranges.collect::<String>()))
}
