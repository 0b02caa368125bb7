//! Translation of GBNF into a grammar for llguidance. Regular parts become the largest lexemes that the lexer can
//! distinguish, and the other parts become rules.

use llguidance::api::{GrammarInit, ParserLimits};
use llguidance::derivre::{ExprRef, HashMap, HashSet, Regex, RegexAst, RegexBuilder};
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::earley::{Grammar, SymIdx, SymbolProps};

use super::grammar::{Gbnf, Id, Node};
use super::lexemes::{Budget, to_be_cut};
use super::regular::Regexes;

/// Maximum number of symbols; llguidance numbers symbols with 16 bits.
const MAX_SYMBOLS: usize = 60_000;

/// Maximum number of rounds in which lexemes are split. Afterwards, all remaining lexemes are split into characters.
const MAX_ROUNDS: usize = 20;

const TOO_LARGE: &str = "the grammar is too large\nhint: make it simpler, or use fewer repetitions";

/// Origin of a lexeme. The first value is a part. The second value is 0 for the whole part, the number (from one) of
/// the first item for a run of items, or [`ALTERNATIVES`] for the regular alternatives of the part.
type Origin = (Id, usize);

const ALTERNATIVES: usize = usize::MAX;

/// A lexeme and its origin.
pub(super) struct Lexeme {
    expr: ExprRef,
    /// True if the lexeme is a single character.
    pub(super) is_character: bool,
    made_of: LexemeShape,
    /// True if the lexeme excludes the empty text, which its parts match.
    not_empty: bool,
}

/// Parts that make up a lexeme.
#[derive(Clone, Debug)]
enum LexemeShape {
    Part(Id),
    Character(char),
    AllOf(Vec<Id>),
    OneOf(Vec<Id>),
}

impl Lexeme {
    /// Builds the automaton of the lexeme at a cost of at most `fuel`. Uses a separate builder, because a shared
    /// builder would have to be copied for each lexeme.
    pub(super) fn automaton(&self, grammar: &Gbnf, fuel: u64) -> Result<Regex, String> {
        let mut builder = RegexBuilder::new();
        let mut regexes = Regexes { grammar, builder: &mut builder, rules: HashMap::default() };
        let expr = self.made_of.expr(&mut regexes)?;
        let expr = if self.not_empty { not_empty(&mut regexes, expr)? } else { expr };
        builder.into_regex_limited(expr, fuel).map_err(|error| error.to_string())
    }
}

impl LexemeShape {
    fn expr(&self, regexes: &mut Regexes<'_>) -> Result<ExprRef, String> {
        match self {
            LexemeShape::Part(id) => regexes.of(*id),
            LexemeShape::Character(character) => regexes.make(&RegexAst::Literal(character.to_string())),
            LexemeShape::AllOf(items) => regexes.all_of(items),
            LexemeShape::OneOf(items) => regexes.one_of(items),
        }
    }
}

/// Returns an expression that matches everything that `expr` matches, except the empty text.
fn not_empty(regexes: &mut Regexes<'_>, expr: ExprRef) -> Result<ExprRef, String> {
    let not_empty = RegexAst::Not(Box::new(RegexAst::EmptyString));
    regexes.make(&RegexAst::And(vec![RegexAst::ExprRef(expr), not_empty]))
}

/// Symbol of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sym {
    Rule(usize),
    Lexeme(usize),
    Token(usize),
}

/// Lexemes, and the rules that consist of them.
pub(super) struct LexemePlan<'a> {
    regexes: Regexes<'a>,
    sizes: &'a [Option<u64>],
    /// Parts that must not be one lexeme.
    cut: &'a Cut,
    lexemes: Vec<Lexeme>,
    known_lexemes: HashMap<ExprRef, usize>,
    origins: Vec<Vec<Origin>>,
    tokens: Vec<(u32, bool)>,
    known_tokens: HashMap<(u32, bool), usize>,
    /// Alternatives of each rule; the first rule is the start.
    rules: Vec<Vec<Vec<Sym>>>,
    named: HashMap<usize, Sym>,
    /// Grammar rules that are not translated yet, each with the index reserved for its translation.
    todo: Vec<(usize, usize)>,
    pub(super) repeats: HashMap<(Sym, u32, bool), Sym>,
}

#[derive(Default)]
struct Cut {
    origins: HashSet<Origin>,
    all: bool,
}

/// Translates `grammar` from GBNF into a grammar for llguidance, for a model with `n_vocab` tokens. `!<…>` never
/// matches a token in `others`: tokens without text, and end tokens, because the grammar determines the end of the
/// text.
///
/// # Errors
/// If the grammar is too large.
pub(crate) fn translate(
    mut grammar: Gbnf,
    n_vocab: u32,
    others: &[u32],
    limits: &ParserLimits,
) -> Result<GrammarInit, String> {
    grammar.without_plain_recursion();
    let sizes = grammar.sizes();
    let mut cut = Cut::default();
    let mut budget = Budget::new();
    for round in 0.. {
        let mut builder = RegexBuilder::new();
        let plan = LexemePlan::new(&grammar, &sizes, &cut, &mut builder)?;
        if cut.all {
            break;
        }
        let (lexemes, rules, origins) = (plan.lexemes, plan.rules, plan.origins);
        let found = match builder.exprset().cost() <= limits.initial_lexer_fuel {
            true => to_be_cut(&grammar, &lexemes, &rules, &mut budget)?,
            false => return Err(TOO_LARGE.to_string()),
        };
        cut.all = round == MAX_ROUNDS || budget.is_spent();
        if found.is_empty() && !cut.all {
            break;
        }
        for origin in found.iter().flat_map(|lexeme| &origins[*lexeme]) {
            let mut origin = *origin;
            // A reference is as large as the rule it refers to.
            while cut.origins.insert(origin) && origin.1 == 0 {
                let Node::Rule(rule) = &grammar.nodes[origin.0] else { break };
                origin = (grammar.rules[*rule], 0);
            }
        }
    }
    let mut spec = LexerSpec::new().map_err(|error| error.to_string())?;
    spec.setup_lexeme_class(RegexAst::NoMatch).map_err(|error| error.to_string())?;
    let plan = LexemePlan::new(&grammar, &sizes, &cut, &mut spec.regex_builder)?;
    let (lexemes, rules, tokens) = (plan.lexemes, plan.rules, plan.tokens);
    written(spec, &lexemes, &rules, &token_ranges(&tokens, n_vocab, others))
        .map_err(|error| error.to_string())
}

impl<'a> LexemePlan<'a> {
    fn new(
        grammar: &'a Gbnf,
        sizes: &'a [Option<u64>],
        cut: &'a Cut,
        builder: &'a mut RegexBuilder,
    ) -> Result<Self, String> {
        let mut plan = LexemePlan {
            regexes: Regexes { grammar, builder, rules: HashMap::default() },
            sizes,
            cut,
            lexemes: Vec::new(),
            known_lexemes: HashMap::default(),
            origins: Vec::new(),
            tokens: Vec::new(),
            known_tokens: HashMap::default(),
            rules: Vec::new(),
            named: HashMap::default(),
            todo: Vec::new(),
            repeats: HashMap::default(),
        };
        // The start needs a separate rule, because for llguidance, each end of the first rule ends the text.
        let start = plan.new_rule();
        let root = plan.rule(grammar.root);
        plan.add(start, vec![root]);
        while let Some((rule, itself)) = plan.todo.pop() {
            let body = plan.part(grammar.rules[rule])?;
            plan.add(Sym::Rule(itself), vec![body]);
            if plan.rules.len() + plan.lexemes.len() > MAX_SYMBOLS {
                return Err(TOO_LARGE.to_string());
            }
        }
        Ok(plan)
    }

    pub(super) fn new_rule(&mut self) -> Sym {
        self.rules.push(Vec::new());
        Sym::Rule(self.rules.len() - 1)
    }

    pub(super) fn add(&mut self, rule: Sym, way: Vec<Sym>) {
        if let Sym::Rule(rule) = rule {
            self.rules[rule].push(way);
        }
    }

    pub(super) fn in_sequence(&mut self, items: &[Sym]) -> Sym {
        if let [one] = items {
            return *one;
        }
        let rule = self.new_rule();
        self.add(rule, items.to_vec());
        rule
    }

    /// Returns the symbol of the grammar's rule, which is translated later.
    fn rule(&mut self, rule: usize) -> Sym {
        if let Some(known) = self.named.get(&rule) {
            return *known;
        }
        let made = self.new_rule();
        self.named.insert(rule, made);
        self.todo.push((rule, self.rules.len() - 1));
        made
    }

    /// True if the part can be one lexeme.
    fn is_whole(&self, id: Id) -> bool {
        let is_class = matches!(self.regexes.grammar.nodes[id], Node::Class(_));
        is_class || self.sizes[id].is_some() && !self.is_cut((id, 0))
    }

    fn is_cut(&self, origin: Origin) -> bool {
        self.cut.all || self.cut.origins.contains(&origin)
    }

    fn part(&mut self, id: Id) -> Result<Sym, String> {
        let grammar = self.regexes.grammar;
        let node = &grammar.nodes[id];
        if self.is_whole(id) {
            let is_character = match node {
                Node::Class(_) => true,
                Node::Text(text) => text.chars().count() == 1,
                _ => false,
            };
            return self.lexeme(LexemeShape::Part(id), (id, 0), is_character);
        }
        match node {
            Node::Class(_) => Err("a character class is not a lexeme".to_string()),
            Node::Text(text) => {
                let mut all = Vec::new();
                for character in text.chars() {
                    all.push(self.lexeme(LexemeShape::Character(character), (id, 0), true)?);
                }
                Ok(self.in_sequence(&all))
            }
            Node::Token { id, not } => {
                let token = (*id, *not);
                Ok(Sym::Token(*self.known_tokens.entry(token).or_insert_with(|| {
                    self.tokens.push(token);
                    self.tokens.len() - 1
                })))
            }
            Node::Rule(rule) => Ok(self.rule(*rule)),
            Node::Seq(items) => self.sequence(id, items),
            Node::Any(items) => self.alternatives(id, items),
            Node::Repeat(item, least, most) => {
                let item = self.part(*item)?;
                Ok(self.repeated(item, *least, *most))
            }
        }
    }

    /// Translates a sequence. Adjacent regular items become one lexeme.
    fn sequence(&mut self, id: Id, items: &[Id]) -> Result<Sym, String> {
        let mut all = Vec::new();
        let mut at = 0;
        while at < items.len() {
            let len = items[at..].iter().take_while(|item| self.sizes[**item].is_some()).count();
            let size: u64 = items[at..at + len].iter().filter_map(|item| self.sizes[*item]).sum();
            let origin = (id, at + 1);
            if len > 1 && size <= super::regular::MAX_SIZE && !self.is_cut(origin) {
                let made_of = LexemeShape::AllOf(items[at..at + len].to_vec());
                all.push(self.lexeme(made_of, origin, false)?);
                at += len;
            } else {
                // The whole run is translated item by item, so that no shorter run begins within it.
                for item in &items[at..at + len.max(1)] {
                    all.push(self.part(*item)?);
                }
                at += len.max(1);
            }
        }
        Ok(self.in_sequence(&all))
    }

    fn alternatives(&mut self, id: Id, items: &[Id]) -> Result<Sym, String> {
        let (regular, others): (Vec<Id>, Vec<Id>) =
            items.iter().copied().partition(|item| self.sizes[*item].is_some());
        let size: u64 = regular.iter().filter_map(|item| self.sizes[*item]).sum();
        let made = self.new_rule();
        if regular.len() > 1 && size <= super::regular::MAX_SIZE && !self.is_cut((id, ALTERNATIVES)) {
            let one = self.lexeme(LexemeShape::OneOf(regular), (id, ALTERNATIVES), false)?;
            self.add(made, vec![one]);
        } else {
            for item in regular {
                let one = self.part(item)?;
                self.add(made, vec![one]);
            }
        }
        for item in others {
            let one = self.part(item)?;
            self.add(made, vec![one]);
        }
        if items.is_empty() {
            self.add(made, vec![made, made]);
        }
        Ok(made)
    }

    /// Adds a lexeme. A lexeme is never empty: if its parts match the empty text, the lexeme becomes optional.
    fn lexeme(&mut self, made_of: LexemeShape, origin: Origin, is_character: bool) -> Result<Sym, String> {
        let expr = made_of.expr(&mut self.regexes)?;
        if expr == ExprRef::EMPTY_STRING {
            return Ok(self.in_sequence(&[]));
        }
        if expr == ExprRef::NO_MATCH {
            // A rule that refers only to itself matches nothing.
            let made = self.new_rule();
            self.add(made, vec![made, made]);
            return Ok(made);
        }
        if !self.regexes.builder.is_nullable(expr) {
            let lexeme = Lexeme { expr, is_character, made_of, not_empty: false };
            return Ok(self.known(lexeme, origin));
        }
        let expr = not_empty(&mut self.regexes, expr)?;
        let one = self.known(Lexeme { expr, is_character, made_of, not_empty: true }, origin);
        let made = self.new_rule();
        self.add(made, vec![]);
        self.add(made, vec![one]);
        Ok(made)
    }

    fn known(&mut self, lexeme: Lexeme, origin: Origin) -> Sym {
        let is_character = lexeme.is_character;
        let at = *self.known_lexemes.entry(lexeme.expr).or_insert_with(|| {
            self.lexemes.push(lexeme);
            self.origins.push(Vec::new());
            self.lexemes.len() - 1
        });
        // `("a" | "b")` is also a single character.
        self.lexemes[at].is_character |= is_character;
        self.origins[at].push(origin);
        Sym::Lexeme(at)
    }
}

type Ranges = Vec<std::ops::RangeInclusive<u32>>;

/// Returns the ranges of the tokens that each entry matches, as llama.cpp defines them. `others` must be sorted.
fn token_ranges(tokens: &[(u32, bool)], n_vocab: u32, others: &[u32]) -> Vec<Ranges> {
    // All tokens that `!<…>` can match, computed once, because a grammar may contain many token names.
    let mut all: Ranges = Vec::new();
    let mut from = 0;
    for other in others.iter().copied().filter(|other| *other < n_vocab).chain([n_vocab]) {
        if from < other {
            all.push(from..=other - 1);
        }
        from = other + 1;
    }
    let ranges = |&(id, not): &(u32, bool)| match (not, all.iter().position(|range| range.contains(&id))) {
        (false, None) => Vec::new(),
        (false, Some(_)) => vec![id..=id],
        (true, None) => all.clone(),
        (true, Some(at)) => {
            let (first, last) = (*all[at].start(), *all[at].end());
            let mut ranges = all.clone();
            let around = (first < id).then(|| first..=id - 1).into_iter();
            ranges.splice(at..=at, around.chain((id < last).then(|| id + 1..=last)));
            ranges
        }
    };
    tokens.iter().map(ranges).collect()
}

/// Converts the lexemes and rules to llguidance's format.
fn written(
    mut spec: LexerSpec,
    lexemes: &[Lexeme],
    rules: &[Vec<Vec<Sym>>],
    tokens: &[Ranges],
) -> anyhow::Result<GrammarInit> {
    let mut grammar = Grammar::new(None);
    let new = |grammar: &mut Grammar, name: &str| grammar.fresh_symbol_ext(name, SymbolProps::default());
    let rule_symbols: Vec<SymIdx> = rules.iter().map(|_| new(&mut grammar, "rule")).collect();
    grammar.sym_props_mut(rule_symbols[0]).is_start = true;
    let mut lexeme_symbols = Vec::new();
    for Lexeme { expr, .. } in lexemes {
        let symbol = new(&mut grammar, "lexeme");
        let lexeme =
            spec.add_greedy_lexeme(String::new(), RegexAst::ExprRef(*expr), false, None, usize::MAX)?;
        grammar.make_terminal(symbol, lexeme, &spec)?;
        lexeme_symbols.push(symbol);
    }
    let mut token_symbols = Vec::new();
    for ranges in tokens {
        let symbol = new(&mut grammar, "token");
        if ranges.is_empty() {
            grammar.add_rule(symbol, vec![symbol, symbol])?;
        } else {
            let lexeme = spec.add_special_token(String::new(), ranges.clone())?;
            grammar.make_terminal(symbol, lexeme, &spec)?;
        }
        token_symbols.push(symbol);
    }
    for (rule, ways) in rules.iter().enumerate() {
        for way in ways {
            let way = way.iter().map(|sym| match sym {
                Sym::Rule(rule) => rule_symbols[*rule],
                Sym::Lexeme(lexeme) => lexeme_symbols[*lexeme],
                Sym::Token(token) => token_symbols[*token],
            });
            grammar.add_rule(rule_symbols[rule], way.collect())?;
        }
    }
    Ok(GrammarInit::Internal(grammar, spec))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reference implementation that tests token by token.
    fn plainly(id: u32, not: bool, n_vocab: u32, others: &[u32]) -> Vec<u32> {
        (0..n_vocab).filter(|token| (*token == id) != not && !others.contains(token)).collect()
    }

    #[test]
    fn tokens_are_meant_as_llama_cpp_has_it() {
        let others: [&[u32]; 6] = [&[], &[0], &[9], &[0, 1, 9], &[3, 4, 6], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]];
        for others in others {
            for (id, not) in (0..12).flat_map(|id| [(id, false), (id, true)]) {
                let found = token_ranges(&[(id, not)], 10, others);
                let tokens: Vec<u32> = found[0].iter().cloned().flatten().collect();
                assert_eq!(tokens, plainly(id, not, 10, others), "{id} {not} without {others:?}: {found:?}");
                assert!(found[0].iter().all(|range| !range.is_empty()));
                assert!(found[0].is_sorted_by(|one, other| *one.end() + 1 < *other.start()), "{found:?}");
            }
        }
    }
}
