//! Phases and other quantities that can be compared.

use std::fmt;
use std::str::FromStr;

use build_info::Bytes;
use serde::{Deserialize, Serialize};

use measure::Ratio;

/// Quantity to measure: a phase of a run, a start-up time, memory, or a file size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Evaluating a prompt.
    Prefill,
    /// Evaluating tokens one by one.
    Decode,
    /// Converting text to tokens.
    Tokenize,
    /// Converting tokens to text.
    Detokenize,
    /// Choosing tokens with the default sampler chain.
    Sample,
    /// Choosing the most likely tokens.
    Greedy,
    /// Loading the model.
    Load,
    /// Loading only the model's vocabulary.
    Vocab,
    /// Reading the header of the model's file.
    Gguf,
    /// Running `anneal --version` from start to exit.
    StartVersion,
    /// Running `anneal info` from start to exit.
    StartInfo,
    /// Peak resident memory of the process.
    PeakMemory,
    /// Size of the program's file.
    BinarySize,
}

/// Kind of a phase's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// Work per second: more is better.
    Rate,
    /// Milliseconds: less is better.
    Time,
    /// Bytes: less is better.
    Size,
}

impl Phase {
    /// All phases, in the order in which tables list them.
    pub const ALL: [Phase; 13] = [
        Phase::Prefill,
        Phase::Decode,
        Phase::Tokenize,
        Phase::Detokenize,
        Phase::Sample,
        Phase::Greedy,
        Phase::Load,
        Phase::Vocab,
        Phase::Gguf,
        Phase::StartVersion,
        Phase::StartInfo,
        Phase::PeakMemory,
        Phase::BinarySize,
    ];

    /// Phases that llama-bench also supports.
    pub const OF_LLAMA_BENCH: [Phase; 4] =
        [Phase::Prefill, Phase::Decode, Phase::PeakMemory, Phase::BinarySize];

    /// Returns the phase's command-line name. `anneal bench --parts` uses the same names.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
            Phase::Tokenize => "tokenize",
            Phase::Detokenize => "detokenize",
            Phase::Sample => "sample",
            Phase::Greedy => "greedy",
            Phase::Load => "load",
            Phase::Vocab => "vocab",
            Phase::Gguf => "gguf",
            Phase::StartVersion => "start-version",
            Phase::StartInfo => "start-info",
            Phase::PeakMemory => "peak-memory",
            Phase::BinarySize => "binary-size",
        }
    }

    /// True if the phase depends on the prompt length or the generation length.
    pub fn has_shape(self) -> bool {
        matches!(self, Phase::Prefill | Phase::Decode | Phase::PeakMemory)
    }

    /// True if `anneal bench` reports the phase.
    pub fn is_of_engine(self) -> bool {
        self.has_shape() || self.is_of_model()
    }

    /// True if `anneal bench` reports the phase and the phase does not depend on the shape of the run.
    pub fn is_of_model(self) -> bool {
        matches!(
            self,
            Phase::Tokenize
                | Phase::Detokenize
                | Phase::Sample
                | Phase::Greedy
                | Phase::Load
                | Phase::Vocab
                | Phase::Gguf
        )
    }

    /// Returns the kind of the phase's values.
    pub fn quantity(self) -> Quantity {
        match self {
            Phase::Load | Phase::Vocab | Phase::Gguf | Phase::StartVersion | Phase::StartInfo => {
                Quantity::Time
            }
            Phase::PeakMemory | Phase::BinarySize => Quantity::Size,
            _ => Quantity::Rate,
        }
    }

    /// Returns the verdict on a ratio of this phase.
    pub fn verdict(self, ratio: &Ratio) -> &'static str {
        match self {
            // A file size is measured once and has no scatter.
            Phase::BinarySize => self.quantity().words(ratio.side()),
            _ => self.quantity().verdict(ratio),
        }
    }

    /// Returns the unit of the phase's values.
    pub fn unit(self) -> &'static str {
        match self.quantity() {
            Quantity::Time => "ms",
            Quantity::Size => "bytes",
            Quantity::Rate if self == Phase::Tokenize => "MB/s",
            Quantity::Rate => "t/s",
        }
    }

    /// Formats `value` with its unit.
    pub fn show(self, value: f64) -> String {
        match (self.quantity(), value) {
            (Quantity::Size, _) => Bytes(value as u64).to_string(),
            (_, value) if value >= 1000.0 => format!("{value:.0} {}", self.unit()),
            (_, value) if value >= 10.0 => format!("{value:.1} {}", self.unit()),
            _ => format!("{value:.2} {}", self.unit()),
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Phase {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Phase::ALL.into_iter().find(|phase| phase.name() == text).ok_or_else(|| {
            let names = Phase::ALL.map(Phase::name).join(", ");
            format!("unknown phase {text:?}; supported phases: {names}")
        })
    }
}

impl Quantity {
    /// Returns the ratio of a build's values to the baseline's. A ratio of times is inverted, so that a ratio above 1
    /// means faster for both speeds and times. A ratio of sizes is not inverted.
    pub fn ratio(self, ours: &[f64], baseline: &[f64]) -> Ratio {
        match self {
            Quantity::Rate | Quantity::Size => measure::ratio(ours, baseline),
            Quantity::Time => measure::ratio(baseline, ours),
        }
    }

    /// Returns [`Ratio::verdict`], worded for this quantity.
    pub fn verdict(self, ratio: &Ratio) -> &'static str {
        self.words(ratio.verdict())
    }

    fn words(self, side: &'static str) -> &'static str {
        match (side, self) {
            ("higher", Quantity::Size) => "larger",
            ("lower", Quantity::Size) => "smaller",
            ("higher", _) => "faster",
            ("lower", _) => "slower",
            (other, _) => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_found_by_the_names_they_are_written_with() {
        for phase in Phase::ALL {
            assert_eq!(phase.name().parse(), Ok(phase));
            assert_eq!(serde_json::to_value(phase).unwrap(), phase.name());
        }
        assert!("sampling".parse::<Phase>().is_err_and(|why| why.contains("sample, greedy")));
    }

    #[test]
    fn verdicts_name_what_is_better() {
        let (less, more) = ([90.0, 91.0, 90.5, 90.0, 92.0, 89.0], [100.0, 100.0, 101.0, 99.0, 100.0, 102.0]);
        let cases = [
            (Quantity::Rate, &less, &more, "slower"),
            (Quantity::Rate, &more, &less, "faster"),
            (Quantity::Time, &less, &more, "faster"),
            (Quantity::Time, &more, &less, "slower"),
            (Quantity::Size, &less, &more, "smaller"),
            (Quantity::Size, &more, &less, "larger"),
            (Quantity::Rate, &more, &more, "equal"),
        ];
        for (quantity, ours, baseline, expected) in cases {
            let ratio = quantity.ratio(ours, baseline);
            assert_eq!(quantity.verdict(&ratio), expected, "{quantity:?}: {ratio}");
        }
        let doubtful = Quantity::Rate.ratio(&[90.0, 110.0, 95.0, 105.0, 99.0, 101.0], &[100.0; 6]);
        assert_eq!(Quantity::Rate.verdict(&doubtful), "no difference shown");
        let once = Quantity::Size.ratio(&[2e6], &[1e6]);
        assert_eq!(Phase::BinarySize.verdict(&once), "larger");
        assert_eq!(Phase::PeakMemory.verdict(&once), "too few pairs");
    }

    #[test]
    fn values_are_shown_with_three_digits_or_so() {
        let cases = [
            (Phase::Prefill, 1234.56, "1235 t/s"),
            (Phase::Decode, 31.25, "31.2 t/s"),
            (Phase::Tokenize, 2.345, "2.35 MB/s"),
            (Phase::StartVersion, 4.5, "4.50 ms"),
            (Phase::BinarySize, 1_572_864.0, "1.5 MiB"),
        ];
        for (phase, value, expected) in cases {
            assert_eq!(phase.show(value), expected);
        }
    }
}
