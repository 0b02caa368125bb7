//! Plots of values against a quantity, with one line per series.

use crate::scale::{Scale, is_sane, short};
use crate::svg::{Align, COLOURS, Svg};
use crate::table::Table;
use crate::words::squeezed;

/// Plot of lines over a common axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curves {
    /// Label of the horizontal axis: `threads`.
    pub x: String,
    /// Label of the vertical axis: `tokens per second`.
    pub y: String,
    /// Series, one line each.
    pub series: Vec<Series>,
}

/// Series of points.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Name of the series.
    pub name: String,
    /// Points with x ascending: x, y, and the half-length of an error bar (0 for none).
    pub points: Vec<(f64, f64, f64)>,
}

const TOP: f64 = 26.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 12.0;

impl Curves {
    /// Returns the values as a table.
    pub fn table(&self) -> Table {
        let rows = self.series.iter().flat_map(|series| {
            series.points.iter().map(|(x, y, bar)| {
                let bar = if *bar > 0.0 { format!("± {}", short(*bar)) } else { String::new() };
                vec![series.name.clone(), short(*x), short(*y), bar]
            })
        });
        let header = vec![String::new(), self.x.clone(), self.y.clone(), String::new()];
        Table { header, rows: rows.collect() }
    }
}

pub fn svg(plot: &Curves, title: &str) -> String {
    let mut svg = Svg::new(title);
    let sane = |point: &&(f64, f64, f64)| [point.0, point.1, point.2].into_iter().all(is_sane);
    let all: Vec<Vec<(f64, f64, f64)>> =
        plot.series.iter().map(|series| series.points.iter().filter(sane).copied().collect()).collect();
    let points = || all.iter().flatten();
    let least = points().map(|point| point.0).fold(f64::INFINITY, f64::min);
    let most = points().map(|point| point.0).fold(f64::NEG_INFINITY, f64::max);
    let highest = points().map(|point| point.1 + point.2).fold(0.0, f64::max);
    if !(least.is_finite() && most.is_finite() && highest > 0.0) {
        return svg.nothing();
    }
    // The vertical axis starts at 0, so that half the height is half the value.
    let x = Scale::linear((least, most), (LEFT + 2.0, 96.0));
    let y = Scale::linear((0.0, highest * 1.05), (TOP + HEIGHT, TOP));
    for (value, words) in y.marks(5) {
        let at = y.place(value);
        svg.line("axis", 1.0, (LEFT, at), (98.0, at));
        svg.text("soft", Align::End, (LEFT - 1.5, at + 4.0), &words);
    }
    let whole = points().all(|point| point.0.fract() == 0.0);
    for (value, words) in x.marks(6).into_iter().filter(|mark| !whole || mark.0.fract() == 0.0) {
        svg.text("soft", Align::Middle, (x.place(value), TOP + HEIGHT + 17.0), &words);
    }
    svg.text("soft", Align::Start, (0.0, 14.0), &plot.y);
    svg.text("soft", Align::End, (98.0, TOP + HEIGHT + 34.0), &plot.x);
    for (number, (series, points)) in plot.series.iter().zip(&all).enumerate() {
        let class = format!("s{}", number % COLOURS);
        let place = |point: &(f64, f64, f64)| (x.place(point.0), y.place(point.1));
        for pair in points.windows(2) {
            svg.line(&class, 2.0, place(&pair[0]), place(&pair[1]));
        }
        for point in points {
            let at = place(point);
            if point.2 > 0.0 {
                svg.line(&class, 1.5, (at.0, y.place(point.1 - point.2)), (at.0, y.place(point.1 + point.2)));
            }
            svg.dot(&class, 4.0, at);
        }
        // The legend is below the plot, because names at the ends of lines would overlap.
        let row = TOP + HEIGHT + 56.0 + 20.0 * number as f64;
        svg.line(&class, 3.0, (LEFT, row - 4.0), (LEFT + 4.0, row - 4.0));
        svg.text("", Align::Start, (LEFT + 5.5, row), &squeezed(&series.name, 40));
    }
    svg.finish(TOP + HEIGHT + 46.0 + 20.0 * plot.series.len() as f64)
}
