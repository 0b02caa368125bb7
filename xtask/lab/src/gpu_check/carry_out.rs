//! Execution of a plan, step by step, within its budget.

mod steps;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use build::scratch::Scratch;
use build::ui::Ui;
use build::{fs, process};
use build_info::Bytes;
use build_info::words::count;

use super::engine::{Engine, Sizes};
use super::estimate::{Estimator, Tokens};
use super::figures;
use super::models::{self, GpuCheckModel};
use super::plan::{self, CheckStep, PlannedStep, Sketch, Wishes};
use super::report::{Done, LeftOut, Report};

/// Seconds of the budget that are reserved for removing the models and writing the report.
const RESERVE: f64 = 4.0;

/// Seconds by which a step may exceed the budget before it is stopped.
const GRACE: f64 = 3.0;

/// Number of failures after which a step is no longer tried with the same model.
const MOST_FAILURES: usize = 2;

/// Programs, sizes and limits of a check.
pub struct CheckOptions {
    /// Engine to check.
    pub engine: Engine,
    /// Path of llama.cpp's llama-bench; `None` if llama-bench is missing.
    pub llama_bench: Option<PathBuf>,
    /// Sizes of the tests.
    pub sizes: Sizes,
    /// Seconds for the whole check.
    pub budget: f64,
    /// Path of the report to write.
    pub out: PathBuf,
    /// True if the engine's record says that it computes on a GPU by default.
    pub promises_gpu: bool,
    /// True if the engine computes with CUDA, or if this is unknown.
    pub cuda: bool,
    /// True if the engine launches CUDA graphs.
    pub graphs: bool,
}

/// Check in progress.
pub struct RunningCheck<'a> {
    options: &'a CheckOptions,
    ui: &'a Ui,
    began: Instant,
    folder: PathBuf,
    models: Vec<GpuCheckModel>,
    names: Vec<String>,
    waiting: Vec<PlannedStep>,
    estimator: Estimator,
    failures: Vec<(&'static str, Option<usize>)>,
    /// Models whose long prompts cannot be evaluated on this machine.
    decode_only: Vec<usize>,
    report: Report,
    _scratch: Scratch,
}

impl<'a> RunningCheck<'a> {
    /// Plans the check of the models in `report`. Models that do not fit into the GPU are marked as skipped.
    pub fn new(
        options: &'a CheckOptions,
        mut report: Report,
        scratch: Scratch,
        began: Instant,
        ui: &'a Ui,
    ) -> Self {
        let folder = scratch.path().to_path_buf();
        let free = report.cards.iter().filter_map(|card| card.free).max().map(Bytes);
        for model in &mut report.models {
            model.skipped = models::too_large(model.bytes, free);
        }
        let models: Vec<GpuCheckModel> =
            report.models.iter().map(|model| GpuCheckModel::new(model.name.clone(), &folder)).collect();
        let sketches: Vec<Sketch> = models.iter().map(|model| Sketch { bytes: model.bytes() }).collect();
        let sizes = &options.sizes;
        let supports = options.engine.supports;
        let wishes = Wishes {
            refusal: options.promises_gpu,
            placement: supports.placement,
            device_sampling: supports.device_sampling,
            graphs: options.graphs,
            waiting: options.cuda,
            rounds: sizes.rounds,
            long: sizes.long,
        };
        let tokens = Tokens { determinism: sizes.determinism, decode: sizes.decode, round: sizes.round() };
        let cores = build_info::threads::budget(&report.host, build_info::Policy::Max).cores;
        let estimator = Estimator::new(cores, models::sizes(&models), tokens, options.llama_bench.is_some());
        let names = models.iter().map(|model| model.what.to_string()).collect();
        let mut check = Self {
            options,
            ui,
            began,
            folder,
            names,
            waiting: plan::steps(&sketches, &wishes),
            estimator,
            failures: Vec::new(),
            decode_only: Vec::new(),
            models,
            report,
            _scratch: scratch,
        };
        check.say_what_is_not_planned(&wishes);
        for model in 0..check.models.len() {
            if let Some(why) = check.report.models[model].skipped.clone() {
                check.drop_model(model, &why);
            }
        }
        check
    }

    fn say_what_is_not_planned(&mut self, wishes: &Wishes) {
        let mut say = |step: &str, reason: &str| {
            self.report.left_out.push(LeftOut { step: step.to_string(), reason: reason.to_string() });
        };
        if !wishes.refusal {
            say("refusal without a GPU", "the build does not use a GPU by default");
        }
        if !wishes.placement {
            say("placement", "this version of anneal has no `info --placement`");
        }
        if !wishes.graphs {
            say("CUDA graphs", "the build's profile disables CUDA graphs");
        }
        if !wishes.waiting {
            say("waiting", "the build has no CUDA support");
        }
        if !wishes.device_sampling {
            say("device sampling", "this version of anneal has no --device-sampling");
        }
        if let Some(why) = self.report.llama_bench_missing.clone() {
            say("rounds of llama-bench", &why);
        }
    }

    /// Carries out the steps that fit into the budget, one after the other, and writes the report after each step. If
    /// a step fails, the failure is recorded and the check continues. Ctrl-C ends the check and keeps the results so
    /// far.
    ///
    /// # Errors
    /// If the report cannot be written.
    pub fn run(mut self) -> Result<Report> {
        loop {
            let left = self.left() - RESERVE;
            let chosen = plan::choose(&self.waiting, |step| self.estimator.seconds(step), left);
            let Some(step) = chosen.first().copied().filter(|_| !process::interrupted()) else { break };
            self.waiting.retain(|planned| !is_same(planned.step, step));
            self.one(step, chosen.len());
            self.save()?;
        }
        if process::interrupted() {
            self.report.stopped = Some("stopped by the user".to_string());
        }
        self.leave_out_the_rest();
        self.save()?;
        Ok(self.report)
    }

    fn left(&self) -> f64 {
        self.options.budget - self.began.elapsed().as_secs_f64()
    }

    /// Returns the time limit for a program that is run by a step.
    fn limit(&self) -> Duration {
        Duration::from_secs_f64((self.left() - RESERVE + GRACE).max(GRACE))
    }

    fn one(&mut self, step: CheckStep, steps_left: usize) {
        let words = step.words(&self.names);
        let expected = self.estimator.seconds(step);
        self.ui.say(format_args!(
            "{:>4.0} s left, {}: {words}, about {expected:.0} s",
            self.left().max(0.0),
            count(steps_left, "step")
        ));
        let began = Instant::now();
        let done = self.carry_out(step);
        let seconds = began.elapsed().as_secs_f64();
        let error = done.err().map(|error| self.without_folders(&format!("{error:#}")));
        if process::interrupted() {
            // The step did not fail: the user stopped it.
            self.report.left_out.push(LeftOut { step: words, reason: "stopped by the user".to_string() });
            return;
        }
        match &error {
            None => self.estimator.learn(step, seconds),
            Some(why) => {
                self.ui.warn(format_args!("{words}: {why}"));
                self.failed(step, why);
            }
        }
        self.report.steps.push(Done { step: words, seconds, expected, error });
    }

    /// Drops the steps that cannot succeed after `step` failed.
    fn failed(&mut self, step: CheckStep, why: &str) {
        if let CheckStep::Make(model) = step {
            self.report.models[model].skipped = Some(why.to_string());
            self.drop_model(model, "the model could not be created");
            return;
        }
        let key = (step.kind(), step.model());
        self.failures.push(key);
        if self.failures.iter().filter(|failed| **failed == key).count() >= MOST_FAILURES {
            let same = |planned: &PlannedStep| (planned.step.kind(), planned.step.model()) == key;
            self.drop(same, &format!("the same step failed {MOST_FAILURES} times"));
        }
    }

    fn drop_model(&mut self, model: usize, why: &str) {
        self.drop(|planned| planned.step.model() == Some(model), why);
    }

    fn drop(&mut self, unwanted: impl Fn(&PlannedStep) -> bool, why: &str) {
        let (dropped, kept): (Vec<PlannedStep>, Vec<PlannedStep>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|planned| unwanted(planned));
        self.waiting = kept;
        let left_out = |planned: &PlannedStep| LeftOut {
            step: planned.step.words(&self.names),
            reason: why.to_string(),
        };
        self.report.left_out.extend(dropped.iter().map(left_out));
    }

    fn leave_out_the_rest(&mut self) {
        let left = (self.left() - RESERVE).max(0.0);
        for planned in std::mem::take(&mut self.waiting) {
            let reason = match process::interrupted() {
                true => "stopped by the user".to_string(),
                false => format!(
                    "needs about {:.0} s, but only {left:.0} s of the budget are left",
                    self.estimator.seconds(planned.step)
                ),
            };
            let step = planned.step.words(&self.names);
            self.report.left_out.push(LeftOut { step, reason });
        }
    }

    fn save(&mut self) -> Result<()> {
        self.report.figures = figures::figures(&self.report);
        self.report.seconds = self.began.elapsed().as_secs_f64();
        let text = serde_json::to_vec_pretty(&self.report)?;
        fs::write_atomically(&self.options.out, &text)
    }
}

/// True if both steps are equal, apart from the length of a long run.
fn is_same(a: CheckStep, b: CheckStep) -> bool {
    match (a, b) {
        (CheckStep::Long(a, _), CheckStep::Long(b, _)) => a == b,
        _ => a == b,
    }
}

/// Checks that `seconds` are enough for any check.
pub fn check_budget(seconds: f64) -> Result<()> {
    if seconds < 2.0 * RESERVE {
        bail!(
            "a budget of {seconds:.0} s is too short for any check\nhint: allow at least a minute; for \
             example, --budget 8m"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests;
