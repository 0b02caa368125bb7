//! Tables of docs/src/tune/results, generated from docs/results/*.json by the test in this file. The prose around the
//! tables is written manually.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use build::compare::comparison::{self, BuildOutcome, Comparison, Figure};
use build::compare::{Phase, Provenance, Ratio, median};
use serde::Deserialize;

use crate::commands::bench::builds::BuildTimes;
use crate::commands::bench::first_minutes::FirstMinutes;
use crate::commands::bench::overhead::Overhead;

/// Measurement of any kind that docs/results may contain.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Measured {
    Comparison(Box<Comparison>),
    Build(BuildTimes),
    Overhead(Overhead),
    FirstMinutes(FirstMinutes),
}

impl Measured {
    fn read(text: &str) -> Result<Self, String> {
        let value: serde_json::Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        serde_json::from_value(value).map_err(|_| {
            "contains no result of bench compare, bench build, bench overhead or bench first-minutes"
                .to_string()
        })
    }

    fn provenance(&self) -> &Provenance {
        match self {
            Measured::Comparison(comparison) => &comparison.provenance,
            Measured::Build(times) => &times.provenance,
            Measured::Overhead(overhead) => &overhead.provenance,
            Measured::FirstMinutes(minutes) => &minutes.provenance,
        }
    }

    fn markdown(&self) -> String {
        let Provenance { date, command, machine } = self.provenance();
        let (detail, table) = match self {
            Measured::Comparison(comparison) => (comparison_detail(comparison), comparison_table(comparison)),
            Measured::Build(times) => (
                format!(
                    "{}. The ratio compares times, so a ratio below 1 means faster.",
                    pairs(times.ratio.pairs)
                ),
                build_table(times),
            ),
            Measured::Overhead(overhead) => (String::new(), overhead_table(overhead)),
            Measured::FirstMinutes(minutes) => (
                "Medians. The ratios compare times, so a ratio below 1 means faster.".to_string(),
                minutes.table(),
            ),
        };
        let day = date.get(..10).unwrap_or(date);
        format!("{machine}; {day}. {}\n\n`{command}`\n\n{table}", detail.trim_end())
    }
}

fn pairs(number: usize) -> String {
    format!("{number} pair{}", if number == 1 { "" } else { "s" })
}

fn comparison_detail(comparison: &Comparison) -> String {
    let Comparison { threads, builds, .. } = comparison;
    let baseline = builds.first().map_or("", |build| build.name.as_str());
    let plural = if *threads == 1 { "" } else { "s" };
    let left_out = match comparison.warm_up_rounds {
        0 => String::new(),
        1 => " after 1 warm-up round".to_string(),
        rounds => format!(" after {rounds} warm-up rounds"),
    };
    let mut text = format!(
        "{threads} thread{plural}, {}{left_out}. Medians, and ratios to `{baseline}` with 95 % intervals. A \
         ratio above 1 means faster, or larger if the unit is bytes.",
        pairs(comparison.pairs)
    );
    if let Some((median, most)) = comparison.disturbance() {
        write!(
            text,
            " Other processes used {median:.2} cores in the median round and {most:.2} in the worst round."
        )
        .unwrap();
    }
    for extra in [&comparison.note, &comparison.stopped].into_iter().flatten() {
        write!(text, " {extra}").unwrap();
    }
    text.push_str("\n\n");
    for build in builds {
        let plan = build.plan_hash.as_ref().map(|hash| format!("plan {}", hash.short()));
        let defaults = Some(build.defaults.to_string()).filter(|defaults| !defaults.is_empty());
        let known: Vec<String> =
            [build.source.clone(), build.compiler.clone(), plan, defaults].into_iter().flatten().collect();
        let known = if known.is_empty() { "another program".to_string() } else { known.join(", ") };
        writeln!(text, "- `{}`: {known}", build.name).unwrap();
    }
    text
}

/// Maximum number of builds that one table shows as columns: a table has at most six columns.
const SIDE_BY_SIDE: usize = 4;

fn comparison_table(comparison: &Comparison) -> String {
    match comparison.builds.len() <= SIDE_BY_SIDE {
        true => wide_table(comparison),
        false => long_table(comparison),
    }
}

/// Returns a table with one row for each phase and model and one column for each build.
fn wide_table(comparison: &Comparison) -> String {
    let names: Vec<String> = comparison.builds.iter().map(|build| format!("`{}`", build.name)).collect();
    let mut text =
        format!("| phase | model | {} |\n| --- | --- |{}\n", names.join(" | "), " --- |".repeat(names.len()));
    for figure in &comparison.figures {
        let cell = |build: &str| {
            let result = figure.results.iter().find(|result| result.build == build);
            result.map_or(String::new(), |result| cell(figure, result))
        };
        let cells: Vec<String> = comparison.builds.iter().map(|build| cell(&build.name)).collect();
        let model = figure.model.as_deref().unwrap_or("");
        writeln!(text, "| {} | {model} | {} |", figure.title(), cells.join(" | ")).unwrap();
    }
    if !comparison.overall.is_empty() {
        let cells = comparison.builds.iter().map(|build| {
            let overall = comparison.overall.iter().find(|overall| overall.build == build.name);
            overall.map_or(String::new(), |overall| said(&overall.ratio, &overall.verdict))
        });
        let cells: Vec<String> = cells.collect();
        writeln!(text, "| prefill and decode | all | {} |", cells.join(" | ")).unwrap();
    }
    text
}

/// Returns a table with one row for each phase, model and build.
fn long_table(comparison: &Comparison) -> String {
    let mut text = "| phase | model | build | median; ratio |\n| --- | --- | --- | --- |\n".to_string();
    for figure in &comparison.figures {
        let model = figure.model.as_deref().unwrap_or("");
        for result in &figure.results {
            let (title, build) = (figure.title(), &result.build);
            writeln!(text, "| {title} | {model} | `{build}` | {} |", cell(figure, result)).unwrap();
        }
    }
    for overall in &comparison.overall {
        let ratio = said(&overall.ratio, &overall.verdict);
        writeln!(text, "| prefill and decode | all | `{}` | {ratio} |", overall.build).unwrap();
    }
    text
}

fn cell(figure: &Figure, result: &BuildOutcome) -> String {
    let median = figure.phase.show(result.median);
    match (&result.ratio, &result.verdict) {
        // A size does not vary, so it has no interval.
        (Some(ratio), Some(verdict)) if figure.phase == Phase::BinarySize => {
            format!("{median}; {:.3}, {verdict}", ratio.median)
        }
        (Some(ratio), Some(verdict)) => format!("{median}; {}", said(ratio, verdict)),
        _ => median,
    }
}

fn said(ratio: &Ratio, verdict: &str) -> String {
    match verdict {
        "faster" | "slower" | "smaller" | "larger" => format!("{ratio}, **{verdict}**"),
        _ => format!("{ratio}, {verdict}"),
    }
}

fn build_table(times: &BuildTimes) -> String {
    format!(
        "| profile | by xtask | by plain cmake and ninja | ratio |\n| --- | --- | --- | --- |\n| `{}` | {:.1} s | {:.1} s | \
         {} |\n",
        times.profile,
        median(&times.xtask_seconds),
        median(&times.plain_seconds),
        times.ratio.with_pairs()
    )
}

fn overhead_table(overhead: &Overhead) -> String {
    let mut text = "| command | median | slowest | runs |\n| --- | --- | --- | --- |\n".to_string();
    for row in &overhead.commands {
        let runs = row.samples_ms.len();
        writeln!(text, "| `{}` | {:.1} ms | {:.1} ms | {runs} |", row.command, row.median_ms, row.slowest_ms)
            .unwrap();
    }
    text
}

/// Returns `page` with each result's tables between the result's markers. Removes the names of these results from
/// `unused`.
fn with_results(page: &str, files: &BTreeMap<String, String>, unused: &mut BTreeSet<String>) -> String {
    let names = page.split("<!-- docs/results/").skip(1).filter_map(|rest| rest.split(" -->").next());
    let names: Vec<String> = names.map(String::from).collect();
    names.into_iter().fold(page.to_string(), |page, name| {
        let part =
            files.get(&name).unwrap_or_else(|| panic!("a page shows {name}, which is not in docs/results"));
        assert!(unused.remove(&name), "two pages show {name}");
        generated::with_part(&page, &format!("docs/results/{name}"), &format!("{}\n", part.trim_end()))
    })
}

pub(super) fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// Returns every file in docs/results by name.
pub(super) fn results() -> BTreeMap<String, Measured> {
    let files = std::fs::read_dir(docs().join("results")).unwrap().map(|entry| entry.unwrap().path());
    files
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let read = Measured::read(&std::fs::read_to_string(&path).unwrap());
            let measured = read.unwrap_or_else(|why| panic!("docs/results/{name}: {why}"));
            (name, measured)
        })
        .collect()
}

#[test]
fn the_results_pages_are_those_of_the_files() {
    let files: BTreeMap<String, String> =
        results().into_iter().map(|(name, measured)| (name, measured.markdown())).collect();
    let mut unused: BTreeSet<String> = files.keys().cloned().collect();
    for entry in std::fs::read_dir(docs().join("src/tune/results")).unwrap() {
        let path = entry.unwrap().path();
        let page = std::fs::read_to_string(&path).unwrap();
        generated::check(&path, &with_results(&page, &files, &mut unused));
    }
    assert!(
        unused.is_empty(),
        "no page of docs/src/tune/results shows {unused:?}: put `<!-- docs/results/NAME -->` and \
         `<!-- end of docs/results/NAME -->` into one of them"
    );
}

/// Returns `comparison` with ratios and verdicts recomputed from its samples with the current statistics.
fn again(mut comparison: Comparison) -> Comparison {
    let mut logs: Vec<Vec<f64>> = vec![Vec::new(); comparison.builds.len()];
    let mut speeds = 0.0;
    let mut own_logs: Vec<f64> = Vec::new();
    for figure in &mut comparison.figures {
        let baseline = figure.results[0].samples.clone();
        let is_speed = matches!(figure.phase, Phase::Prefill | Phase::Decode);
        if is_speed {
            speeds += 1.0;
            own_logs.resize(baseline.len(), 0.0);
            own_logs.iter_mut().zip(&baseline).for_each(|(sum, speed)| *sum += speed.ln());
        }
        for result in figure.results.iter_mut().filter(|result| result.ratio.is_some()) {
            let ratio = figure.quantity.ratio(&result.samples, &baseline);
            result.verdict = Some(figure.phase.verdict(&ratio).to_string());
            result.ratio = Some(ratio);
            let build = comparison.builds.iter().position(|build| build.name == result.build).unwrap();
            if is_speed {
                logs[build].resize(baseline.len(), 0.0);
                let own = result.samples.iter().zip(&baseline).map(|(own, other)| (own / other).ln());
                logs[build].iter_mut().zip(own).for_each(|(sum, log)| *sum += log);
            }
        }
    }
    for overall in &mut comparison.overall {
        let build = comparison.builds.iter().position(|build| build.name == overall.build).unwrap();
        let means: Vec<f64> = logs[build].iter().map(|sum| (sum / speeds).exp()).collect();
        overall.ratio = measure::Ratio::of(&means);
        overall.verdict = build::compare::Quantity::Rate.verdict(&overall.ratio).to_string();
    }
    if comparison.floor.is_some() {
        let own: Vec<f64> = own_logs.iter().map(|sum| (sum / speeds).exp()).collect();
        comparison.floor = comparison::floor(&own, &comparison.overall);
    }
    comparison
}

/// Checks that published ratios follow from their samples and that no unfinished result is published. If UPDATE_DOCS
/// is set, rewrites the files, for use after a change of the statistics.
#[test]
fn published_ratios_are_those_of_the_samples() {
    if std::env::var_os("UPDATE_DOCS").is_some() {
        for (name, measured) in results() {
            let Measured::Comparison(comparison) = measured else { continue };
            let text = serde_json::to_string_pretty(&again(*comparison)).unwrap() + "\n";
            std::fs::write(docs().join("results").join(name), text).unwrap();
        }
    }
    let mut seen = 0;
    for (name, measured) in results() {
        let Measured::Comparison(comparison) = measured else { continue };
        assert_eq!(comparison.stopped, None, "{name}");
        let overall = |comparison: &Comparison| -> Vec<String> {
            let said = comparison.overall.iter().map(|build| (&build.build, build.ratio, &build.verdict));
            said.map(|(build, ratio, verdict)| format!("{build}: {ratio}, {verdict}")).collect()
        };
        let again = again((*comparison).clone());
        assert_eq!(overall(&again), overall(&comparison), "{name}");
        let parts = [again.floor, comparison.floor].map(|floor| floor.map(|floor| (floor * 1e6).round()));
        assert_eq!(parts[0], parts[1], "{name}: the floor");
        for figure in &comparison.figures {
            let baseline = &figure.results[0];
            for result in &figure.results {
                assert!(
                    (median(&result.samples) / result.median - 1.0).abs() < 1e-9,
                    "{name}: {}",
                    figure.title()
                );
                let Some(ratio) = &result.ratio else { continue };
                seen += 1;
                let again = figure.quantity.ratio(&result.samples, &baseline.samples);
                assert_eq!(again.to_string(), ratio.to_string(), "{name}: {}", figure.title());
                assert_eq!(Some(figure.phase.verdict(&again)), result.verdict.as_deref(), "{name}");
            }
        }
    }
    assert!(seen >= 9, "only {seen} ratios were found");
}

#[test]
fn a_part_is_replaced_and_a_file_of_another_kind_is_refused() {
    let files = BTreeMap::from([("a.json".to_string(), "new\n".to_string())]);
    let page = "prose\n\n<!-- docs/results/a.json -->\nold\n<!-- end of docs/results/a.json -->\n\nmore\n";
    let mut unused = BTreeSet::from(["a.json".to_string(), "b.json".to_string()]);
    assert_eq!(with_results(page, &files, &mut unused), page.replace("old", "new"));
    assert_eq!(unused, BTreeSet::from(["b.json".to_string()]));
    for text in ["", "{}", "[]", r#"{"date": "x"}"#] {
        assert!(Measured::read(text).is_err(), "{text:?} was accepted");
    }
}
