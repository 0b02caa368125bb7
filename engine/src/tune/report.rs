//! What a tuning found, for people.

use std::fmt::Write as _;

use build_info::tuning::{Chosen, Confirmation, Entry, Stage};

use super::Objective;
use crate::settings::Explained;

/// The result of one tuning; `defaults` are the settings without it.
pub fn entry(entry: &Entry, defaults: &[Explained]) -> String {
    let mut out = String::new();
    let model = &entry.key.model;
    let (prompt, generated) = entry.tokens;
    let _ = writeln!(
        out,
        "{} {} of {} with {} layers, for {} ({prompt} prompt tokens and {generated} generated)",
        model.architecture, model.quantisation, model.weights, model.layers, entry.key.objective
    );
    let _ = writeln!(out, "{}, {}", entry.key.cpu.name, entry.key.cpu.given());
    let _ = writeln!(out, "tuned {} in {:.0} s of {:.0} s", entry.date, entry.seconds, entry.budget_seconds);
    let rows = rows(entry, defaults);
    if !rows.is_empty() {
        out.push('\n');
        out.push_str(&table(&rows));
    }
    if let Some(found) = &entry.confirmation {
        out.push('\n');
        out.push_str(&confirmation(found, entry.tokens));
    }
    for note in &entry.notes {
        let _ = writeln!(out, "note: {note}");
    }
    for stage in entry.stages.iter().filter(|stage| stage.cut_short.is_some()) {
        let _ = writeln!(out, "{}: {}", stage.name, stage.cut_short.as_deref().unwrap_or_default());
    }
    out
}

/// Setting, value without tuning, value chosen, and how many times as fast that made it.
fn rows(entry: &Entry, defaults: &[Explained]) -> Vec<[String; 4]> {
    let mut rows = vec![["setting", "default", "chosen", "times as fast"].map(String::from)];
    let mut before = Chosen::default();
    for stage in &entry.stages {
        let Some(winner) = stage.candidates.get(stage.winner as usize) else { continue };
        let old = before.named();
        for (name, value) in winner.settings.named() {
            if old.contains(&(name, value.clone())) {
                continue;
            }
            let default = defaults.iter().find(|line| line.name == name).map_or("", |line| &line.value);
            let ratio = winner.ratio.map_or(String::new(), |ratio| ratio.to_string());
            rows.push([name.to_string(), default.to_string(), value, ratio]);
        }
        before = winner.settings.clone();
    }
    if rows.len() == 1 {
        rows.clear();
    }
    rows
}

fn table(rows: &[[String; 4]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [0, 1, 2, 3].map(width);
    rows.iter()
        .map(|row| {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_string() + "\n"
        })
        .collect()
}

fn confirmation(found: &Confirmation, (prompt, generated): (u32, u32)) -> String {
    let mut out = format!(
        "tuned against the defaults, times as fast (median of {} pairs, 95 % interval):\ntotal    {}\n",
        found.total.pairs, found.total
    );
    // A phase that does not count was not run.
    for (name, tokens, ratio) in [("prefill", prompt, found.prefill), ("decode ", generated, found.decode)] {
        if tokens > 0 {
            let _ = writeln!(out, "{name}  {ratio}");
        }
    }
    out
}

/// One line of a stage that is over.
pub fn stage(stage: &Stage) -> String {
    let runs: usize = stage.candidates.iter().map(|candidate| candidate.samples.len()).sum();
    match (stage.candidates.get(stage.winner as usize), &stage.cut_short) {
        (Some(winner), _) if stage.winner > 0 => {
            let ratio = winner.ratio.map_or(String::new(), |ratio| format!(", {ratio} times as fast"));
            format!("{}: {}{ratio} ({runs} runs)", stage.name, winner.name)
        }
        (_, Some(why)) if runs == 0 => format!("{}: {why}", stage.name),
        _ => format!("{}: stays as it is, nothing is faster ({runs} runs)", stage.name),
    }
}

/// What would be tried.
pub fn dry_run(objective: &Objective, stages: &[super::Stage], budget: f64) -> String {
    let mut out = format!(
        "for {objective}: {} prompt tokens and {} generated; at most {budget:.0} s\n",
        objective.prompt, objective.generate
    );
    for stage in stages {
        let names: Vec<&str> = stage.changes.iter().map(|change| change.name.as_str()).collect();
        let _ = writeln!(out, "{:<16} as before | {}", stage.name, names.join(" | "));
    }
    out
}
