//! Benchmark results in llama-bench's formats: Markdown, JSON, JSON lines, CSV and SQL.

use std::io::{self, Write};
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Context as _;
use serde::Serialize;
use serde_json::{Map, Value};
use tune::bench::{BenchRecord, OperationRecord, PartRecord, Path};

use super::sql;

/// Error message for a row that cannot be written.
pub const UNWRITABLE: &str = "cannot write the results to stdout";

/// Output format of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Markdown,
    Json,
    JsonLines,
    Csv,
    Sql,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "md" => Format::Markdown,
            "json" => Format::Json,
            "jsonl" => Format::JsonLines,
            "csv" => Format::Csv,
            "sql" => Format::Sql,
            _ => return Err(format!("unknown format {text:?}: use md, json, jsonl, csv or sql")),
        })
    }
}

/// Result that can be printed as a row.
pub trait ResultRow: Serialize {
    /// Returns the name of the result's SQL table.
    fn table(&self) -> &'static str;
    /// Returns all fields with their values, in order. The CSV and SQL formats omit lists.
    fn fields(&self) -> serde_json::Result<Map<String, Value>> {
        match serde_json::to_value(self)? {
            Value::Object(fields) => Ok(fields),
            _ => Ok(Map::new()),
        }
    }
    /// Returns the two header lines of a Markdown table.
    fn head(&self) -> String;
    /// Returns the row of a Markdown table.
    fn line(&self) -> String;
}

/// Additional column of a Markdown table: title, width and cell.
pub type Extra = (&'static str, usize, String);

/// State of the table for the ctrl-C handler. The state is locked while a row is written, so that ctrl-C never leaves
/// a partial row.
static STATE: Mutex<PrinterState> = Mutex::new(PrinterState { open: None, rows: 0, expected: None });

struct PrinterState {
    /// Format of the open table, from [`Table::begin`] to [`Table::end`].
    open: Option<Format>,
    rows: usize,
    expected: Option<usize>,
}

fn state() -> MutexGuard<'static, PrinterState> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Completes the table on stdout, and prints to stderr how many tests were measured. Called by the ctrl-C handler; no
/// row can be added afterwards.
pub fn interrupt() {
    let mut state = state();
    let rows = state.rows;
    if state.open.take() == Some(Format::Json) {
        let mut out = io::stdout();
        // An error is ignored, because the process ends anyway.
        let _ = writeln!(out, "\n]").and_then(|()| out.flush());
    }
    let _ = match state.expected {
        Some(all) => writeln!(io::stderr(), "interrupted: {rows} of {all} tests were measured"),
        None if rows > 0 => writeln!(io::stderr(), "interrupted: the results are incomplete"),
        None => writeln!(io::stderr(), "interrupted: nothing was measured"),
    };
    // The lock is never released, so a thread that wants to write a row waits until the process ends.
    std::mem::forget(state);
}

/// Printer that prints results one by one.
pub struct Table<W> {
    format: Format,
    out: W,
    rows: usize,
}

impl<W: Write> Table<W> {
    pub fn new(format: Format, out: W) -> Self {
        Self { format, out, rows: 0 }
    }

    /// Prints the rows that `fill` adds. If `fill` fails, the earlier rows are still printed as a complete table.
    ///
    /// # Errors
    /// The error of `fill`, or of writing.
    pub fn print(mut self, fill: impl FnOnce(&mut Self) -> anyhow::Result<()>) -> anyhow::Result<()> {
        self.begin().context(UNWRITABLE)?;
        let filled = fill(&mut self);
        filled.and(self.end().context(UNWRITABLE))
    }

    pub fn begin(&mut self) -> io::Result<()> {
        let mut state = state();
        state.open = Some(self.format);
        match self.format {
            Format::Json => writeln!(self.out, "["),
            _ => Ok(()),
        }
    }

    /// Sets the number of expected results.
    pub fn expect(&self, results: usize) {
        state().expected = Some(results);
    }

    pub fn add(&mut self, record: &impl ResultRow) -> io::Result<()> {
        self.add_with(record, &[])
    }

    /// Adds a row with the `extra` columns in Markdown. The other formats always contain every field.
    pub fn add_with(&mut self, record: &impl ResultRow, extra: &[Extra]) -> io::Result<()> {
        let mut state = state();
        match self.format {
            Format::Json => {
                let separator = if self.rows > 0 { ",\n" } else { "" };
                let text = serde_json::to_string_pretty(record)?;
                write!(self.out, "{separator}{text}")?;
            }
            Format::JsonLines => writeln!(self.out, "{}", serde_json::to_string(record)?)?,
            Format::Csv => self.csv(record)?,
            Format::Sql => self.sql(record)?,
            Format::Markdown => self.markdown(record, extra)?,
        }
        self.rows += 1;
        state.rows += 1;
        self.out.flush()
    }

    pub fn end(&mut self) -> io::Result<()> {
        let mut state = state();
        state.open = None;
        match self.format {
            Format::Json => writeln!(self.out, "\n]"),
            _ => Ok(()),
        }
    }

    fn sql(&mut self, record: &impl ResultRow) -> io::Result<()> {
        let fields = plain(record)?;
        if self.rows == 0 {
            writeln!(self.out, "{}", sql::create(record.table(), &fields))?;
        }
        writeln!(self.out, "{}", sql::insert(record.table(), &fields))
    }

    fn csv(&mut self, record: &impl ResultRow) -> io::Result<()> {
        let fields = plain(record)?;
        if self.rows == 0 {
            let names: Vec<&str> = fields.iter().map(|(name, _)| name.as_str()).collect();
            writeln!(self.out, "{}", names.join(","))?;
        }
        let quoted = |(_, value): &(String, Value)| {
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

    fn markdown(&mut self, record: &impl ResultRow, extra: &[Extra]) -> io::Result<()> {
        if self.rows == 0 {
            let head = record.head();
            let (titles, rules) = head.split_once('\n').unwrap_or((&head, ""));
            let more = |cell: fn(&Extra) -> String| extra.iter().map(cell).collect::<String>();
            let titles_more = more(|(title, width, _)| format!(" {title:>width$} |"));
            let rules_more = more(|(_, width, _)| format!(" {:->rest$}: |", "", rest = width - 1));
            writeln!(self.out, "{titles}{titles_more}\n{rules}{rules_more}")?;
        }
        let cells: String = extra.iter().map(|(_, width, cell)| format!(" {cell:>width$} |")).collect();
        writeln!(self.out, "{}{cells}", record.line())
    }
}

/// Returns the fields without lists. llama-bench also omits the samples from CSV and SQL.
fn plain(record: &impl ResultRow) -> serde_json::Result<Vec<(String, Value)>> {
    Ok(record.fields()?.into_iter().filter(|(_, value)| !value.is_array()).collect())
}

impl ResultRow for BenchRecord {
    fn table(&self) -> &'static str {
        // The table has the same name as in llama-bench, because it has the same fields.
        "llama_bench"
    }

    fn head(&self) -> String {
        let more = more(self);
        let titles: String = more.iter().map(|(title, width, _)| format!(" {title:>width$} |")).collect();
        let rules: String =
            more.iter().map(|(_, width, _)| format!(" {:->rest$}: |", "", rest = width - 1)).collect();
        format!(
            "| {:<30} | {:>10} | {:>10} | {:>7} | {:>15} | {:>20} |{titles}\n| {:-<30} | {:->9}: | {:->9}: | {:->6}: | \
             {:->14}: | {:->19}: |{rules}",
            "model", "size", "params", "threads", "test", "t/s", "", "", "", "", "", ""
        )
    }

    fn line(&self) -> String {
        let (mean, deviation) = self.speed();
        let more: String = more(self).iter().map(|(_, width, cell)| format!(" {cell:>width$} |")).collect();
        format!(
            "| {:<30} | {:>10} | {:>10} | {:>7} | {:>15} | {:>20} |{more}",
            self.model_type,
            size(self.model_size),
            parameters(self.model_n_params),
            self.n_threads,
            self.test(),
            format!("{mean:.2} ± {deviation:.2}"),
        )
    }
}

/// Column to the right of llama-bench's columns: title, width and cell.
type Column = (&'static str, usize, String);

/// Returns the columns of `record` that llama-bench does not have.
fn more(record: &BenchRecord) -> Vec<Column> {
    let mut columns: Vec<Column> = Vec::new();
    if record.path == Path::EndToEnd {
        columns.push(("first token ms", 14, format!("{:.1}", record.first_token_ms())));
    }
    if record.columns.latency {
        let times = record.token_times();
        let ms = |ns: Option<u64>| ns.map_or(String::new(), |ns| format!("{:.2}", ns as f64 / 1e6));
        columns.push(("ms/token p50", 12, ms(times.map(|times| times.p50))));
        columns.push(("p95", 8, ms(times.map(|times| times.p95))));
        columns.push(("p99", 8, ms(times.map(|times| times.p99))));
        columns.push(("jitter", 8, ms(times.map(|times| times.jitter))));
        columns.push((
            "load ms",
            10,
            record.load_ns.map_or(String::new(), |ns| format!("{:.1}", ns as f64 / 1e6)),
        ));
    }
    if record.columns.roof {
        let share = record
            .share
            .map_or(String::new(), |share| format!("{:.1} ({})", share.of_roof * 100.0, share.bound.name()));
        columns.push(("% of roof", 16, share));
    }
    if let Some(gpu) = record.gpu() {
        let cell = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.0}"));
        columns.push(("GPU %", 5, cell(gpu.utilisation.map(|share| 100.0 * share))));
        columns.push(("GPU W", 5, cell(gpu.watts)));
    }
    columns
}

impl ResultRow for PartRecord {
    fn table(&self) -> &'static str {
        "anneal_parts"
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

/// Columns of a table of operations: title, width, and true for numbers, which are aligned to the right.
const OPERATION_COLUMNS: [(&str, usize, bool); 11] = [
    ("test", 12, true),
    ("threads", 7, true),
    ("operation", 20, false),
    ("type", 6, false),
    ("shape", 20, true),
    ("calls", 6, true),
    ("ms", 9, true),
    ("%", 5, true),
    ("GB/s", 6, true),
    ("GMAC/s", 7, true),
    ("% of roof", 12, true),
];

/// Returns a row of a table of operations.
fn operation_line(cells: [String; 11]) -> String {
    let cells = OPERATION_COLUMNS.iter().zip(cells).map(|((_, width, right), cell)| match right {
        true => format!("{cell:>width$}"),
        false => format!("{cell:<width$}"),
    });
    format!("| {} |", cells.collect::<Vec<_>>().join(" | "))
}

impl ResultRow for OperationRecord {
    fn table(&self) -> &'static str {
        "anneal_operations"
    }

    fn head(&self) -> String {
        let titles = OPERATION_COLUMNS.map(|(title, ..)| title.to_string());
        let rules = OPERATION_COLUMNS.map(|(_, width, right)| match right {
            true => format!("{:->width$}", ":"),
            false => "-".repeat(width),
        });
        format!("{}\n{}", operation_line(titles), operation_line(rules))
    }

    fn line(&self) -> String {
        let row = self.row();
        let ns = row.ns.unwrap_or_default();
        // Bytes and multiply-adds per nanosecond are billions per second.
        let rate = |amount: Option<f64>| match amount {
            Some(amount) if amount > 0.0 && ns > 0.0 => format!("{:.1}", amount / ns),
            _ => String::new(),
        };
        let share = self.share.map(|share| format!("{:.0} ({})", share.of_roof * 100.0, share.bound.name()));
        let calls = row.calls.filter(|calls| *calls > 0.0).map(|calls| format!("{calls:.0}"));
        let part = 100.0 * self.operation.nanoseconds as f64 / self.total_ns.max(1) as f64;
        operation_line([
            self.test(),
            self.n_threads.to_string(),
            self.operation.op.clone(),
            self.operation.kind.clone(),
            self.shape(),
            calls.unwrap_or_default(),
            format!("{:.3}", ns / 1e6),
            format!("{part:.1}"),
            rate(row.bytes),
            rate(row.macs),
            share.unwrap_or_default(),
        ])
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
