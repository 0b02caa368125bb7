//! Units of ninja: the outputs in its plan, and their durations from its log.
//!
//! ninja reports the end of each unit but not its start. Its plan (`ninja -n`) lists the units in the order in which
//! they start. A unit is therefore assumed to start when a slot is free and all units before it have started. The log
//! contains the exact times, so the records do not depend on these assumptions.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Forecast, Took, Unit};

/// Progress line of ninja: `[12/200] Building CXX object …/x.cpp.o`.
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

/// Returns the output that a progress line reports as finished.
pub fn ended(text: &str) -> Option<&str> {
    line(text).map(|line| line.output)
}

/// Returns the label of an output: its file name without the suffix of object files.
fn label(output: &str) -> &str {
    output.rsplit('/').next().unwrap_or(output).trim_end_matches(".o")
}

/// Returns the units in `plan`, the output of `ninja -n`; units in `first` come before all others. `records` maps
/// outputs to their recorded durations.
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

/// Marks the first units as started when ninja begins, so that `jobs` of them run in parallel.
pub fn begin(forecast: &mut Forecast, jobs: usize, now: f64) {
    // An earlier ninja run for some of the targets may have left units that are still assumed to be running.
    for _ in forecast.running()..jobs {
        start_next(forecast, now);
    }
}

/// Marks the unit that made `output` as ended and the next unit as started.
pub fn end(forecast: &mut Forecast, output: &str, now: f64) {
    forecast.end(output, now, None);
    start_next(forecast, now);
}

fn start_next(forecast: &mut Forecast, now: f64) {
    if let Some((name, label)) = forecast.next() {
        forecast.start(&name, &label, now);
    }
}

/// Returns the durations of the units in this run from ninja's log `text`. The last entry of each output counts.
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

/// Reads ninja's log in the build folder `folder`; returns an empty text if it cannot be read.
pub fn log(folder: &Path) -> String {
    std::fs::read(folder.join(".ninja_log"))
        .map_or_else(|_| String::new(), |text| String::from_utf8_lossy(&text).into_owned())
}
