//! Report as text: a table on a terminal, or a page for docs/results.

use std::fmt::Write;

use build::ui;
use build_info::Bytes;

use super::plan::Switch;
use super::report::{Decode, Figure, ModelReport, ProgramReport, Report};

/// Table with a head and rows.
struct Table {
    title: &'static str,
    head: &'static [&'static str],
    rows: Vec<Vec<String>>,
}

/// Returns the figures and the skipped steps, in columns.
pub fn text(report: &Report) -> String {
    let mut text = format!("{}\n\n", headline(report));
    for table in tables(report).into_iter().filter(|table| !table.rows.is_empty()) {
        let _ = writeln!(text, "{}\n{}\n", table.title, ui::columns(table.head, table.rows));
    }
    text.push_str(&left_out(report));
    text
}

/// Returns a Markdown page with the machine, the builds, the figures and the skipped steps.
pub fn markdown(report: &Report) -> String {
    let mut text = format!("# GPU check\n\n{}\n\n`{}`\n\n", headline(report), report.provenance.command);
    text.push_str(&builds(report));
    for table in tables(report).into_iter().filter(|table| !table.rows.is_empty()) {
        let _ = write!(
            text,
            "\n## {}\n\n| {} |\n|{}\n",
            table.title,
            table.head.join(" | "),
            " --- |".repeat(table.head.len())
        );
        for row in &table.rows {
            let cells: Vec<String> =
                row.iter().map(|cell| cell.replace('|', "\\|").replace('\n', " ")).collect();
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
    }
    let left_out = left_out(report);
    if !left_out.is_empty() {
        let _ = write!(text, "\n## Left out\n\n");
        for line in left_out.lines().skip(1) {
            let _ = writeln!(text, "- {}", line.trim());
        }
    }
    text
}

fn headline(report: &Report) -> String {
    let day = report.provenance.date.get(..10).unwrap_or(&report.provenance.date);
    let gpus: Vec<String> = report
        .host
        .gpus
        .iter()
        .map(|gpu| format!("{} ({}, driver {})", gpu.name, gpu.memory, gpu.driver))
        .collect();
    let gpus = if gpus.is_empty() { "no GPU".to_string() } else { gpus.join(", ") };
    let mut text = format!(
        "{gpus}; {}; {day}. {:.0} of {:.0} s.",
        report.provenance.machine, report.seconds, report.budget_seconds
    );
    if report.rehearsal {
        text.push_str(" This is a rehearsal on the CPU: the figures do not describe a GPU.");
    }
    if let Some(why) = &report.stopped {
        let _ = write!(text, " Not complete: {why}.");
    }
    text
}

fn builds(report: &Report) -> String {
    let mut text = String::new();
    for program in std::iter::once(&report.anneal).chain(&report.llama_bench) {
        let _ = writeln!(text, "- `{}`: {}", program.name, build(program));
    }
    if let Some(why) = &report.llama_bench_missing {
        let _ = writeln!(text, "- no llama-bench: {why}");
    }
    for differing in report.models.iter().flat_map(|model| &model.differing_settings).take(8) {
        let _ = writeln!(
            text,
            "- `{}` is {} for anneal and {} for llama-bench",
            differing.setting, differing.anneal, differing.llama_bench
        );
    }
    text
}

fn build(program: &ProgramReport) -> String {
    let size = program.bytes;
    let Some(build) = &program.build else { return format!("{size}, SHA-256 {}", program.sha256.short()) };
    let cuda = build.cuda.as_ref().map_or(String::new(), |cuda| {
        format!(", CUDA {} for {}", cuda.toolkit, cuda.architectures.join(" "))
    });
    format!(
        "{} (plan {}), {} {}, {}{cuda}, {size}",
        build.profile,
        build.plan_hash.short(),
        build.source.origin,
        build.source.version,
        build.compiler
    )
}

fn tables(report: &Report) -> Vec<Table> {
    let name = |figure: &Figure| figure.model.as_ref().map_or(String::new(), ToString::to_string);
    let figures = report
        .figures
        .iter()
        .map(|figure| {
            vec![
                name(figure),
                figure.what.clone(),
                figure.goal.clone(),
                figure.value.map_or(String::new(), |value| format!("{value:.3}")),
                figure.verdict.name().to_string(),
                figure.note.clone().unwrap_or_default(),
            ]
        })
        .collect();
    let decodes = decodes(report);
    vec![
        Table { title: "Goals", head: &["model", "what", "goal", "value", "verdict", "note"], rows: figures },
        Table {
            title: "Speed, tokens per second",
            head: &["model", "test", "anneal", "llama-bench", "ratio"],
            rows: report.models.iter().flat_map(speeds).collect(),
        },
        Table {
            title: "Steady decode, from the first token to the last",
            head: &["run", "tokens", "t/s", "CPUs", "busiest core"],
            rows: decodes.iter().map(|row| row[..5].to_vec()).collect(),
        },
        // A table in the docs has at most six columns.
        Table {
            title: "GPU use in steady decode",
            head: &["run", "GPU", "W", "SM MHz", "GPU memory"],
            rows: decodes
                .iter()
                .filter(|row| row[5..].iter().any(|cell| !cell.is_empty()))
                .map(|row| [&row[..1], &row[5..]].concat())
                .collect(),
        },
    ]
}

fn speeds(model: &ModelReport) -> Vec<Vec<String>> {
    let row = |of: &super::report::ProgramComparison| {
        vec![
            model.name.to_string(),
            format!("{}{}", of.test, of.sampling.words()),
            format!("{:.1}", of.anneal),
            of.llama_bench.map_or(String::new(), |speed| format!("{speed:.1}")),
            of.ratio.map_or(String::new(), |ratio| ratio.to_string()),
        ]
    };
    model.comparisons.iter().map(row).collect()
}

fn decodes(report: &Report) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for model in &report.models {
        // The middle round represents all rounds; the report contains each round.
        let middle = model.decodes.get(model.decodes.len() / 2);
        rows.extend(middle.map(|decode| decode_row(model.name.to_string(), decode)));
    }
    for switch in Switch::ALL {
        let pairs: Vec<_> = report.pairs.iter().filter(|pair| pair.switch == switch).collect();
        if let Some(pair) = pairs.get(pairs.len() / 2) {
            for (side, decode) in switch.sides().into_iter().zip([&pair.on, &pair.off]) {
                rows.push(decode_row(format!("{switch} {side}"), decode));
            }
        }
    }
    if let Some(long) = &report.long {
        rows.push(decode_row(format!("long run of {}", long.model), &long.decode));
        let pace = |pace: Option<&super::report::Pace>| {
            pace.map_or(String::new(), |pace| format!("{:.1}", pace.tokens_per_second))
        };
        let paces = &long.decode.pace;
        for (words, at) in
            [("first part of the long run", paces.first()), ("last part of the long run", paces.last())]
        {
            let mut row = vec![words.to_string(), String::new(), pace(at)];
            row.resize(9, String::new());
            rows.push(row);
        }
    }
    rows
}

fn decode_row(name: String, decode: &Decode) -> Vec<String> {
    let gpu = measure::gpu::together(&decode.usage.gpus).unwrap_or_default();
    let number =
        |value: Option<f64>, digits: usize| value.map_or(String::new(), |value| format!("{value:.digits$}"));
    vec![
        name,
        decode.tokens.to_string(),
        number(decode.tokens_per_second, 1),
        number(decode.cpus, 2),
        number(decode.usage.cores.iter().copied().reduce(f64::max), 2),
        gpu.utilisation.map_or(String::new(), |share| format!("{:.0} %", 100.0 * share)),
        number(gpu.watts, 0),
        number(gpu.sm_mhz, 0),
        gpu.memory_peak.map_or(String::new(), |bytes| Bytes(bytes).to_string()),
    ]
}

/// Returns failures and skipped steps, one per line below a title. Returns an empty string if there are none.
fn left_out(report: &Report) -> String {
    let skipped =
        report.models.iter().filter_map(|model| Some((model.name.to_string(), model.skipped.clone()?)));
    let failed = report.steps.iter().filter_map(|step| {
        let error = step.error.as_ref()?;
        Some((step.step.clone(), format!("failed: {}", error.lines().collect::<Vec<_>>().join(" "))))
    });
    let others = report.left_out.iter().map(|left_out| (left_out.step.clone(), left_out.reason.clone()));
    let mut lines: Vec<(String, String, usize)> = Vec::new();
    for (step, reason) in skipped.chain(failed).chain(others) {
        let reason = reason.lines().map(str::trim).collect::<Vec<_>>().join(" ");
        // Rounds with the same reason share one line.
        match lines.iter_mut().find(|(_, other, _)| *other == reason) {
            Some((_, _, count)) => *count += 1,
            None => lines.push((step, reason, 0)),
        }
    }
    if lines.is_empty() {
        return String::new();
    }
    let line = |(step, reason, more): &(String, String, usize)| match more {
        0 => format!("  {step}: {reason}\n"),
        more => format!("  {step} and {more} more: {reason}\n"),
    };
    format!("Left out\n{}", lines.iter().map(line).collect::<String>())
}
