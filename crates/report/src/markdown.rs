//! Markdown version of a page.

use std::fmt::Write;

use crate::document::{Block, ReportPage};
use crate::table::Table;
use crate::words::{tidy, tidy_command};

pub fn markdown(report: &ReportPage, folder: &str) -> String {
    let mut text = format!("# {}\n\n{}\n", line(&report.title), paragraph(&report.lead));
    for section in &report.sections {
        let _ = write!(text, "\n## {}\n", line(&section.title));
        for block in &section.blocks {
            text.push('\n');
            match block {
                Block::Heading(words) => text.push_str(&format!("### {}\n", line(words))),
                Block::Text(words) => text.push_str(&format!("{}\n", paragraph(words))),
                Block::Table(rows) => table(&mut text, rows),
                Block::Commands(commands) => {
                    text.push_str("```console\n");
                    commands.iter().for_each(|command| {
                        text.push_str(&format!("$ {}\n", tidy_command(command)));
                    });
                    text.push_str("```\n");
                }
                Block::Plot(plot) => {
                    let folder = if folder.is_empty() { String::new() } else { format!("{folder}/") };
                    let (title, name) = (line(&plot.title), &plot.name);
                    let _ =
                        write!(text, "![{title}]({folder}{name}.svg)\n\n{}\n\n", paragraph(&plot.caption));
                    table(&mut text, &plot.table());
                }
            }
        }
    }
    text
}

fn table(text: &mut String, table: &Table) {
    let row = |cells: &[String]| {
        format!("| {} |\n", cells.iter().map(|cell| line(cell)).collect::<Vec<_>>().join(" | "))
    };
    text.push_str(&row(&table.header));
    text.push_str(&format!("|{}\n", " --- |".repeat(table.header.len())));
    table.rows.iter().for_each(|cells| text.push_str(&row(cells)));
}

/// Converts `words` to one line, and escapes everything that would end a cell or start markup, a link or code. A
/// vertical bar becomes its entity, because renderers differ on whether a preceding backslash escapes it.
fn line(words: &str) -> String {
    let mut text = String::new();
    for c in tidy(words).chars() {
        match c {
            '|' => text.push_str("&#124;"),
            '<' => text.push_str("&lt;"),
            '&' => text.push_str("&amp;"),
            '`' | '\\' | '*' => text.extend(['\\', c]),
            // Escaping `](`, the middle of a link, is enough. Plain brackets are not escaped, because they also enclose
            // intervals.
            '(' if text.ends_with(']') => text.push_str("\\("),
            c => text.push(c),
        }
    }
    text
}

/// Converts `words` to a separate line, and escapes the beginning of a heading, a list or a fence.
fn paragraph(words: &str) -> String {
    let text = line(words);
    let begins_block = text.starts_with(['#', '>', '-', '+', '=', '~', '[']);
    if begins_block { format!("\\{text}") } else { text }
}
