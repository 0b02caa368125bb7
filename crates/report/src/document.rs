//! Data of a page: sections, blocks, tables and plots.

use crate::bars::Bars;
use crate::curves::Curves;
use crate::intervals::Intervals;
use crate::roofline::Roofline;
use crate::spreads::Spreads;
use crate::table::Table;

/// Report page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReportPage {
    /// Title of the page.
    pub title: String,
    /// Sentence below the title.
    pub lead: String,
    /// Sections in order.
    pub sections: Vec<Section>,
}

/// Section with a heading.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    /// Heading of the section.
    pub title: String,
    /// Content of the section.
    pub blocks: Vec<Block>,
}

/// Block of a section.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    /// Second-level heading.
    Heading(String),
    /// Paragraph.
    Text(String),
    /// Table.
    Table(Table),
    /// Plot.
    Plot(Plot),
    /// Commands, one per line.
    Commands(Vec<String>),
}

/// Plot with its texts.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// Stem of the file name: letters, digits and hyphens.
    pub name: String,
    /// Title of the plot.
    pub title: String,
    /// Explanation for the reader: what was measured, and how to read the plot.
    pub caption: String,
    /// Content of the plot.
    pub kind: PlotKind,
}

/// Kind of a plot, with its data.
#[derive(Clone, Debug, PartialEq)]
pub enum PlotKind {
    /// Ratios with their intervals.
    Intervals(Intervals),
    /// Values against a quantity.
    Curves(Curves),
    /// Percentiles of times.
    Spreads(Spreads),
    /// Parts of a whole.
    Bars(Bars),
    /// Speeds below the machine's limits.
    Roofline(Roofline),
}

impl ReportPage {
    /// Returns all plots in order.
    pub fn plots(&self) -> impl Iterator<Item = &Plot> {
        self.sections.iter().flat_map(|section| &section.blocks).filter_map(|block| match block {
            Block::Plot(plot) => Some(plot),
            _ => None,
        })
    }
}

/// Converts any text to the stem of a file name, truncated to the permitted length.
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
