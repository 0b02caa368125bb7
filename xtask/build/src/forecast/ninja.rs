//! Units of ninja: the outputs that its plan lists, and what they took by its log.
//!
//! ninja tells the end of each unit and no start. Its plan (`ninja -n`) lists the units in the order in which they start,
//! so a unit is assumed to start when a slot is free and all before it have started. The log has the exact times, so the
//! records hold no assumption.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Forecast, Took, Unit};

/// A line of ninja's: `[12/200] Building CXX object …/x.cpp.o`.
struct NinjaLine<'a> {
    done: u64,
    output: &'a str,
}

fn line(text: &str) -> Option<NinjaLine<'_>> {
    let (counts, what) = text.strip_prefix('[')?.split_once("] ")?;
    let (done, total) = counts.split_once('/')?;
    total.parse::<u64>().ok()?;
    Some(NinjaLine { done: done.parse().ok()?, output: what.rsplit(' ').next().unwrap_or(what) })
}

/// Output that a line of ninja tells the end of.
pub fn ended(text: &str) -> Option<&str> {
    line(text).map(|line| line.output)
}

/// Name of an output for people: its file without the suffix of objects.
fn label(output: &str) -> &str {
    output.rsplit('/').next().unwrap_or(output).trim_end_matches(".o")
}

/// Units that the plan `plan`, printed by `ninja -n`, lists, those in `first` before all others. `records` are durations by
/// outputs.
pub fn units(plan: &str, first: &[String], records: &BTreeMap<String, Took>) -> Vec<Unit> {
    let outputs: Vec<&str> =
        plan.lines().filter_map(line).filter(|line| line.done > 0).map(|line| line.output).collect();
    let is_first = |output: &str| first.iter().any(|other| other == output);
    let begin = first.iter().map(String::as_str).filter(|output| outputs.contains(output));
    let rest = outputs.iter().copied().filter(|output| !is_first(output));
    let unit = |output: &str| Unit {
        name: output.to_string(),
        label: label(output).to_string(),
        took: records.get(output).copied(),
        counted: true,
        after: Vec::new(),
    };
    begin.chain(rest).map(unit).collect()
}

/// ninja begins: it runs `jobs` units side by side.
pub fn begin(forecast: &mut Forecast, jobs: usize, now: f64) {
    // An earlier ninja for some of the targets ended with units that were assumed to run.
    for _ in forecast.running()..jobs {
        start_next(forecast, now);
    }
}

/// The unit that made `output` has ended, so the next one starts.
pub fn end(forecast: &mut Forecast, output: &str, now: f64) {
    forecast.end(output, now, None);
    start_next(forecast, now);
}

fn start_next(forecast: &mut Forecast, now: f64) {
    if let Some((name, label)) = forecast.next() {
        forecast.start(&name, &label, now);
    }
}

/// Durations of the units that ran now, by ninja's log `text`: the last entry of each output.
pub fn took(text: &str, forecast: &Forecast) -> BTreeMap<String, Took> {
    let ran = forecast.took();
    let entry = |line: &str| {
        let mut fields = line.split('\t');
        let (start, end): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let output = fields.nth(1)?;
        let seconds = end.checked_sub(start)? as f64 / 1000.0;
        ran.contains_key(output).then(|| (output.to_string(), Took::whole(seconds)))
    };
    text.lines().filter_map(entry).collect()
}

/// Reads ninja's log in the build folder `folder`; nothing where there is none.
pub fn log(folder: &Path) -> String {
    std::fs::read(folder.join(".ninja_log"))
        .map_or_else(|_| String::new(), |text| String::from_utf8_lossy(&text).into_owned())
}
