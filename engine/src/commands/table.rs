//! Benchmark results as llama-bench prints them: a Markdown table, JSON, JSON lines, CSV.

use std::io::{self, Write};
use std::str::FromStr;

use engine::bench::{Path, Record};
use serde_json::Value;

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Markdown,
    Json,
    JsonLines,
    Csv,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "md" => Format::Markdown,
            "json" => Format::Json,
            "jsonl" => Format::JsonLines,
            "csv" => Format::Csv,
            _ => return Err(format!("unknown format {text:?}: use md, json, jsonl or csv")),
        })
    }
}

/// Prints each result as it comes.
pub struct Table<W> {
    format: Format,
    out: W,
    rows: usize,
}

impl<W: Write> Table<W> {
    pub fn new(format: Format, out: W) -> Self {
        Self { format, out, rows: 0 }
    }

    pub fn begin(&mut self) -> io::Result<()> {
        match self.format {
            Format::Json => writeln!(self.out, "["),
            _ => Ok(()),
        }
    }

    pub fn add(&mut self, record: &Record) -> io::Result<()> {
        match self.format {
            Format::Json => {
                let separator = if self.rows > 0 { ",\n" } else { "" };
                let text = serde_json::to_string_pretty(record)?;
                write!(self.out, "{separator}{text}")?;
            }
            Format::JsonLines => writeln!(self.out, "{}", serde_json::to_string(record)?)?,
            Format::Csv => self.csv(record)?,
            Format::Markdown => self.markdown(record)?,
        }
        self.rows += 1;
        self.out.flush()
    }

    pub fn end(&mut self) -> io::Result<()> {
        match self.format {
            Format::Json => writeln!(self.out, "\n]"),
            _ => Ok(()),
        }
    }

    /// The samples are left out, as llama-bench does: they are lists.
    fn csv(&mut self, record: &Record) -> io::Result<()> {
        let fields: Vec<_> = record.fields().into_iter().filter(|(_, value)| !value.is_array()).collect();
        if self.rows == 0 {
            let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
            writeln!(self.out, "{}", names.join(","))?;
        }
        let quoted = |(_, value): &(_, Value)| {
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Bool(on) => u8::from(*on).to_string(),
                Value::Null => String::new(),
                other => other.to_string(),
            };
            format!("\"{}\"", text.replace('"', "\"\""))
        };
        writeln!(self.out, "{}", fields.iter().map(quoted).collect::<Vec<_>>().join(","))
    }

    fn markdown(&mut self, record: &Record) -> io::Result<()> {
        let first_token = record.path == Path::EndToEnd;
        if self.rows == 0 {
            let (head, rule) =
                if first_token { (" first token ms |", " -------------: |") } else { ("", "") };
            writeln!(
                self.out,
                "| {:<30} | {:>10} | {:>10} | {:>7} | {:>15} | {:>20} |{head}",
                "model", "size", "params", "threads", "test", "t/s"
            )?;
            writeln!(
                self.out,
                "| {:-<30} | {:->9}: | {:->9}: | {:->6}: | {:->14}: | {:->19}: |{rule}",
                "", "", "", "", "", ""
            )?;
        }
        let (mean, deviation) = record.speed();
        let speed = format!("{mean:.2} ± {deviation:.2}");
        write!(
            self.out,
            "| {:<30} | {:>10} | {:>10} | {:>7} | {:>15} | {speed:>20} |",
            record.model_type,
            size(record.model_size),
            parameters(record.model_n_params),
            record.n_threads,
            record.test(),
        )?;
        if first_token {
            write!(self.out, " {:>14.1} |", record.first_token_ms())?;
        }
        writeln!(self.out)
    }
}

fn size(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib < 1024.0 { format!("{mib:.2} MiB") } else { format!("{:.2} GiB", mib / 1024.0) }
}

fn parameters(count: u64) -> String {
    let millions = count as f64 / 1e6;
    if millions < 1000.0 { format!("{millions:.2} M") } else { format!("{:.2} B", millions / 1e3) }
}
