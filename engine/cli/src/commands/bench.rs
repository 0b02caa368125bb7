//! Command `anneal bench`.

mod args;
mod combinations;
mod curve;
mod lists;
mod ops;
mod parts;
mod quants;
mod roof;
mod varied;
mod version;

use std::io::{self, Write};
use std::path::{Path as FilePath, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use engine_core::model;
use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::{Requested, Settings};
use engine_core::tuning;
use gguf::GgufFile;
use llama::{Model, start};
use tune::bench::work::Work;
use tune::bench::{BenchRecord, Case, Path, Repeat, end_to_end, kernel};

pub use self::args::Args;
use self::lists::flat;
use self::varied::Varied;
use self::version::commit;
use super::table::{self, Format, Table};
use crate::interrupt;

pub fn run(args: &Args) -> Result<ExitCode> {
    args.drafts.refuse()?;
    let mut placing = Requested::default();
    args.placing.ask(&mut placing);
    let runtime_host = super::placed_runtime_host(&placing)?;
    if args.roofline {
        interrupt::stop_after(table::interrupt);
        return roof::run(args, &runtime_host);
    }
    let mut models = lists::models(&args.model);
    models.extend(args.hub.any(None)?);
    let tuned = tuned(args, &models, &runtime_host)?;
    let settings = combinations::settings(args, tuned.as_ref(), &runtime_host)?;
    settings.iter().for_each(super::warn_of);
    let cases = cases(args)?;
    start(args.load.verbose);
    if args.quants.is_asked() {
        return quants::run(args, &models, &settings, &cases, &runtime_host);
    }
    interrupt::stop_after(table::interrupt);
    // All files are checked first, because testing a single model can take minutes.
    for model in &models {
        GgufFile::open(model).map_err(llama::error::Error::from)?;
    }
    if !args.parts.is_empty() {
        return parts::run(args, &models, &settings, &cases, &runtime_host);
    }
    if args.ops {
        return ops::run(args, &models, &settings, &cases, &runtime_host);
    }
    let roof = roof::Roof::find(&runtime_host);
    let varied = Varied::of(&models, &settings);
    let mut bench = Bench {
        args,
        cases: &cases,
        runtime_host: &runtime_host,
        commit: commit(&runtime_host),
        roof,
        curves: Default::default(),
        varied,
    };
    let mut table = Table::new(args.output, engine_core::terminal::stdout());
    table.expect(models.len() * settings.len() * cases.len());
    table.begin().context("cannot write the results to stdout")?;
    // If a test fails, the earlier results are still printed as a complete table.
    let measured = models.iter().try_for_each(|path| bench.model(path, &settings, &mut table));
    let mut end = || -> io::Result<()> {
        table.end()?;
        match args.output {
            Format::Markdown => write!(engine_core::terminal::stdout(), "{}", bench.curves.draw()),
            _ => Ok(()),
        }
    };
    let ended = end().context("cannot write the results to stdout");
    measured.and(ended)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the settings for `--tuned` from the tuning record. `None` without `--tuned`.
///
/// # Errors
/// If several models are given, or if the record has no entry for the model.
fn tuned(
    args: &Args,
    models: &[PathBuf],
    runtime_host: &RuntimeHost,
) -> llama::error::Result<Option<Requested>> {
    let Some(objective) = &args.tuned else { return Ok(None) };
    let [model] = models else {
        return Err(llama::error::Error::Usage(
            "--tuned accepts only one model\nhint: use -m only once".to_string(),
        ));
    };
    let mut requested = Requested::default();
    args.variant.ask(&mut requested);
    let objective_name = objective.to_string();
    let given = args.tuning.as_deref();
    let found = tuning::look_up(given, model, &requested.variant, Some(&objective_name), runtime_host);
    match found.tuned {
        Some(tuned) => Ok(Some(tuned)),
        None => Err(llama::error::Error::Tune(match found.warnings.first() {
            Some(why) => format!("--tuned {objective}: {why}"),
            None => {
                format!(
                    "--tuned {objective}: the tuning record has no entry for this model on this machine\nhint: create \
                    the entry with `anneal tune --for {objective}`"
                )
            }
        })),
    }
}

/// Inputs that all tests of a run share.
struct Bench<'a> {
    args: &'a Args,
    cases: &'a [Case],
    runtime_host: &'a RuntimeHost,
    commit: String,
    roof: Option<roof::Roof>,
    curves: curve::Curves,
    varied: Varied,
}

impl Bench<'_> {
    /// Runs all tests with the model at `path`. The model is reloaded when the load options change.
    fn model<W: io::Write>(
        &mut self,
        path: &FilePath,
        settings: &[Settings],
        table: &mut Table<W>,
    ) -> Result<()> {
        let work = self.roof.as_ref().and_then(|_| Work::of(path));
        for settings in settings.chunk_by(|a, b| a.model_options() == b.model_options()) {
            let begin = Instant::now();
            let model = model::open(path, &settings[0], self.runtime_host)?;
            let load_ns = u64::try_from(begin.elapsed().as_nanos()).ok();
            for settings in settings {
                // Saved state of the context at the current depth, reused while the settings stay the same.
                let mut depth = None;
                for case in self.cases {
                    let mut record = self.measure(&model, case, settings, &mut depth)?;
                    record.load_ns = load_ns;
                    record.columns.latency = self.args.latency || self.args.end_to_end;
                    if let Some(roof) = &self.roof {
                        roof.hold(&mut record, &model, work.as_ref());
                    }
                    let extra = self.varied.cells(path, settings);
                    table.add_with(&record, &extra).context("cannot write the results to stdout")?;
                    self.curves.add(&record);
                }
            }
        }
        Ok(())
    }

    fn measure(
        &self,
        model: &Arc<Model>,
        case: &Case,
        settings: &Settings,
        depth: &mut Option<(u32, Vec<u8>)>,
    ) -> llama::error::Result<BenchRecord> {
        let repeat = Repeat { samples: self.args.repetitions, warm_up: !self.args.no_warmup };
        let samples = match path(self.args) {
            Path::EndToEnd => end_to_end(model, case, settings, self.runtime_host, repeat)?,
            Path::Kernel => kernel(model, case, settings, self.runtime_host, repeat, depth)?,
        };
        let settings = settings.for_model(model);
        Ok(BenchRecord::new(path(self.args), *case, model, &self.commit, &settings, samples))
    }
}

fn path(args: &Args) -> Path {
    if args.end_to_end { Path::EndToEnd } else { Path::Kernel }
}

/// Returns all tests: for each depth, the prompts, the generations and the pairs. With `--end-to-end`, returns only
/// the pairs.
///
/// # Errors
/// If there is no test, or if a test has too many tokens.
fn cases(args: &Args) -> llama::error::Result<Vec<Case>> {
    let mut cases = Vec::new();
    let (n_prompt, n_gen) = (flat(&args.n_prompt), flat(&args.n_gen));
    for n_depth in flat(&args.n_depth) {
        let case = |n_prompt, n_gen| Case { n_prompt, n_gen, n_depth };
        if args.end_to_end {
            if args.prompt_gen.is_empty() {
                cases.extend(n_prompt.iter().flat_map(|&p| n_gen.iter().map(move |&n| case(p, n))));
            }
        } else {
            cases.extend(n_prompt.iter().map(|&n_prompt| case(n_prompt, 0)));
            cases.extend(n_gen.iter().map(|&n_gen| case(0, n_gen)));
        }
        cases.extend(args.prompt_gen.iter().map(|&(n_prompt, n_gen)| case(n_prompt, n_gen)));
    }
    cases.retain(|case| case.n_prompt > 0 || case.n_gen > 0);
    if cases.is_empty() {
        let why =
            "nothing to measure: every test has 0 tokens\nhint: give a number of tokens with -p, -n or -pg";
        return Err(llama::error::Error::Usage(why.to_string()));
    }
    // Check every test before loading the model, because the first test can take minutes.
    cases.iter().try_for_each(|case| case.n_ctx(path(args)).map(drop))?;
    Ok(cases)
}
