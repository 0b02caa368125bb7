//! Selection of the steps that fit into a budget. The functions are pure: the caller passes the duration of each
//! step.

use std::fmt;

use build_info::Bytes;
use serde::{Deserialize, Serialize};

use super::report::Wait;

/// Number of rounds of a model. Rounds after the fifth have the lowest priority.
pub const ROUNDS: u32 = 10;

/// Minimum number of rounds for a useful ratio of a model.
const FIRST_ROUNDS: u32 = 3;

/// Minimum number of rounds that a figure should have.
const ENOUGH_ROUNDS: u32 = 5;

/// Number of pairs of runs with a switch on and off.
const SWITCH_PAIRS: u32 = 3;

/// Minimum number of tokens of a long run.
const SHORTEST_LONG: u32 = 1000;

/// Step of a check. Models are numbered in the order in which the user listed them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CheckStep {
    /// Check that the program refuses to run without a GPU.
    Refusal,
    /// Write a model.
    Make(usize),
    /// Check which devices store and compute the model.
    Placement(usize),
    /// Check that two runs generate the same tokens.
    Determinism(usize),
    /// Run `anneal bench`, a steady decode with readings of the host and the GPU, and llama-bench, once each.
    Round(usize, u32),
    /// Run a pair of steady decodes of the first model, with a switch on and off.
    Pair(Switch, u32),
    /// Generate this many tokens with the smallest model.
    Long(usize, u32),
}

/// Switch that is turned on and off in pairs of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Switch {
    /// The GPU chooses the tokens.
    DeviceSampling,
    /// A token's kernels are launched as one CUDA graph.
    CudaGraphs,
    /// The host sleeps while the GPU computes; otherwise it polls.
    Waiting,
}

impl Switch {
    /// All switches.
    pub const ALL: [Self; 3] = [Switch::DeviceSampling, Switch::CudaGraphs, Switch::Waiting];

    /// Returns the name that records and tables use.
    pub fn name(self) -> &'static str {
        match self {
            Switch::DeviceSampling => "device sampling",
            Switch::CudaGraphs => "CUDA graphs",
            Switch::Waiting => "waiting",
        }
    }

    /// Returns the names of the switch's two sides. The first side is compared with the second.
    pub fn sides(self) -> [&'static str; 2] {
        match self {
            Switch::DeviceSampling | Switch::CudaGraphs => ["on", "off"],
            Switch::Waiting => [Wait::Block.name(), Wait::Spin.name()],
        }
    }
}

/// Step and its priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedStep {
    /// Step to carry out.
    pub step: CheckStep,
    /// Priority; 0 is the most important.
    pub priority: u8,
}

/// Facts about a model that the plan needs.
#[derive(Clone, Copy, Debug)]
pub struct Sketch {
    /// Size of the model's weights.
    pub bytes: Bytes,
}

/// Steps that this build and this machine allow.
#[derive(Clone, Copy, Debug)]
pub struct Wishes {
    /// True if the build computes on a GPU by default, and must therefore refuse to run without a GPU.
    pub refusal: bool,
    /// True if the program reports the placement of a model.
    pub placement: bool,
    /// True if the program can sample on the device.
    pub device_sampling: bool,
    /// True if the build uses CUDA graphs and they can be turned off.
    pub graphs: bool,
    /// True if the build uses CUDA. In this case, the host waits for the GPU.
    pub waiting: bool,
    /// Maximum number of rounds of a model.
    pub rounds: u32,
    /// Number of tokens of the long run.
    pub long: u32,
}

impl CheckStep {
    /// Returns the model that the step needs.
    pub fn model(self) -> Option<usize> {
        match self {
            CheckStep::Refusal => None,
            CheckStep::Pair(..) => Some(0),
            CheckStep::Make(model)
            | CheckStep::Placement(model)
            | CheckStep::Determinism(model)
            | CheckStep::Round(model, _)
            | CheckStep::Long(model, _) => Some(model),
        }
    }

    /// Returns the kind of the step. Steps of one kind take about the same time.
    pub fn kind(self) -> &'static str {
        match self {
            CheckStep::Refusal => "refusal",
            CheckStep::Make(_) => "make",
            CheckStep::Placement(_) => "placement",
            CheckStep::Determinism(_) => "determinism",
            CheckStep::Round(..) => "round",
            CheckStep::Pair(switch, _) => switch.name(),
            CheckStep::Long(..) => "long run",
        }
    }

    /// Describes the step in words; `names` are the models' names.
    pub fn words(self, names: &[String]) -> String {
        let of = |model: usize| names.get(model).map_or("?", String::as_str);
        match self {
            CheckStep::Refusal => "refusal without a GPU".to_string(),
            CheckStep::Make(model) => format!("write {}", of(model)),
            CheckStep::Round(model, round) => format!("round {round} of {}", of(model)),
            CheckStep::Pair(switch, pair) => {
                format!("{switch} {}, pair {pair}", switch.sides().join(" and "))
            }
            CheckStep::Long(model, tokens) => format!("{tokens} tokens of {}", of(model)),
            other => format!("{} of {}", other.kind(), other.model().map_or("?", of)),
        }
    }
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Returns all steps for `models` in the order of execution. The first model is the most important.
pub fn steps(models: &[Sketch], wishes: &Wishes) -> Vec<PlannedStep> {
    let mut all = Vec::new();
    let mut put = |step, priority| all.push(PlannedStep { step, priority });
    if wishes.refusal {
        put(CheckStep::Refusal, 0);
    }
    for model in 0..models.len() {
        let first = model == 0;
        put(CheckStep::Make(model), u8::from(!first));
        if wishes.placement {
            put(CheckStep::Placement(model), u8::from(!first));
        }
        put(CheckStep::Determinism(model), if first { 0 } else { 2 });
        for round in 1..=wishes.rounds.min(FIRST_ROUNDS) {
            put(CheckStep::Round(model, round), u8::from(!first));
        }
        for round in FIRST_ROUNDS + 1..=wishes.rounds.min(ENOUGH_ROUNDS) {
            put(CheckStep::Round(model, round), if first { 3 } else { 4 });
        }
    }
    if models.is_empty() {
        return all;
    }
    for pair in 1..=SWITCH_PAIRS.min(wishes.rounds) {
        if wishes.device_sampling {
            put(CheckStep::Pair(Switch::DeviceSampling, pair), 2);
        }
        if wishes.graphs {
            put(CheckStep::Pair(Switch::CudaGraphs, pair), 2);
        }
        if wishes.waiting {
            put(CheckStep::Pair(Switch::Waiting, pair), 2);
        }
    }
    let smallest = (0..models.len()).min_by_key(|model| models[*model].bytes).unwrap_or(0);
    put(CheckStep::Long(smallest, wishes.long), 4);
    // Alternate the models, so that all models have the same number of rounds when the budget ends.
    for round in ENOUGH_ROUNDS + 1..=wishes.rounds {
        for model in 0..models.len() {
            put(CheckStep::Round(model, round), 5);
        }
    }
    all
}

/// Returns the `waiting` steps that fit into `left` seconds, in the same order. The most important steps are chosen
/// first. A step is not chosen if its model does not exist and no chosen step makes the model. A long run that does
/// not fit is shortened. `seconds` returns the duration of a step.
pub fn choose(waiting: &[PlannedStep], seconds: impl Fn(CheckStep) -> f64, left: f64) -> Vec<CheckStep> {
    let mut order: Vec<usize> = (0..waiting.len()).collect();
    order.sort_by_key(|at| (waiting[*at].priority, *at));
    let mut chosen: Vec<(usize, CheckStep)> = Vec::new();
    let mut left = left;
    for at in order {
        let step = waiting[at].step;
        let is_there = step.model().is_none_or(|model| {
            let make = |step: CheckStep| step == CheckStep::Make(model);
            !waiting.iter().any(|other| make(other.step)) || chosen.iter().any(|(_, step)| make(*step))
        });
        if !is_there && !matches!(step, CheckStep::Make(_)) {
            continue;
        }
        if let Some(step) = shortened(step, |step| seconds(step) <= left) {
            left -= seconds(step);
            chosen.push((at, step));
        }
    }
    chosen.sort_by_key(|(at, _)| *at);
    chosen.into_iter().map(|(_, step)| step).collect()
}

/// Returns the step if it `fits`, or else a shorter long run that does.
fn shortened(step: CheckStep, fits: impl Fn(CheckStep) -> bool) -> Option<CheckStep> {
    let CheckStep::Long(model, tokens) = step else { return Some(step).filter(|step| fits(*step)) };
    let lengths = std::iter::successors(Some(tokens), |tokens| Some(tokens / 2));
    lengths
        .take_while(|length| *length == tokens || *length >= SHORTEST_LONG)
        .map(|length| CheckStep::Long(model, length))
        .find(|step| fits(*step))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Wishes = Wishes {
        refusal: true,
        placement: true,
        device_sampling: true,
        graphs: true,
        waiting: true,
        rounds: ROUNDS,
        long: 10_000,
    };

    fn models(sizes: &[u64]) -> Vec<Sketch> {
        sizes.iter().map(|bytes| Sketch { bytes: Bytes(*bytes) }).collect()
    }

    /// Returns the assumed duration of a step: ten seconds, or one millisecond per token for the long run.
    fn seconds(step: CheckStep) -> f64 {
        match step {
            CheckStep::Long(_, tokens) => f64::from(tokens) / 1000.0,
            _ => 10.0,
        }
    }

    #[test]
    fn with_all_the_time_in_the_world_all_is_done_in_order() {
        let planned = steps(&models(&[3, 1, 2]), &ALL);
        let chosen = choose(&planned, seconds, f64::INFINITY);
        assert_eq!(chosen, planned.iter().map(|planned| planned.step).collect::<Vec<_>>());
        assert_eq!(chosen[..3], [CheckStep::Refusal, CheckStep::Make(0), CheckStep::Placement(0)]);
        // The long run uses the smallest model, and the last rounds alternate between the models.
        assert!(chosen.contains(&CheckStep::Long(1, 10_000)));
        assert_eq!(chosen[chosen.len() - 2..], [CheckStep::Round(1, 10), CheckStep::Round(2, 10)]);
        for round in 1..=ROUNDS {
            assert_eq!(chosen.iter().filter(|step| **step == CheckStep::Round(2, round)).count(), 1);
        }
    }

    #[test]
    fn what_matters_most_is_chosen_and_the_budget_is_kept() {
        let planned = steps(&models(&[3, 1]), &ALL);
        for left in [0.0, 5.0, 10.0, 75.0, 100.0, 205.0, 480.0] {
            let chosen = choose(&planned, seconds, left);
            let all: f64 = chosen.iter().map(|step| seconds(*step)).sum();
            assert!(all <= left, "{left}: {chosen:?}");
            // Steps are not chosen if their model is not made.
            for step in &chosen {
                let made = step.model().is_none_or(|model| chosen.contains(&CheckStep::Make(model)));
                assert!(made, "{left}: {step:?}");
            }
            // A skipped step that would have fitted was less important than every step chosen after it.
            if left >= 75.0 {
                assert!(chosen.contains(&CheckStep::Round(0, 3)), "{left}: {chosen:?}");
            }
        }
        assert_eq!(choose(&planned, seconds, 9.0), []);
        assert_eq!(choose(&planned, seconds, 20.0), [CheckStep::Refusal, CheckStep::Make(0)]);
    }

    #[test]
    fn a_model_that_is_made_needs_not_be_made_again() {
        let planned = [PlannedStep { step: CheckStep::Round(0, 4), priority: 3 }];
        assert_eq!(choose(&planned, seconds, 10.0), [CheckStep::Round(0, 4)]);
    }

    #[test]
    fn a_long_run_is_as_long_as_fits() {
        let planned = [PlannedStep { step: CheckStep::Long(0, 10_000), priority: 4 }];
        for (left, tokens) in
            [(10.0, Some(10_000)), (9.9, Some(5000)), (3.0, Some(2500)), (1.2, None), (1.25, Some(1250))]
        {
            let expected: Vec<CheckStep> =
                tokens.map(|tokens| CheckStep::Long(0, tokens)).into_iter().collect();
            assert_eq!(choose(&planned, seconds, left), expected, "{left}");
        }
        // The long run of a rehearsal is short from the start.
        let planned = [PlannedStep { step: CheckStep::Long(0, 200), priority: 4 }];
        assert_eq!(choose(&planned, seconds, 1.0), [CheckStep::Long(0, 200)]);
        assert_eq!(choose(&planned, seconds, 0.1), []);
    }

    #[test]
    fn what_a_build_cannot_do_is_not_planned() {
        let wishes = Wishes {
            refusal: false,
            placement: false,
            device_sampling: false,
            graphs: false,
            waiting: false,
            rounds: 2,
            ..ALL
        };
        let kinds: std::collections::BTreeSet<&str> =
            steps(&models(&[1]), &wishes).iter().map(|planned| planned.step.kind()).collect();
        assert_eq!(kinds, ["determinism", "long run", "make", "round"].into());
        assert_eq!(steps(&[], &wishes), []);
    }
}
