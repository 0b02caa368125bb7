//! Section about comparisons of servers: `bench serve`.

use build_info::words::count;
use report::{Block, Interval, Intervals, Plot, PlotKind, Table};

use crate::serving::Served;
use crate::serving::figures::{ServerOutcome, show};

/// Figures that are plotted. The table contains all other figures.
const DRAWN: [&str; 3] = ["all clients", "first token p50", "between tokens p99"];

/// Returns the conditions, a plot of the figures that clients notice, and a table of all results.
pub fn blocks(servers: &[(String, Served)]) -> Vec<Block> {
    let mut blocks = Vec::new();
    for (name, served) in servers {
        blocks.push(Block::Heading(name.clone()));
        blocks.push(Block::Text(conditions(served)));
        blocks.extend(served.note.iter().map(|note| Block::Text(note.clone())));
        blocks.extend(
            served.stopped.iter().map(|why| Block::Text(format!("The comparison is not complete: {why}"))),
        );
        blocks.extend(trouble(served).map(Block::Text));
        blocks.extend(plot(name, served).map(Block::Plot));
        blocks.push(Block::Table(table(served)));
    }
    blocks
}

fn conditions(served: &Served) -> String {
    let Served { provenance, model, threads, prompt, generate, requests, pairs, .. } = served;
    let day = provenance.date.get(..10).unwrap_or(&provenance.date);
    let requests = count(requests, "request");
    let warm = if served.warm_prefix { " (with a shared prefix)" } else { "" };
    let threads = count(threads, "thread");
    format!(
        "{day}, {}: {model}, {threads}, {requests} per client with {prompt} prompt tokens{warm} and {generate} \
         answer tokens, {}. Ratios of times are inverted: for speeds and times, a ratio above 1 means that {} \
         is faster. Ratios of sizes are not inverted.",
        provenance.machine,
        count(pairs, "round"),
        ours(served),
    )
}

/// Returns the circumstances that reduce the reliability of the figures.
fn trouble(served: &Served) -> Option<String> {
    let unequal = served.equal.as_ref().filter(|equal| !equal.is_whole()).map(|equal| {
        format!(
            "Of {} tokens generated for one prompt, the servers agree on the first {}.",
            equal.asked, equal.same
        )
    });
    let (failed, words) = served.failed();
    let failed = (failed > 0).then(|| {
        format!(
            "{} failed, so the figures cover only the successful requests: {}.",
            count(failed, "request"),
            words.join("; ")
        )
    });
    let words: Vec<String> = unequal.into_iter().chain(failed).collect();
    (!words.is_empty()).then(|| words.join(" "))
}

fn ours(served: &Served) -> &str {
    served.programs.first().map_or("ours", |program| program.name.as_str())
}

/// Returns the results of the other servers, each with the median, lower end and upper end of its ratio.
fn others(results: &[ServerOutcome]) -> impl Iterator<Item = (&ServerOutcome, [f64; 3])> {
    results.iter().skip(1).filter_map(|other| {
        let ratio = other.ratio?.charted();
        Some((other, [ratio.median, ratio.low, ratio.high]))
    })
}

fn plot(name: &str, served: &Served) -> Option<Plot> {
    let mut rows = Vec::new();
    for (series, drawn) in DRAWN.iter().enumerate() {
        for figure in served.figures.iter().filter(|figure| figure.name == *drawn) {
            let several = others(&figure.results).count() > 1;
            rows.extend(others(&figure.results).map(|(other, [median, low, high])| Interval {
                group: (*drawn).to_string(),
                label: match several {
                    true => format!("{}, {}", figure.clients, other.program),
                    false => count(figure.clients, "client"),
                },
                value: figure.results.first().map_or(String::new(), |own| show(&figure.unit, own.median)),
                verdict: other.verdict.clone().unwrap_or_default(),
                series,
                median,
                low,
                high,
            }));
        }
    }
    (!rows.is_empty()).then(|| Plot {
        name: format!("{name} servers"),
        title: format!("{} and other servers, by number of concurrent clients", ours(served)),
        caption:
            "Medians of paired ratios with 95 % intervals; ratios of times are inverted, so right of 1 is \
             faster."
                .to_string(),
        kind: PlotKind::Intervals(Intervals { rows }),
    })
}

fn table(served: &Served) -> Table {
    let header = ["clients", "", ours(served), "against", "", "ratio [95 % interval]", "verdict"];
    let mut rows = Vec::new();
    for figure in &served.figures {
        let Some(own) = figure.results.first() else { continue };
        let first = [figure.clients.to_string(), figure.name.clone(), show(&figure.unit, own.median)];
        let compared: Vec<[String; 4]> = figure.results[1..]
            .iter()
            .map(|other| {
                // If a round is missing, there are no pairs and no ratio.
                let ratio = other.ratio.map_or(String::new(), |ratio| ratio.to_string());
                let verdict = other.verdict.clone().unwrap_or_default();
                [other.program.clone(), show(&figure.unit, other.median), ratio, verdict]
            })
            .collect();
        let none = compared.is_empty().then(<[String; 4]>::default);
        rows.extend(
            compared.into_iter().chain(none).map(|other| first.iter().cloned().chain(other).collect()),
        );
    }
    Table { header: header.map(str::to_string).to_vec(), rows }
}
