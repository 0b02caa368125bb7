//! What is tuned for: how many prompt tokens and how many generated ones count.

use std::fmt;
use std::str::FromStr;

use build_info::tuning::Sample;

/// Names, prompt tokens and generated tokens. The numbers are of the kind of work that the name says, and only their
/// ratio counts.
const NAMED: [(&str, u32, u32); 4] = [
    // A question and a long answer.
    ("chat", 128, 512),
    // Documents in the prompt, a short answer.
    ("rag", 2048, 256),
    // Texts rewritten, translated or summed up, as many tokens out as in.
    ("batch", 512, 512),
    // The time until an answer begins: a prompt and a first sentence.
    ("latency", 512, 16),
];

/// The most tokens of either kind.
const MOST: u32 = 1 << 20;

/// A purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objective {
    name: String,
    /// Prompt tokens.
    pub prompt: u32,
    /// Tokens generated after them.
    pub generated: u32,
}

impl Default for Objective {
    fn default() -> Self {
        let (name, prompt, generated) = NAMED[0];
        Self { name: name.to_string(), prompt, generated }
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
        if let Some((name, prompt, generated)) = NAMED.into_iter().find(|(name, ..)| *name == text) {
            return Ok(Self { name: name.to_string(), prompt, generated });
        }
        let wrong = || {
            format!(
                "unknown purpose {text:?}: use chat, rag, batch, latency, or tokens of prompt and answer as in 2048:256"
            )
        };
        let number = |text: &str| text.trim().parse().ok().filter(|tokens| *tokens <= MOST);
        let pair =
            text.split_once(':').and_then(|(prompt, generated)| Some((number(prompt)?, number(generated)?)));
        match pair {
            Some((0, 0)) | None => Err(wrong()),
            Some((prompt, generated)) => {
                Ok(Self { name: format!("{prompt}:{generated}"), prompt, generated })
            }
        }
    }
}

impl Objective {
    /// Seconds that prompt and answer take at the speeds of `sample`. A phase that was not run counts nothing.
    pub fn seconds(&self, sample: &Sample) -> f64 {
        let phase = |wanted: u32, tokens: u32, ns: u64| match tokens {
            0 => 0.0,
            _ => f64::from(wanted) * ns as f64 / f64::from(tokens) / 1e9,
        };
        phase(self.prompt, sample.prompt, sample.prefill_ns)
            + phase(self.generated, sample.generated, sample.decode_ns)
    }

    /// A prompt of some length whatever the ratio: small numbers stand for a ratio alone.
    pub fn usual_prompt(&self) -> u32 {
        if self.prompt >= 64 || self.prompt == 0 { self.prompt } else { 512 }
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
            assert_eq!(found.as_ref().map(|found| (found.prompt, found.generated)), expected, "{text:?}");
            if let Some(found) = found {
                assert_eq!(found.to_string(), text);
            }
        }
    }

    #[test]
    fn both_phases_count_by_their_tokens() {
        let sample =
            Sample { prompt: 100, prefill_ns: 1_000_000_000, generated: 10, decode_ns: 1_000_000_000 };
        // 100 t/s and 10 t/s
        let seconds = |objective: &str| objective.parse::<Objective>().expect("known").seconds(&sample);
        assert_eq!(seconds("800:100"), 18.0);
        assert_eq!(seconds("100:400"), 41.0);
        let prefill = Sample { generated: 0, decode_ns: 0, ..sample };
        assert_eq!("800:100".parse::<Objective>().expect("known").seconds(&prefill), 8.0);
    }
}
