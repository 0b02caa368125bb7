//! Sections with tables only: times of builds and of commands, rankings, validations. The results are read field by
//! field, because new fields are still being added to their formats.

use measure::{Ratio, median};
use report::{Block, Interval, Intervals, Plot, PlotKind, Table};
use serde::Deserialize;
use serde_json::Value;

use super::inputs::Other;
use super::tuned;

impl Other {
    /// Returns the content of the file.
    pub fn value(&self) -> &Value {
        match self {
            Other::BuildTimes(value)
            | Other::Overhead(value)
            | Other::FirstMinutes(value)
            | Other::Optimisation(value)
            | Other::Validation(value)
            | Other::Steps(value) => value,
        }
    }
}

/// Returns a heading and a table for each result.
pub fn blocks(others: &[(String, Other)]) -> Vec<Block> {
    others
        .iter()
        .flat_map(|(name, other)| {
            let about = match other {
                Other::BuildTimes(_) => "build time of llama.cpp with xtask, against plain cmake and ninja",
                Other::Overhead(_) => "overhead of xtask",
                Other::FirstMinutes(_) => "waiting times of newcomers and contributors",
                Other::Optimisation(_) => "fastest build",
                Other::Validation(_) => "validation of a replacement",
                Other::Steps(_) => "validation of several changes",
            };
            let mut blocks = vec![Block::Heading(format!("{name}: {about}"))];
            blocks.extend(match other {
                Other::BuildTimes(value) => build_times(value),
                Other::Overhead(value) => overhead(value),
                Other::FirstMinutes(value) => first_minutes(value),
                Other::Optimisation(value) => ranking(value),
                Other::Validation(value) => checks(value),
                Other::Steps(value) => steps(value),
            });
            blocks
        })
        .collect()
}

/// Formats the median of a list of seconds.
fn seconds(value: &Value, name: &str) -> String {
    let all: Vec<f64> = list(value, name).iter().filter_map(Value::as_f64).collect();
    if all.is_empty() { String::new() } else { format!("{:.1} s", median(&all)) }
}

fn build_times(value: &Value) -> Vec<Block> {
    let row = vec![
        words(value, "profile"),
        seconds(value, "xtask_seconds"),
        seconds(value, "plain_seconds"),
        ratio(&value["ratio"]),
    ];
    vec![table(
        &["profile", "by xtask", "with plain cmake and ninja", "ratio of times, below 1 is faster"],
        vec![row],
    )]
}

fn overhead(value: &Value) -> Vec<Block> {
    let milliseconds =
        |row: &Value, name: &str| row[name].as_f64().map_or(String::new(), |time| format!("{time:.1} ms"));
    let rows = list(value, "commands").iter().map(|row| {
        vec![words(row, "command"), milliseconds(row, "median_ms"), milliseconds(row, "slowest_ms")]
    });
    vec![table(&["command", "median", "slowest"], rows.collect())]
}

fn first_minutes(value: &Value) -> Vec<Block> {
    let rows = list(value, "first_minutes").iter().map(|row| {
        let times = [seconds(row, "against_seconds"), seconds(row, "seconds")];
        let ratio = Ratio::deserialize(&row["ratio"]).map_or(String::new(), |ratio| ratio.with_pairs());
        [words(row, "step")].into_iter().chain(times).chain([ratio]).collect()
    });
    let commit = |name: &str| words(value, name).chars().take(7).collect::<String>();
    let (own, against) = (commit("commit"), commit("against"));
    vec![table(&["step", &against, &own, "ratio of times, below 1 is faster"], rows.collect())]
}

fn ranking(value: &Value) -> Vec<Block> {
    let speed =
        |row: &Value, name: &str| row[name].as_f64().map_or(String::new(), |speed| format!("{speed:.1} t/s"));
    let ranking = list(value, "ranking");
    if ranking.is_empty() {
        return vec![Block::Text("The optimisation is not finished.".to_string())];
    }
    let rows: Vec<Vec<String>> = ranking
        .iter()
        .map(|row| {
            let speeds = [speed(row, "prefill"), speed(row, "decode")];
            let mut cells = vec![words(row, "name")];
            cells.extend(speeds);
            cells.extend([ratio(&row["against_base"]), words(row, "verdict")]);
            cells
        })
        .collect();
    let mut blocks = vec![table(&["build", "prefill", "decode", "against the baseline", "verdict"], rows)];
    let intervals: Vec<Interval> = ranking
        .iter()
        .filter_map(|row| {
            let [median, low, high] = tuned::ratio(&row["against_base"])?;
            Some(Interval { label: words(row, "name"), median, low, high, ..Interval::default() })
        })
        .collect();
    if !intervals.is_empty() {
        blocks.push(Block::Plot(Plot {
            name: "ranking".to_string(),
            title: format!("Builds against {}, for {}", words(value, "baseline"), words(value, "objective")),
            caption: "Prompt and answer together, medians with 95 % intervals; right of 1 is faster."
                .to_string(),
            kind: PlotKind::Intervals(Intervals { rows: intervals }),
        }));
    }
    let winner = words(&value["winner"], "verdict");
    blocks.extend((!winner.is_empty()).then_some(Block::Text(winner)));
    blocks
}

fn checks(value: &Value) -> Vec<Block> {
    let rows = list(value, "checks")
        .iter()
        .map(|check| ["name", "state", "said", "a", "b", "reason"].map(|name| words(check, name)).to_vec());
    let verdict = words(value, "verdict");
    let said = (!verdict.is_empty()).then(|| Block::Text(format!("Verdict: {verdict}.")));
    let table = table(&["check", "state", "result", "A", "B", "reason"], rows.collect());
    unfinished(value).into_iter().chain(said).chain([table]).collect()
}

/// Returns the steps of `validate --steps`.
fn steps(value: &Value) -> Vec<Block> {
    let rows = list(value, "steps").iter().map(|step| {
        let state = match (step["kept"].as_bool(), step["verdict"].as_str()) {
            (Some(true), _) => "kept",
            (_, Some("cannot-tell")) => "dropped (unclear)",
            (_, Some(_)) => "dropped",
            (_, None) => "failed",
        };
        let reason = list(step, "reasons").first().and_then(Value::as_str).unwrap_or_default();
        vec![words(step, "name"), state.to_string(), reason.lines().next().unwrap_or_default().to_string()]
    });
    let table = table(&["step", "state", "reason"], rows.collect());
    unfinished(value).into_iter().chain([table]).collect()
}

/// Returns a remark if the record is incomplete, with the reason.
fn unfinished(value: &Value) -> Option<Block> {
    let stopped = words(value, "stopped");
    (!stopped.is_empty()).then(|| Block::Text(format!("The measurement is not finished: {stopped}.")))
}

fn table(header: &[&str], rows: Vec<Vec<String>>) -> Block {
    Block::Table(Table { header: header.iter().map(|name| name.to_string()).collect(), rows })
}

fn ratio(value: &Value) -> String {
    tuned::ratio(value)
        .map_or(String::new(), |[median, low, high]| format!("{median:.3} [{low:.3}, {high:.3}]"))
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}

fn words(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_default().to_string()
}
