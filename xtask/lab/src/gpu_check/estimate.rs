//! How long a step takes: a guess at first, and what steps of its kind took once some were carried out.

use std::collections::BTreeMap;

use build_info::Bytes;

use super::plan::CheckStep;

/// Seconds until a program has started CUDA and made a context, on a machine without the persistence daemon.
const START: f64 = 2.5;

/// Bytes of weights that get from the page cache to the GPU in a second.
const LOAD: f64 = 2e9;

/// Bytes of random weights that a core draws in a second, and that a disk takes.
const DRAW: f64 = 100e6;
const DISK: f64 = 1e9;

/// Weights that a core turns into a K-quant in a second; other types take less.
const QUANTISE: f64 = 20e6;

/// Share of a data-centre card's bandwidth that decode reaches, in bytes a second, and tokens that no launch of kernels lets
/// it pass.
const DECODE: f64 = 0.8e12;
const MOST_SPEED: f64 = 400.0;

/// A guess is not corrected by more than this.
const MOST_PACE: f64 = 20.0;

/// What is known of a model before it is there.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Its weights.
    pub bytes: Bytes,
    /// Its weights as F16.
    pub half: Bytes,
    /// Whether it is made from F16.
    pub is_quantised: bool,
    /// Whether the F16 weights are there already by then.
    pub has_half: bool,
}

/// Guesses, and corrects itself.
#[derive(Debug)]
pub struct Estimator {
    cores: f64,
    models: Vec<Size>,
    tokens: Tokens,
    has_llama_bench: bool,
    /// What steps took, by what was guessed: of each kind, and of each kind and model.
    paces: BTreeMap<&'static str, f64>,
    taken: BTreeMap<(&'static str, Option<usize>), f64>,
    /// Tokens a second, of models that were measured.
    speeds: BTreeMap<usize, f64>,
}

/// How many tokens the steps generate.
#[derive(Clone, Copy, Debug)]
pub struct Tokens {
    /// Of each of the two runs that must be equal.
    pub determinism: u32,
    /// Of a steady decode.
    pub decode: u32,
    /// Of all tests of a round's program.
    pub round: u32,
}

impl Estimator {
    /// For a machine of so many cores.
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

    /// Seconds that `step` will take.
    pub fn seconds(&self, step: CheckStep) -> f64 {
        let exact = self.taken.get(&(step.kind(), step.model()));
        match (step, exact) {
            // Of another length each.
            (CheckStep::Long(..), _) | (_, None) => {
                self.guess(step) * self.paces.get(step.kind()).copied().unwrap_or(1.0)
            }
            (_, Some(seconds)) => *seconds,
        }
    }

    /// A step took so long.
    pub fn learn(&mut self, step: CheckStep, seconds: f64) {
        let pace = (seconds / self.guess(step)).clamp(1.0 / MOST_PACE, MOST_PACE);
        self.paces.insert(step.kind(), pace);
        self.taken.insert((step.kind(), step.model()), seconds);
    }

    /// A model decodes so many tokens a second.
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
                // Ours twice: as llama-bench measures, and with sampling.
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
        // Another model's are slower by as much.
        assert!((estimator.seconds(other) / guess_of_other - 3.0).abs() < 1e-9);
        let before = estimator.seconds(CheckStep::Long(1, 10_000));
        estimator.learn_speed(1, 50.0);
        assert!(estimator.seconds(CheckStep::Long(1, 10_000)) > before.max(199.0));
        estimator.learn_speed(1, f64::NAN);
        assert!(estimator.seconds(CheckStep::Long(1, 10_000)).is_finite());
    }
}
