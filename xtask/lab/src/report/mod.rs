//! One page of what was measured: reads files by what they hold, and lays them out. The `report` crate draws it.

mod bench;
mod builds;
mod compared;
mod gather;
mod machine;
mod others;
mod read;
mod repeat;
mod rows;
mod servers;
mod sound;
#[cfg(test)]
mod tests;
mod tuned;
mod write;

use std::path::PathBuf;

use build::compare::Comparison;
use build_info::{BuildInfo, Host, Roofline};
use report::{Block, Report, Section};
use serde_json::Value;

use crate::serving::Served;
pub use gather::gather;
pub use read::read_all;
use rows::Row;
pub use write::Page;

/// What was found, each with the stem of its file's name where people have to tell one from the other.
#[derive(Debug, Default)]
pub struct Inputs {
    /// `cargo xtask detect`.
    hosts: Vec<Host>,
    /// Records of builds.
    builds: Vec<BuildInfo>,
    /// `bench compare`.
    comparisons: Vec<(String, Comparison)>,
    /// `bench serve`.
    servers: Vec<(String, Served)>,
    /// `anneal bench`.
    rows: Vec<Row>,
    /// `anneal bench --roofline`.
    rooflines: Vec<Roofline>,
    /// Entries of tuning records, as they are: fields that are not known here are left aside.
    tunings: Vec<Value>,
    /// `bench build`, `bench overhead`, `optimize`, `validate`: tables without plots.
    others: Vec<(String, Other)>,
    /// The files that were read.
    files: Vec<PathBuf>,
}

/// Results that are shown as a table.
#[derive(Debug)]
enum Other {
    /// `bench build`.
    BuildTimes(Value),
    /// `bench overhead`.
    Overhead(Value),
    /// `optimize`.
    Optimisation(Value),
    /// `validate`.
    Validation(Value),
    /// `validate --steps`.
    Steps(Value),
}

impl Inputs {
    /// Whether there is nothing at all.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty() && self.builds.is_empty() && self.measured_nothing()
    }

    /// Whether there are builds and machines at most.
    pub fn measured_nothing(&self) -> bool {
        self.comparisons.is_empty()
            && self.servers.is_empty()
            && self.rows.is_empty()
            && self.rooflines.is_empty()
            && self.tunings.is_empty()
            && self.others.is_empty()
    }
}

/// The page of `inputs`. Sections that would be empty are left out.
pub fn page(inputs: &Inputs, hostname: bool) -> Report {
    let sections = [
        ("Host", machine::blocks(inputs, hostname)),
        ("Builds", builds::blocks(&inputs.builds)),
        ("Comparisons", compared::blocks(&inputs.comparisons)),
        ("Servers", servers::blocks(&inputs.servers)),
        ("What settings did", tuned::blocks(&inputs.tunings)),
        ("Threads", bench::threads(&inputs.rows)),
        ("Roofline", bench::roofline(&inputs.rows, &inputs.rooflines)),
        ("Jitter", bench::jitter(&inputs.rows)),
        ("PGO and BOLT", builds::gains(&inputs.builds)),
        ("Other results", others::blocks(&inputs.others)),
        ("Commands to repeat", repeat::blocks(inputs)),
    ];
    let filled = sections.into_iter().filter(|(_, blocks)| !blocks.is_empty());
    let mut report = Report {
        title: "What was measured".to_string(),
        lead: machine::lead(inputs),
        sections: filled.map(|(title, blocks)| Section { title: title.to_string(), blocks }).collect(),
    };
    number_plots(&mut report);
    report
}

/// Gives each plot a file of its own.
fn number_plots(report: &mut Report) {
    let plots = report.sections.iter_mut().flat_map(|section| &mut section.blocks);
    let mut number = 0;
    for block in plots {
        if let Block::Plot(plot) = block {
            number += 1;
            plot.name = format!("{number:02}-{}", report::slug(&plot.name));
        }
    }
}

/// `n` things, in words.
fn count(n: usize, one: &str) -> String {
    format!("{n} {one}{}", if n == 1 { "" } else { "s" })
}
