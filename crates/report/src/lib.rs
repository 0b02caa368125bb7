//! One page of what was measured, for people: a self-contained HTML file (no script, no network, light and dark, from
//! 360 pixels on), the same as Markdown, and every plot as an SVG file.
//!
//! Data in, text out: nothing is read, measured or decided here.

mod curves;
mod intervals;
mod markdown;
mod page;
mod roofline;
mod scale;
mod spreads;
mod svg;
mod words;

pub use curves::{Curves, Series};
pub use intervals::{Interval, Intervals};
pub use page::is_page;
pub use roofline::{Point, Roof, Roofline};
pub use spreads::{Spread, Spreads};
pub use svg::escaped;
pub use words::tidy;

/// A page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// What it is of.
    pub title: String,
    /// One sentence under it.
    pub lead: String,
    /// The parts, in order.
    pub sections: Vec<Section>,
}

/// A part with a heading.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    /// The heading.
    pub title: String,
    /// What is in it.
    pub blocks: Vec<Block>,
}

/// A piece of a section.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    /// A heading of the second rank.
    Heading(String),
    /// A paragraph.
    Text(String),
    /// A table.
    Table(Table),
    /// A plot.
    Plot(Plot),
    /// Commands, one a line.
    Commands(Vec<String>),
}

/// Rows of text under a header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Names of the columns.
    pub header: Vec<String>,
    /// The rows, each as long as the header.
    pub rows: Vec<Vec<String>>,
}

/// A picture with words.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// Stem of its file's name: letters, digits and hyphens.
    pub name: String,
    /// What is seen.
    pub title: String,
    /// What a reader has to know: what was measured, how to read it.
    pub caption: String,
    /// The picture.
    pub kind: Kind,
}

/// What a plot shows.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Ratios with their intervals.
    Intervals(Intervals),
    /// Values over a quantity.
    Curves(Curves),
    /// Percentiles of times.
    Spreads(Spreads),
    /// Speeds under the machine's limits.
    Roofline(Roofline),
}

impl Plot {
    /// The picture. Widths are in per cent, heights and text in pixels: it fits any width and its text stays legible.
    pub fn svg(&self) -> String {
        match &self.kind {
            Kind::Intervals(plot) => intervals::svg(plot, &self.title),
            Kind::Curves(plot) => curves::svg(plot, &self.title),
            Kind::Spreads(plot) => spreads::svg(plot, &self.title),
            Kind::Roofline(plot) => roofline::svg(plot, &self.title),
        }
    }

    /// The same as a file of its own, with a width and the colours of both themes.
    pub fn file(&self) -> String {
        svg::stand_alone(&self.svg())
    }

    /// The same in figures, for readers who do not see it.
    pub fn table(&self) -> Table {
        match &self.kind {
            Kind::Intervals(plot) => plot.table(),
            Kind::Curves(plot) => plot.table(),
            Kind::Spreads(plot) => plot.table(),
            Kind::Roofline(plot) => plot.table(),
        }
    }
}

impl Report {
    /// All plots, in order.
    pub fn plots(&self) -> impl Iterator<Item = &Plot> {
        self.sections.iter().flat_map(|section| &section.blocks).filter_map(|block| match block {
            Block::Plot(plot) => Some(plot),
            _ => None,
        })
    }

    /// The whole as one HTML file.
    pub fn html(&self) -> String {
        page::page(self)
    }

    /// The whole as Markdown. Plots are pictures in `folder`, each with its table folded below it.
    pub fn markdown(&self, folder: &str) -> String {
        markdown::markdown(self, folder)
    }
}

/// Stem of a file's name from any words; not longer than a file's name may be.
pub fn slug(words: &str) -> String {
    let mut slug = String::new();
    for c in words.chars().take(400) {
        if c.is_ascii_alphanumeric() {
            slug.push(c.to_ascii_lowercase());
        } else if !slug.is_empty() && !slug.ends_with('-') {
            slug.push('-');
        }
    }
    slug.truncate(80);
    let slug = slug.trim_end_matches('-');
    if slug.is_empty() { "plot".to_string() } else { slug.to_string() }
}
