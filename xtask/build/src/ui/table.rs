//! Tables.

use build_info::optimized::Gain;
use build_info::record::StageTime;
use comfy_table::{CellAlignment, Table, presets};

/// A table without lines: `header`, then `rows`.
pub fn columns(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    table
}

/// What a build gained in each phase of each model.
pub fn gains(gain: &Gain) -> Table {
    columns(
        &["model", "phase", "times as fast [95 % interval]"],
        gain.phases.iter().map(|phase| {
            let ratio = &phase.ratio;
            vec![
                phase.model.clone(),
                phase.phase.clone(),
                format!("{:.3} [{:.3}, {:.3}]", ratio.median, ratio.low, ratio.high),
            ]
        }),
    )
}

/// Columns of the terminal that standard output is; none where it is none.
pub fn width() -> Option<usize> {
    console::Term::stdout().size_checked().map(|(_, columns)| usize::from(columns))
}

/// Time of each stage of this run, and their sum. Stages in `kept` were done by an earlier run and cost this one nothing.
pub fn stage_times(stages: &[StageTime], kept: &[String]) -> Table {
    let is_kept = |stage: &&StageTime| kept.contains(&stage.name);
    let total: f64 = stages.iter().filter(|stage| !is_kept(stage)).map(|stage| stage.seconds).sum();
    let share = |seconds: f64| if total > 0.0 { 100.0 * seconds / total } else { 0.0 };
    let row = |name: &str, seconds: f64| {
        vec![name.to_string(), format!("{seconds:.1} s"), format!("{:.0} %", share(seconds))]
    };
    let rows = stages.iter().map(|stage| match is_kept(&stage) {
        true => vec![stage.name.clone(), "kept".to_string(), String::new()],
        false => row(&stage.name, stage.seconds),
    });
    let mut rows: Vec<Vec<String>> = rows.collect();
    rows.push(row("total", total));
    let mut table = columns(&["stage", "time", "share"], rows);
    for column in [1, 2] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
