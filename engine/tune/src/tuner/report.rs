//! Text of a tuning result.

use std::cmp::Ordering::Equal;
use std::fmt::Write as _;

use build_info::tuning::{Chosen, Confirmation, Entry, Interval, Stage};
use engine_core::settings::Explained;
use measure::FEWEST_PAIRS;

use super::objective::Objective;

/// Formats the result of one tuning run, including each of its stages. `defaults` are the untuned settings.
pub fn entry(entry: &Entry, defaults: &[Explained]) -> String {
    let mut out = summary(entry, defaults);
    if !entry.stages.is_empty() {
        out.push('\n');
    }
    for found in &entry.stages {
        let _ = writeln!(out, "{}", stage(found));
    }
    out
}

/// Formats the result of one tuning run without its stages.
pub fn summary(entry: &Entry, defaults: &[Explained]) -> String {
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
    out
}

/// Returns one row per changed setting, with its name, untuned value, chosen value and speed-up. Empty if the defaults
/// stay because the stages' choice was not confirmed.
fn rows(entry: &Entry, defaults: &[Explained]) -> Vec<[String; 4]> {
    if entry.chosen.is_default() {
        return Vec::new();
    }
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
    // A phase with weight 0 was not run.
    for (name, tokens, ratio) in [("prefill", prompt, found.prefill), ("decode ", generated, found.decode)] {
        if tokens > 0 {
            let _ = writeln!(out, "{name}  {ratio}");
        }
    }
    out
}

/// Formats one line about a finished stage.
pub fn stage(stage: &Stage) -> String {
    let runs: usize = stage.candidates.iter().map(|candidate| candidate.samples.len()).sum();
    let name = &stage.name;
    let winner = stage.candidates.get(stage.winner as usize).filter(|_| stage.winner > 0);
    match (winner, &stage.cut_short) {
        (Some(winner), why) => {
            let ratio = winner.ratio.map_or(String::new(), |ratio| format!(", {ratio} times as fast"));
            let why = why.as_ref().map_or(String::new(), |why| format!("; {why}"));
            format!("{name}: {}{ratio}{why} ({runs} runs)", winner.name)
        }
        (None, Some(why)) if runs == 0 => format!("{name}: {why}"),
        (None, Some(why)) => format!("{name}: unchanged ({why}){} ({runs} runs)", rejected(stage)),
        (None, None) => {
            format!(
                "{name}: unchanged, because no candidate is shown to be faster{} ({runs} runs)",
                rejected(stage)
            )
        }
    }
}

/// Describes the best rejected candidate: the fastest of the candidates that remained in the contest longest.
fn rejected(stage: &Stage) -> String {
    // An interval from too few pairs is meaningless.
    let known = |ratio: &Interval| ratio.pairs as usize >= FEWEST_PAIRS;
    let measured = stage
        .candidates
        .iter()
        .skip(1)
        .filter_map(|candidate| Some((candidate, candidate.ratio.filter(known)?)));
    let best = measured
        .max_by(|(_, a), (_, b)| (a.pairs, a.median).partial_cmp(&(b.pairs, b.median)).unwrap_or(Equal));
    best.map_or(String::new(), |(candidate, ratio)| {
        let dropped = match &candidate.dropped {
            // If the candidate was only slower, the ratio shows that.
            Some(why) if ratio.median > 1.0 => format!(", {why}"),
            _ => String::new(),
        };
        format!(
            "; the best alternative, {}: {ratio} times as fast in {} pairs{dropped}",
            candidate.name, ratio.pairs
        )
    })
}

/// Lists the stages and candidates that a tuning run would try.
pub fn dry_run(objective: &Objective, stages: &[super::space::TuningStage], budget: f64) -> String {
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
