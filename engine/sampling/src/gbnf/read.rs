//! Parser for GBNF that follows llama.cpp's src/llama-grammar.cpp and reports errors with their positions.

use std::collections::HashMap;

use super::grammar::{Gbnf, Id, Node};

/// Maximum depth of nested brackets.
const MAX_DEPTH: usize = 200;

/// Maximum number of repetitions of one item, and maximum number of rules that the repetitions expand to. llama.cpp has
/// the same limits.
const MAX_TIMES: u64 = 2000;

/// Maximum number of elements when all repetitions are expanded.
const MAX_ELEMENTS: u64 = 1 << 20;

/// Parses `text`. `token` looks up the token with a name like `<think>`.
///
/// # Errors
/// The error and its position, as text.
pub(crate) fn read(text: &str, token: &dyn Fn(&str) -> Option<u32>) -> Result<Gbnf, String> {
    let mut reader = GrammarReader {
        text,
        at: 0,
        depth: 0,
        elements: 0,
        made: 0,
        symbols: HashMap::new(),
        named: HashMap::new(),
        token,
        grammar: Gbnf { nodes: Vec::new(), rules: Vec::new(), root: 0 },
    };
    let mut bodies = HashMap::new();
    reader.space(true);
    while !reader.rest().is_empty() {
        let (name, body) = reader.rule()?;
        // If a rule is defined twice, the last definition counts, as in llama.cpp.
        bodies.insert(name, body);
    }
    let Some(root) = reader.symbols.get("root").copied().filter(|_| bodies.contains_key("root")) else {
        return Err("the grammar has no rule 'root', the start rule".to_string());
    };
    let missing =
        reader.named.iter().filter(|(name, _)| !bodies.contains_key(*name)).min_by_key(|(_, at)| **at);
    if let Some((name, at)) = missing {
        return Err(reader.wrong_at(*at, &format!("the rule '{name}' is not defined")));
    }
    let mut rules = vec![0; reader.symbols.len()];
    for (name, number) in &reader.symbols {
        rules[*number] = bodies[name];
    }
    Ok(Gbnf { rules, root, ..reader.grammar })
}

struct GrammarReader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    /// Number of elements so far, with repetitions expanded.
    elements: u64,
    /// Number of additional rules for groups and repetitions.
    made: u64,
    /// Names of the rules that were defined or referred to so far, with their numbers.
    symbols: HashMap<&'a str, usize>,
    /// Rules that are referred to, with the position of the first reference.
    named: HashMap<&'a str, usize>,
    token: &'a dyn Fn(&str) -> Option<u32>,
    grammar: Gbnf,
}

impl<'a> GrammarReader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn wrong(&self, what: &str) -> String {
        self.wrong_at(self.at, what)
    }

    fn wrong_at(&self, at: usize, what: &str) -> String {
        let before = &self.text[..at];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        format!("line {line}, column {column}: {what}")
    }

    fn take(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        self.at += if found { token.len() } else { 0 };
        found
    }

    fn take_while(&mut self, is: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let len = rest.find(|character| !is(character)).unwrap_or(rest.len());
        self.at += len;
        &rest[..len]
    }

    /// Skips white space and comments. With `lines`, also skips line ends inside a rule.
    fn space(&mut self, lines: bool) {
        loop {
            let is_end = |character| matches!(character, '\r' | '\n');
            self.take_while(|character| matches!(character, ' ' | '\t') || lines && is_end(character));
            if !self.take("#") {
                return;
            }
            self.take_while(|character| !is_end(character));
        }
    }

    fn name(&mut self) -> Result<&'a str, String> {
        match self.take_while(|character| character.is_ascii_alphanumeric() || character == '-') {
            "" => Err(self.wrong("expected the name of a rule: letters, digits and -")),
            name => Ok(name),
        }
    }

    fn symbol(&mut self, name: &'a str) -> usize {
        let next = self.symbols.len();
        *self.symbols.entry(name).or_insert(next)
    }

    fn rule(&mut self) -> Result<(&'a str, Id), String> {
        let name = self.name()?;
        self.symbol(name);
        self.space(false);
        if !self.take("::=") {
            return Err(self.wrong("expected ::="));
        }
        self.space(true);
        let body = self.alternatives(false)?;
        if !self.rest().is_empty() && !self.rest().starts_with(['\r', '\n']) {
            return Err(self.wrong("expected the end of the rule"));
        }
        self.space(true);
        Ok((name, body))
    }

    fn alternatives(&mut self, nested: bool) -> Result<Id, String> {
        let mut all = Vec::new();
        loop {
            all.push(self.sequence(nested)?);
            if !self.take("|") {
                break;
            }
            self.space(true);
        }
        Ok(if let [one] = all[..] { one } else { self.grammar.add(Node::Any(all)) })
    }

    fn sequence(&mut self, nested: bool) -> Result<Id, String> {
        let mut items = Vec::new();
        // Number of elements that each repetition of the last item adds; an empty literal has none.
        let mut last: Option<u64> = None;
        // Number of rules of the last item, counted as llama.cpp does.
        let mut rules = 1;
        loop {
            let before = self.elements;
            let rules_before = self.rules();
            let start = self.at;
            match self.rest().chars().next() {
                Some(quote @ ('"' | '[')) => {
                    let (len, item) = if quote == '"' { self.literal()? } else { self.class()? };
                    (last, rules) = (Some(len).filter(|len| *len > 0), 1);
                    items.push(item);
                }
                Some('<' | '!') => {
                    items.push(self.token()?);
                    (last, rules) = (Some(1), 1);
                }
                Some('(') => {
                    items.push(self.group()?);
                    rules = (self.rules() - rules_before).max(1);
                    // The content of a group is a separate rule, and a repetition refers to the rule.
                    last = Some(1);
                }
                Some('.') => {
                    self.at += 1;
                    items.push(self.grammar.add(Node::Class(except(&[]))));
                    (last, rules) = (Some(1), 1);
                }
                Some('*' | '+' | '?' | '{') => {
                    let (least, most) = self.times()?;
                    let Some(len) = last else {
                        return Err(self.wrong_at(start, "there is nothing to repeat before this operator"));
                    };
                    let times = most.unwrap_or(least).max(1);
                    rules = rules.saturating_mul(times);
                    if rules > MAX_TIMES {
                        let what = format!(
                            "the repetition expands to more than {MAX_TIMES} rules\nhint: use fewer repetitions"
                        );
                        return Err(self.wrong_at(start, &what));
                    }
                    self.made += most.map_or(1, |most| most - least);
                    let grown = len.saturating_mul(times);
                    self.elements = self.elements.saturating_add(grown);
                    last = Some(grown.max(1));
                    if let Some(item) = items.pop() {
                        let most = most.map(|most| most as u32);
                        items.push(self.grammar.add(Node::Repeat(item, least as u32, most)));
                    }
                }
                Some(character) if character.is_ascii_alphanumeric() || character == '-' => {
                    let name = self.name()?;
                    self.named.entry(name).or_insert(start);
                    let rule = self.symbol(name);
                    items.push(self.grammar.add(Node::Rule(rule)));
                    (last, rules) = (Some(1), 1);
                }
                _ => return Ok(if let [one] = items[..] { one } else { self.grammar.add(Node::Seq(items)) }),
            }
            if self.elements == before {
                self.elements += last.unwrap_or(0);
            }
            if self.elements > MAX_ELEMENTS {
                let what = "this repetition makes the grammar too large\nhint: use fewer repetitions";
                return Err(self.wrong_at(start, what));
            }
            self.space(nested);
        }
    }

    fn rules(&self) -> u64 {
        self.symbols.len() as u64 + self.made
    }

    fn group(&mut self) -> Result<Id, String> {
        if self.depth == MAX_DEPTH {
            return Err(self.wrong(&format!(
                "more than {MAX_DEPTH} nested brackets\nhint: move the inner brackets to separate rules"
            )));
        }
        self.at += 1;
        self.depth += 1;
        self.made += 1;
        self.space(true);
        let inner = self.alternatives(true)?;
        self.depth -= 1;
        match self.take(")") {
            true => Ok(inner),
            false => Err(self.wrong("expected )")),
        }
    }

    /// Parses a literal. Returns its number of characters and its node.
    fn literal(&mut self) -> Result<(u64, Id), String> {
        self.at += 1;
        let (mut len, mut text, mut possible) = (0, String::new(), true);
        while !self.take("\"") {
            let character = self.character()?;
            len += 1;
            match possible_character(character) {
                Some(character) => text.push(character),
                None => possible = false,
            }
        }
        let node = match possible {
            true if text.is_empty() => Node::Seq(Vec::new()),
            true => Node::Text(text),
            false => Node::Any(Vec::new()),
        };
        Ok((len, self.grammar.add(node)))
    }

    /// Parses a character class. Returns its number of elements and its node; an empty class is the empty text.
    fn class(&mut self) -> Result<(u64, Id), String> {
        self.at += 1;
        let not = self.take("^");
        let (mut len, mut ranges) = (0, Vec::new());
        while !self.take("]") {
            let first = self.character()?;
            let mut last = first;
            len += 1;
            if self.rest().starts_with('-') && !self.rest().starts_with("-]") {
                self.at += 1;
                last = self.character()?;
                len += 1;
            }
            ranges.push((first, last));
        }
        let node = match (len, not) {
            (0, _) => Node::Seq(Vec::new()),
            (_, true) => Node::Class(except(&ranges)),
            // The complement of the negated ranges.
            (_, false) => {
                let others: Vec<_> = except(&ranges).iter().map(|(a, b)| (*a as u32, *b as u32)).collect();
                Node::Class(except(&others))
            }
        };
        Ok((len, self.grammar.add(node)))
    }

    /// Parses a character. Returns its code point, which may be invalid if the character is an escape.
    fn character(&mut self) -> Result<u32, String> {
        let start = self.at;
        let mut characters = self.rest().chars();
        let Some(first) = characters.next() else {
            return Err(self.wrong(
                "the grammar ends inside a string or a character class\nhint: add the missing \" or ]",
            ));
        };
        self.at += first.len_utf8();
        if first != '\\' {
            return Ok(first as u32);
        }
        let (digits, character) = match characters.next() {
            Some('x') => (2, '\0'),
            Some('u') => (4, '\0'),
            Some('U') => (8, '\0'),
            Some('t') => (0, '\t'),
            Some('r') => (0, '\r'),
            Some('n') => (0, '\n'),
            Some(itself @ ('\\' | '"' | '[' | ']' | '-')) => (0, itself),
            _ => {
                let known = "unknown escape\nhint: use \\x \\u \\U \\t \\r \\n \\\\ \\\" \\[ \\] or \\-";
                return Err(self.wrong_at(start, known));
            }
        };
        self.at += 1;
        let hex = self.rest().bytes().take(digits).filter(u8::is_ascii_hexdigit).count();
        if hex < digits {
            return Err(self.wrong_at(start, &format!("expected {digits} hexadecimal digits")));
        }
        let number = u32::from_str_radix(&self.rest()[..digits], 16).unwrap_or(character as u32);
        self.at += digits;
        Ok(number)
    }

    fn token(&mut self) -> Result<Id, String> {
        let not = self.take("!");
        let start = self.at;
        let wrong = "expected a token, as in <[1000]> or <think>";
        if self.take("<[") {
            let number = self.take_while(|character| character.is_ascii_digit());
            return match number.parse::<u32>().ok().filter(|_| self.take("]>")) {
                Some(id) => Ok(self.grammar.add(Node::Token { id, not })),
                None => Err(self.wrong_at(start, wrong)),
            };
        }
        let end = self.rest().find('>').filter(|_| self.rest().starts_with('<'));
        let Some(end) = end else { return Err(self.wrong_at(start, wrong)) };
        let name = &self.rest()[..=end];
        let Some(id) = (self.token)(name) else {
            return Err(self.wrong_at(start, &format!("the model has no token {name}")));
        };
        self.at += name.len();
        Ok(self.grammar.add(Node::Token { id, not }))
    }

    /// Parses the bounds of a repetition: the minimum and, if given, the maximum.
    fn times(&mut self) -> Result<(u64, Option<u64>), String> {
        let start = self.at;
        for (sign, times) in [("*", (0, None)), ("+", (1, None)), ("?", (0, Some(1)))] {
            if self.take(sign) {
                return Ok(times);
            }
        }
        self.take("{");
        let number = |reader: &mut Self| {
            reader.space(true);
            let digits = reader.take_while(|character| character.is_ascii_digit());
            reader.space(true);
            (!digits.is_empty()).then(|| digits.parse().unwrap_or(u64::MAX))
        };
        let least = number(self);
        let (most, closed) = match self.take(",") {
            true => (number(self), self.take("}")),
            false => (least, self.take("}")),
        };
        let Some(least) = least.filter(|_| closed) else {
            return Err(self.wrong_at(start, "invalid repetition\nhint: use {3}, {3,} or {3,5}"));
        };
        if least > MAX_TIMES || most == Some(u64::MAX) {
            return Err(self.wrong_at(start, &format!("at most {MAX_TIMES} repetitions are allowed")));
        }
        if most.is_some_and(|most| most < least) {
            return Err(self.wrong_at(start, "the maximum is less than the minimum"));
        }
        // llama.cpp treats a larger bound as no bound.
        Ok((least, most.filter(|most| *most <= MAX_TIMES)))
    }
}

/// Returns the character with this code point. llama.cpp's grammars cannot match NUL, which ends a text in C.
fn possible_character(number: u32) -> Option<char> {
    char::from_u32(number).filter(|character| *character != '\0')
}

/// Returns all characters that are not in `ranges`, sorted.
fn except(ranges: &[(u32, u32)]) -> Vec<(char, char)> {
    let mut taken: Vec<(u32, u32)> = ranges.iter().copied().filter(|(first, last)| first <= last).collect();
    // NUL, surrogates and everything beyond the last code point are not characters.
    taken.extend([(0, 0), (0xD800, 0xDFFF), (0x11_0000, u32::MAX)]);
    taken.sort_unstable();
    let (mut left, mut next) = (Vec::new(), 0);
    for (first, last) in taken {
        if first > next
            && let (Some(from), Some(to)) = (char::from_u32(next), char::from_u32(first - 1))
        {
            left.push((from, to));
        }
        next = next.max(last.saturating_add(1));
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(), String> {
        super::read(text, &|token| (token == "<think>").then_some(7)).map(|_| ())
    }

    #[test]
    fn classes_are_ranges_of_characters() {
        let all = |ranges: &[(char, char)]| Node::Class(ranges.to_vec());
        let cases = [
            ("[a-z]", all(&[('a', 'z')])),
            ("[zb-ca]", all(&[('a', 'c'), ('z', 'z')])),
            ("[a-cb-e]", all(&[('a', 'e')])),
            ("[z-a]", all(&[])),
            ("[a-]", all(&[('-', '-'), ('a', 'a')])),
            ("[\\x41\\u00e4\\U0001F600]", all(&[('A', 'A'), ('ä', 'ä'), ('😀', '😀')])),
            ("[^\\x01-\\U0010FFFE]", all(&[('\u{10FFFF}', '\u{10FFFF}')])),
            ("[\\x00-\\x02]", all(&[('\u{1}', '\u{2}')])),
            (".", all(&[('\u{1}', '\u{D7FF}'), ('\u{E000}', '\u{10FFFF}')])),
            ("[]", Node::Seq(Vec::new())),
            ("\"a\\n\\u00e4\"", Node::Text("a\nä".to_string())),
            ("\"\\ud800\"", Node::Any(Vec::new())),
            ("!<think>", Node::Token { id: 7, not: true }),
        ];
        for (text, node) in cases {
            let grammar = super::read(&format!("root ::= {text}"), &|_| Some(7)).expect(text);
            assert_eq!(grammar.nodes[grammar.rules[grammar.root]], node, "{text}");
        }
    }

    #[test]
    fn grammars_that_llama_cpp_takes() {
        let cases = [
            "root ::= \"a\"",
            "# a comment\n\nroot ::= a | b # and another\na ::= \"x\"\nb ::= [^a-z\\n\\]-]+",
            "root ::= (\n  \"a\" |\n  \"b\"\n)* \".\"\r\n",
            "root ::= \"\\x41\\u00e4\\U0001F600\\t\\\"\" .? [0-9]{3} [a-z]{2,} [a-z]{ 0 , 5 }",
            "root ::= !<[12]> <think> <[0]>",
            "root ::= \"a\"{1,100000}",
            "root ::= [0-9]{0,2000}",
            "root ::= a-1 A2\na-1 ::= \"ä\"\nA2 ::= [à-ü]",
            "root ::= \"\"",
        ];
        for text in cases {
            assert_eq!(read(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        let cases = [
            ("", "no rule 'root'"),
            ("start ::= \"a\"", "no rule 'root'"),
            ("root = \"a\"", "line 1, column 6: expected ::="),
            ("root ::= \"a\"\nroot ::= x\n", "line 2, column 10: the rule 'x' is not defined"),
            ("root ::= \"a", "ends inside"),
            ("root ::= [a-", "ends inside"),
            ("root ::= \"\\q\"", "line 1, column 11: unknown escape\nhint: use \\x"),
            ("root ::= \"\\x4\"", "2 hexadecimal digits"),
            ("root ::= (\"a\"", "expected )"),
            ("root ::= \"a\")", "line 1, column 13: expected the end of the rule"),
            ("root ::= *", "nothing to repeat"),
            ("root ::= \"\"*", "nothing to repeat"),
            ("root ::= \"a\"{5,2}", "the maximum is less than the minimum"),
            ("root ::= \"a\"{5", "invalid repetition\nhint: use {3}"),
            ("root ::= \"a\"{,5}", "invalid repetition"),
            ("root ::= \"a\"{2001}", "at most 2000 repetitions"),
            ("root ::= \"a\"{1,99999999999999999999999}", "at most 2000 repetitions"),
            ("root ::= (\"a\"? \"b\"?){1000}", "more than 2000 rules"),
            ("root ::=\nother ::= root", "line 2, column 7: expected the end of the rule"),
            ("root ::= <nothing>", "the model has no token <nothing>"),
            ("root ::= <[99999999999]>", "expected a token"),
            ("root ::= <", "expected a token"),
            ("root ::= !", "expected a token"),
            ("root ::= ä", "expected the end of the rule"),
            ("ä ::= \"a\"", "expected the name of a rule"),
        ];
        for (text, words) in cases {
            let why = read(text).expect_err(text);
            assert!(why.contains(words), "{text}: {why}");
        }
    }

    #[test]
    fn what_would_take_all_memory_is_refused() {
        let literal = "a".repeat(100_000);
        let text = format!("root ::= \"{literal}\"{{2000}}");
        assert!(read(&text).is_err_and(|why| why.contains("too large")));
        let nested = format!("root ::= {}\"a\"{}", "(".repeat(5), "){100}".repeat(5));
        assert_eq!(read(&nested), Ok(()), "a group that repeats is a reference");
        let nested = format!("root ::= {}\"a\"{}", "(".repeat(5), "){0,100}".repeat(5));
        assert!(read(&nested).is_err_and(|why| why.contains("more than 2000 rules")));
        let deep = format!("root ::= {}\"a\"{}", "(".repeat(201), ")".repeat(201));
        assert!(read(&deep).is_err_and(|why| why.contains("more than 200 nested brackets")));
    }
}
