//! Plots of parts of a whole: one bar per row, from zero to the part's value, with a mark at the best possible value.

use crate::scale::{Scale, is_sane, short};
use crate::svg::{Align, COLOURS, Svg, places};
use crate::table::Table;
use crate::words::squeezed;

/// Plot of parts, for example of the times of operations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bars {
    /// Label of the horizontal axis: `milliseconds`.
    pub unit: String,
    /// Meaning of [`Bar::possible`]: `shortest time by the roofline`. Empty if no bar has this value.
    pub possible: String,
    /// Rows of the plot; rows of one group are adjacent.
    pub rows: Vec<Bar>,
}

/// Part of a whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bar {
    /// Group of the row, for example a test, shown as a heading above its first row. May be empty.
    pub group: String,
    /// Label of the row.
    pub label: String,
    /// Text to the right of the value, for example its share of the whole. May be empty.
    pub note: String,
    /// Length of the bar.
    pub value: f64,
    /// Best possible value; `None` if unknown.
    pub possible: Option<f64>,
}

/// Height of a row in pixels: text with the bar below it.
const ROW: f64 = 36.0;

/// Number of characters of a label that fit next to the figures at a width of 360 pixels.
const LABEL: usize = 34;

impl Bars {
    /// Returns the values as a table.
    pub fn table(&self) -> Table {
        let row = |row: &Bar| {
            let mut cells = vec![row.group.clone(), row.label.clone(), short(row.value), row.note.clone()];
            if !self.possible.is_empty() {
                cells.push(row.possible.map_or(String::new(), short));
            }
            cells
        };
        let mut header = vec![String::new(), String::new(), self.unit.clone(), String::new()];
        if !self.possible.is_empty() {
            header.push(self.possible.clone());
        }
        Table { header, rows: self.rows.iter().map(row).collect() }
    }
}

pub fn svg(plot: &Bars, title: &str) -> String {
    let mut svg = Svg::new(title);
    let rows: Vec<&Bar> = plot.rows.iter().filter(|row| is_sane(row.value) && row.value >= 0.0).collect();
    let most = rows.iter().map(|row| row.value).fold(0.0, f64::max);
    if most <= 0.0 {
        return svg.nothing();
    }
    let scale = Scale::linear((0.0, most * 1.02), (0.0, 99.0));
    let places = places(rows.iter().map(|row| row.group.as_str()), ROW);
    let bottom = places.last().map_or(0.0, |place| place.0 + ROW) + 2.0;
    svg.marks_below(&scale, (0.0, bottom));
    // Rows of one group have one colour.
    let mut group = 0;
    for (number, (row, (top, heading))) in rows.iter().zip(places).enumerate() {
        if heading {
            group += usize::from(number > 0);
            svg.text("bold", Align::Start, (0.0, top - 6.0), &squeezed(&row.group, 44));
        }
        svg.text("", Align::Start, (0.0, top + 14.0), &squeezed(&row.label, LABEL));
        let note = if row.note.is_empty() { String::new() } else { format!(" · {}", row.note) };
        svg.text("soft", Align::End, (100.0, top + 14.0), &format!("{}{note}", short(row.value)));
        let y = top + 24.0;
        svg.line(&format!("s{}", group % COLOURS), 8.0, (0.0, y), (scale.place(row.value), y));
        if let Some(possible) = row.possible.filter(|possible| is_sane(*possible)) {
            let x = scale.place(possible);
            svg.line("limit", 2.0, (x, y - 6.0), (x, y + 6.0));
        }
    }
    svg.text("soft", Align::End, (100.0, bottom + 32.0), &plot.unit);
    svg.finish(bottom + 40.0)
}
