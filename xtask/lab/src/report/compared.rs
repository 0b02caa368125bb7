//! Section about comparisons of builds.

use build::compare::comparison::{Comparison, Figure};
use build::compare::{Phase, Quantity};
use build_info::words::count;
use measure::Ratio;
use report::{Block, Interval, Intervals, Plot, PlotKind, Table};

/// Returns the conditions, a plot for each phase, and a table of all results.
pub fn blocks(comparisons: &[(String, Comparison)]) -> Vec<Block> {
    let mut blocks = Vec::new();
    for (name, comparison) in comparisons {
        blocks.push(Block::Heading(name.clone()));
        blocks.push(Block::Text(conditions(comparison)));
        blocks.extend(comparison.note.iter().map(|note| Block::Text(note.clone())));
        blocks.extend(
            comparison
                .stopped
                .iter()
                .map(|why| Block::Text(format!("The comparison is not complete: {why}"))),
        );
        blocks.push(Block::Table(builds(comparison)));
        blocks.extend(overall(name, comparison).map(Block::Plot));
        blocks.extend(phases(name, comparison).into_iter().map(Block::Plot));
    }
    blocks
}

/// Describes the conditions of the measurement in a paragraph.
fn conditions(comparison: &Comparison) -> String {
    let Comparison { provenance, threads, pairs, warm_up_rounds, rounds, .. } = comparison;
    let day = provenance.date.get(..10).unwrap_or(&provenance.date);
    let warm = match warm_up_rounds {
        0 => String::new(),
        n => format!(", plus {n} for warm-up"),
    };
    let done = match rounds.len() {
        // Comparisons of older programs do not contain the number of rounds.
        0 => count(*pairs, "round"),
        n if n == *pairs => count(n, "round"),
        n => format!("{n} of {}", count(*pairs, "round")),
    };
    let mut text = format!("{day}, {}: {}, {done}{warm}.", provenance.machine, count(threads, "thread"));
    for remark in comparison.remarks() {
        text.push_str(&format!(" {}.", capital(&remark)));
    }
    if let Some((median, most)) = comparison.disturbance() {
        text.push_str(&format!(
            " Other processes used {median:.2} cores in the median round and {most:.2} in the worst round."
        ));
    }
    text
}

fn capital(words: &str) -> String {
    let mut chars = words.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

fn builds(comparison: &Comparison) -> Table {
    let said = |text: &Option<String>| text.clone().unwrap_or_default();
    // Omit the column if no build has defaults. Only GPU profiles have defaults.
    let are_told = comparison.builds.iter().any(|build| !build.defaults.is_empty());
    let row = |(number, build): (usize, &build::compare::comparison::Contender)| {
        let mut row = vec![
            build.name.clone(),
            if number == 0 { "baseline" } else { "" }.to_string(),
            said(&build.profile),
            said(&build.source),
            said(&build.compiler),
            build.plan_hash.as_ref().map_or(String::new(), |hash| hash.short().to_string()),
        ];
        row.extend(are_told.then(|| build.defaults.to_string()));
        row
    };
    let mut header = vec!["build", "", "profile", "source", "compiler", "plan"];
    header.extend(are_told.then_some("defaults"));
    Table {
        header: header.into_iter().map(str::to_string).collect(),
        rows: comparison.builds.iter().enumerate().map(row).collect(),
    }
}

fn overall(name: &str, comparison: &Comparison) -> Option<Plot> {
    let row = |overall: &build::compare::comparison::Overall| {
        let Ratio { median, low, high, .. } = overall.ratio.charted();
        Interval {
            label: overall.build.clone(),
            verdict: overall.verdict.clone(),
            series: number_of(comparison, &overall.build),
            median,
            low,
            high,
            ..Interval::default()
        }
    };
    let rows: Vec<Interval> = comparison.overall.iter().map(row).collect();
    (!rows.is_empty()).then(|| Plot {
        name: format!("{name} overall"),
        title: "Prefill and decode of all models".to_string(),
        caption: format!(
            "{} Each paired ratio is the geometric mean of all ratios of a round.",
            reading(Quantity::Rate, baseline(comparison))
        ),
        kind: PlotKind::Intervals(Intervals { rows }),
    })
}

/// Returns one plot for each phase, with rows by size and model.
fn phases(name: &str, comparison: &Comparison) -> Vec<Plot> {
    let of_phase = |phase: Phase| {
        let figures: Vec<&Figure> =
            comparison.figures.iter().filter(|figure| figure.phase == phase).collect();
        let rows: Vec<Interval> = figures.iter().flat_map(|figure| rows(comparison, figure)).collect();
        (!rows.is_empty()).then(|| Plot {
            name: format!("{name} {phase}"),
            title: capital(&phase.name().replace('-', " ")),
            caption: reading(phase.quantity(), baseline(comparison)),
            kind: PlotKind::Intervals(Intervals { rows }),
        })
    };
    Phase::ALL.into_iter().filter_map(of_phase).collect()
}

fn rows(comparison: &Comparison, figure: &Figure) -> Vec<Interval> {
    let size = figure.title().strip_prefix(figure.phase.name()).unwrap_or_default().trim().to_string();
    let group = [figure.model.clone().unwrap_or_default(), size];
    let group: Vec<String> = group.into_iter().filter(|part| !part.is_empty()).collect();
    let compared = figure.results.iter().filter_map(|result| Some((result, result.ratio?.charted())));
    compared
        .map(|(result, ratio)| Interval {
            group: group.join(" · "),
            label: result.build.clone(),
            value: figure.phase.show(result.median),
            verdict: result.verdict.clone().unwrap_or_default(),
            series: number_of(comparison, &result.build),
            median: ratio.median,
            low: ratio.low,
            high: ratio.high,
        })
        .collect()
}

/// Returns the number of a build, so that the build has one colour in all plots of a comparison.
fn number_of(comparison: &Comparison, build: &str) -> usize {
    comparison.builds.iter().position(|other| other.name == build).unwrap_or(1).saturating_sub(1)
}

fn baseline(comparison: &Comparison) -> &str {
    comparison.builds.first().map_or("the baseline", |build| build.name.as_str())
}

fn reading(quantity: Quantity, baseline: &str) -> String {
    let side = match quantity {
        Quantity::Rate => "right of 1 is faster",
        Quantity::Time => "ratios of times are inverted, so right of 1 is faster",
        Quantity::Size => "left of 1 is smaller",
    };
    format!("Medians of paired ratios to {baseline} with 95 % intervals: {side}.")
}
