//! Ratios as dots with their intervals as bars, one below the other, and a line where nothing differs.

use crate::Table;
use crate::scale::{Scale, short};
use crate::svg::{Align, COLOURS, Svg};

/// Ratios to a baseline.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Intervals {
    /// One row each; rows of one group have one colour for each place in it.
    pub rows: Vec<Interval>,
}

/// A median with the ends of its interval; 1 is the baseline.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Interval {
    /// What it is of.
    pub label: String,
    /// What else to say of it: the median in its unit, a verdict.
    pub detail: String,
    /// Which colour it has.
    pub series: usize,
    /// The median.
    pub median: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Pixels of a row: words, then the bar below them.
const ROW: f64 = 42.0;

impl Intervals {
    /// The figures.
    pub fn table(&self) -> Table {
        let row = |row: &Interval| {
            let interval = format!("{:.3} [{:.3}, {:.3}]", row.median, row.low, row.high);
            vec![row.label.clone(), interval, row.detail.clone()]
        };
        Table {
            header: ["", "ratio [95 % interval]", ""].map(str::to_string).to_vec(),
            rows: self.rows.iter().map(row).collect(),
        }
    }
}

pub fn svg(plot: &Intervals, title: &str) -> String {
    let mut svg = Svg::new(title);
    let finite = |value: &f64| value.is_finite();
    let ends = || plot.rows.iter().flat_map(|row| [row.low, row.high]).filter(finite);
    let (least, most) = (ends().fold(1.0, f64::min), ends().fold(1.0, f64::max));
    let margin = ((most - least) * 0.05).max(0.005);
    let scale = Scale::linear((least - margin, most + margin), (2.0, 98.0));
    let bottom = plot.rows.len() as f64 * ROW + 4.0;
    for tick in scale.ticks(5) {
        let x = scale.place(tick);
        svg.line("axis", 1.0, (x, 0.0), (x, bottom));
        svg.text("soft", Align::Middle, (x, bottom + 15.0), &short(tick));
    }
    let one = scale.place(1.0);
    svg.line("mark", 1.5, (one, 0.0), (one, bottom));
    for (number, row) in plot.rows.iter().enumerate() {
        let top = number as f64 * ROW;
        let class = format!("s{}", row.series % COLOURS);
        svg.text("", Align::Start, (0.0, top + 15.0), &row.label);
        svg.text("soft", Align::End, (100.0, top + 15.0), &row.detail);
        let y = top + 28.0;
        let (low, high) = (scale.place(row.low), scale.place(row.high));
        svg.line(&class, 3.0, (low, y), (high, y));
        for end in [low, high] {
            svg.line(&class, 2.0, (end, y - 5.0), (end, y + 5.0));
        }
        svg.dot(&class, 5.0, (scale.place(row.median), y));
    }
    svg.finish(bottom + 22.0)
}
