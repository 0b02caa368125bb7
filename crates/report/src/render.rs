//! Rendering of pages and plots.

use crate::document::{Plot, PlotKind, ReportPage};
use crate::table::Table;
use crate::{bars, curves, intervals, markdown, page, roofline, spreads, svg};

impl Plot {
    /// Renders the plot as SVG. Widths are in per cent, heights and text sizes in pixels, so that the plot fits any
    /// width and its text stays legible.
    pub fn svg(&self) -> String {
        match &self.kind {
            PlotKind::Intervals(plot) => intervals::svg(plot, &self.title),
            PlotKind::Curves(plot) => curves::svg(plot, &self.title),
            PlotKind::Spreads(plot) => spreads::svg(plot, &self.title),
            PlotKind::Bars(plot) => bars::svg(plot, &self.title),
            PlotKind::Roofline(plot) => roofline::svg(plot, &self.title),
        }
    }

    /// Renders the plot as a separate SVG file, with a width and the colours of both themes.
    pub fn file(&self) -> String {
        svg::stand_alone(&self.svg())
    }

    /// Returns the plot's values as a table, for readers who cannot see the plot.
    pub fn table(&self) -> Table {
        match &self.kind {
            PlotKind::Intervals(plot) => plot.table(),
            PlotKind::Curves(plot) => plot.table(),
            PlotKind::Spreads(plot) => plot.table(),
            PlotKind::Bars(plot) => plot.table(),
            PlotKind::Roofline(plot) => plot.table(),
        }
    }
}

impl ReportPage {
    /// Renders the page as one HTML file.
    pub fn html(&self) -> String {
        page::page(self)
    }

    /// Renders the page as Markdown. Plots are images in `folder`, each with a collapsed table below it.
    pub fn markdown(&self, folder: &str) -> String {
        markdown::markdown(self, folder)
    }
}
