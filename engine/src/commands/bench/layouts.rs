//! `anneal bench --end-to-end --compare-layouts`

use std::io;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use engine::bench::{Case, LayoutRecord, Repeat, compare_layouts};
use engine::live::Live;
use engine::settings::Settings;
use engine::split::Layouts;
use measure::median;
use serde_json::Value;

use super::{Args, commit};
use crate::commands::table::{Row, Table};

/// Compares the layouts in every test under each of the settings.
pub fn run(
    args: &Args,
    layouts: &Layouts,
    settings: &[Settings],
    cases: &[Case],
    live: &Live,
) -> Result<ExitCode> {
    let repeat = Repeat { samples: args.repetitions, warm_up: !args.no_warmup };
    let commit = commit(live);
    let mut table = Table::new(args.output, io::stdout().lock());
    table.begin().context("cannot write the results to stdout")?;
    for settings in settings {
        for case in cases {
            for record in compare_layouts(layouts, case, &commit, settings, live, repeat)? {
                table.add(&record).context("cannot write the results to stdout")?;
            }
        }
    }
    table.end().context("cannot write the results to stdout")?;
    Ok(ExitCode::SUCCESS)
}

impl Row for LayoutRecord {
    fn table(&self) -> &'static str {
        "anneal_layouts"
    }

    fn fields(&self) -> Vec<(&'static str, Value)> {
        LayoutRecord::fields(self)
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
            self.ratio,
            self.ratio.verdict(),
        )
    }
}
