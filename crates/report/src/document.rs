//! A page as data: sections, blocks, tables and plots.

use crate::curves::Curves;
use crate::intervals::Intervals;
use crate::roofline::Roofline;
use crate::spreads::Spreads;
use crate::table::Table;

/// A page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReportPage {
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
    pub kind: PlotKind,
}

/// What a plot shows.
#[derive(Clone, Debug, PartialEq)]
pub enum PlotKind {
    /// Ratios with their intervals.
    Intervals(Intervals),
    /// Values over a quantity.
    Curves(Curves),
    /// Percentiles of times.
    Spreads(Spreads),
    /// Speeds under the machine's limits.
    Roofline(Roofline),
}

impl ReportPage {
    /// All plots, in order.
    pub fn plots(&self) -> impl Iterator<Item = &Plot> {
        self.sections.iter().flat_map(|section| &section.blocks).filter_map(|block| match block {
            Block::Plot(plot) => Some(plot),
            _ => None,
        })
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
