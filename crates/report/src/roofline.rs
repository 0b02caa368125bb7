//! Roofline plots: work per second against work per byte, both on logarithmic scales (Williams, Waterman, Patterson:
//! "Roofline", 2009).

use crate::scale::{Scale, is_sane, short};
use crate::svg::{Align, COLOURS, Svg};
use crate::table::Table;
use crate::words::squeezed;

/// Roofline plot: limits of the machine, and measured speeds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Roofline {
    /// Memory bandwidth in bytes per second.
    pub bandwidth: f64,
    /// Compute limits.
    pub roofs: Vec<Roof>,
    /// Measured speeds.
    pub points: Vec<Point>,
}

/// Compute limit of the vector units.
#[derive(Clone, Debug, PartialEq)]
pub struct Roof {
    /// Name of the limit: `int8 dot product`.
    pub name: String,
    /// Multiply-adds per second.
    pub macs: f64,
}

/// Measured speed of one phase on a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Name of the point.
    pub name: String,
    /// Multiply-adds per byte read from memory.
    pub intensity: f64,
    /// Multiply-adds per second.
    pub macs: f64,
    /// Speed as a fraction of the limit at the point's intensity; `None` if unknown.
    pub share: Option<f64>,
}

const TOP: f64 = 24.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 12.0;

impl Roofline {
    /// Returns the values as a table.
    pub fn table(&self) -> Table {
        let share =
            |share: Option<f64>| share.map_or(String::new(), |share| format!("{:.0} %", 100.0 * share));
        let mut rows =
            vec![vec!["read bandwidth".to_string(), format!("{}B/s", short(self.bandwidth)), String::new()]];
        rows.extend(
            self.roofs
                .iter()
                .map(|roof| vec![roof.name.clone(), format!("{}MAC/s", short(roof.macs)), String::new()]),
        );
        rows.extend(self.points.iter().map(|point| {
            vec![point.name.clone(), format!("{}MAC/s", short(point.macs)), share(point.share)]
        }));
        Table { header: ["", "rate", "share of the roof"].map(str::to_string).to_vec(), rows }
    }
}

pub fn svg(plot: &Roofline, title: &str) -> String {
    let mut svg = Svg::new(title);
    let sound = |value: f64| is_sane(value) && value > 1e-9;
    let roofs: Vec<&Roof> = plot.roofs.iter().filter(|roof| sound(roof.macs)).collect();
    let points: Vec<&Point> =
        plot.points.iter().filter(|point| sound(point.intensity) && sound(point.macs)).collect();
    let highest = roofs.iter().map(|roof| roof.macs).fold(0.0, f64::max);
    if !sound(plot.bandwidth) || highest == 0.0 {
        return svg.nothing();
    }
    let ridge = highest / plot.bandwidth;
    let right = points.iter().map(|point| point.intensity).fold(ridge, f64::max) * 4.0;
    let left = points.iter().map(|point| point.intensity).fold(1.0, f64::min) / 2.0;
    let lowest = points.iter().map(|point| point.macs).fold(plot.bandwidth * left, f64::min) / 1.5;
    let x = Scale::logarithmic((left, right), (LEFT, 98.0));
    let y = Scale::logarithmic((lowest, highest * 2.0), (TOP + HEIGHT, TOP));
    for tick in y.ticks(5) {
        svg.line("axis", 1.0, (LEFT, y.place(tick)), (98.0, y.place(tick)));
        svg.text("soft", Align::End, (LEFT - 1.0, y.place(tick) + 4.0), &short(tick));
    }
    for tick in x.ticks(5) {
        svg.text("soft", Align::Middle, (x.place(tick), TOP + HEIGHT + 17.0), &short(tick));
    }
    svg.text("soft", Align::Start, (0.0, 14.0), "multiply-adds per second");
    svg.text("soft", Align::End, (98.0, TOP + HEIGHT + 34.0), "multiply-adds per byte read");
    let place = |intensity: f64, macs: f64| (x.place(intensity), y.place(macs));
    svg.line("mark", 2.0, place(left, plot.bandwidth * left), place(ridge, highest));
    for roof in &roofs {
        let corner = roof.macs / plot.bandwidth;
        svg.line("mark", 2.0, place(corner.max(left), roof.macs), place(right, roof.macs));
        svg.text("soft", Align::End, (98.0, y.place(roof.macs) - 5.0), &squeezed(&roof.name, 34));
    }
    for (number, point) in points.iter().enumerate() {
        let class = format!("s{}", number % COLOURS);
        svg.dot(&class, 5.5, place(point.intensity, point.macs));
        let row = TOP + HEIGHT + 56.0 + 20.0 * number as f64;
        let share = point.share.map_or(String::new(), |share| format!(": {:.0} %", 100.0 * share));
        svg.dot(&class, 5.0, (1.5, row - 4.0));
        svg.text("", Align::Start, (4.0, row), &format!("{}{share}", squeezed(&point.name, 40)));
    }
    svg.finish(TOP + HEIGHT + 46.0 + 20.0 * points.len() as f64)
}
