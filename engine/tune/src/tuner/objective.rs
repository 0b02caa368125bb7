//! Time that a sample predicts for an objective.

use build_info::tuning::Sample;
pub use measure::objective::Objective;

/// Returns the time, in seconds, that the prompt and the answer of `objective` would take at the speeds of `sample`. A
/// phase that was not run counts as 0.
pub fn seconds(objective: &Objective, sample: &Sample) -> f64 {
    let phase = |wanted: u32, tokens: u32, ns: u64| match tokens {
        0 => 0.0,
        _ => f64::from(wanted) * ns as f64 / f64::from(tokens) / 1e9,
    };
    phase(objective.prompt, sample.prompt, sample.prefill_ns)
        + phase(objective.generate, sample.generated, sample.decode_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_phases_count_by_their_tokens() {
        let sample = Sample {
            prompt: 100,
            prefill_ns: 1_000_000_000,
            generated: 10,
            decode_ns: 1_000_000_000,
            ..Sample::default()
        };
        // Speeds of 100 and 10 tokens per second.
        let of = |objective: &str, sample: &Sample| seconds(&objective.parse().expect("known"), sample);
        assert_eq!(of("800:100", &sample), 18.0);
        assert_eq!(of("100:400", &sample), 41.0);
        let prefill = Sample { generated: 0, decode_ns: 0, ..sample };
        assert_eq!(of("800:100", &prefill), 8.0);
    }
}
