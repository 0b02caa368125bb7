//! Estimates of the time that steps take. An estimate is a guess until a step of the same kind has been measured.

use std::collections::BTreeMap;

use build_info::Bytes;

use super::plan::CheckStep;

/// Seconds that a program needs to start CUDA and create a context, on a machine without the persistence daemon.
const START: f64 = 2.5;

/// Bytes per second at which weights are copied from the page cache to the GPU.
const LOAD: f64 = 2e9;

/// Bytes per second of random weights that one core generates (`DRAW`) and that a disk writes (`DISK`).
const DRAW: f64 = 100e6;
const DISK: f64 = 1e9;

/// Weights per second that one core converts to a K-quant. Other types are faster.
const QUANTISE: f64 = 20e6;

/// Bytes per second that decode reads on a data-centre GPU (`DECODE`), and maximum decode speed in tokens per second
/// (`MOST_SPEED`), which is limited by the time to launch kernels.
const DECODE: f64 = 0.8e12;
const MOST_SPEED: f64 = 400.0;

/// Maximum factor by which a guess is corrected.
const MOST_PACE: f64 = 20.0;

/// Sizes of a model that are known before the model is made.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Size of the weights.
    pub bytes: Bytes,
    /// Size of the weights as F16.
    pub half: Bytes,
    /// True if the model is quantised from F16 weights.
    pub is_quantised: bool,
    /// True if the F16 weights already exist when this model is made.
    pub has_half: bool,
}

/// Estimator that learns from completed steps.
#[derive(Debug)]
pub struct Estimator {
    cores: f64,
    models: Vec<Size>,
    tokens: Tokens,
    has_llama_bench: bool,
    /// Time of steps as a multiple of the guess, by kind. `taken` contains the seconds of steps, by kind and model.
    paces: BTreeMap<&'static str, f64>,
    taken: BTreeMap<(&'static str, Option<usize>), f64>,
    /// Tokens per second of measured models, by model.
    speeds: BTreeMap<usize, f64>,
}

/// Numbers of tokens that the steps generate.
#[derive(Clone, Copy, Debug)]
pub struct Tokens {
    /// Number of tokens in each of the two runs whose tokens must be equal.
    pub determinism: u32,
    /// Number of tokens of a steady decode.
    pub decode: u32,
    /// Number of tokens of all tests of one program in a round.
    pub round: u32,
}

impl Estimator {
    /// Creates an estimator for a machine with `cores` cores.
    pub fn new(cores: u32, models: Vec<Size>, tokens: Tokens, has_llama_bench: bool) -> Self {
        Self {
            cores: f64::from(cores.max(1)),
            models,
            tokens,
            has_llama_bench,
            paces: BTreeMap::new(),
            taken: BTreeMap::new(),
            speeds: BTreeMap::new(),
        }
    }

    /// Returns the estimated seconds of `step`.
    pub fn seconds(&self, step: CheckStep) -> f64 {
        let exact = self.taken.get(&(step.kind(), step.model()));
        match (step, exact) {
            // Long runs differ in length, so a measured time does not apply to another long run.
            (CheckStep::Long(..), _) | (_, None) => {
                self.guess(step) * self.paces.get(step.kind()).copied().unwrap_or(1.0)
            }
            (_, Some(seconds)) => *seconds,
        }
    }

    /// Records that `step` took `seconds`.
    pub fn learn(&mut self, step: CheckStep, seconds: f64) {
        let pace = (seconds / self.guess(step)).clamp(1.0 / MOST_PACE, MOST_PACE);
        self.paces.insert(step.kind(), pace);
        self.taken.insert((step.kind(), step.model()), seconds);
    }

    /// Records that `model` decodes `speed` tokens per second.
    pub fn learn_speed(&mut self, model: usize, speed: f64) {
        if speed.is_finite() && speed > 0.0 {
            self.speeds.insert(model, speed);
        }
    }

    fn guess(&self, step: CheckStep) -> f64 {
        let size = |model: usize| {
            self.models.get(model).copied().unwrap_or(Size {
                bytes: Bytes(0),
                half: Bytes(0),
                is_quantised: false,
                has_half: false,
            })
        };
        let start = |model: usize| START + size(model).bytes.0 as f64 / LOAD;
        let decode = |model: usize, tokens: u32| {
            let guessed = (DECODE / (size(model).bytes.0 as f64).max(1.0)).min(MOST_SPEED);
            f64::from(tokens) / self.speeds.get(&model).copied().unwrap_or(guessed)
        };
        match step {
            CheckStep::Refusal => START,
            CheckStep::Make(model) => self.making(size(model)),
            CheckStep::Placement(model) => start(model) + 1.0,
            CheckStep::Determinism(model) => 2.0 * (start(model) + decode(model, self.tokens.determinism)),
            CheckStep::Round(model, _) => {
                // The engine runs twice: with llama-bench's method and with sampling.
                let programs = if self.has_llama_bench { 3.0 } else { 2.0 };
                programs * (start(model) + decode(model, self.tokens.round))
                    + start(model)
                    + decode(model, self.tokens.decode)
            }
            CheckStep::Pair(..) => 2.0 * (start(0) + decode(0, self.tokens.decode)),
            CheckStep::Long(model, tokens) => start(model) + decode(model, tokens),
        }
    }

    fn making(&self, size: Size) -> f64 {
        let (half, weights) = (size.half.0 as f64, size.half.0 as f64 / 2.0);
        let draw = if size.has_half { 0.0 } else { half / DRAW / self.cores + half / DISK };
        let quantise = match size.is_quantised {
            true => weights / QUANTISE / self.cores + (half + size.bytes.0 as f64) / DISK,
            false => 0.0,
        };
        draw + quantise + 0.5
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{self, Sketch, Wishes};
    use super::*;

    const TOKENS: Tokens = Tokens { determinism: 256, decode: 512, round: 800 };

    fn of_four(cores: u32) -> Estimator {
        let half = Bytes(3_100_000_000);
        let size = |bytes, is_quantised, has_half| Size { bytes: Bytes(bytes), half, is_quantised, has_half };
        let models = vec![
            size(1_650_000_000, true, false),
            size(1_000_000_000, true, true),
            size(half.0, false, true),
            size(850_000_000, true, false),
        ];
        Estimator::new(cores, models, TOKENS, true)
    }

    #[test]
    fn eight_minutes_hold_three_rounds_of_all_four_models_and_all_switches() {
        let estimator = of_four(16);
        let models: Vec<Sketch> = estimator.models.iter().map(|size| Sketch { bytes: size.bytes }).collect();
        let wishes = Wishes {
            refusal: true,
            placement: true,
            device_sampling: true,
            graphs: true,
            waiting: true,
            rounds: plan::ROUNDS,
            long: 10_000,
        };
        let chosen = plan::choose(&plan::steps(&models, &wishes), |step| estimator.seconds(step), 470.0);
        for model in 0..4 {
            assert!(chosen.contains(&CheckStep::Round(model, 3)), "{model}: {chosen:?}");
        }
        assert!(chosen.contains(&CheckStep::Round(0, 4)), "{chosen:?}");
        for switch in plan::Switch::ALL {
            assert!(chosen.contains(&CheckStep::Pair(switch, 3)), "{switch}: {chosen:?}");
        }
    }

    #[test]
    fn guesses_are_corrected_by_what_steps_took() {
        let mut estimator = of_four(16);
        let (first, other) = (CheckStep::Round(0, 1), CheckStep::Round(1, 1));
        let (guess, guess_of_other) = (estimator.seconds(first), estimator.seconds(other));
        estimator.learn(first, 3.0 * guess);
        assert_eq!(estimator.seconds(CheckStep::Round(0, 2)), 3.0 * guess);
        // Estimates for other models are scaled by the same factor.
        assert!((estimator.seconds(other) / guess_of_other - 3.0).abs() < 1e-9);
        let before = estimator.seconds(CheckStep::Long(1, 10_000));
        estimator.learn_speed(1, 50.0);
        assert!(estimator.seconds(CheckStep::Long(1, 10_000)) > before.max(199.0));
        estimator.learn_speed(1, f64::NAN);
        assert!(estimator.seconds(CheckStep::Long(1, 10_000)).is_finite());
    }
}
