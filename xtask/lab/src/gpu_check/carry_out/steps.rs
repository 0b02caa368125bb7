//! Implementation of each step.

use std::convert::Infallible;
use std::path::Path;

use anyhow::{Context, Result};
use base::exit;
use build::process;
use build_info::Sha256;
use measure::schedule;

use super::RunningCheck;
use crate::gpu_check::bench::Output;
use crate::gpu_check::decode;
use crate::gpu_check::engine::{self, GenerationVariant, Sizes};
use crate::gpu_check::figures;
use crate::gpu_check::models::{GpuCheckModel, Workshop};
use crate::gpu_check::plan::{CheckStep, Switch};
use crate::gpu_check::report::{Decode, Determinism, LeftOut, Long, Pair, Refusal, Run, Wait, Who};
use crate::recommend::subject::read_model;

/// Generation with the host's samplers.
const PLAIN: GenerationVariant = GenerationVariant { device_sampling: false, graphs: true, wait: None };

impl RunningCheck<'_> {
    /// Carries out `step` and stores its result in the report.
    pub(super) fn carry_out(&mut self, step: CheckStep) -> Result<()> {
        match step {
            CheckStep::Refusal => self.refusal(),
            CheckStep::Make(model) => self.make(model),
            CheckStep::Placement(model) => self.placement(model),
            CheckStep::Determinism(model) => self.determinism(model),
            CheckStep::Round(model, round) => self.round(model, round),
            CheckStep::Pair(switch, pair) => self.pair(switch, pair),
            CheckStep::Long(model, tokens) => {
                let decode = self.decode(model, self.steady(), tokens)?;
                let (model, wanted) = (self.models[model].what.clone(), self.options.sizes.long);
                self.report.long = Some(Long { model, wanted, decode });
                Ok(())
            }
        }
    }

    /// Checks that the engine refuses to run without a GPU. The step makes a model of a few megabytes.
    fn refusal(&mut self) -> Result<()> {
        let tiny =
            GpuCheckModel::new("tiny/F16".parse().map_err(anyhow::Error::msg)?, &self.folder.join("refusal"));
        if let Some(folder) = tiny.path.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        self.workshop().make(&tiny, &[], self.limit())?;
        let ended = self.options.engine.without_gpu(&tiny.path, self.limit())?;
        self.report.refusal = Some(Refusal {
            code: ended.code,
            expected: i32::from(exit::UNAVAILABLE),
            said: self.without_folders(ended.stderr.trim()),
        });
        Ok(())
    }

    fn workshop(&self) -> Workshop<'_> {
        Workshop { folder: &self.folder, engine: &self.options.engine, ui: self.ui }
    }

    /// Removes this machine's folders from `text`, because a report may be published.
    pub(super) fn without_folders(&self, text: &str) -> String {
        let programs = self.options.engine.path.parent().and_then(Path::parent);
        let folders = std::iter::once(self.folder.as_path()).chain(programs);
        let named = folders.map(|folder| folder.to_string_lossy()).filter(|folder| folder.len() > 1);
        named.fold(text.to_string(), |text, folder| text.replace(&*folder, "…"))
    }

    fn make(&mut self, model: usize) -> Result<()> {
        let others: Vec<GpuCheckModel> = self
            .waiting
            .iter()
            .filter_map(|planned| match planned.step {
                CheckStep::Make(other) => Some(self.models[other].clone()),
                _ => None,
            })
            .collect();
        self.workshop().make(&self.models[model], &others, self.limit())?;
        let facts = read_model(&self.models[model].path)?;
        let told = &mut self.report.models[model];
        (told.bytes, told.bytes_per_token) = (facts.weights, Some(facts.bytes_per_token));
        Ok(())
    }

    fn placement(&mut self, model: usize) -> Result<()> {
        let placement = self.options.engine.placement(&self.models[model].path, self.limit())?;
        self.report.models[model].placement = Some(placement);
        Ok(())
    }

    fn determinism(&mut self, model: usize) -> Result<()> {
        let (path, count) = (&self.models[model].path, self.options.sizes.determinism);
        let first = self.options.engine.tokens(path, count, self.limit())?;
        let second = self.options.engine.tokens(path, count, self.limit())?;
        let equal = first.iter().zip(&second).take_while(|(a, b)| a == b).count();
        let bytes: Vec<u8> = first.iter().flat_map(|token| token.to_le_bytes()).collect();
        self.report.models[model].determinism =
            Some(Determinism { tokens: first.len().max(second.len()), equal, digest: Sha256::of(&bytes) });
        Ok(())
    }

    /// Runs both programs once. The order of the programs alternates between rounds. If one program fails, the
    /// measurements of the other program are kept.
    fn round(&mut self, model: usize, round: u32) -> Result<()> {
        let programs = if self.options.llama_bench.is_some() { 2 } else { 1 };
        let mut failed = None;
        let Ok(_) = schedule::turns(round as usize - 1, programs, |program| {
            let done = match program {
                0 => self.ours(model, round),
                _ => self.theirs(model).map(|output| self.keep(model, round, Who::LlamaBench, output)),
            };
            failed = failed.take().or(done.err());
            Ok::<_, Infallible>(())
        });
        let told = &mut self.report.models[model];
        told.comparisons = figures::comparisons(told);
        told.differing_settings = figures::differing(&told.runs);
        if let Some(speed) = told.decodes.last().and_then(|decode| decode.tokens_per_second) {
            self.estimator.learn_speed(model, speed);
        }
        failed.map_or(Ok(()), Err)
    }

    fn keep(&mut self, model: usize, round: u32, by: Who, output: Output) {
        let run = Run { round, by, rows: output.rows, settings: output.settings };
        self.report.models[model].runs.push(run);
    }

    /// Runs the engine's measurements: llama-bench's tests, tests with the default samplers, and a steady decode in
    /// which the device chooses the tokens.
    fn ours(&mut self, model: usize, round: u32) -> Result<()> {
        let kernel = self.kernel(model).map(|output| self.keep(model, round, Who::Anneal, output));
        let path = self.models[model].path.clone();
        let sampled = self.options.engine.end_to_end(&path, &self.sizes(model), self.limit());
        let sampled = sampled.map(|output| self.keep(model, round, Who::Anneal, output));
        let decode = self.decode(model, self.steady(), self.options.sizes.decode).map(|decode| {
            let decode = Decode { round: Some(round), ..decode };
            self.report.models[model].decodes.push(decode);
        });
        kernel.and(sampled).and(decode)
    }

    /// Runs llama-bench's tests. If prompts cannot be evaluated, runs only the decode tests.
    fn kernel(&mut self, model: usize) -> Result<Output> {
        let path = self.models[model].path.clone();
        let engine = &self.options.engine;
        match engine.kernel(&path, &self.sizes(model), self.limit()) {
            Err(error) if !self.decode_only.contains(&model) && !process::interrupted() => {
                self.decode_only.push(model);
                let kernel = engine.kernel(&path, &self.sizes(model), self.limit())?;
                let step = format!("prefill tests of {}", self.names[model]);
                let reason = self.without_folders(&format!("prefill fails, but decode works: {error:#}"));
                self.report.left_out.push(LeftOut { step, reason });
                Ok(kernel)
            }
            kernel => kernel,
        }
    }

    /// Returns the variant of a steady decode: the device chooses the tokens if the program supports this.
    fn steady(&self) -> GenerationVariant {
        GenerationVariant { device_sampling: self.options.engine.supports.device_sampling, ..PLAIN }
    }

    fn theirs(&self, model: usize) -> Result<Output> {
        let program = self.options.llama_bench.as_deref().context("llama-bench is missing")?;
        engine::llama_bench(program, &self.models[model].path, &self.sizes(model), self.limit())
    }

    /// Returns the sizes for a model. Evaluating prompts with F16 weights needs cuBLAS, which is missing on a machine
    /// with only a driver.
    fn sizes(&self, model: usize) -> Sizes {
        match self.decode_only.contains(&model) {
            true => self.options.sizes.without_prompts(),
            false => self.options.sizes,
        }
    }

    fn decode(&self, model: usize, variant: GenerationVariant, tokens: u32) -> Result<Decode> {
        decode::steady(&self.options.engine, &self.models[model].path, variant, tokens, self.limit())
    }

    fn pair(&mut self, switch: Switch, pair: u32) -> Result<()> {
        let steady = self.steady();
        let variant = |is_on: bool| match switch {
            Switch::DeviceSampling => GenerationVariant { device_sampling: is_on, ..steady },
            Switch::CudaGraphs => GenerationVariant { graphs: is_on, ..steady },
            Switch::Waiting => {
                GenerationVariant { wait: Some(if is_on { Wait::Block } else { Wait::Spin }), ..steady }
            }
        };
        let sides = schedule::turns(pair as usize - 1, 2, |side| {
            self.decode(0, variant(side == 0), self.options.sizes.decode)
        })?;
        if let Ok([on, off]) = <[Decode; 2]>::try_from(sides) {
            self.report.pairs.push(Pair { switch, on, off });
        }
        Ok(())
    }
}
