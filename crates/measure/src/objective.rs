//! Tuning objectives: prompt and answer token counts.

use std::fmt;
use std::str::FromStr;

/// Named objectives with their prompt and answer token counts. Only the ratio of the two numbers
/// decides which candidate is faster.
const NAMED: [(&str, u32, u32); 4] = [
    // A short question and a long answer.
    ("chat", 128, 512),
    // Documents in the prompt and a short answer.
    ("rag", 2048, 256),
    // Rewriting, translating or summarising a text, with as much output as input.
    ("batch", 512, 512),
    // Time to the beginning of an answer: a prompt and one sentence.
    ("latency", 512, 16),
];

/// Maximum number of prompt tokens, and of generated tokens.
const MOST: u32 = 1 << 20;

/// Tuning objective, given by name or as a pair of numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objective {
    name: String,
    /// Number of prompt tokens.
    pub prompt: u32,
    /// Number of generated tokens.
    pub generate: u32,
}

impl Default for Objective {
    fn default() -> Self {
        let (name, prompt, generate) = NAMED[0];
        Self { name: name.to_string(), prompt, generate }
    }
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name)
    }
}

impl FromStr for Objective {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((name, prompt, generate)) = NAMED.into_iter().find(|(name, ..)| *name == text) {
            return Ok(Self { name: name.to_string(), prompt, generate });
        }
        let number = |text: &str| text.trim().parse().ok().filter(|tokens| *tokens <= MOST);
        match text.split_once(':').and_then(|(prompt, generate)| Some((number(prompt)?, number(generate)?))) {
            Some((0, 0)) | None => Err(format!(
                "unknown objective {text:?}\nhint: use chat, rag, batch, latency, or prompt and answer token counts, \
                 as in 2048:256"
            )),
            Some((prompt, generate)) => Ok(Self { name: format!("{prompt}:{generate}"), prompt, generate }),
        }
    }
}

impl Objective {
    /// Returns the time for prompt and answer at the given speeds in tokens per second, in seconds. `None` if the
    /// speed for a nonzero number of tokens is unknown.
    pub fn seconds(&self, prefill: Option<f64>, decode: Option<f64>) -> Option<f64> {
        let part = |tokens: u32, speed: Option<f64>| match (tokens, speed) {
            (0, _) => Some(0.0),
            (tokens, Some(speed)) if speed.is_finite() && speed > 0.0 => Some(f64::from(tokens) / speed),
            _ => None,
        };
        Some(part(self.prompt, prefill)? + part(self.generate, decode)?)
    }

    /// Returns a realistic prompt length with the same ratio of prompt to answer, because small numbers only express
    /// a ratio.
    pub fn usual_prompt(&self) -> u32 {
        if self.prompt >= 64 || self.prompt == 0 { self.prompt } else { 512 }
    }

    /// Returns the answer length that belongs to [`usual_prompt`](Self::usual_prompt).
    pub fn usual_answer(&self) -> u32 {
        match self.usual_prompt() {
            usual if usual == self.prompt => self.generate,
            usual => {
                let scaled = u64::from(self.generate) * u64::from(usual) / u64::from(self.prompt);
                u32::try_from(scaled).unwrap_or(u32::MAX).min(MOST)
            }
        }
    }

    /// True if most of the tokens are prompt tokens.
    pub fn is_mostly_prompt(&self) -> bool {
        self.prompt > self.generate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purposes_have_names_or_are_pairs() {
        let cases = [
            ("chat", Some((128, 512))),
            ("rag", Some((2048, 256))),
            ("batch", Some((512, 512))),
            ("8:1", Some((8, 1))),
            ("0:1", Some((0, 1))),
            ("0:0", None),
            ("", None),
            ("8", None),
            ("8:", None),
            ("-1:2", None),
            ("9999999999:1", None),
        ];
        for (text, expected) in cases {
            let found = text.parse::<Objective>().ok();
            assert_eq!(found.as_ref().map(|found| (found.prompt, found.generate)), expected, "{text:?}");
            if let Some(found) = found {
                assert_eq!(found.to_string(), text);
            }
        }
        assert_eq!(Objective::default(), "chat".parse().unwrap());
    }

    #[test]
    fn a_ratio_stands_for_a_prompt_of_usual_length_and_the_answer_to_it() {
        let cases = [
            ("rag", (2048, 256)),
            ("8:1", (512, 64)),
            ("1:4", (512, 2048)),
            ("0:9", (0, 9)),
            ("9:0", (512, 0)),
        ];
        for (text, expected) in cases {
            let objective: Objective = text.parse().unwrap();
            assert_eq!((objective.usual_prompt(), objective.usual_answer()), expected, "{text}");
        }
        assert_eq!("1:1048576".parse::<Objective>().unwrap().usual_answer(), MOST);
    }

    #[test]
    fn both_phases_count_by_their_tokens() {
        // Speeds of 100 and 10 tokens per second.
        let seconds =
            |text: &str, prefill, decode| text.parse::<Objective>().unwrap().seconds(prefill, decode);
        assert_eq!(seconds("800:100", Some(100.0), Some(10.0)), Some(18.0));
        assert_eq!(seconds("100:400", Some(100.0), Some(10.0)), Some(41.0));
        assert_eq!(seconds("512:0", Some(100.0), None), Some(5.12));
        assert_eq!(seconds("chat", Some(100.0), None), None);
        assert_eq!(seconds("chat", Some(0.0), Some(1.0)), None);
        assert_eq!(seconds("chat", Some(f64::NAN), Some(1.0)), None);
    }
}
