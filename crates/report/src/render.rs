//! A page and its plots as text.

use crate::document::{Plot, PlotKind, ReportPage};
use crate::table::Table;
use crate::{curves, intervals, markdown, page, roofline, spreads, svg};

impl Plot {
    /// The picture. Widths are in per cent, heights and text in pixels: it fits any width and its text stays legible.
    pub fn svg(&self) -> String {
        match &self.kind {
            PlotKind::Intervals(plot) => intervals::svg(plot, &self.title),
            PlotKind::Curves(plot) => curves::svg(plot, &self.title),
            PlotKind::Spreads(plot) => spreads::svg(plot, &self.title),
            PlotKind::Roofline(plot) => roofline::svg(plot, &self.title),
        }
    }

    /// The same as a file of its own, with a width and the colours of both themes.
    pub fn file(&self) -> String {
        svg::stand_alone(&self.svg())
    }

    /// The same in figures, for readers who do not see it.
    pub fn table(&self) -> Table {
        match &self.kind {
            PlotKind::Intervals(plot) => plot.table(),
            PlotKind::Curves(plot) => plot.table(),
            PlotKind::Spreads(plot) => plot.table(),
            PlotKind::Roofline(plot) => plot.table(),
        }
    }
}

impl ReportPage {
    /// The whole as one HTML file.
    pub fn html(&self) -> String {
        page::page(self)
    }

    /// The whole as Markdown. Plots are pictures in `folder`, each with its table folded below it.
    pub fn markdown(&self, folder: &str) -> String {
        markdown::markdown(self, folder)
    }
}
