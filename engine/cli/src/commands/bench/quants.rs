//! Command `anneal bench --quants`: size, speed and quality of a model's quantisations on this host.

mod files;
pub(super) mod flags;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use base::exit::INTERRUPTED;
use build_info::evaluation::{Divergence, Estimate};
use build_info::words::printable;
use engine_core::model;
use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::Settings;
use files::{QuantFolder, QuantOrigin};
use llama::error::Error;
use llama::quantize::{QuantizeOptions, Type};
use llama::{Model, exit_now, interrupted};
use measure::{FEWEST_PAIRS, Ratio, Round, Watch, median, ratio, schedule};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tools::eval::{self, ChunkedText, Reference, built_in_text};
use tools::quantize::plan;
use tune::bench::{Case, Repeat, kernel};

use super::super::bar::Bar;
use super::super::eval::perplexity;
use super::super::table::{ResultRow, Table};
use super::args::Args;
use super::version::commit;
use crate::interrupt;

/// Default number of text chunks for the divergence.
const CHUNKS: u32 = 4;

/// Model in the comparison.
struct Contestant {
    path: PathBuf,
    /// Quantisation type. `None` for the source model.
    kind: Option<Type>,
    reused: bool,
    found: Option<Facts>,
    prefill: Vec<f64>,
    decode: Vec<f64>,
}

/// Properties of a model, determined from its file and its evaluation.
struct Facts {
    model_type: String,
    bytes: u64,
    parameters: u64,
    perplexity: Option<Estimate>,
    divergence: Option<Divergence>,
}

impl Contestant {
    fn new(path: PathBuf, kind: Option<Type>, reused: bool) -> Self {
        Self { path, kind, reused, found: None, prefill: Vec::new(), decode: Vec::new() }
    }
}

pub fn run(
    args: &Args,
    models: &[PathBuf],
    settings: &[Settings],
    cases: &[Case],
    runtime_host: &RuntimeHost,
) -> Result<ExitCode> {
    let [source] = models else {
        return Err(usage("--quants accepts only one model\nhint: use -m only once"));
    };
    let [settings] = settings else {
        return Err(usage(
            "--quants accepts only a single value for each setting\nhint: do not use lists with -t, -b, -ub, -ctk, \
            -ctv or -fa",
        ));
    };
    let [prefill, decode] = cases else {
        return Err(usage(
            "--quants measures only one prompt length and one generation length\nhint: use a single number with \
             -p and with -n, and omit -d",
        ));
    };
    if (prefill.n_prompt, decode.n_gen) == (0, 0) || prefill.n_gen > 0 || prefill.n_depth > 0 {
        return Err(usage(
            "--quants measures only one prompt length and one generation length\nhint: use a single number with \
             -p and with -n",
        ));
    }
    let text = match &args.quants.eval_text {
        Some(path) => super::super::read_text(path)?,
        None => built_in_text(),
    };
    let work = QuantBench { args, source, settings, prefill, decode, runtime_host, text };
    // Check the types, the folder and the free space before the long quantisation starts.
    let all = work.options()?;
    let folder = QuantFolder::new(source, args.quants.keep.as_deref())?;
    interrupt::stop_in_order();
    let mut contestants = work.quantised(&folder, &all)?;
    work.evaluate(&mut contestants)?;
    let mut rounds = Vec::new();
    let measured = work.measure(&mut contestants, &mut rounds);
    drop(folder);
    // Complete rounds are printed even if a later one failed.
    let printed = work.print(&contestants, &rounds).context("cannot write the results to stdout");
    measured.and(printed)?;
    let wanted = work.rounds();
    if rounds.len() < wanted {
        let _ = writeln!(io::stderr(), "interrupted: {} of {wanted} rounds were measured", rounds.len());
        return Ok(ExitCode::from(INTERRUPTED));
    }
    if wanted < FEWEST_PAIRS {
        let _ = writeln!(
            io::stderr(),
            "note: fewer than {FEWEST_PAIRS} rounds cannot show a difference in speed; measure more with --rounds"
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn usage(why: &str) -> anyhow::Error {
    Error::Usage(why.to_string()).into()
}

struct QuantBench<'a> {
    args: &'a Args,
    source: &'a Path,
    settings: &'a Settings,
    prefill: &'a Case,
    decode: &'a Case,
    runtime_host: &'a RuntimeHost,
    text: String,
}

impl QuantBench<'_> {
    fn rounds(&self) -> usize {
        self.args.quants.rounds.map_or(FEWEST_PAIRS, |rounds| rounds as usize)
    }

    fn bar(&self, what: &'static str, unit: &'static str) -> Bar {
        Bar::new(what, unit, self.args.load.verbose)
    }

    /// Returns the quantisation options for each type, with the resulting file size in bytes.
    fn options(&self) -> Result<Vec<(QuantizeOptions, u64)>> {
        let flags = &self.args.quants;
        let imatrix = flags.imatrix.as_deref().map(tools::imatrix::read).transpose()?;
        let mut all: Vec<(QuantizeOptions, u64)> = Vec::new();
        for &kind in &flags.quants {
            if all.iter().any(|(options, _)| options.kind == kind) {
                return Err(Error::Usage(format!("--quants lists the type {} twice", kind.name())).into());
            }
            let imatrix = imatrix.clone();
            let allow_requantize = flags.allow_requantize;
            let threads = self.settings.prefill_threads.value;
            let options =
                QuantizeOptions { imatrix, allow_requantize, ..QuantizeOptions::new(kind, threads) };
            let bytes = plan(self.source, &options)?.file_bytes().0;
            all.push((options, bytes));
        }
        Ok(all)
    }

    /// Returns the source and its quantisations. Quantisations in `folder` are reused if they are still valid, and
    /// created otherwise.
    fn quantised(&self, folder: &QuantFolder, all: &[(QuantizeOptions, u64)]) -> Result<Vec<Contestant>> {
        let source = self.source;
        let mut contestants = vec![Contestant::new(source.to_path_buf(), None, false)];
        let imatrix = self.args.quants.imatrix.as_deref();
        let mut wanted = Vec::new();
        for (options, bytes) in all {
            let origin = QuantOrigin::of(source, options.kind, imatrix)?;
            let path = folder.place(source, options.kind);
            let reused = folder.holds(&path, &origin)?;
            wanted.push((options, origin, path, reused, if reused { 0 } else { *bytes }));
        }
        folder.has_room(wanted.iter().map(|(.., bytes)| bytes).sum())?;
        for (options, origin, path, reused, _) in wanted {
            if reused {
                let _ = writeln!(
                    io::stderr(),
                    "{} is still valid and is reused",
                    printable(&path.to_string_lossy())
                );
            } else {
                let _ = writeln!(io::stderr(), "quantize to {}", options.kind.name());
                folder.forget(&path)?;
                let mut bar = self.bar("quantize", "tensors");
                let made = super::super::quantize::run_with_bar(source, &path, options, &mut bar);
                bar.end();
                if let Err(Error::Interrupted) = made {
                    folder.remove();
                    let _ = writeln!(io::stderr(), "interrupted: nothing was measured");
                    // The process must end here, because llama.cpp is still working in another thread.
                    exit_now(i32::from(INTERRUPTED));
                }
                made?;
                folder.remember(&path, &origin)?;
            }
            contestants.push(Contestant::new(path, Some(options.kind), reused));
        }
        Ok(contestants)
    }

    /// Determines each model's size and its divergence from the source.
    fn evaluate(&self, contestants: &mut [Contestant]) -> Result<()> {
        let chunks = self.args.quants.eval_chunks.unwrap_or(CHUNKS);
        let mut bar = self.bar("evaluate", "models");
        let total = contestants.len() as u64;
        let mut reference = None;
        for (number, contestant) in contestants.iter_mut().enumerate() {
            if interrupted() {
                break;
            }
            let model = model::open(&contestant.path, self.settings, self.runtime_host)?;
            let (mut perplexity, mut divergence) = (None, None);
            if chunks > 0 {
                let found = self.divergence(&model, &mut reference, chunks)?;
                // A partial result would look like a result for the whole text.
                if found.interrupted {
                    break;
                }
                (perplexity, divergence) = (found.perplexity, found.against);
            }
            if contestant.kind.is_none() {
                divergence = None;
            }
            contestant.found = Some(Facts {
                model_type: model.description(),
                bytes: model.size(),
                parameters: model.n_params(),
                perplexity,
                divergence,
            });
            bar.show(number as u64 + 1, total);
        }
        bar.end();
        Ok(())
    }

    /// Measures the divergence of `model` from the reference. The first model becomes the reference.
    fn divergence(
        &self,
        model: &Arc<Model>,
        reference: &mut Option<Reference>,
        chunks: u32,
    ) -> Result<eval::Evaluation> {
        let mut silent = |_, _| ();
        let reference = match reference {
            Some(reference) => reference,
            None => {
                let text = ChunkedText::new(model, &self.text, eval::DEFAULT_CHUNK, Some(chunks))?;
                let saved = Reference::save(model, &text, self.settings, self.runtime_host, &mut silent)?;
                reference.insert(saved)
            }
        };
        Ok(reference.against(model, self.settings, self.runtime_host, &mut silent)?)
    }

    /// Measures every model once per round, in an order that changes between rounds. Each model is loaded, warmed
    /// up, measured and dropped, so that only one model is in memory at any time. Complete rounds are added to
    /// `rounds`.
    fn measure(&self, contestants: &mut [Contestant], rounds: &mut Vec<Round>) -> Result<()> {
        let mut bar = self.bar("measure", "rounds");
        for round in 0..self.rounds() {
            let watch = Watch::start();
            let here = schedule::turns(round, contestants.len(), |number| match interrupted() {
                true => Err(None),
                false => self.turn(&contestants[number].path).map_err(Some),
            });
            let here = match here {
                Ok(here) => here,
                Err(Some(error)) => return Err(error),
                Err(None) => {
                    bar.end();
                    return Ok(());
                }
            };
            // Only complete rounds are added, because both runs of a pair must belong to the same round.
            for (contestant, (prefill, decode)) in contestants.iter_mut().zip(here) {
                contestant.prefill.extend(prefill);
                contestant.decode.extend(decode);
            }
            rounds.push(watch.stop());
            bar.show(round as u64 + 1, self.rounds() as u64);
        }
        bar.end();
        Ok(())
    }

    /// Measures prefill and decode speed, in tokens per second.
    fn turn(&self, path: &Path) -> Result<(Option<f64>, Option<f64>)> {
        let model = model::open(path, self.settings, self.runtime_host)?;
        let repeat = Repeat { samples: 1, warm_up: true };
        let speed = |case: &Case| -> Result<Option<f64>> {
            let samples = kernel(&model, case, self.settings, self.runtime_host, repeat, &mut None)?;
            let tokens = f64::from(case.n_prompt) + f64::from(case.n_gen);
            Ok(samples.ns.first().map(|ns| 1e9 * tokens / *ns as f64))
        };
        Ok((speed(self.prefill)?, speed(self.decode)?))
    }

    fn print(&self, contestants: &[Contestant], rounds: &[Round]) -> io::Result<()> {
        let mut table = Table::new(self.args.output, engine_core::terminal::stdout());
        table.begin()?;
        let source = &contestants[0];
        let commit = commit(self.runtime_host);
        for contestant in contestants {
            let Some(facts) = &contestant.found else { continue };
            table.add(&QuantRow { work: self, contestant, facts, source, commit: &commit, rounds })?;
        }
        table.end()
    }
}

/// Row of the table.
struct QuantRow<'a> {
    work: &'a QuantBench<'a>,
    contestant: &'a Contestant,
    facts: &'a Facts,
    source: &'a Contestant,
    commit: &'a str,
    rounds: &'a [Round],
}

impl QuantRow<'_> {
    fn name(&self) -> &'static str {
        self.contestant.kind.map_or("source", Type::name)
    }

    fn bits_per_weight(&self) -> f64 {
        8.0 * self.facts.bytes as f64 / self.facts.parameters.max(1) as f64
    }

    /// Returns the speed relative to the source's. `None` for the source itself, and if nothing was measured.
    fn ratio(&self, of: fn(&Contestant) -> &[f64]) -> Option<Ratio> {
        let (ours, theirs) = (of(self.contestant), of(self.source));
        (self.contestant.kind.is_some() && !ours.is_empty()).then(|| ratio(ours, theirs))
    }
}

fn prefill(contestant: &Contestant) -> &[f64] {
    &contestant.prefill
}

fn decode(contestant: &Contestant) -> &[f64] {
    &contestant.decode
}

/// True if there are enough pairs for an interval.
fn has_interval(ratio: &Ratio) -> bool {
    ratio.pairs >= FEWEST_PAIRS
}

fn verdict(ratio: &Option<Ratio>) -> Option<&'static str> {
    ratio.as_ref().map(|ratio| match ratio.verdict() {
        "higher" => "faster",
        "lower" => "slower",
        other => other,
    })
}

impl Serialize for QuantRow<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // The divergence has too many values for one column, so only the JSON formats contain it.
        let divergence = ("divergence", json!(self.facts.divergence));
        serializer.collect_map(self.columns().into_iter().chain([divergence]))
    }
}

impl QuantRow<'_> {
    /// Returns the name and the value of each column, in order.
    fn columns(&self) -> Vec<(&'static str, Value)> {
        let QuantRow { work, contestant, facts, .. } = self;
        let median_of =
            |samples: &[f64]| if samples.is_empty() { Value::Null } else { json!(median(samples)) };
        let (prefill_ratio, decode_ratio) = (self.ratio(prefill), self.ratio(decode));
        let middle = |ratio: &Option<Ratio>| json!(ratio.map(|ratio| ratio.median));
        let end = |ratio: &Option<Ratio>, end: fn(Ratio) -> f64| json!(ratio.filter(has_interval).map(end));
        let divergence = &facts.divergence;
        vec![
            ("build_commit", json!(self.commit)),
            ("model_filename", json!(contestant.path.to_string_lossy())),
            ("quantisation", json!(self.name())),
            ("reused", json!(contestant.reused)),
            ("model_type", json!(facts.model_type)),
            ("model_size", json!(facts.bytes)),
            ("model_n_params", json!(facts.parameters)),
            ("bits_per_weight", json!(self.bits_per_weight())),
            ("n_prompt", json!(work.prefill.n_prompt)),
            ("n_gen", json!(work.decode.n_gen)),
            ("n_threads", json!(work.settings.decode_threads.value)),
            ("n_threads_batch", json!(work.settings.prefill_threads.value)),
            ("prefill_ts", median_of(&contestant.prefill)),
            ("prefill_ratio", middle(&prefill_ratio)),
            ("prefill_ratio_low", end(&prefill_ratio, |ratio| ratio.low)),
            ("prefill_ratio_high", end(&prefill_ratio, |ratio| ratio.high)),
            ("prefill_verdict", json!(verdict(&prefill_ratio))),
            ("decode_ts", median_of(&contestant.decode)),
            ("decode_ratio", middle(&decode_ratio)),
            ("decode_ratio_low", end(&decode_ratio, |ratio| ratio.low)),
            ("decode_ratio_high", end(&decode_ratio, |ratio| ratio.high)),
            ("decode_verdict", json!(verdict(&decode_ratio))),
            ("perplexity", json!(facts.perplexity.map(|perplexity| perplexity.value))),
            ("mean_kld", json!(divergence.map(|divergence| divergence.mean_kld.value))),
            ("mean_kld_error", json!(divergence.and_then(|divergence| divergence.mean_kld.error))),
            ("top1", json!(divergence.map(|divergence| divergence.top1.value))),
            ("samples_prefill_ts", json!(contestant.prefill)),
            ("samples_decode_ts", json!(contestant.decode)),
            ("rounds", json!(self.rounds)),
        ]
    }
}

impl ResultRow for QuantRow<'_> {
    fn table(&self) -> &'static str {
        "anneal_quants"
    }

    fn fields(&self) -> serde_json::Result<Map<String, Value>> {
        Ok(self.columns().into_iter().map(|(name, value)| (name.to_string(), value)).collect())
    }

    fn head(&self) -> String {
        let of = |test: &str, tokens: u32| format!("{test} {tokens} t/s");
        let (prefill, decode) =
            (of("prefill", self.work.prefill.n_prompt), of("decode", self.work.decode.n_gen));
        format!(
            "| {:<9} | {:>10} | {:>11} | {prefill:>17} | {:>23} | {decode:>17} | {:>23} | {:>20} | {:>17} | {:>24} |\n\
             | {:-<9} | {:->9}: | {:->10}: | {:->16}: | {:->22}: | {:->16}: | {:->22}: | {:->19}: | {:->16}: | {:->23}: |",
            "type",
            "size",
            "bits/weight",
            "× source",
            "× source",
            "mean KLD",
            "top-1 %",
            "perplexity",
            "",
            "",
            "",
            "",
            "",
            "",
            "",
            "",
            "",
            ""
        )
    }

    fn line(&self) -> String {
        let Facts { perplexity: found, divergence, .. } = self.facts;
        let speed = |samples: &[f64]| match samples {
            [] => String::new(),
            samples => format!("{:.2}", median(samples)),
        };
        let ratio = |ratio: Option<Ratio>| match ratio {
            Some(ratio) if has_interval(&ratio) => ratio.to_string(),
            Some(ratio) => format!("{:.3} ({})", ratio.median, ratio.verdict()),
            None => String::new(),
        };
        let show = |text: Option<String>| text.unwrap_or_default();
        format!(
            "| {:<9} | {:>10} | {:>11.2} | {:>17} | {:>23} | {:>17} | {:>23} | {:>20} | {:>17} | {:>24} |",
            self.name(),
            super::super::table::size(self.facts.bytes),
            self.bits_per_weight(),
            speed(&self.contestant.prefill),
            ratio(self.ratio(prefill)),
            speed(&self.contestant.decode),
            ratio(self.ratio(decode)),
            show(divergence.map(|divergence| format!("{:.5}", divergence.mean_kld))),
            show(divergence.map(|divergence| format!("{:.2}", divergence.top1.times(100.0)))),
            show(found.map(perplexity)),
        )
    }
}
