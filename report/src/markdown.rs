//! The page as Markdown.

use std::fmt::Write;

use crate::{Block, Report, Table};

pub fn markdown(report: &Report, folder: &str) -> String {
    let mut text = format!("# {}\n\n{}\n", line(&report.title), line(&report.lead));
    for section in &report.sections {
        let _ = write!(text, "\n## {}\n", line(&section.title));
        for block in &section.blocks {
            text.push('\n');
            match block {
                Block::Text(words) => text.push_str(&format!("{}\n", line(words))),
                Block::Table(rows) => table(&mut text, rows),
                Block::Commands(commands) => {
                    text.push_str("```console\n");
                    commands.iter().for_each(|command| text.push_str(&format!("$ {command}\n")));
                    text.push_str("```\n");
                }
                Block::Plot(plot) => {
                    let folder = if folder.is_empty() { String::new() } else { format!("{folder}/") };
                    let _ = write!(
                        text,
                        "![{}]({folder}{}.svg)\n\n{}\n\n",
                        line(&plot.title),
                        plot.name,
                        line(&plot.caption)
                    );
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

/// On one line, and with nothing that ends a cell or begins markup of HTML.
fn line(words: &str) -> String {
    words.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|").replace('<', "&lt;")
}
