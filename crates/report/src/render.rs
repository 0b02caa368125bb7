//! A page and its plots as text.

use crate::document::{Kind, Plot, Report};
use crate::table::Table;
use crate::{curves, intervals, markdown, page, roofline, spreads, svg};

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
    /// The whole as one HTML file.
    pub fn html(&self) -> String {
        page::page(self)
    }

    /// The whole as Markdown. Plots are pictures in `folder`, each with its table folded below it.
    pub fn markdown(&self, folder: &str) -> String {
        markdown::markdown(self, folder)
    }
}
