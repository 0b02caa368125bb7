//! Carries out a plan, step by step, within its budget.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use measure::schedule;

use super::bench::Output;
use super::decode;
use super::engine::{self, Engine, Sizes, Variant};
use super::estimate::{Estimator, Tokens};
use super::figures;
use super::models::{self, Model, Workshop};
use super::placement;
use super::plan::{self, Planned, Sketch, Step, Switch, Wishes};
use super::report::{Determinism, Done, LeftOut, Long, Pair, Placement, Refusal, Report, Run, Who, digest};
use super::scratch::Scratch;
use crate::commands::recommend::read_model;
use crate::ui::Ui;
use crate::{fs, process};

/// What of the budget is kept for the end: models are removed, the file is written.
const RESERVE: f64 = 4.0;

/// How long a step may go on when the budget is spent: it is stopped rather than lost at its last token.
const GRACE: f64 = 3.0;

/// A step of a model that failed so often is not tried again.
const MOST_FAILURES: usize = 2;

/// The exit code of a program whose device is not there.
const NO_DEVICE: i32 = 69;

/// The defaults of a generation: what a user gets.
const PLAIN: Variant = Variant { device_sampling: false, graphs: true };

/// What to check, and with what.
pub struct Options {
    /// The engine.
    pub engine: Engine,
    /// llama.cpp's own bench.
    pub llama_bench: Option<PathBuf>,
    /// How much of everything.
    pub sizes: Sizes,
    /// Seconds for all of it.
    pub budget: f64,
    /// Where the file goes.
    pub out: PathBuf,
    /// Whether the engine's record promises a GPU.
    pub promises_gpu: bool,
}

/// A check that is going on.
pub struct Check<'a> {
    options: &'a Options,
    ui: &'a Ui,
    began: Instant,
    folder: PathBuf,
    models: Vec<Model>,
    names: Vec<String>,
    waiting: Vec<Planned>,
    estimator: Estimator,
    failures: Vec<(&'static str, Option<usize>)>,
    /// Models whose long prompts cannot be evaluated here.
    decode_only: Vec<usize>,
    report: Report,
    _scratch: Scratch,
}

impl<'a> Check<'a> {
    /// Plans the check of the models that `report` names. Those that do not fit into the GPU are skipped by their names.
    pub fn new(
        options: &'a Options,
        mut report: Report,
        scratch: Scratch,
        began: Instant,
        ui: &'a Ui,
    ) -> Self {
        let folder = scratch.path().to_path_buf();
        let free = report.cards.iter().filter_map(|card| card.free).max();
        for model in &mut report.models {
            model.skipped = models::too_large(model.bytes, free);
        }
        let models: Vec<Model> =
            report.models.iter().map(|model| Model::new(model.name.clone(), &folder)).collect();
        let sketches: Vec<Sketch> = models.iter().map(|model| Sketch { bytes: model.bytes() }).collect();
        let sizes = &options.sizes;
        let supports = options.engine.supports;
        let wishes = Wishes {
            refusal: options.promises_gpu,
            placement: supports.placement,
            device_sampling: supports.device_sampling,
            graphs: true,
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
            say("refusal without a GPU", "the build's record promises no GPU");
        }
        if !wishes.placement {
            say("placement", "this anneal has no `info --placement`");
        }
        if !wishes.device_sampling {
            say("device sampling", "this anneal has no --device-sampling");
        }
        if let Some(why) = self.report.llama_bench_missing.clone() {
            say("rounds of llama-bench", &why);
        }
    }

    /// Carries out what fits into the budget, one step after the other, and writes the file after each. What fails is
    /// written down, and the rest goes on; ctrl-C ends it with what there is.
    ///
    /// # Errors
    /// When the file cannot be written.
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

    /// The time that a program of a step may take.
    fn limit(&self) -> Duration {
        Duration::from_secs_f64((self.left() - RESERVE + GRACE).max(GRACE))
    }

    fn one(&mut self, step: Step, steps_left: usize) {
        let words = step.words(&self.names);
        let expected = self.estimator.seconds(step);
        self.ui.say(format_args!(
            "{:>4.0} s left, {steps_left} steps: {words}, about {expected:.0} s",
            self.left().max(0.0)
        ));
        let began = Instant::now();
        let done = self.carry_out(step);
        let seconds = began.elapsed().as_secs_f64();
        let error = done.err().map(|error| self.without_folders(&format!("{error:#}")));
        if process::interrupted() {
            // It did not fail: it was stopped.
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

    fn carry_out(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Refusal => self.refusal(),
            Step::Make(model) => self.make(model),
            Step::Placement(model) => self.placement(model),
            Step::Determinism(model) => self.determinism(model),
            Step::Round(model, round) => self.round(model, round),
            Step::Decode(model) => {
                let variant =
                    Variant { device_sampling: self.options.engine.supports.device_sampling, ..PLAIN };
                let decode = self.decode(model, variant, self.options.sizes.decode)?;
                self.report.models[model].decodes.push(decode);
                Ok(())
            }
            Step::Pair(switch, pair) => self.pair(switch, pair),
            Step::Long(model, tokens) => {
                let variant =
                    Variant { device_sampling: self.options.engine.supports.device_sampling, ..PLAIN };
                let decode = self.decode(model, variant, tokens)?;
                let (model, wanted) = (self.models[model].what.clone(), self.options.sizes.long);
                self.report.long = Some(Long { model, wanted, decode });
                Ok(())
            }
        }
    }

    /// Of a model of some megabytes, which is written for it.
    fn refusal(&mut self) -> Result<()> {
        let tiny = Model::new("tiny/F16".parse().map_err(anyhow::Error::msg)?, &self.folder.join("refusal"));
        if let Some(folder) = tiny.path.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        self.workshop().make(&tiny, &[], self.limit())?;
        let ended = self.options.engine.without_gpu(&tiny.path, self.limit())?;
        self.report.refusal = Some(Refusal {
            code: ended.code,
            expected: NO_DEVICE,
            said: self.without_folders(ended.stderr.trim()),
        });
        Ok(())
    }

    fn workshop(&self) -> Workshop<'_> {
        Workshop { folder: &self.folder, engine: &self.options.engine, ui: self.ui }
    }

    /// The report is for everybody, and the folders of this machine are not.
    fn without_folders(&self, text: &str) -> String {
        let programs = self.options.engine.path.parent().and_then(Path::parent);
        let folders = std::iter::once(self.folder.as_path()).chain(programs);
        let named = folders.map(|folder| folder.to_string_lossy()).filter(|folder| folder.len() > 1);
        named.fold(text.to_string(), |text, folder| text.replace(&*folder, "…"))
    }

    fn make(&mut self, model: usize) -> Result<()> {
        let others: Vec<Model> = self
            .waiting
            .iter()
            .filter_map(|planned| match planned.step {
                Step::Make(other) => Some(self.models[other].clone()),
                _ => None,
            })
            .collect();
        self.workshop().make(&self.models[model], &others, self.limit())?;
        let facts = read_model(&self.models[model].path)?;
        let told = &mut self.report.models[model];
        (told.bytes, told.bytes_per_token) = (facts.weights.0, Some(facts.bytes_per_token.0));
        Ok(())
    }

    fn placement(&mut self, model: usize) -> Result<()> {
        let told = self.options.engine.placement(&self.models[model].path, self.limit())?;
        let faults = placement::faults(&told);
        self.report.models[model].placement = Some(Placement { full: faults.is_empty(), faults, told });
        Ok(())
    }

    fn determinism(&mut self, model: usize) -> Result<()> {
        let (path, count) = (&self.models[model].path, self.options.sizes.determinism);
        let first = self.options.engine.tokens(path, count, self.limit())?;
        let second = self.options.engine.tokens(path, count, self.limit())?;
        let equal = first.iter().zip(&second).take_while(|(a, b)| a == b).count();
        let bytes: Vec<u8> = first.iter().flat_map(|token| token.to_le_bytes()).collect();
        self.report.models[model].determinism =
            Some(Determinism { tokens: first.len().max(second.len()), equal, digest: digest(&bytes) });
        Ok(())
    }

    /// Both programs, one after the other, and the other way round the next time.
    fn round(&mut self, model: usize, round: u32) -> Result<()> {
        let programs = if self.options.llama_bench.is_some() { 2 } else { 1 };
        let mut failed = None;
        for program in schedule::order(round as usize - 1, programs) {
            let runs = match program {
                0 => self.ours(model),
                _ => self.theirs(model).map(|output| vec![output]),
            };
            let by = if program == 0 { Who::Anneal } else { Who::LlamaBench };
            match runs {
                Ok(outputs) => {
                    let run =
                        |output: Output| Run { round, by, rows: output.rows, settings: output.settings };
                    self.report.models[model].runs.extend(outputs.into_iter().map(run));
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let told = &mut self.report.models[model];
        told.comparisons = figures::comparisons(&told.runs);
        told.differing_settings = figures::differing(&told.runs);
        let decode = told.comparisons.iter().find(|of| of.with_sampling && !of.test.contains('@'));
        if let Some(decode) = decode {
            self.estimator.learn_speed(model, decode.anneal);
        }
        failed.map_or(Ok(()), Err)
    }

    /// As llama-bench does it, and with sampling.
    fn ours(&mut self, model: usize) -> Result<Vec<Output>> {
        let path = self.models[model].path.clone();
        let engine = &self.options.engine;
        let kernel = match engine.kernel(&path, &self.sizes(model), self.limit()) {
            Err(error) if !self.decode_only.contains(&model) && !process::interrupted() => {
                self.decode_only.push(model);
                let kernel = engine.kernel(&path, &self.sizes(model), self.limit())?;
                let step = format!("tests with prompts of {}", self.names[model]);
                let reason = self.without_folders(&format!("decode works without them: {error:#}"));
                self.report.left_out.push(LeftOut { step, reason });
                kernel
            }
            kernel => kernel?,
        };
        Ok(vec![kernel, engine.end_to_end(&path, &self.sizes(model), self.limit())?])
    }

    fn theirs(&self, model: usize) -> Result<Output> {
        let program = self.options.llama_bench.as_deref().context("there is no llama-bench")?;
        engine::llama_bench(program, &self.models[model].path, &self.sizes(model), self.limit())
    }

    /// F16 takes cuBLAS for prompts, which a machine with nothing but a driver does not have.
    fn sizes(&self, model: usize) -> Sizes {
        match self.decode_only.contains(&model) {
            true => self.options.sizes.without_prompts(),
            false => self.options.sizes,
        }
    }

    fn decode(&self, model: usize, variant: Variant, tokens: u32) -> Result<super::report::Decode> {
        decode::steady(&self.options.engine, &self.models[model].path, variant, tokens, self.limit())
    }

    fn pair(&mut self, switch: Switch, pair: u32) -> Result<()> {
        let supports = self.options.engine.supports;
        let variant = |is_on: bool| match switch {
            Switch::DeviceSampling => Variant { device_sampling: is_on, ..PLAIN },
            Switch::CudaGraphs => Variant { graphs: is_on, device_sampling: supports.device_sampling },
        };
        let mut sides = [None, None];
        for side in schedule::order(pair as usize - 1, 2) {
            sides[side] = Some(self.decode(0, variant(side == 0), self.options.sizes.decode)?);
        }
        if let [Some(on), Some(off)] = sides {
            self.report.pairs.push(Pair { switch, on, off });
        }
        Ok(())
    }

    /// Drops what cannot work any more.
    fn failed(&mut self, step: Step, why: &str) {
        if let Step::Make(model) = step {
            self.report.models[model].skipped = Some(why.to_string());
            self.drop_model(model, "it could not be made");
            return;
        }
        let key = (step.kind(), step.model());
        self.failures.push(key);
        if self.failures.iter().filter(|failed| **failed == key).count() >= MOST_FAILURES {
            let same = |planned: &Planned| (planned.step.kind(), planned.step.model()) == key;
            self.drop(same, &format!("it failed {MOST_FAILURES} times before"));
        }
    }

    fn drop_model(&mut self, model: usize, why: &str) {
        self.drop(|planned| planned.step.model() == Some(model), why);
    }

    fn drop(&mut self, unwanted: impl Fn(&Planned) -> bool, why: &str) {
        let (dropped, kept): (Vec<Planned>, Vec<Planned>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|planned| unwanted(planned));
        self.waiting = kept;
        let left_out =
            |planned: &Planned| LeftOut { step: planned.step.words(&self.names), reason: why.to_string() };
        self.report.left_out.extend(dropped.iter().map(left_out));
    }

    fn leave_out_the_rest(&mut self) {
        let left = (self.left() - RESERVE).max(0.0);
        for planned in std::mem::take(&mut self.waiting) {
            let reason = match process::interrupted() {
                true => "stopped by the user".to_string(),
                false => format!(
                    "it takes about {:.0} s, and {left:.0} s of the budget are left",
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

/// A long run is the same whatever its length.
fn is_same(a: Step, b: Step) -> bool {
    match (a, b) {
        (Step::Long(a, _), Step::Long(b, _)) => a == b,
        _ => a == b,
    }
}

/// Sees that `seconds` can hold a check at all.
pub fn check_budget(seconds: f64) -> Result<()> {
    if seconds < 2.0 * RESERVE {
        bail!("a budget of {seconds:.0} s holds nothing: give a minute at least, as in --budget 8m");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortened_long_run_is_the_same_step() {
        assert!(is_same(Step::Long(1, 10_000), Step::Long(1, 5000)));
        assert!(!is_same(Step::Long(1, 10_000), Step::Long(2, 10_000)));
        assert!(!is_same(Step::Round(1, 1), Step::Round(1, 2)));
        assert!(check_budget(480.0).is_ok() && check_budget(1.0).is_err());
    }
}
