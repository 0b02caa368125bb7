//! Steps of a chain that can run on the device that computes the logits, with llama.cpp's backend samplers.
//!
//! A device performs the first steps, up to the first step that it does not support. The host performs the other
//! steps, in the same order. Therefore, a plan is a list of steps with the number of steps on the device.

use serde::Serialize;

use super::options::SamplingOptions;

/// Steps from logits to a token, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SamplingStep {
    /// Grammar or schema: removes forbidden tokens, before all other steps.
    Grammar,
    /// Adds biases to the logits of individual tokens.
    LogitBias,
    /// Penalises tokens that have already occurred.
    Penalties,
    /// Penalises repetitions of sequences (DRY).
    Dry,
    /// Keeps tokens whose logit is within n standard deviations of the largest.
    TopNSigma,
    /// Keeps the k most likely tokens.
    TopK,
    /// Keeps tokens whose information content is near the entropy (locally typical sampling).
    Typical,
    /// Keeps the most likely tokens until the sum of their probabilities reaches top-p.
    TopP,
    /// Keeps tokens whose probability is at least a given fraction of the highest probability.
    MinP,
    /// Removes the most likely tokens above a threshold (XTC).
    Xtc,
    /// Divides the logits by the temperature.
    Temperature,
    /// Draws a token while keeping the entropy of the text near a target (Mirostat).
    Mirostat,
    /// Draws a token at random.
    Draw,
    /// Chooses the most likely token.
    Greedy,
}

/// Upper limit of top-k on a device. llama.cpp first tries a device's samplers with this number of candidates, and
/// its top-k asserts that there are more than k candidates.
const MOST_TOP_K: u32 = 64 << 10;

/// Upper limit of min-p on a device. A device keeps only tokens strictly above the bound. At higher values, rounding
/// may remove even the most likely token.
const MOST_MIN_P: f32 = 0.99;

impl SamplingStep {
    /// Returns the steps that `options` need, in order. Steps that would change nothing are left out.
    pub fn of(options: &SamplingOptions, n_vocab: u32) -> Vec<SamplingStep> {
        let greedy = options.is_greedy();
        let xtc = options.xtc_probability > 0.0 && options.xtc_threshold <= 0.5;
        let mirostat = !greedy && options.mirostat != 0;
        // At temperature 0, a step has an effect only if this step or an earlier step can remove the most likely
        // token.
        let cuts = !mirostat && (!greedy || options.typical_p < 1.0 || xtc);
        let penal = options.repeat_last_n > 0
            && (options.repeat_penalty != 1.0
                || options.frequency_penalty != 0.0
                || options.presence_penalty != 0.0);
        let steps = [
            (SamplingStep::Grammar, options.constraint.is_some()),
            (SamplingStep::LogitBias, !options.logit_bias.is_empty()),
            (SamplingStep::Penalties, penal),
            (SamplingStep::Dry, options.dry_multiplier > 0.0 && options.dry_penalty_last_n > 0),
            (SamplingStep::TopNSigma, cuts && options.top_n_sigma > 0.0),
            (SamplingStep::TopK, cuts && (1..n_vocab).contains(&options.top_k)),
            (SamplingStep::Typical, cuts && options.typical_p < 1.0),
            (SamplingStep::TopP, cuts && options.top_p < 1.0),
            (SamplingStep::MinP, cuts && options.min_p > 0.0),
            (SamplingStep::Xtc, cuts && xtc),
            (SamplingStep::Temperature, !greedy && options.temperature != 1.0),
            (SamplingStep::Mirostat, mirostat),
            (SamplingStep::Draw, !greedy && !mirostat),
            (SamplingStep::Greedy, greedy),
        ];
        steps.into_iter().filter_map(|(step, is_asked)| is_asked.then_some(step)).collect()
    }

    /// True if llama.cpp supports the step on devices with these options. A particular device may still not support
    /// the step.
    fn is_for_devices(self, options: &SamplingOptions, n_vocab: u32) -> bool {
        match self {
            // If all tokens are banned, the host reports the error.
            SamplingStep::LogitBias => {
                let banned = options.logit_bias.iter().filter(|bias| bias.bias == f32::NEG_INFINITY);
                banned.count() < n_vocab as usize
            }
            SamplingStep::TopK => options.top_k <= MOST_TOP_K,
            SamplingStep::MinP => options.min_p <= MOST_MIN_P,
            SamplingStep::Penalties
            | SamplingStep::TopP
            | SamplingStep::Temperature
            | SamplingStep::Draw
            | SamplingStep::Greedy => true,
            SamplingStep::Grammar
            | SamplingStep::Dry
            | SamplingStep::TopNSigma
            | SamplingStep::Typical
            | SamplingStep::Xtc
            | SamplingStep::Mirostat => false,
        }
    }

    /// Returns the step for llama.cpp's name of a device sampler.
    pub fn of_name(name: &str) -> Option<SamplingStep> {
        Some(match name {
            "logit-bias" => SamplingStep::LogitBias,
            "penalties" => SamplingStep::Penalties,
            "top-k" => SamplingStep::TopK,
            "top-p" => SamplingStep::TopP,
            "min-p" => SamplingStep::MinP,
            "temp" => SamplingStep::Temperature,
            "dist" => SamplingStep::Draw,
            "greedy" => SamplingStep::Greedy,
            _ => return None,
        })
    }
}

/// Division of the steps between a device and the host.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingPlan {
    steps: Vec<SamplingStep>,
    /// Number of steps on the device. The device performs the first steps of the list.
    offloaded: usize,
    n_vocab: u32,
}

impl SamplingPlan {
    /// Creates the plan for a device that supports all steps that llama.cpp supports on devices, except the steps in
    /// `lacks`.
    pub fn new(options: &SamplingOptions, n_vocab: u32, lacks: &[SamplingStep]) -> Self {
        let steps = SamplingStep::of(options, n_vocab);
        let goes = |step: &&SamplingStep| step.is_for_devices(options, n_vocab) && !lacks.contains(step);
        let offloaded = steps.iter().take_while(goes).count();
        SamplingPlan { steps, offloaded, n_vocab }
    }

    /// Returns the plan with all steps on the host.
    pub fn none(self) -> Self {
        SamplingPlan { offloaded: 0, ..self }
    }

    /// Returns the steps on the device.
    pub fn offloaded(&self) -> &[SamplingStep] {
        &self.steps[..self.offloaded]
    }

    /// Returns the steps on the host.
    pub fn on_host(&self) -> &[SamplingStep] {
        &self.steps[self.offloaded..]
    }

    /// True if llama.cpp supports the host's first step on devices with these options.
    pub fn is_for_devices(&self, options: &SamplingOptions) -> bool {
        self.on_host().first().is_some_and(|step| step.is_for_devices(options, self.n_vocab))
    }

    /// True if the device chooses the token.
    pub fn chooses(&self) -> bool {
        self.offloaded == self.steps.len()
    }

    /// Returns the options for the host, which continues with the candidates that the device left: `options` without
    /// the device's steps.
    pub fn rest(&self, options: &SamplingOptions) -> SamplingOptions {
        let mut rest = options.clone();
        for step in self.offloaded() {
            match step {
                SamplingStep::LogitBias => rest.logit_bias.clear(),
                SamplingStep::Penalties => {
                    (rest.repeat_penalty, rest.frequency_penalty, rest.presence_penalty) = (1.0, 0.0, 0.0);
                }
                SamplingStep::TopK => rest.top_k = 0,
                SamplingStep::TopP => rest.top_p = 1.0,
                SamplingStep::MinP => rest.min_p = 0.0,
                SamplingStep::Temperature => rest.temperature = 1.0,
                // Drawing and choosing a token have no options to reset.
                _ => {}
            }
        }
        rest
    }

    /// Returns the options for the device: `options` without the host's steps.
    pub fn device(&self, options: &SamplingOptions) -> SamplingOptions {
        let mut device = options.clone();
        // The reset also covers options that are not steps of the plan. For example, mirostat disables the truncating
        // samplers.
        let is_hosts = |step| !self.offloaded().contains(&step);
        if is_hosts(SamplingStep::LogitBias) {
            device.logit_bias.clear();
        }
        if is_hosts(SamplingStep::Penalties) {
            (device.repeat_penalty, device.frequency_penalty, device.presence_penalty) = (1.0, 0.0, 0.0);
        }
        if is_hosts(SamplingStep::TopK) {
            device.top_k = 0;
        }
        if is_hosts(SamplingStep::TopP) {
            device.top_p = 1.0;
        }
        if is_hosts(SamplingStep::MinP) {
            device.min_p = 0.0;
        }
        device
    }
}

/// Report on the use of devices while sampling a text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceReport {
    /// Steps on the device, in order.
    pub offloaded: Vec<SamplingStep>,
    /// Steps on the host, in order.
    pub on_host: Vec<SamplingStep>,
    /// Number of tokens that the device chose.
    pub tokens_on_device: usize,
    /// Number of tokens that the host chose, from all logits or from the candidates that the device left.
    pub tokens_on_host: usize,
    /// Reason why the host performed some or all of the steps; `None` if the host performed no steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl DeviceReport {
    /// Describes the report in one line.
    pub fn in_words(&self) -> String {
        let names = |steps: &[SamplingStep]| match steps {
            [] => "nothing".to_string(),
            steps => steps.iter().map(|step| step.name()).collect::<Vec<_>>().join(", "),
        };
        let why = self.why.as_ref().map_or(String::new(), |why| format!(" ({why})"));
        format!(
            "sampling on the device: {}; on the host: {}{why}; tokens chosen on the device {}, on the host {}",
            names(&self.offloaded),
            names(&self.on_host),
            self.tokens_on_device,
            self.tokens_on_host
        )
    }
}

impl SamplingStep {
    /// Returns the name of the step in reports.
    pub fn name(self) -> &'static str {
        match self {
            SamplingStep::Grammar => "grammar",
            SamplingStep::LogitBias => "logit_bias",
            SamplingStep::Penalties => "penalties",
            SamplingStep::Dry => "dry",
            SamplingStep::TopNSigma => "top_n_sigma",
            SamplingStep::TopK => "top_k",
            SamplingStep::Typical => "typical",
            SamplingStep::TopP => "top_p",
            SamplingStep::MinP => "min_p",
            SamplingStep::Xtc => "xtc",
            SamplingStep::Temperature => "temperature",
            SamplingStep::Mirostat => "mirostat",
            SamplingStep::Draw => "draw",
            SamplingStep::Greedy => "greedy",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::{Bias, Constraint};

    #[test]
    fn a_device_does_the_first_steps_up_to_one_that_it_has_not() {
        use SamplingStep::{
            Draw, Dry, Grammar, Greedy, LogitBias, MinP, Mirostat, Penalties, Temperature, TopK, TopP,
            Typical,
        };
        type Change = fn(&mut SamplingOptions);
        let cases: [(Change, &[SamplingStep], &[SamplingStep]); 10] = [
            (|_| {}, &[TopK, TopP, MinP, Temperature, Draw], &[]),
            (SamplingOptions::make_greedy, &[Greedy], &[]),
            (
                |o| {
                    o.make_greedy();
                    o.repeat_penalty = 1.1;
                    o.logit_bias = vec![Bias { token: 3, bias: -1.0 }];
                },
                &[LogitBias, Penalties, Greedy],
                &[],
            ),
            (|o| o.dry_multiplier = 0.8, &[], &[Dry, TopK, TopP, MinP, Temperature, Draw]),
            (
                |o| (o.typical_p, o.frequency_penalty) = (0.9, 0.5),
                &[Penalties, TopK],
                &[Typical, TopP, MinP, Temperature, Draw],
            ),
            (|o| o.mirostat = 2, &[Temperature], &[Mirostat]),
            (|o| o.top_k = 1 << 20, &[TopP, MinP, Temperature, Draw], &[]),
            (|o| o.min_p = 1.0, &[TopK, TopP], &[MinP, Temperature, Draw]),
            (
                |o| o.constraint = Some(Constraint::Grammar("root ::= \"a\"".to_string())),
                &[],
                &[Grammar, TopK, TopP, MinP, Temperature, Draw],
            ),
            (|o| o.temperature = 1.0, &[TopK, TopP, MinP, Draw], &[]),
        ];
        for (number, (change, offloaded, on_host)) in cases.into_iter().enumerate() {
            let mut options = SamplingOptions::default();
            change(&mut options);
            let plan = SamplingPlan::new(&options, 1000, &[]);
            assert_eq!((plan.offloaded(), plan.on_host()), (offloaded, on_host), "case {number}");
            assert_eq!(plan.chooses(), on_host.is_empty(), "case {number}");
            // The host's part begins with the step that the device does not support.
            let rest = SamplingPlan::new(&plan.rest(&options), 1000, &[]);
            if !plan.chooses() {
                assert_eq!(rest.steps, on_host, "case {number}");
            }
        }
        let lacks = SamplingPlan::new(&SamplingOptions::default(), 1000, &[TopP]);
        assert_eq!((lacks.offloaded(), lacks.on_host()), (&[TopK][..], &[TopP, MinP, Temperature, Draw][..]));
    }
}
