//! Benchmark results as llama-bench prints them: a Markdown table, JSON, JSON lines, CSV.

use std::io::{self, Write};
use std::str::FromStr;

use engine::bench::{PartRecord, Path, Record};
use serde::Serialize;
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

/// One result.
pub trait Row: Serialize {
    /// Every field with its value, in order.
    fn fields(&self) -> Vec<(&'static str, Value)>;
    /// The two lines above the first row of a Markdown table.
    fn head(&self) -> String;
    /// A row of a Markdown table.
    fn line(&self) -> String;
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

    pub fn add(&mut self, record: &impl Row) -> io::Result<()> {
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
    fn csv(&mut self, record: &impl Row) -> io::Result<()> {
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

    fn markdown(&mut self, record: &impl Row) -> io::Result<()> {
        if self.rows == 0 {
            writeln!(self.out, "{}", record.head())?;
        }
        writeln!(self.out, "{}", record.line())
    }
}

impl Row for Record {
    fn fields(&self) -> Vec<(&'static str, Value)> {
        Record::fields(self)
    }

    fn head(&self) -> String {
        let (first_token, rule) = match self.path {
            Path::EndToEnd => (" first token ms |", " -------------: |"),
            Path::Kernel => ("", ""),
        };
        format!(
            "| {:<30} | {:>10} | {:>10} | {:>7} | {:>15} | {:>20} |{first_token}\n| {:-<30} | {:->9}: | {:->9}: | \
             {:->6}: | {:->14}: | {:->19}: |{rule}",
            "model", "size", "params", "threads", "test", "t/s", "", "", "", "", "", ""
        )
    }

    fn line(&self) -> String {
        let (mean, deviation) = self.speed();
        let first_token = match self.path {
            Path::EndToEnd => format!(" {:>14.1} |", self.first_token_ms()),
            Path::Kernel => String::new(),
        };
        format!(
            "| {:<30} | {:>10} | {:>10} | {:>7} | {:>15} | {:>20} |{first_token}",
            self.model_type,
            size(self.model_size),
            parameters(self.model_n_params),
            self.n_threads,
            self.test(),
            format!("{mean:.2} ± {deviation:.2}"),
        )
    }
}

impl Row for PartRecord {
    fn fields(&self) -> Vec<(&'static str, Value)> {
        PartRecord::fields(self)
    }

    fn head(&self) -> String {
        format!(
            "| {:<30} | {:>10} | {:>7} | {:>15} | {:>24} | {:<8} |\n| {:-<30} | {:->9}: | {:->6}: | {:->14}: | \
             {:->23}: | {:-<8} |",
            "model", "size", "threads", "part", "per second", "unit", "", "", "", "", "", ""
        )
    }

    fn line(&self) -> String {
        let (mean, deviation) = self.per_second();
        format!(
            "| {:<30} | {:>10} | {:>7} | {:>15} | {:>24} | {:<8} |",
            self.subject.model_type,
            size(self.subject.model_size),
            self.n_threads,
            self.test(),
            format!("{mean:.2} ± {deviation:.2}"),
            self.part.unit(),
        )
    }
}

pub fn size(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib < 1024.0 { format!("{mib:.2} MiB") } else { format!("{:.2} GiB", mib / 1024.0) }
}

fn parameters(count: u64) -> String {
    let millions = count as f64 / 1e6;
    if millions < 1000.0 { format!("{millions:.2} M") } else { format!("{:.2} B", millions / 1e3) }
}
