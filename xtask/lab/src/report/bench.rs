//! Sections about rows of `anneal bench`: speed by number of threads, share of the roofline, and variation of the
//! times.

use std::collections::{BTreeMap, BTreeSet};

use build_info::Roofline;
use build_info::roofline::Rates;
use build_info::words::count;
use measure::quantile;
use report::{Block, Curves, Plot, PlotKind, Point, Roof, Series, Spread, Spreads, Table};

use super::rows::TestRow;

/// Returns the rows of one test with the same settings, sorted by number of threads. If a test was repeated, the last
/// run counts.
fn curve(rows: &[&TestRow]) -> Vec<(f64, f64, f64)> {
    let mut newest: BTreeMap<u64, &TestRow> = BTreeMap::new();
    for row in rows {
        let known = newest.entry(row.threads).or_insert(row);
        if row.date >= known.date {
            *known = row;
        }
    }
    newest.into_iter().map(|(threads, row)| (threads as f64, row.speed.0, row.speed.1)).collect()
}

/// Returns a plot for each model and kind of test that ran with several numbers of threads. Also returns a table of
/// all other tests.
pub fn threads(rows: &[TestRow]) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut alone: Vec<&TestRow> = Vec::new();
    for (model, kind) in kinds(rows) {
        let of_kind: Vec<&TestRow> =
            rows.iter().filter(|row| row.model == model && row.kind() == kind).collect();
        let mut groups: BTreeMap<(String, String), Vec<&TestRow>> = BTreeMap::new();
        for row in &of_kind {
            // By default, prefill uses the same number of threads as the test, so that number does not distinguish
            // curves.
            let settings = row.apart(&of_kind, &["prefill threads"]);
            groups.entry((row.test(), settings)).or_default().push(row);
        }
        let mut series = Vec::new();
        for ((test, settings), rows) in groups {
            let points = curve(&rows);
            if points.len() > 1 {
                let name = if settings.is_empty() { test } else { format!("{test}, {settings}") };
                series.push(Series { name, points });
            } else {
                alone.extend(rows);
            }
        }
        if !series.is_empty() {
            blocks.push(Block::Plot(thread_plot(&model, kind, series)));
        }
    }
    if !alone.is_empty() {
        blocks.push(Block::Table(table(&alone)));
    }
    blocks
}

/// Returns each model and kind of test once, in the order of the rows.
fn kinds(rows: &[TestRow]) -> Vec<(String, &'static str)> {
    let mut seen = BTreeSet::new();
    let all = rows.iter().map(|row| (row.model.clone(), row.kind()));
    all.filter(|kind| seen.insert(kind.clone())).collect()
}

fn thread_plot(model: &str, kind: &str, series: Vec<Series>) -> Plot {
    Plot {
        name: format!("threads {model} {kind}"),
        title: format!("{model}: {kind}"),
        caption:
            "Mean tokens per second by number of threads; bars show one standard deviation of the samples \
             on either side. Rows of one file were measured one after the other, not interleaved."
                .to_string(),
        kind: PlotKind::Curves(Curves {
            x: "threads".to_string(),
            y: "tokens per second".to_string(),
            series,
        }),
    }
}

fn table(rows: &[&TestRow]) -> Table {
    let row = |row: &&TestRow| {
        vec![
            row.model.clone(),
            row.test(),
            row.threads.to_string(),
            format!("{:.2} ± {:.2}", row.speed.0, row.speed.1),
            row.samples.to_string(),
            row.apart(rows, &[]),
        ]
    };
    Table {
        header: ["model", "test", "threads", "t/s", "samples", ""].map(str::to_string).to_vec(),
        rows: rows.iter().map(row).collect(),
    }
}

/// Returns the limits of the machine, and the tests with a known share of these limits.
pub fn roofline(rows: &[TestRow], rooflines: &[Roofline]) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for roofline in rooflines {
        let Some(most) = roofline.rates.last() else { continue };
        let points = best(rows.iter().filter(|row| row.cpu == roofline.cpu));
        let points = points.into_iter().filter_map(|row| point(row, roofline)).collect();
        let bf16 = most.bf16_macs.map(|macs| Roof { name: "bf16".to_string(), macs });
        let mut roofs = vec![
            Roof { name: "int8 dot products".to_string(), macs: most.int8_macs },
            Roof { name: "f32".to_string(), macs: most.f32_macs },
        ];
        let wide =
            most.int8_wide_macs.map(|macs| Roof { name: "int8 dot products, 32-bit sums".to_string(), macs });
        roofs.extend(wide);
        roofs.extend(bf16);
        blocks.push(Block::Plot(Plot {
            name: format!("roofline {}", roofline.cpu),
            title: format!("{}, {}", roofline.cpu, count(most.threads, "thread")),
            caption: "The slope is the memory limit; the flat lines are the limits of the vector units. No \
                      point can lie above them. Decode reads each weight once per token, so its points are \
                      on the left; prefill reads each weight once per graph, so its points are on the \
                      right. Each point is the best run of a test; its label is the share of the limit that \
                      the run reached."
                .to_string(),
            kind: PlotKind::Roofline(report::Roofline { bandwidth: most.read_bytes, roofs, points }),
        }));
        blocks.push(Block::Table(rates(roofline)));
    }
    blocks
}

/// Returns, for each test of each model and build, the row that comes closest to its limit.
fn best<'a>(rows: impl Iterator<Item = &'a TestRow>) -> Vec<&'a TestRow> {
    let mut best: Vec<&TestRow> = Vec::new();
    let share = |row: &TestRow| row.roof.as_ref().map_or(0.0, |roof| roof.0);
    for row in rows.filter(|row| row.roof.is_some()) {
        let same = |known: &TestRow| {
            (&known.model, known.build(), known.test()) == (&row.model, row.build(), row.test())
        };
        match best.iter_mut().find(|known| same(known)) {
            Some(known) if share(row) > share(known) => *known = row,
            Some(_) => {}
            None => best.push(row),
        }
    }
    best
}

/// Returns the position of a test in the roofline plot: its share of the limiting roof, at its ratio of multiply-adds
/// to bytes. The position is computed, because the row does not contain it. Each weight is used in one multiply-add
/// and read once for all tokens of a graph.
fn point(row: &TestRow, roofline: &Roofline) -> Option<Point> {
    let (share, bound) = row.roof.as_ref()?;
    let threads = if row.case.1 == 0 { row.prefill_threads } else { row.threads };
    let rates = roofline.at(u32::try_from(threads).unwrap_or(u32::MAX))?;
    let (weights, bytes) = row.size;
    let together = match row.case {
        (prompt, 0, _) => prompt.min(row.ubatch.max(1)).max(1) as f64,
        (0, _, _) => 1.0,
        // A combined test of prompt and answer has no single position.
        _ => return None,
    };
    let intensity = weights / bytes * together;
    let macs = match bound.as_str() {
        "memory" => share * rates.read_bytes * intensity,
        _ => share * compute(row, rates),
    };
    let build = if row.build().is_empty() { String::new() } else { format!(", {}", row.build()) };
    let name = format!("{} · {}{build}", row.test(), row.model);
    Some(Point { name, intensity, macs, share: Some(*share) })
}

/// Returns the rate of multiply-adds that the engine compared the row with: the rate of the weights' float type, or
/// of 8-bit integers for quantised weights. F16 is treated as F32. BF16 is also treated as F32 if the CPU does not
/// support BF16.
fn compute(row: &TestRow, rates: &Rates) -> f64 {
    match row.floats {
        "BF16" => rates.bf16_macs.unwrap_or(rates.f32_macs),
        "F16" | "F32" => rates.f32_macs,
        _ => rates.int8_macs,
    }
}

fn rates(roofline: &Roofline) -> Table {
    let giga = |rate: f64| format!("{:.1}", rate / 1e9);
    let row = |rates: &Rates| {
        vec![
            rates.threads.to_string(),
            giga(rates.read_bytes),
            giga(rates.int8_macs),
            rates.int8_wide_macs.map_or(String::new(), giga),
            giga(rates.f32_macs),
            rates.bf16_macs.map_or(String::new(), giga),
        ]
    };
    let header = [
        "threads",
        "read, GB/s",
        "int8, GMAC/s",
        "int8 with 32-bit sums, GMAC/s",
        "f32, GMAC/s",
        "bf16, GMAC/s",
    ];
    Table { header: header.map(str::to_string).to_vec(), rows: roofline.rates.iter().map(row).collect() }
}

/// Returns plots of the times of tokens and of the times to the first token.
pub fn jitter(rows: &[TestRow]) -> Vec<Block> {
    let all: Vec<&TestRow> =
        rows.iter().filter(|row| !row.first_token.is_empty() || row.token_times.is_some()).collect();
    let label = |row: &TestRow| {
        let threads = count(row.threads, "thread");
        let apart = row.apart(&all, &["prefill threads", "path"]);
        let parts = [row.test(), threads, apart];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<String>>().join(", ")
    };
    let tokens = all.iter().filter_map(|row| {
        let [p50, p95, p99, _] = row.token_times?;
        Some(Spread {
            group: row.model.clone(),
            label: label(row),
            p50: p50 / 1e6,
            p95: p95 / 1e6,
            p99: p99 / 1e6,
        })
    });
    let first = all.iter().filter(|row| !row.first_token.is_empty()).map(|row| {
        let at = |share: f64| quantile(&row.first_token, share) / 1e6;
        Spread { group: row.model.clone(), label: label(row), p50: at(0.5), p95: at(0.95), p99: at(0.99) }
    });
    let few = "With few samples, high percentiles equal the slowest sample";
    let plots = [
        (
            "Time of a token",
            "The dot is the median, the thick bar ends at the 95th percentile, and the thin bar at the \
             99th; the table lists these three values."
                .to_string(),
            tokens.collect::<Vec<_>>(),
        ),
        (
            "Time to the first token",
            format!(
                "Times to the first token: the dot is the median, the thick bar ends at the 95th \
                 percentile, and the thin bar at the 99th. {few}."
            ),
            first.collect(),
        ),
    ];
    let filled = plots.into_iter().filter(|(_, _, rows)| !rows.is_empty());
    filled
        .map(|(title, caption, rows)| {
            Block::Plot(Plot {
                name: title.to_string(),
                title: title.to_string(),
                caption,
                kind: PlotKind::Spreads(Spreads { unit: "milliseconds".to_string(), rows }),
            })
        })
        .collect()
}
