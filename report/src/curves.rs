//! Values over a quantity, one line for each series.

use crate::Table;
use crate::scale::{Scale, short};
use crate::svg::{Align, COLOURS, Svg};

/// Lines over one axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curves {
    /// What the places to the right are: `threads`.
    pub x: String,
    /// What the heights are: `tokens per second`.
    pub y: String,
    /// The lines.
    pub series: Vec<Series>,
}

/// One line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// What it is of.
    pub name: String,
    /// Points, x ascending: x, y and the half-length of an error bar (0 for none).
    pub points: Vec<(f64, f64, f64)>,
}

const TOP: f64 = 26.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 9.0;

impl Curves {
    /// The figures.
    pub fn table(&self) -> Table {
        let rows = self.series.iter().flat_map(|series| {
            series.points.iter().map(|(x, y, _)| vec![series.name.clone(), short(*x), short(*y)])
        });
        Table { header: vec![String::new(), self.x.clone(), self.y.clone()], rows: rows.collect() }
    }
}

pub fn svg(plot: &Curves, title: &str) -> String {
    let mut svg = Svg::new(title);
    let points = || plot.series.iter().flat_map(|series| &series.points);
    let least = points().map(|point| point.0).fold(f64::INFINITY, f64::min);
    let most = points().map(|point| point.0).fold(f64::NEG_INFINITY, f64::max);
    let highest = points().map(|point| point.1 + point.2).fold(0.0, f64::max);
    if !(least.is_finite() && most.is_finite() && highest > 0.0) {
        svg.text("soft", Align::Start, (0.0, 15.0), "nothing to show");
        return svg.finish(TOP);
    }
    // Heights begin at nothing: half as high is half as much.
    let x = Scale::linear((least, most), (LEFT, 97.0));
    let y = Scale::linear((0.0, highest * 1.05), (TOP + HEIGHT, TOP));
    for tick in y.ticks(5) {
        let at = y.place(tick);
        svg.line("axis", 1.0, (LEFT - 1.0, at), (98.0, at));
        svg.text("soft", Align::End, (LEFT - 2.0, at + 4.0), &short(tick));
    }
    let whole = points().all(|point| point.0.fract() == 0.0);
    for tick in x.ticks(6).into_iter().filter(|tick| !whole || tick.fract() == 0.0) {
        svg.text("soft", Align::Middle, (x.place(tick), TOP + HEIGHT + 17.0), &short(tick));
    }
    svg.text("soft", Align::Start, (0.0, 14.0), &plot.y);
    svg.text("soft", Align::End, (98.0, TOP + HEIGHT + 34.0), &plot.x);
    for (number, series) in plot.series.iter().enumerate() {
        let class = format!("s{}", number % COLOURS);
        let place = |point: &(f64, f64, f64)| (x.place(point.0), y.place(point.1));
        for pair in series.points.windows(2) {
            svg.line(&class, 2.0, place(&pair[0]), place(&pair[1]));
        }
        for point in &series.points {
            let at = place(point);
            if point.2 > 0.0 {
                svg.line(&class, 1.5, (at.0, y.place(point.1 - point.2)), (at.0, y.place(point.1 + point.2)));
            }
            svg.dot(&class, 3.5, at);
        }
        // A legend below: names at the line's ends would cover each other.
        let row = TOP + HEIGHT + 52.0 + 18.0 * number as f64;
        svg.line(&class, 3.0, (LEFT, row - 4.0), (LEFT + 4.0, row - 4.0));
        svg.text("", Align::Start, (LEFT + 5.0, row), &series.name);
    }
    svg.finish(TOP + HEIGHT + 44.0 + 18.0 * plot.series.len() as f64)
}
