//! Log-probabilities in the formats of OpenAI's two endpoints.

use serde_json::{Map, Value, json};

use super::shape::AnswerShape;
use crate::job::Piece;
use crate::logprobs::{Likelihood, Likely};

/// Log-probabilities of a choice's tokens that have not been sent yet.
#[derive(Debug)]
pub struct Logprobs {
    shape: AnswerShape,
    /// Token likelihoods, each with the character offset of its token in the text.
    entries: Vec<(Likelihood, usize)>,
    /// Number of characters of the text so far.
    characters: usize,
}

impl Logprobs {
    /// Creates an empty collection.
    pub fn new(shape: AnswerShape) -> Self {
        Logprobs { shape, entries: Vec::new(), characters: 0 }
    }

    /// Takes the likelihood of `piece`, if it has one.
    pub fn add(&mut self, piece: &mut Piece) {
        let Some(likelihood) = piece.likelihood.take() else { return };
        self.entries.push((*likelihood, self.characters));
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
                let content: Value = entries.iter().map(|(entry, _)| chat(entry)).collect();
                json!({ "content": content, "refusal": null })
            }
            (false, AnswerShape::Text) => {
                let chosen = |(entry, _): &(Likelihood, usize)| text_name(&entry.chosen);
                json!({
                    "tokens": entries.iter().map(chosen).collect::<Vec<_>>(),
                    "token_logprobs": entries.iter().map(|(entry, _)| entry.chosen.logprob).collect::<Vec<_>>(),
                    "top_logprobs": entries.iter().map(|(entry, _)| top(entry)).collect::<Vec<_>>(),
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
        map.entry(text_name(likely)).or_insert_with(|| json!(likely.logprob));
    }
    Value::Object(map)
}

fn text_name(likely: &Likely) -> String {
    match std::str::from_utf8(&likely.bytes) {
        Ok(text) => text.to_string(),
        Err(_) => format!("bytes:{}", name(&likely.bytes)),
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
    fn both_shapes_are_openais() {
        let half = likely(7, b"\xe6\xbc", -0.5);
        let top = [likely(1, b"a", -0.25), half.clone()];
        let pieces = || [piece("é ", likely(2, "é ".as_bytes(), -1.0), &top), piece("", half.clone(), &[])];
        let told = |shape| {
            let mut logprobs = Logprobs::new(shape);
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
