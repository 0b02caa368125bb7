//! Section about tuning: the chosen settings, and their comparison with the defaults. Entries are read field by
//! field, so that entries of other versions show the fields that this version knows.

use build_info::Bytes;
use build_info::words::count;
use report::{Block, Interval, Intervals, Plot, PlotKind, Table};
use serde_json::Value;

/// Returns a table of the chosen settings, and a plot of the intervals for each setting.
pub fn blocks(entries: &[Value]) -> Vec<Block> {
    if entries.is_empty() {
        return Vec::new();
    }
    let header = ["model", "for", "chosen", "total against the defaults", "took", "date"];
    let table =
        Table { header: header.map(str::to_string).to_vec(), rows: entries.iter().map(row).collect() };
    let mut blocks = vec![Block::Table(table)];
    blocks.extend(entries.iter().filter_map(confirmation).map(Block::Plot));
    blocks.extend(entries.iter().filter_map(candidates).map(Block::Plot));
    blocks
}

/// Returns architecture, layers and quantisation.
fn model(entry: &Value) -> String {
    let model = &entry["key"]["model"];
    let words = |name: &str| model[name].as_str().unwrap_or("?").to_string();
    let layers =
        model["layers"].as_u64().map_or(String::new(), |layers| format!(", {}", count(layers, "layer")));
    let size = model["weights"].as_u64().map_or(String::new(), |size| format!(", {}", Bytes(size)));
    format!("{} {}{layers}{size}", words("architecture"), words("quantisation"))
}

fn objective(entry: &Value) -> &str {
    entry["key"]["objective"].as_str().unwrap_or("?")
}

fn row(entry: &Value) -> Vec<String> {
    let chosen: Vec<String> = entry["chosen"]
        .as_object()
        .map(|chosen| chosen.iter().map(|(name, value)| setting(name, value)).collect())
        .unwrap_or_default();
    let total = ratio(&entry["confirmation"]["total"]);
    let date = entry["date"].as_str().unwrap_or_default();
    vec![
        model(entry),
        objective(entry).to_string(),
        if chosen.is_empty() { "the defaults are kept".to_string() } else { chosen.join(", ") },
        total.map_or(String::new(), |[median, low, high]| format!("{median:.3} [{low:.3}, {high:.3}]")),
        entry["seconds"].as_f64().map_or(String::new(), |seconds| format!("{seconds:.0} s")),
        date.get(..10).unwrap_or(date).to_string(),
    ]
}

fn setting(name: &str, value: &Value) -> String {
    let value = match value {
        Value::Bool(true) => "on".to_string(),
        Value::Bool(false) => "off".to_string(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    format!("{} {value}", name.replace('_', " "))
}

/// Returns the median, lower end and upper end of a ratio.
pub fn ratio(value: &Value) -> Option<[f64; 3]> {
    Some([value["median"].as_f64()?, value["low"].as_f64()?, value["high"].as_f64()?])
}

fn interval(group: &str, label: &str, value: &Value, series: usize) -> Option<Interval> {
    let [median, low, high] = ratio(value)?;
    let pairs = value["pairs"].as_u64().map_or(String::new(), |pairs| count(pairs, "pair"));
    let (group, label) = (group.to_string(), label.to_string());
    Some(Interval { group, label, value: pairs, series, median, low, high, ..Interval::default() })
}

fn confirmation(entry: &Value) -> Option<Plot> {
    let confirmation = &entry["confirmation"];
    let rows = ["total", "prefill", "decode"].into_iter().enumerate();
    let rows: Vec<Interval> =
        rows.filter_map(|(number, name)| interval("", name, &confirmation[name], number)).collect();
    (!rows.is_empty()).then(|| Plot {
        name: format!("tuned {} {}", model(entry), objective(entry)),
        title: format!("{}, tuned for {}", model(entry), objective(entry)),
        caption:
            "All chosen settings together, against the defaults: medians of paired runs with 95 % intervals; \
             right of 1 is faster."
                .to_string(),
        kind: PlotKind::Intervals(Intervals { rows }),
    })
}

/// Returns a plot of the effect of each single setting during the search.
fn candidates(entry: &Value) -> Option<Plot> {
    let stages = entry["stages"].as_array()?;
    let rows: Vec<Interval> = stages
        .iter()
        .enumerate()
        .flat_map(|(number, stage)| {
            let name = stage["name"].as_str().unwrap_or("?");
            let candidates = stage["candidates"].as_array().into_iter().flatten();
            candidates.filter_map(move |candidate| {
                interval(name, candidate["name"].as_str().unwrap_or("?"), &candidate["ratio"], number)
            })
        })
        .collect();
    (!rows.is_empty()).then(|| Plot {
        name: format!("settings {} {}", model(entry), objective(entry)),
        title: format!("{}, for {}: one setting at a time", model(entry), objective(entry)),
        caption:
            "Each candidate against the best setting so far, by the time of prompt and answer together; right \
             of 1 is faster. Candidates that were dropped early have wide intervals or none."
                .to_string(),
        kind: PlotKind::Intervals(Intervals { rows }),
    })
}
