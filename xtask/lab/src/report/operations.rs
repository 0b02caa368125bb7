//! Section about rows of `anneal bench --ops`: the time of each kind of operation.

use build_info::OperationRow;
use build_info::words::count;
use report::{Bar, Bars, Block, Plot, PlotKind};

/// Number of kinds of operations that a plot shows for each test.
const MOST: usize = 12;

/// Returns a plot for each model.
pub fn blocks(rows: &[OperationRow]) -> Vec<Block> {
    let rows: Vec<&OperationRow> = rows.iter().collect();
    let models = grouped(&rows, |row| (row.model_type.clone(), row.model_filename.clone()));
    models.iter().map(|rows| Block::Plot(plot(rows))).collect()
}

/// Returns the rows with equal keys together, in the order of their first rows.
fn grouped<'a, K: PartialEq>(
    rows: &[&'a OperationRow],
    key: impl Fn(&OperationRow) -> K,
) -> Vec<Vec<&'a OperationRow>> {
    let mut groups: Vec<Vec<&OperationRow>> = Vec::new();
    for row in rows {
        match groups.iter_mut().find(|group| key(group[0]) == key(row)) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups
}

fn plot(rows: &[&OperationRow]) -> Plot {
    let model = rows[0].model_type.as_deref().unwrap_or("a model");
    // A test that ran twice, for example with different settings, has two starting times.
    let tests = grouped(rows, |row| (row.test(), row.n_threads, row.kernels.clone(), row.test_time.clone()));
    let is_limited = rows.iter().any(|row| row.roof_share.is_some());
    let limit =
        if is_limited { " The vertical mark is the shortest time that the roofline allows." } else { "" };
    Plot {
        name: format!("operations {model}"),
        title: format!("{model}: time of operations"),
        caption: format!(
            "Time of each kind of operation, with its share of the test; the {MOST} longest of each test, and the sum of the \
             others.{limit} The type is the type of the weights \
             or of the cache. The shape of a product lists the row length, rows and columns; the shape of attention \
             lists the head size, heads, tokens and cells."
        ),
        kind: PlotKind::Bars(Bars {
            unit: "milliseconds".to_string(),
            possible: if is_limited { "shortest time by the roofline" } else { "" }.to_string(),
            rows: tests.iter().flat_map(|test| bars(test)).collect(),
        }),
    }
}

/// Returns the bars of one test, longest first.
fn bars(test: &[&OperationRow]) -> Vec<Bar> {
    let whole = test[0].sample_ns.unwrap_or_default() as f64;
    let threads = test[0].n_threads.map(|threads| count(threads, "thread"));
    let kernels = test[0].kernels.as_ref().map(|name| format!("kernels {name}"));
    let group = [Some(test[0].test()), threads, kernels].into_iter().flatten().collect::<Vec<_>>().join(", ");
    let bar = |label: String, ns: f64, possible: Option<f64>| Bar {
        group: group.clone(),
        label,
        note: if whole > 0.0 { format!("{:.1} %", 100.0 * ns / whole) } else { String::new() },
        value: ns / 1e6,
        possible: possible.map(|ns| ns / 1e6),
    };
    let ns = |row: &OperationRow| row.ns.unwrap_or_default();
    let mut sorted = test.to_vec();
    sorted.sort_by(|a, b| ns(b).total_cmp(&ns(a)));
    let (shown, rest) = sorted.split_at(sorted.len().min(MOST));
    let mut bars: Vec<Bar> = shown
        .iter()
        .map(|row| {
            let words = [Some(row.op.as_str()), row.op_type.as_deref(), row.shape.as_deref()];
            let words: Vec<&str> = words.into_iter().flatten().filter(|word| !word.is_empty()).collect();
            bar(words.join(" "), ns(row), row.roof_share.map(|share| share * ns(row)))
        })
        .collect();
    if !rest.is_empty() {
        let sum = rest.iter().map(|row| ns(row)).sum();
        bars.push(bar(format!("{} other kinds", rest.len()), sum, None));
    }
    bars
}
