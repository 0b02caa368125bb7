//! Reports of measurements for human readers. A report consists of a self-contained HTML file, the same content as
//! Markdown, and an SVG file for each plot. The HTML file needs no scripts and no network, has a light and a dark
//! theme, and is legible from a width of 360 pixels.
//!
//! The crate only converts data to text: it reads no files, measures nothing and makes no decisions.

mod bars;
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

pub use bars::{Bar, Bars};
pub use curves::{Curves, Series};
pub use document::{Block, Plot, PlotKind, ReportPage, Section, slug};
pub use intervals::{Interval, Intervals};
pub use page::is_page;
pub use roofline::{Point, Roof, Roofline};
pub use spreads::{Spread, Spreads};
pub use svg::escaped;
pub use table::Table;
pub use words::tidy;
