//! What of a chain the device that computes the logits can do: llama.cpp's backend samplers, as far as they go.
//!
//! A device does the first steps, up to one that it has not; the host does the others, in the same order. So a plan is a list
//! of steps and how many of them the device has.

use serde::Serialize;

use super::options::SamplingOptions;

/// What is done to logits, in this order, until a token is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SamplingStep {
    /// A grammar or a schema: what it forbids is left out before all else.
    Grammar,
    /// Added to the logits of single tokens.
    LogitBias,
    /// On tokens that were seen.
    Penalties,
    /// On repetitions.
    Dry,
    /// Keeps what is near the best.
    TopNSigma,
    /// Keeps the most likely ones.
    TopK,
    /// Keeps what surprises as expected.
    Typical,
    /// Keeps the most likely ones up to a sum.
    TopP,
    /// Keeps what is likely beside the best.
    MinP,
    /// Takes the likely ones away.
    Xtc,
    /// Divides the logits.
    Temperature,
    /// Draws with a surprise that is kept near a target.
    Mirostat,
    /// Draws.
    Draw,
    /// Takes the best.
    Greedy,
}

/// llama.cpp's device samplers are tried with this many candidates before they are used, and top-k asserts that there are more.
const MOST_TOP_K: u32 = 64 << 10;

/// From here on rounding may take the best one away on a device, which keeps what is greater than the bound, and not what is as
/// great.
const MOST_MIN_P: f32 = 0.99;

impl SamplingStep {
    /// What `options` asks for, in order; a step that would change nothing is none.
    pub fn of(options: &SamplingOptions, n_vocab: u32) -> Vec<SamplingStep> {
        let greedy = options.is_greedy();
        let xtc = options.xtc_probability > 0.0 && options.xtc_threshold <= 0.5;
        let mirostat = !greedy && options.mirostat != 0;
        // At temperature 0 only what may take the best away has a say, and it sees what the ones before it leave.
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

    /// Whether llama.cpp has it for devices, with these options. A device may lack it all the same.
    fn is_for_devices(self, options: &SamplingOptions, n_vocab: u32) -> bool {
        match self {
            // Where all is banned the host says so.
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

    /// llama.cpp's name of the sampler that does it on a device.
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

/// Which steps a device does, and which the host.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingPlan {
    steps: Vec<SamplingStep>,
    /// Of these, the first so many are the device's.
    offloaded: usize,
    n_vocab: u32,
}

impl SamplingPlan {
    /// As far as a device goes that has all of llama.cpp's but those in `lacks`.
    pub fn new(options: &SamplingOptions, n_vocab: u32, lacks: &[SamplingStep]) -> Self {
        let steps = SamplingStep::of(options, n_vocab);
        let goes = |step: &&SamplingStep| step.is_for_devices(options, n_vocab) && !lacks.contains(step);
        let offloaded = steps.iter().take_while(goes).count();
        SamplingPlan { steps, offloaded, n_vocab }
    }

    /// The same where the host does all of it.
    pub fn none(self) -> Self {
        SamplingPlan { offloaded: 0, ..self }
    }

    /// The device's.
    pub fn offloaded(&self) -> &[SamplingStep] {
        &self.steps[..self.offloaded]
    }

    /// The host's.
    pub fn on_host(&self) -> &[SamplingStep] {
        &self.steps[self.offloaded..]
    }

    /// Whether llama.cpp has the host's first step for devices, with these options.
    pub fn is_for_devices(&self, options: &SamplingOptions) -> bool {
        self.on_host().first().is_some_and(|step| step.is_for_devices(options, self.n_vocab))
    }

    /// Whether the device chooses the token.
    pub fn chooses(&self) -> bool {
        self.offloaded == self.steps.len()
    }

    /// What the host is to do to what the device left: `options` without the device's steps.
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
                // Whatever is after them is no more than the choice, which is theirs.
                _ => {}
            }
        }
        rest
    }

    /// What the device is to do: `options` without the host's steps.
    pub fn device(&self, options: &SamplingOptions) -> SamplingOptions {
        let mut device = options.clone();
        // Also what is no step: mirostat, for one, leaves no cuts to be made.
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

/// What of a text's sampling devices did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceReport {
    /// The steps that were the device's, in order.
    pub offloaded: Vec<SamplingStep>,
    /// Those that were the host's.
    pub on_host: Vec<SamplingStep>,
    /// Tokens that the device chose.
    pub tokens_on_device: usize,
    /// Tokens that the host chose, from what the device left or from all logits.
    pub tokens_on_host: usize,
    /// Why not all of it was the device's, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl DeviceReport {
    /// In a line.
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
    /// As in a report.
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
            // What is left to the host begins with what the device has not.
            let rest = SamplingPlan::new(&plan.rest(&options), 1000, &[]);
            if !plan.chooses() {
                assert_eq!(rest.steps, on_host, "case {number}");
            }
        }
        let lacks = SamplingPlan::new(&SamplingOptions::default(), 1000, &[TopP]);
        assert_eq!((lacks.offloaded(), lacks.on_host()), (&[TopK][..], &[TopP, MinP, Temperature, Draw][..]));
    }
}
