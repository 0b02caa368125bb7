//! Tables for the terminal.

use build_info::optimized::Gain;
use build_info::record::StageTime;
use comfy_table::{CellAlignment, Table, presets};

/// Creates a table without ruling: `header`, then `rows`.
pub fn columns(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    table
}

/// Returns a table of a build's gain in each phase on each model.
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

/// Returns the number of columns of the terminal, or `None` if standard output is not a terminal.
pub fn width() -> Option<usize> {
    console::Term::stdout().size_checked().map(|(_, columns)| usize::from(columns))
}

/// Returns a table with the time of each of `stages` in this run, and their sum. Stages that are not in `ran` were
/// executed by an earlier run and take no time in this run.
pub fn stage_times(stages: &[StageTime], ran: &[StageTime]) -> Table {
    // `Iterator::sum` would return -0 for an empty list.
    let total = ran.iter().map(|stage| stage.seconds).fold(0.0, |all, seconds| all + seconds);
    let share = |seconds: f64| if total > 0.0 { 100.0 * seconds / total } else { 0.0 };
    let row = |name: &str, seconds: f64| {
        vec![name.to_string(), format!("{seconds:.1} s"), format!("{:.0} %", share(seconds))]
    };
    let rows = stages.iter().map(|stage| match ran.iter().find(|own| own.name == stage.name) {
        Some(own) => row(&own.name, own.seconds),
        None => vec![stage.name.clone(), "kept".to_string(), String::new()],
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_that_of_this_run() {
        let stage =
            |name: &str, seconds: f64| StageTime { name: name.to_string(), seconds, cpu_seconds: None };
        let stages = [stage("compile", 131.0), stage("engine", 130.5), stage("gate", 7.6)];
        let lines = |ran: &[StageTime]| -> Vec<Vec<String>> {
            let text = stage_times(&stages, ran).to_string();
            text.lines().map(|line| line.split_whitespace().map(str::to_string).collect()).collect()
        };
        // The compilation dates from an earlier run, and only part of the gate ran now.
        assert_eq!(
            lines(&[stage("engine", 130.5), stage("gate", 1.5)]),
            [
                vec!["stage", "time", "share"],
                vec!["compile", "kept"],
                vec!["engine", "130.5", "s", "99", "%"],
                vec!["gate", "1.5", "s", "1", "%"],
                vec!["total", "132.0", "s", "100", "%"],
            ]
        );
        assert_eq!(lines(&[]).last().unwrap(), &["total", "0.0", "s", "0", "%"]);
    }
}
