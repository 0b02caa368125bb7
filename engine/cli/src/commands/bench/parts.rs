//! Command `anneal bench --parts`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use engine_core::model;
use engine_core::runtime_host::RuntimeHost;
use engine_core::sample_text::TEXT;
use engine_core::settings::Settings;
use llama::Model;
use tune::bench::parts::{Part, detokenize, loading, sample, tokenize};
use tune::bench::{BenchSubject, Case, PartRecord, Repeat, Samples, kernel};

use super::args::Args;
use super::varied::Varied;
use super::version::commit;
use crate::commands::table::{Table, UNWRITABLE};

/// Inputs that all timings share.
struct Bench<'a> {
    args: &'a Args,
    cases: &'a [Case],
    runtime_host: &'a RuntimeHost,
    text: String,
    repeat: Repeat,
}

/// Times every part of each model, for each combination of settings.
pub fn run(
    args: &Args,
    models: &[PathBuf],
    settings: &[Settings],
    cases: &[Case],
    runtime_host: &RuntimeHost,
) -> Result<ExitCode> {
    let text = match &args.text {
        Some(path) => {
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?
        }
        None => TEXT.to_string(),
    };
    let repeat = Repeat { samples: args.repetitions, warm_up: !args.no_warmup };
    let bench = Bench { args, cases, runtime_host, text, repeat };
    let varied = Varied::of(models, settings);
    Table::new(args.output, engine_core::terminal::stdout()).print(|table| {
        for path in models {
            for settings in settings {
                let extra = varied.cells(path, settings);
                for record in bench.measure(path, settings)? {
                    table.add_with(&record, &extra).context(UNWRITABLE)?;
                }
            }
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

impl Bench<'_> {
    /// Times all parts of the model at `path`. Loading is timed first, because two copies of the model may not fit into
    /// memory.
    fn measure(&self, path: &Path, settings: &Settings) -> llama::error::Result<Vec<PartRecord>> {
        let (runtime_host, repeat) = (self.runtime_host, self.repeat);
        let open = || model::open(path, settings, runtime_host);
        let mut loads = Vec::new();
        for &part in &self.args.parts {
            if matches!(part, Part::Load | Part::Vocab | Part::Gguf) {
                loads.push((part, loading(part, path, settings, repeat, &open)?));
            }
        }
        let model = open()?;
        let subject = subject(&model, runtime_host);
        let record =
            |part, case, n_threads, measured| PartRecord::new(part, case, n_threads, &subject, measured);
        let mut records: Vec<PartRecord> =
            loads.into_iter().map(|(part, measured)| record(part, None, 1, measured)).collect();
        let (decode_threads, prefill_threads) =
            (settings.decode_threads.value, settings.prefill_threads.value);
        for &part in &self.args.parts {
            match part {
                Part::Load | Part::Vocab | Part::Gguf => {}
                Part::Prefill => {
                    records.extend(self.kernel(&model, settings, false, &|case, measured| {
                        record(part, Some(case), prefill_threads, measured)
                    })?)
                }
                Part::Decode => records.extend(self.kernel(&model, settings, true, &|case, measured| {
                    record(part, Some(case), decode_threads, measured)
                })?),
                Part::Tokenize => records.push(record(part, None, 1, tokenize(&model, &self.text, repeat)?)),
                Part::Detokenize => {
                    records.push(record(part, None, 1, detokenize(&model, &self.text, repeat)?));
                }
                Part::Sample | Part::Greedy => {
                    let measured = sample(&model, part, &self.text, settings, runtime_host, repeat)?;
                    records.push(record(part, None, 1, measured));
                }
            }
        }
        Ok(records)
    }

    /// Times tests that only prefill, or only decode.
    fn kernel(
        &self,
        model: &Arc<Model>,
        settings: &Settings,
        decode: bool,
        record: &dyn Fn(Case, (u64, Samples)) -> PartRecord,
    ) -> llama::error::Result<Vec<PartRecord>> {
        let mut depth = None;
        let cases: Vec<Case> = self.cases.iter().copied().filter(|case| (case.n_gen > 0) == decode).collect();
        if cases.is_empty() {
            let (part, flag) = if decode { ("decode", "-n") } else { ("prefill", "-p") };
            return Err(llama::error::Error::Usage(format!(
                "--parts {part} needs a number of tokens\nhint: add {flag} N"
            )));
        }
        cases
            .into_iter()
            .map(|case| {
                let samples = kernel(model, &case, settings, self.runtime_host, self.repeat, &mut depth)?;
                Ok(record(case, (u64::from(case.n_prompt) + u64::from(case.n_gen), samples)))
            })
            .collect()
    }
}

fn subject(model: &Model, runtime_host: &RuntimeHost) -> BenchSubject {
    BenchSubject {
        build_commit: commit(runtime_host),
        model_filename: model.path().to_string_lossy().into_owned(),
        model_type: model.description(),
        model_size: model.size(),
        model_n_params: model.n_params(),
        n_vocab: model.n_vocab(),
    }
}
