//! Log-probabilities in the formats of OpenAI's two endpoints.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::shape::AnswerShape;
use crate::job::Piece;
use crate::logprobs::{Likelihood, Likely, ScoredToken};

/// Log-probabilities of a choice's tokens that have not been sent yet.
#[derive(Debug)]
pub struct Logprobs {
    shape: AnswerShape,
    /// Tokens with their likelihoods, each with the character offset of the token in the text.
    entries: Vec<(ScoredToken, usize)>,
    /// Prompt with which the text begins. Empty if the text begins with the answer.
    echo: EchoOffsets,
    /// Number of characters of the text so far.
    characters: usize,
}

/// Finds the offsets of tokens in the text of their prompt. Some tokens, such as a BOS token, are not in the text.
#[derive(Debug)]
struct EchoOffsets {
    text: Arc<str>,
    /// Number of bytes before the next token.
    bytes: usize,
    /// Number of characters before the next token.
    characters: usize,
}

impl EchoOffsets {
    /// Returns the character offset of the next token, which has the bytes `token`.
    fn next(&mut self, token: &[u8]) -> usize {
        let rest = &self.text.as_bytes()[self.bytes..];
        // Some tokenizers put a space before the first word.
        let bare = token.strip_prefix(b" ").unwrap_or(token);
        let found = [token, bare].into_iter().find(|bytes| rest.starts_with(bytes));
        let at = self.characters;
        let is_begin = |byte: &&u8| !(0x80..0xc0).contains(*byte);
        self.characters += found.map_or(0, |bytes| bytes.iter().filter(is_begin).count());
        self.bytes += found.map_or(0, <[u8]>::len);
        at
    }
}

impl Logprobs {
    /// Creates an empty collection. `echo` is the prompt with which the text begins, if any.
    pub fn new(shape: AnswerShape, echo: Arc<str>) -> Self {
        let characters = echo.chars().count();
        let echo = EchoOffsets { text: echo, bytes: 0, characters: 0 };
        Logprobs { shape, entries: Vec::new(), echo, characters }
    }

    /// Takes the next tokens of the prompt.
    pub fn add_prompt(&mut self, tokens: Vec<ScoredToken>) {
        for token in tokens {
            let offset = self.echo.next(token.bytes());
            self.entries.push((token, offset));
        }
    }

    /// Takes the likelihood of `piece`, if it has one.
    pub fn add(&mut self, piece: &mut Piece) {
        let Some(likelihood) = piece.likelihood.take() else { return };
        self.entries.push((ScoredToken::Next(*likelihood), self.characters));
        self.characters += piece.text.chars().count();
    }

    /// True if the collection contains any log-probabilities.
    pub fn has_some(&self) -> bool {
        !self.entries.is_empty()
    }

    /// Takes the value of `logprobs`. Null if the collection is empty.
    pub fn take(&mut self) -> Value {
        let entries = std::mem::take(&mut self.entries);
        match (entries.is_empty(), self.shape) {
            (true, _) => Value::Null,
            (false, AnswerShape::Chat) => {
                let content: Value =
                    entries.iter().filter_map(|(entry, _)| entry.likelihood()).map(chat).collect();
                json!({ "content": content, "refusal": null })
            }
            (false, AnswerShape::Text) => {
                let likelihoods = || entries.iter().map(|(entry, _)| entry.likelihood());
                let logprob = |likelihood: Option<&Likelihood>| likelihood.map(|one| one.chosen.logprob);
                json!({
                    "tokens": entries.iter().map(|(entry, _)| text_name(entry.bytes())).collect::<Vec<_>>(),
                    "token_logprobs": likelihoods().map(logprob).collect::<Vec<_>>(),
                    "top_logprobs": likelihoods().map(|likelihood| likelihood.map(top)).collect::<Vec<_>>(),
                    "text_offset": entries.iter().map(|(_, offset)| *offset).collect::<Vec<_>>(),
                })
            }
        }
    }
}

fn chat(entry: &Likelihood) -> Value {
    let one = |likely: &Likely| {
        let token = name(&likely.bytes);
        json!({ "token": token, "logprob": likely.logprob, "bytes": likely.bytes })
    };
    let mut value = one(&entry.chosen);
    value["top_logprobs"] = entry.top.iter().map(one).collect();
    value
}

/// Returns the alternatives and the chosen token, keyed by text. If two tokens have the same text, the more likely
/// token is kept.
fn top(entry: &Likelihood) -> Value {
    let mut map = Map::new();
    for likely in entry.top.iter().chain([&entry.chosen]) {
        map.entry(text_name(&likely.bytes)).or_insert_with(|| json!(likely.logprob));
    }
    Value::Object(map)
}

fn text_name(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_string(),
        Err(_) => format!("bytes:{}", name(bytes)),
    }
}

/// Returns the text of a token. Bytes that are not complete characters are escaped.
fn name(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_string(),
        Err(_) => bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn likely(token: i32, bytes: &[u8], logprob: f32) -> Likely {
        Likely { token, bytes: bytes.to_vec(), logprob }
    }

    fn piece(text: &str, chosen: Likely, top: &[Likely]) -> Piece {
        let likelihood = Some(Box::new(Likelihood { chosen, top: top.to_vec() }));
        Piece { token: 1, text: text.to_string(), likelihood }
    }

    #[test]
    fn offsets_of_a_prompt_lead_into_its_text() {
        let text = "Ä 漢 b";
        let mut logprobs = Logprobs::new(AnswerShape::Text, Arc::from(text));
        let next =
            |bytes: &[u8]| ScoredToken::Next(Likelihood { chosen: likely(1, bytes, -1.0), top: Vec::new() });
        // The BOS token and the space before the first word are not in the text, and one character consists of two
        // tokens.
        logprobs.add_prompt(vec![
            ScoredToken::First(b"<s>".to_vec()),
            next(" Ä".as_bytes()),
            next(b" \xe6\xbc"),
        ]);
        logprobs.add_prompt(vec![next(b"\xa2"), next(b" b")]);
        logprobs.add(&mut piece("c", likely(2, b"c", -2.0), &[]));
        let told = logprobs.take();
        assert_eq!(told["text_offset"], json!([0, 0, 1, 3, 3, 5]));
        assert_eq!(told["token_logprobs"], json!([null, -1.0, -1.0, -1.0, -1.0, -2.0]));
        assert_eq!((&told["top_logprobs"][0], &told["tokens"][0]), (&Value::Null, &json!("<s>")));
    }

    #[test]
    fn both_shapes_are_openais() {
        let half = likely(7, b"\xe6\xbc", -0.5);
        let top = [likely(1, b"a", -0.25), half.clone()];
        let pieces = || [piece("é ", likely(2, "é ".as_bytes(), -1.0), &top), piece("", half.clone(), &[])];
        let told = |shape| {
            let mut logprobs = Logprobs::new(shape, Arc::default());
            pieces().iter_mut().for_each(|piece| logprobs.add(piece));
            let value = logprobs.take();
            assert_eq!(logprobs.take(), Value::Null);
            value
        };
        assert_eq!(
            told(AnswerShape::Text),
            json!({
                "tokens": ["é ", "bytes:\\xe6\\xbc"],
                "token_logprobs": [-1.0, -0.5],
                "top_logprobs": [
                    { "a": -0.25, "bytes:\\xe6\\xbc": -0.5, "é ": -1.0 },
                    { "bytes:\\xe6\\xbc": -0.5 },
                ],
                "text_offset": [0, 2],
            })
        );
        let chat = told(AnswerShape::Chat);
        assert_eq!(chat["refusal"], Value::Null);
        assert_eq!(
            chat["content"][0],
            json!({
                "token": "é ", "logprob": -1.0, "bytes": "é ".as_bytes(),
                "top_logprobs": [
                    { "token": "a", "logprob": -0.25, "bytes": [97] },
                    { "token": "\\xe6\\xbc", "logprob": -0.5, "bytes": [230, 188] },
                ],
            })
        );
        assert_eq!(chat["content"][1]["top_logprobs"], json!([]));
    }
}
