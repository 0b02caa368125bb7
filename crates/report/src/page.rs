//! HTML version of a page. All text goes through [`words`], which escapes it.

use crate::document::{Block, Plot, ReportPage, Section, slug};
use crate::svg::{self, escaped};
use crate::table::Table;
use crate::words::{tidy, tidy_command};

const STYLE: &str = include_str!("page.css");

pub fn page(report: &ReportPage) -> String {
    let sections: Vec<(String, &Section)> =
        report.sections.iter().enumerate().map(|(number, section)| (id(number, section), section)).collect();
    let links = sections
        .iter()
        .map(|(id, section)| format!("<li><a href=\"#{id}\">{}</a></li>\n", words(&section.title)));
    let bodies = sections.iter().map(|(id, section)| {
        let (title, body) = (words(&section.title), blocks(&section.blocks));
        format!("<section id=\"{id}\">\n<h2>{title}</h2>\n{body}</section>\n")
    });
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>\n{colours}\n{STYLE}</style>\n</head>\n<body>\n\
         <header>\n<h1>{title}</h1>\n<p class=\"lead\">{lead}</p>\n\
         <nav aria-label=\"Sections\"><ul>\n{links}</ul></nav>\n</header>\n\
         <main>\n{bodies}</main>\n</body>\n</html>\n",
        title = words(&report.title),
        colours = svg::STYLE,
        lead = words(&report.lead),
        links = links.collect::<String>(),
        bodies = bodies.collect::<String>(),
    )
}

/// True if a text with this beginning is a page of this program or of an older version. No other page uses these
/// colours.
pub fn is_page(beginning: &str) -> bool {
    beginning.starts_with("<!doctype html>")
        && beginning.contains("\n:root{--bg:#fff;--ink:#1b1f24;--soft:#57606a")
}

/// Returns the anchor of a section. The anchor contains the section's number, because two sections may have the same
/// title.
fn id(number: usize, section: &Section) -> String {
    format!("{}-{}", slug(&section.title), number + 1)
}

/// Renders the blocks; consecutive plots share a grid.
fn blocks(blocks: &[Block]) -> String {
    let is_plot = |block: &Block| matches!(block, Block::Plot(_));
    let runs = blocks.chunk_by(|a, b| is_plot(a) && is_plot(b)).map(|run| {
        let body: String = run.iter().map(block).collect();
        if run.iter().any(is_plot) { format!("<div class=\"plots\">\n{body}</div>\n") } else { body }
    });
    runs.collect()
}

fn block(block: &Block) -> String {
    match block {
        Block::Heading(text) => format!("<h3>{}</h3>\n", words(text)),
        Block::Text(text) => format!("<p>{}</p>\n", with_code(&tidy(text))),
        Block::Table(rows) => table(rows),
        Block::Commands(commands) => {
            let lines: Vec<String> = commands.iter().map(|command| escaped(&tidy_command(command))).collect();
            format!("<pre tabindex=\"0\"><code>{}</code></pre>\n", lines.join("\n"))
        }
        Block::Plot(plot) => figure(plot),
    }
}

fn figure(plot: &Plot) -> String {
    format!(
        "<figure>\n<h4>{}</h4>\n{}\n<figcaption>{}</figcaption>\n\
         <details><summary>Figures</summary>{}</details>\n</figure>\n",
        words(&plot.title),
        plot.svg(),
        words(&plot.caption),
        table(&plot.table())
    )
}

fn table(table: &Table) -> String {
    let row = |begin: &str, end: &str, cells: &[String]| -> String {
        cells.iter().map(|cell| format!("{begin}{}{end}", words(cell))).collect()
    };
    let head = row("<th scope=\"col\">", "</th>", &table.header);
    let rows = table.rows.iter().map(|cells| format!("<tr>{}</tr>\n", row("<td>", "</td>", cells)));
    format!(
        "<div class=\"scroll\" tabindex=\"0\"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{}</tbody>\n\
         </table></div>\n",
        rows.collect::<String>()
    )
}

/// Renders text between two backticks as code. A single backtick is a normal character.
fn with_code(text: &str) -> String {
    let mut html = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('`') {
        let Some((code, after)) = after.split_once('`') else { break };
        html.push_str(&format!("{}<code>{}</code>", escaped(before), escaped(code)));
        rest = after;
    }
    html + &escaped(rest)
}

/// Converts `text` to one line and escapes markup characters.
fn words(text: &str) -> String {
    escaped(&tidy(text))
}
