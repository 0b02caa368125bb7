//! The page as HTML, by a template that escapes whatever it is given.

use minijinja::{AutoEscape, Environment, Error, context};
use serde::Serialize;

use crate::words::{tidy, tidy_command};
use crate::{Block, Plot, Report, Section, Table, slug, svg};

const TEMPLATE: &str = include_str!("page.html.jinja");

/// A block as the template takes it: the field that is there says what it is.
#[derive(Default, Serialize)]
struct View {
    heading: Option<String>,
    text: Option<Vec<Piece>>,
    table: Option<Table>,
    commands: Option<String>,
    plot: Option<PlotView>,
}

/// A part of a paragraph.
#[derive(Serialize)]
struct Piece {
    code: bool,
    words: String,
}

#[derive(Serialize)]
struct PlotView {
    title: String,
    caption: String,
    /// Our own markup, with all words in it escaped: the template does not escape it again.
    svg: String,
    table: Table,
    /// Whether it begins a row of plots, and ends one.
    first: bool,
    last: bool,
}

#[derive(Serialize)]
struct SectionView {
    id: String,
    title: String,
    blocks: Vec<View>,
}

pub fn html(report: &Report) -> Result<String, Error> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.add_template("page", TEMPLATE)?;
    let sections: Vec<SectionView> = report.sections.iter().enumerate().map(section_view).collect();
    environment.get_template("page")?.render(context! {
        title => tidy(&report.title),
        lead => tidy(&report.lead),
        style => svg::STYLE,
        sections,
    })
}

fn section_view((number, section): (usize, &Section)) -> SectionView {
    let Section { title, blocks } = section;
    // With its number: two sections may have one title.
    let id = format!("{}-{}", slug(title), number + 1);
    let is_plot = |at: usize| matches!(blocks.get(at), Some(Block::Plot(_)));
    let views = blocks.iter().enumerate().map(|(at, block)| {
        let mut view = view(block);
        if let Some(plot) = &mut view.plot {
            plot.first = at == 0 || !is_plot(at - 1);
            plot.last = !is_plot(at + 1);
        }
        view
    });
    SectionView { id, title: tidy(title), blocks: views.collect() }
}

fn view(block: &Block) -> View {
    match block {
        Block::Heading(text) => View { heading: Some(tidy(text)), ..View::default() },
        Block::Text(text) => View { text: Some(pieces(&tidy(text))), ..View::default() },
        Block::Table(table) => View { table: Some(tidy_table(table)), ..View::default() },
        Block::Commands(commands) => {
            let lines: Vec<String> = commands.iter().map(|command| tidy_command(command)).collect();
            View { commands: Some(lines.join("\n")), ..View::default() }
        }
        Block::Plot(plot) => View { plot: Some(plot_view(plot)), ..View::default() },
    }
}

/// Words between two backticks are code. A backtick without another one is itself.
fn pieces(text: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('`') {
        let Some((code, after)) = after.split_once('`') else { break };
        pieces.push(Piece { code: false, words: before.to_string() });
        pieces.push(Piece { code: true, words: code.to_string() });
        rest = after;
    }
    pieces.push(Piece { code: false, words: rest.to_string() });
    pieces
}

fn plot_view(plot: &Plot) -> PlotView {
    PlotView {
        title: tidy(&plot.title),
        caption: tidy(&plot.caption),
        svg: plot.svg(),
        table: tidy_table(&plot.table()),
        first: true,
        last: true,
    }
}

fn tidy_table(table: &Table) -> Table {
    let tidy_row = |row: &Vec<String>| row.iter().map(|cell| tidy(cell)).collect();
    Table { header: tidy_row(&table.header), rows: table.rows.iter().map(tidy_row).collect() }
}
