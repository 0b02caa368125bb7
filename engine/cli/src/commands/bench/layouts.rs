//! Command `anneal bench --end-to-end --compare-layouts`.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::Settings;
use engine_core::split::Layouts;
use measure::{FEWEST_PAIRS, median};
use tune::bench::{Case, LayoutRecord, Repeat, compare_layouts};

use super::args::Args;
use super::varied::Varied;
use super::version::commit;
use crate::commands::table::{ResultRow, Table, UNWRITABLE};

/// Compares the layouts in every test, for each of the settings.
pub fn run(
    args: &Args,
    layouts: &Layouts,
    settings: &[Settings],
    cases: &[Case],
    runtime_host: &RuntimeHost,
) -> Result<ExitCode> {
    let repeat = Repeat { samples: args.repetitions, warm_up: !args.no_warmup };
    let commit = commit(runtime_host);
    if (args.repetitions as usize) < FEWEST_PAIRS {
        let _ = writeln!(
            io::stderr(),
            "note: fewer than {FEWEST_PAIRS} pairs cannot show a difference; measure more with -r {FEWEST_PAIRS}"
        );
    }
    let path = layouts.model().path().to_path_buf();
    let varied = Varied::of(std::slice::from_ref(&path), settings);
    Table::new(args.output, engine_core::terminal::stdout()).print(|table| {
        for settings in settings {
            let extra = varied.cells(&path, settings);
            for case in cases {
                for record in compare_layouts(layouts, case, &commit, settings, runtime_host, repeat)? {
                    table.add_with(&record, &extra).context(UNWRITABLE)?;
                }
            }
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

impl ResultRow for LayoutRecord {
    fn table(&self) -> &'static str {
        "anneal_layouts"
    }

    fn head(&self) -> String {
        format!(
            "| {:<30} | {:>15} | {:<8} | {:>9} | {:>9} | {:>20} | {:<19} |\n| {:-<30} | {:->14}: | {:-<8} | {:->8}: | \
             {:->8}: | {:->19}: | {:-<19} |",
            "model", "test", "against", "its s", "split s", "times as fast", "", "", "", "", "", "", "", ""
        )
    }

    fn line(&self) -> String {
        let seconds = |ns: &[u64]| median(&ns.iter().map(|ns| *ns as f64 / 1e9).collect::<Vec<f64>>());
        format!(
            "| {:<30} | {:>15} | {:<8} | {:>9.3} | {:>9.3} | {:>20} | {:<19} |",
            self.model_type,
            format!("pp{}+tg{}", self.case.n_prompt, self.case.n_gen),
            self.against,
            seconds(&self.other.ns),
            seconds(&self.split.ns),
            // Too few pairs give no interval; the verdict states this reason.
            match self.ratio.pairs < FEWEST_PAIRS {
                true => format!("{:.3}", self.ratio.median),
                false => self.ratio.to_string(),
            },
            self.ratio.verdict(),
        )
    }
}
