//! Page with all measurements. This module reads files, recognises their kind by content, and lays out the page. The
//! `report` crate renders the page.

mod bench;
mod builds;
mod compared;
mod gather;
mod inputs;
mod machine;
mod operations;
mod others;
mod read;
mod repeat;
mod rows;
mod servers;
#[cfg(test)]
mod tests;
mod tuned;
mod validate_results;
mod write;

use report::{Block, ReportPage, Section};

pub use gather::gather;
pub use inputs::Inputs;
pub use read::read_all;
pub use write::Page;

/// Lays out the page of `inputs`. Empty sections are omitted.
pub fn page(inputs: &Inputs, hostname: bool) -> ReportPage {
    let sections = [
        ("Host", machine::blocks(inputs, hostname)),
        ("Builds", builds::blocks(&inputs.builds)),
        ("Comparisons", compared::blocks(&inputs.comparisons)),
        ("Servers", servers::blocks(&inputs.servers)),
        ("Effects of settings", tuned::blocks(&inputs.tunings)),
        ("Threads", bench::threads(&inputs.rows)),
        ("Operations", operations::blocks(&inputs.operations)),
        ("Roofline", bench::roofline(&inputs.rows, &inputs.rooflines)),
        ("Jitter", bench::jitter(&inputs.rows)),
        ("PGO and BOLT", builds::gains(&inputs.builds)),
        ("Other results", others::blocks(&inputs.others)),
        ("Commands to repeat", repeat::blocks(inputs)),
    ];
    let filled = sections.into_iter().filter(|(_, blocks)| !blocks.is_empty());
    let mut report = ReportPage {
        title: "Measurements".to_string(),
        lead: machine::lead(inputs),
        sections: filled.map(|(title, blocks)| Section { title: title.to_string(), blocks }).collect(),
    };
    number_plots(&mut report);
    report
}

/// Gives each plot a separate file.
fn number_plots(report: &mut ReportPage) {
    let plots = report.sections.iter_mut().flat_map(|section| &mut section.blocks);
    let mut number = 0;
    for block in plots {
        if let Block::Plot(plot) = block {
            number += 1;
            plot.name = format!("{number:02}-{}", report::slug(&plot.name));
        }
    }
}
