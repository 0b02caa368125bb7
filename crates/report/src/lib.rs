//! One page of what was measured, for people: a self-contained HTML file (no script, no network, light and dark, from
//! 360 pixels on), the same as Markdown, and every plot as an SVG file.
//!
//! Data in, text out: nothing is read, measured or decided here.

mod curves;
mod document;
mod intervals;
mod markdown;
mod page;
mod render;
mod roofline;
mod scale;
mod spreads;
mod svg;
mod table;
mod words;

pub use curves::{Curves, Series};
pub use document::{Block, Plot, PlotKind, ReportPage, Section, slug};
pub use intervals::{Interval, Intervals};
pub use page::is_page;
pub use roofline::{Point, Roof, Roofline};
pub use spreads::{Spread, Spreads};
pub use svg::escaped;
pub use table::Table;
pub use words::tidy;
