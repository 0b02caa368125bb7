//! The page as HTML, by a template that escapes whatever it is given.

use minijinja::{AutoEscape, Environment, Error, context};
use serde::Serialize;

use crate::{Block, Plot, Report, Section, Table, slug, svg};

const TEMPLATE: &str = include_str!("page.html.jinja");

/// A block as the template takes it: the field that is there says what it is.
#[derive(Default, Serialize)]
struct View<'a> {
    text: Option<&'a str>,
    table: Option<&'a Table>,
    commands: Option<String>,
    plot: Option<PlotView<'a>>,
}

#[derive(Serialize)]
struct PlotView<'a> {
    title: &'a str,
    caption: &'a str,
    /// Our own markup, with all words in it escaped: the template does not escape it again.
    svg: String,
    table: Table,
}

#[derive(Serialize)]
struct SectionView<'a> {
    id: String,
    title: &'a str,
    blocks: Vec<View<'a>>,
}

pub fn html(report: &Report) -> Result<String, Error> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.add_template("page", TEMPLATE)?;
    let sections: Vec<SectionView<'_>> = report.sections.iter().map(section_view).collect();
    environment.get_template("page")?.render(context! {
        title => report.title,
        lead => report.lead,
        style => svg::STYLE,
        sections,
    })
}

fn section_view(section: &Section) -> SectionView<'_> {
    let Section { title, blocks } = section;
    SectionView { id: slug(title), title, blocks: blocks.iter().map(view).collect() }
}

fn view(block: &Block) -> View<'_> {
    match block {
        Block::Text(text) => View { text: Some(text), ..View::default() },
        Block::Table(table) => View { table: Some(table), ..View::default() },
        Block::Commands(commands) => View { commands: Some(commands.join("\n")), ..View::default() },
        Block::Plot(plot) => View { plot: Some(plot_view(plot)), ..View::default() },
    }
}

fn plot_view(plot: &Plot) -> PlotView<'_> {
    PlotView { title: &plot.title, caption: &plot.caption, svg: plot.svg(), table: plot.table() }
}
