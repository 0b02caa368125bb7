//! Counts the tokens of an answer's thoughts, and closes the thoughts when their budget is spent.

use chat::ThoughtReader;
use llama::Token;

/// Counter for the thoughts of one answer.
#[derive(Clone, Debug)]
pub struct ThoughtCounter {
    reader: ThoughtReader,
    /// Maximum number of thought tokens. `None` for no limit.
    budget: Option<u32>,
    /// Tokens that close the thoughts.
    closing: Vec<Token>,
    /// Number of tokens of `closing` that were chosen.
    closed: usize,
    /// Number of tokens of the thoughts that were sampled, not forced.
    spent: u32,
    /// Number of tokens of the thoughts, including their markers.
    tokens: u32,
}

impl ThoughtCounter {
    /// Creates the counter for an answer that `reader` reads. When the thoughts reach `budget` tokens, they are closed
    /// with the tokens `closing`.
    pub fn new(reader: ThoughtReader, budget: Option<u32>, closing: Vec<Token>) -> Self {
        ThoughtCounter { reader, budget, closing, closed: 0, spent: 0, tokens: 0 }
    }

    /// True if the thoughts have a budget.
    pub fn has_budget(&self) -> bool {
        self.budget.is_some()
    }

    /// Returns the number of tokens of the thoughts so far, including their markers.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Returns the next token if the thoughts are being closed.
    pub fn closing_token(&self) -> Option<Token> {
        let is_spent = self.budget.is_some_and(|budget| self.spent >= budget);
        let is_closing = self.closed > 0 || (is_spent && self.reader.is_inside());
        self.closing.get(self.closed).copied().filter(|_| is_closing)
    }

    /// Counts `token`, which was chosen. `text` is the text that the token completes.
    pub fn add(&mut self, token: Token, text: &str) {
        let was_inside = self.reader.is_inside();
        // If a grammar forbids a closing token, the closing sequence starts again from its first token.
        let is_closing = self.closing_token() == Some(token);
        self.closed = if is_closing { (self.closed + 1) % self.closing.len() } else { 0 };
        self.reader.push(text);
        self.spent = self.spent.saturating_add(u32::from(was_inside && !is_closing));
        self.tokens += u32::from(was_inside || self.reader.is_inside());
    }
}

#[cfg(test)]
mod tests {
    use chat::ThoughtFormat;

    use super::*;

    /// Closing tokens, whose texts are `</th` and `ink>`.
    const CLOSING: [Token; 2] = [100, 101];

    fn counter(prompt: &str, budget: Option<u32>) -> ThoughtCounter {
        let reader = ThoughtFormat::default().reader(prompt, false);
        ThoughtCounter::new(reader, budget, CLOSING.to_vec())
    }

    /// Lets a model write `texts`, one token each. Returns the text of the answer and the counter.
    fn write(mut counter: ThoughtCounter, texts: &[&str]) -> (String, ThoughtCounter) {
        let mut answer = String::new();
        let mut texts = texts.iter();
        loop {
            let (token, text) = match counter.closing_token() {
                Some(token) if token == CLOSING[0] => (token, "</th"),
                Some(token) => (token, "ink>"),
                None => match texts.next() {
                    Some(text) => (1, *text),
                    None => return (answer, counter),
                },
            };
            answer.push_str(text);
            counter.add(token, text);
        }
    }

    #[test]
    fn a_spent_budget_closes_the_thoughts() {
        for (prompt, budget, texts, expected, tokens) in [
            ("<think>", None, &["a", "b", "</think>", "c"][..], "ab</think>c", 3),
            ("<think>", Some(9), &["a", "b", "</think>", "c"], "ab</think>c", 3),
            ("<think>", Some(2), &["a", "b", "c", "d"], "ab</think>cd", 4),
            ("<think>", Some(0), &["a", "b"], "</think>ab", 2),
            ("", Some(1), &["<think>", "a", "b"], "<think>a</think>b", 4),
            ("", Some(0), &["<think>", "a"], "<think></think>a", 3),
            ("", Some(0), &["a", "b"], "ab", 0),
            // Thoughts that open again have no budget left.
            ("<think>", Some(1), &["a", "\n", "<think>", "b"], "a</think>\n<think></think>b", 6),
        ] {
            let (answer, counter) = write(counter(prompt, budget), texts);
            assert_eq!((answer.as_str(), counter.tokens()), (expected, tokens), "{texts:?}, {budget:?}");
        }
    }

    #[test]
    fn a_grammar_can_forbid_the_closing_tokens() {
        let mut counter = counter("<think>", Some(0));
        counter.add(CLOSING[0], "</th");
        assert_eq!(counter.closing_token(), Some(CLOSING[1]));
        counter.add(1, "x");
        assert_eq!(counter.closing_token(), Some(CLOSING[0]));
    }
}
