//! Command `anneal bench --ops`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use engine_core::model;
use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::Settings;
use tune::bench::work::Work;
use tune::bench::{Case, OperationTest, Repeat, case_threads, operations};

use super::args::Args;
use super::roof::Roof;
use super::varied::Varied;
use super::version::commit;
use crate::commands::table::{Table, UNWRITABLE};

/// Times the operations of every test, for each model and each combination of settings.
pub fn run(
    args: &Args,
    models: &[PathBuf],
    settings: &[Settings],
    cases: &[Case],
    runtime_host: &RuntimeHost,
) -> Result<ExitCode> {
    let repeat = Repeat { samples: args.repetitions, warm_up: !args.no_warmup };
    let (commit, roof, varied) =
        (commit(runtime_host), Roof::find(runtime_host), Varied::of(models, settings));
    Table::new(args.output, engine_core::terminal::stdout()).print(|table| {
        for path in models {
            let weights = Work::of(path).map_or(u64::MAX, |work| work.weights());
            for settings in settings.chunk_by(|a, b| a.model_options() == b.model_options()) {
                let model = model::open(path, &settings[0], runtime_host)?;
                for settings in settings {
                    // Saved state of the context at the current depth, reused while the settings stay the same.
                    let mut depth = None;
                    let extra = varied.cells(path, settings);
                    for case in cases {
                        let threads = case_threads(case, &settings.for_model(&model));
                        let limits = roof.as_ref().and_then(|roof| roof.limits(weights, threads));
                        let test = OperationTest { case, settings, repeat, commit: &commit, limits };
                        let records = operations(&model, &test, runtime_host, &mut depth)?;
                        for record in &records {
                            table.add_with(record, &extra).context(UNWRITABLE)?;
                        }
                    }
                }
            }
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}
