//! Reads GBNF before llama.cpp does, whose parser tells what is wrong only on stderr, and which some grammars send into a
//! loop or through all memory. The syntax is that of its src/llama-grammar.cpp.

use std::collections::{HashMap, HashSet};

/// Brackets within brackets.
const MAX_DEPTH: usize = 200;

/// Repetitions of one thing, and rules that they become, with those of what is repeated: llama.cpp's own bound.
const MAX_TIMES: u64 = 2000;

/// Elements that repetitions may be written out to, 8 bytes each in llama.cpp and copied a few times.
const MAX_ELEMENTS: u64 = 1 << 20;

/// Sees that llama.cpp will take `text`. `is_token` tells whether a text like `<think>` is a token.
///
/// # Errors
/// What is wrong, and where.
pub(super) fn check(text: &str, is_token: &dyn Fn(&str) -> bool) -> Result<(), String> {
    let mut reader = Reader {
        text,
        at: 0,
        depth: 0,
        elements: 0,
        made: 0,
        symbols: HashSet::new(),
        named: HashMap::new(),
        is_token,
    };
    let mut rules = Vec::new();
    reader.space(true);
    while !reader.rest().is_empty() {
        rules.push(reader.rule()?);
    }
    if !rules.contains(&"root") {
        return Err("there is no rule 'root', which it begins with".to_string());
    }
    let known: HashSet<&str> = rules.into_iter().collect();
    let missing = reader.named.iter().filter(|(name, _)| !known.contains(*name)).min_by_key(|(_, at)| **at);
    match missing {
        Some((name, at)) => Err(reader.wrong_at(*at, &format!("there is no rule '{name}'"))),
        None => Ok(()),
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    /// What it is written out to so far.
    elements: u64,
    /// Rules that groups and repetitions become.
    made: u64,
    /// Names of rules so far, where they are made and where they are named.
    symbols: HashSet<&'a str>,
    /// Rules that are named, and where first.
    named: HashMap<&'a str, usize>,
    is_token: &'a dyn Fn(&str) -> bool,
}

impl<'a> Reader<'a> {
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

    /// Blanks and comments, and line ends where a rule may go on behind them.
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
            "" => Err(self.wrong("a rule's name is expected: letters, digits and -")),
            name => Ok(name),
        }
    }

    fn rule(&mut self) -> Result<&'a str, String> {
        let name = self.name()?;
        self.symbols.insert(name);
        self.space(false);
        if !self.take("::=") {
            return Err(self.wrong("::= is expected"));
        }
        self.space(true);
        self.alternatives(false)?;
        if !self.rest().is_empty() && !self.rest().starts_with(['\r', '\n']) {
            return Err(self.wrong("the end of the rule is expected"));
        }
        self.space(true);
        Ok(name)
    }

    fn alternatives(&mut self, nested: bool) -> Result<(), String> {
        loop {
            self.sequence(nested)?;
            if !self.take("|") {
                return Ok(());
            }
            self.space(true);
        }
    }

    fn sequence(&mut self, nested: bool) -> Result<(), String> {
        // Elements of the last item, each time they are written out; an empty literal is none.
        let mut last: Option<u64> = None;
        // As llama.cpp counts the rules of the last item.
        let mut rules = 1;
        loop {
            let before = self.elements;
            let rules_before = self.rules();
            let start = self.at;
            match self.rest().chars().next() {
                Some('"') => (last, rules) = (Some(self.literal()?).filter(|len| *len > 0), 1),
                Some('[') => (last, rules) = (Some(self.class()?).filter(|len| *len > 0), 1),
                Some('<' | '!') => {
                    self.token()?;
                    (last, rules) = (Some(1), 1);
                }
                Some('(') => {
                    self.group()?;
                    rules = (self.rules() - rules_before).max(1);
                    // Its content is a rule of its own, and what repeats is a reference to it.
                    last = Some(1);
                }
                Some('.') => {
                    self.at += 1;
                    (last, rules) = (Some(1), 1);
                }
                Some('*' | '+' | '?' | '{') => {
                    let (least, most) = self.times()?;
                    let Some(len) = last else {
                        return Err(self.wrong_at(start, "there is nothing to repeat before it"));
                    };
                    let times = most.unwrap_or(least).max(1);
                    rules = rules.saturating_mul(times);
                    if rules > MAX_TIMES {
                        let what = format!("it becomes more than {MAX_TIMES} rules; repeat less");
                        return Err(self.wrong_at(start, &what));
                    }
                    self.made += most.map_or(1, |most| most - least);
                    let grown = len.saturating_mul(times);
                    self.elements = self.elements.saturating_add(grown);
                    last = Some(grown.max(1));
                }
                Some(character) if character.is_ascii_alphanumeric() || character == '-' => {
                    let name = self.name()?;
                    self.named.entry(name).or_insert(start);
                    self.symbols.insert(name);
                    (last, rules) = (Some(1), 1);
                }
                _ => return Ok(()),
            }
            if self.elements == before {
                self.elements += last.unwrap_or(0);
            }
            if self.elements > MAX_ELEMENTS {
                return Err(self.wrong_at(start, "with this repetition it is too large; repeat less"));
            }
            self.space(nested);
        }
    }

    fn rules(&self) -> u64 {
        self.symbols.len() as u64 + self.made
    }

    fn group(&mut self) -> Result<(), String> {
        if self.depth == MAX_DEPTH {
            return Err(self.wrong(&format!(
                "more than {MAX_DEPTH} brackets are open at once; give the inner ones rules of their own"
            )));
        }
        self.at += 1;
        self.depth += 1;
        self.made += 1;
        self.space(true);
        self.alternatives(true)?;
        self.depth -= 1;
        match self.take(")") {
            true => Ok(()),
            false => Err(self.wrong("a ) is expected")),
        }
    }

    fn literal(&mut self) -> Result<u64, String> {
        self.at += 1;
        let mut len = 0;
        while !self.take("\"") {
            self.character()?;
            len += 1;
        }
        Ok(len)
    }

    fn class(&mut self) -> Result<u64, String> {
        self.at += 1;
        self.take("^");
        let mut len = 0;
        while !self.take("]") {
            self.character()?;
            len += 1;
            if self.rest().starts_with('-') && !self.rest().starts_with("-]") {
                self.at += 1;
                self.character()?;
                len += 1;
            }
        }
        Ok(len)
    }

    fn character(&mut self) -> Result<(), String> {
        let start = self.at;
        let mut characters = self.rest().chars();
        let Some(first) = characters.next() else {
            return Err(self.wrong("it ends within a text or a class of characters"));
        };
        self.at += first.len_utf8();
        if first != '\\' {
            return Ok(());
        }
        let digits = match characters.next() {
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some('t' | 'r' | 'n' | '\\' | '"' | '[' | ']' | '-') => 0,
            _ => {
                let known = r#"an escape is one of \x \u \U \t \r \n \\ \" \[ \] \-"#;
                return Err(self.wrong_at(start, known));
            }
        };
        self.at += 1;
        let hex = self.rest().bytes().take(digits).filter(u8::is_ascii_hexdigit).count();
        if hex < digits {
            return Err(self.wrong_at(start, &format!("{digits} hexadecimal digits are expected")));
        }
        self.at += digits;
        Ok(())
    }

    fn token(&mut self) -> Result<(), String> {
        self.take("!");
        let start = self.at;
        let wrong = "a token is expected, as <[1000]> or <think>";
        if self.take("<[") {
            let number = self.take_while(|character| character.is_ascii_digit());
            return match number.parse::<u32>().is_ok() && self.take("]>") {
                true => Ok(()),
                false => Err(self.wrong_at(start, wrong)),
            };
        }
        let end = self.rest().find('>').filter(|_| self.rest().starts_with('<'));
        let Some(end) = end else { return Err(self.wrong_at(start, wrong)) };
        let name = &self.rest()[..=end];
        if !(self.is_token)(name) {
            return Err(self.wrong_at(start, &format!("the model has no token {name}")));
        }
        self.at += name.len();
        Ok(())
    }

    /// How often at least, and at most where there is a bound.
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
            return Err(self.wrong_at(start, "a repetition is written {3}, {3,} or {3,5}"));
        };
        if least > MAX_TIMES || most == Some(u64::MAX) {
            return Err(self.wrong_at(start, &format!("{MAX_TIMES} repetitions are the most")));
        }
        if most.is_some_and(|most| most < least) {
            return Err(self.wrong_at(start, "the second number is less than the first"));
        }
        // To llama.cpp so many are any number.
        Ok((least, most.filter(|most| *most <= MAX_TIMES)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(), String> {
        check(text, &|token| token == "<think>")
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
            ("root = \"a\"", "line 1, column 6: ::= is expected"),
            ("root ::= \"a\"\nroot ::= x\n", "line 2, column 10: there is no rule 'x'"),
            ("root ::= \"a", "it ends within"),
            ("root ::= [a-", "it ends within"),
            ("root ::= \"\\q\"", "line 1, column 11: an escape is one of"),
            ("root ::= \"\\x4\"", "2 hexadecimal digits"),
            ("root ::= (\"a\"", "a ) is expected"),
            ("root ::= \"a\")", "line 1, column 13: the end of the rule is expected"),
            ("root ::= *", "nothing to repeat"),
            ("root ::= \"\"*", "nothing to repeat"),
            ("root ::= \"a\"{5,2}", "the second number is less than the first"),
            ("root ::= \"a\"{5", "a repetition is written"),
            ("root ::= \"a\"{,5}", "a repetition is written"),
            ("root ::= \"a\"{2001}", "2000 repetitions are the most"),
            ("root ::= \"a\"{1,99999999999999999999999}", "2000 repetitions are the most"),
            ("root ::= (\"a\"? \"b\"?){1000}", "more than 2000 rules"),
            ("root ::=\nother ::= root", "line 2, column 7: the end of the rule is expected"),
            ("root ::= <nothing>", "the model has no token <nothing>"),
            ("root ::= <[99999999999]>", "a token is expected"),
            ("root ::= <", "a token is expected"),
            ("root ::= !", "a token is expected"),
            ("root ::= ä", "the end of the rule is expected"),
            ("ä ::= \"a\"", "a rule's name is expected"),
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
        assert!(read(&deep).is_err_and(|why| why.contains("more than 200 brackets")));
    }
}
