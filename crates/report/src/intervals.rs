//! Plots of ratios, one per row. A dot marks the ratio, a bar its interval, and a vertical line the value 1.

use crate::scale::{Scale, is_sane};
use crate::svg::{Align, COLOURS, Svg, places};
use crate::table::Table;
use crate::words::{squeezed, tidy};

/// Plot of ratios to a baseline.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Intervals {
    /// Rows of the plot; rows of one group are adjacent.
    pub rows: Vec<Interval>,
}

/// Median with its interval; 1 is the baseline.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Interval {
    /// Group of the row, for example a model, shown as a heading above its first row. May be empty.
    pub group: String,
    /// Label of the row.
    pub label: String,
    /// Median in its unit. May be empty.
    pub value: String,
    /// Verdict, for example "faster" or "no difference shown". May be empty.
    pub verdict: String,
    /// Index of the row's colour.
    pub series: usize,
    /// Median of the ratios.
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// Height of a row in pixels: text with the bar below it.
const ROW: f64 = 40.0;

/// Number of characters of a label that fit next to the figures at a width of 360 pixels.
const LABEL: usize = 20;

impl Interval {
    fn ratio(&self) -> String {
        format!("{:.3} [{:.3}, {:.3}]", self.median, self.low, self.high)
    }

    fn is_sane(&self) -> bool {
        [self.median, self.low, self.high].into_iter().all(is_sane)
    }
}

impl Intervals {
    /// Returns the values as a table.
    pub fn table(&self) -> Table {
        let grouped = self.rows.iter().any(|row| !row.group.is_empty());
        let row = |row: &Interval| {
            let mut cells = if grouped { vec![row.group.clone()] } else { Vec::new() };
            cells.extend([row.label.clone(), row.value.clone(), row.ratio(), row.verdict.clone()]);
            cells
        };
        let mut header = if grouped { vec![String::new()] } else { Vec::new() };
        header.extend(["", "median", "ratio [95 % interval]", "verdict"].map(str::to_string));
        Table { header, rows: self.rows.iter().map(row).collect() }
    }
}

pub fn svg(plot: &Intervals, title: &str) -> String {
    let mut svg = Svg::new(title);
    let rows: Vec<&Interval> = plot.rows.iter().filter(|row| row.is_sane()).collect();
    if rows.is_empty() {
        return svg.nothing();
    }
    let ends = || rows.iter().flat_map(|row| [row.low, row.median, row.high]);
    let (least, most) = (ends().fold(1.0, f64::min), ends().fold(1.0, f64::max));
    let margin = ((most - least) * 0.05).max(0.005);
    let scale = Scale::linear((least - margin, most + margin), (1.0, 99.0));
    let places = places(rows.iter().map(|row| row.group.as_str()), ROW);
    let bottom = places.last().map_or(0.0, |place| place.0 + ROW) + 4.0;
    svg.marks_below(&scale, (0.0, bottom));
    let one = scale.place(1.0);
    svg.line("mark", 1.5, (one, 0.0), (one, bottom));
    for (row, (top, heading)) in rows.into_iter().zip(places) {
        if heading {
            svg.text("bold", Align::Start, (0.0, top - 6.0), &squeezed(&row.group, 44));
        }
        draw(&mut svg, &scale, row, top);
    }
    svg.finish(bottom + 22.0)
}

fn draw(svg: &mut Svg, scale: &Scale, row: &Interval, top: f64) {
    let class = format!("s{}", row.series % COLOURS);
    svg.text("", Align::Start, (0.0, top + 14.0), &squeezed(&row.label, LABEL));
    let value = if row.value.is_empty() { String::new() } else { format!("{} · ", tidy(&row.value)) };
    svg.text("soft", Align::End, (100.0, top + 14.0), &format!("{value}{}", row.ratio()));
    let y = top + 27.0;
    let (low, high) = (scale.place(row.low), scale.place(row.high));
    svg.line(&class, 3.0, (low, y), (high, y));
    for end in [low, high] {
        svg.line(&class, 2.0, (end, y - 5.0), (end, y + 5.0));
    }
    svg.dot(&class, 5.0, (scale.place(row.median), y));
}
