//! Plots of the spread of times, from the median to high percentiles, one row each.

use crate::scale::{Scale, is_sane, short};
use crate::svg::{Align, COLOURS, Svg, places};
use crate::table::Table;
use crate::words::{broken, squeezed};

/// Plot of repeated time measurements.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spreads {
    /// Label of the horizontal axis: `milliseconds`.
    pub unit: String,
    /// Rows of the plot.
    pub rows: Vec<Spread>,
}

/// Percentiles of one quantity.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spread {
    /// Group of the row, for example a model, shown as a heading above its first row. May be empty.
    pub group: String,
    /// Label of the row.
    pub label: String,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// Height in pixels of a row with text and bar.
const ROW: f64 = 42.0;

/// Height in pixels of each additional line of text.
const LINE: f64 = 17.0;

/// Number of characters of a label that fit next to the figures at a width of 360 pixels. SVG does not wrap text, and
/// a plot is as wide as its window.
const BESIDE: usize = 30;

/// Number of characters of a label that fit on a separate line at this width.
const ALONE: usize = 50;

/// Maximum number of separate lines of a label.
const LINES: usize = 3;

impl Spreads {
    /// Returns the values as a table.
    pub fn table(&self) -> Table {
        let row = |row: &Spread| {
            let mut cells = vec![row.group.clone(), row.label.clone()];
            cells.extend([row.p50, row.p95, row.p99].map(short));
            cells
        };
        let percentile = |name: &str| format!("{name}, {}", self.unit);
        Table {
            header: vec![
                String::new(),
                String::new(),
                percentile("p50"),
                percentile("p95"),
                percentile("p99"),
            ],
            rows: self.rows.iter().map(row).collect(),
        }
    }
}

pub fn svg(plot: &Spreads, title: &str) -> String {
    let mut svg = Svg::new(title);
    let rows: Vec<&Spread> =
        plot.rows.iter().filter(|row| [row.p50, row.p95, row.p99].into_iter().all(is_sane)).collect();
    let most = rows.iter().map(|row| row.p99.max(row.p50)).fold(0.0, f64::max);
    if most <= 0.0 {
        return svg.nothing();
    }
    let scale = Scale::linear((0.0, most * 1.03), (1.0, 98.0));
    let (labels, extra) = labels(&rows);
    let places = places(rows.iter().map(|row| row.group.as_str()), ROW + extra);
    let bottom = places.last().map_or(0.0, |place| place.0 + ROW + extra) + 4.0;
    svg.marks_below(&scale, (0.0, bottom));
    for (number, ((row, label), (top, heading))) in rows.iter().zip(labels).zip(places).enumerate() {
        let class = format!("s{}", number % COLOURS);
        if heading {
            svg.text("bold", Align::Start, (0.0, top - 6.0), &squeezed(&row.group, 44));
        }
        for (line, words) in label.iter().enumerate() {
            svg.text("", Align::Start, (0.0, top + 15.0 + LINE * line as f64), words);
        }
        let top = top + extra;
        let said = format!("{} · {} · {}", short(row.p50), short(row.p95), short(row.p99));
        svg.text("soft", Align::End, (100.0, top + 15.0), &said);
        let y = top + 28.0;
        let [p50, p95, p99] = [row.p50, row.p95, row.p99].map(|value| scale.place(value));
        svg.line(&class, 6.0, (p50, y), (p95, y));
        svg.line(&class, 2.0, (p95, y), (p99, y));
        svg.line(&class, 2.0, (p99, y - 5.0), (p99, y + 5.0));
        svg.dot(&class, 5.0, (p50, y));
    }
    svg.text("soft", Align::End, (100.0, bottom + 32.0), &plot.unit);
    svg.finish(bottom + 40.0)
}

/// Returns the lines of each label, and the height in pixels that these lines need above the figures: 0 if all labels
/// fit next to the figures.
fn labels(rows: &[&Spread]) -> (Vec<Vec<String>>, f64) {
    let labels = |most, lines| -> Vec<Vec<String>> {
        rows.iter().map(|row| broken(&row.label, most, lines)).collect()
    };
    let beside = labels(BESIDE, usize::MAX);
    if beside.iter().all(|lines| lines.len() <= 1) {
        return (beside, 0.0);
    }
    let alone = labels(ALONE, LINES);
    let most = alone.iter().map(Vec::len).max().unwrap_or(0);
    (alone, LINE * most as f64)
}
