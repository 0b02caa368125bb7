//! docs/src/images/before-after.svg, README's picture: what upstream's default build and ours do, on every machine of
//! which docs/results holds that comparison, and what a whole request takes after `optimize` and `tune`. Drawn by the test
//! here, so that it shows what was measured and nothing else.

use std::collections::BTreeMap;
use std::fmt::Write;

use build::compare::Phase;
use build::compare::comparison::{Comparison, Figure};
use measure::stats::Ratio;
use report::escaped;
use serde::Deserialize;

use super::page::{Measured, docs, results};

/// Whole requests by upstream's default build and by what `optimize` and `tune` found, timed in turns by hand.
const WHOLE: &str = "results/by-hand/rag-total-optimized-zen4.json";

const BEFORE: &str = "upstream-default";
const AFTER: &str = "native";
const WIDTH: u32 = 720;
/// Where bars begin, and how long the longer one of a phase is.
const BARS: (f64, f64) = (150.0, 330.0);
const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#1b1f24}.soft{fill:#57606a}.bold{font-weight:600}\
    .before{fill:#afb8c1}.after{fill:#0072b2}@media(prefers-color-scheme:dark){text{fill:#e6edf3}.soft{fill:#9198a1}\
    .before{fill:#57606a}.after{fill:#56b4e9}}";

/// A phase's two bars, from `top` down.
fn bars(svg: &mut String, figure: &Figure, top: f64) {
    let of = |build: &str| figure.results.iter().find(|result| result.build == build);
    let (Some(before), Some(after)) = (of(BEFORE), of(AFTER)) else { return };
    let ratio = after.ratio.as_ref().expect("what is compared has a ratio");
    let verdict = after.verdict.as_deref().unwrap_or_default();
    let show = |median: f64| (median, figure.phase.show(median));
    pair(svg, &figure.title(), [show(before.median), show(after.median)], ratio, verdict, top);
}

/// Two bars with their words, and how many times as fast the second is.
fn pair(svg: &mut String, title: &str, of: [(f64, String); 2], ratio: &Ratio, verdict: &str, top: f64) {
    let most = of[0].0.max(of[1].0);
    writeln!(svg, r#"<text x="0" y="{}">{title}</text>"#, top + 22.0).unwrap();
    for ((class, top), (length, words)) in [("before", top), ("after", top + 18.0)].into_iter().zip(of) {
        let (from, length) = (BARS.0, BARS.1 * length / most);
        writeln!(svg, r#"<rect class="{class}" x="{from}" y="{top}" width="{length:.1}" height="14"/>"#)
            .unwrap();
        let (x, y) = (from + length + 8.0, top + 11.5);
        writeln!(svg, r#"<text class="soft" x="{x:.1}" y="{y}">{words}</text>"#).unwrap();
    }
    let (x, class) = (WIDTH - 1, if verdict == "faster" { "bold" } else { "soft" });
    let said =
        if verdict == "faster" { format!("{:.2} times as fast", ratio.median) } else { verdict.to_string() };
    writeln!(svg, r#"<text class="{class}" x="{x}" y="{}" text-anchor="end">{said}</text>"#, top + 11.5)
        .unwrap();
    let interval = format!("[{:.2}, {:.2}]", ratio.low, ratio.high);
    writeln!(svg, r#"<text class="soft" x="{x}" y="{}" text-anchor="end">{interval}</text>"#, top + 29.5)
        .unwrap();
}

/// Times of whole requests, in turns.
#[derive(Deserialize)]
struct Whole {
    /// The machine, in words.
    cpu: String,
    /// Nanoseconds of each build's runs, those of a turn at the same place.
    builds: BTreeMap<String, Vec<f64>>,
}

impl Whole {
    fn read() -> Self {
        serde_json::from_str(&std::fs::read_to_string(docs().join(WHOLE)).unwrap()).unwrap()
    }

    fn draw(&self, svg: &mut String, top: f64) {
        let (before, after) = (&self.builds[BEFORE], &self.builds["optimized and tuned"]);
        assert_eq!(before.len(), after.len());
        let ratio = measure::stats::ratio(before, after);
        let verdict = if ratio.low > 1.0 { "faster" } else { "no difference shown" };
        let show = |runs: &[f64]| {
            let seconds = measure::stats::median(runs) / 1e9;
            (seconds, format!("{seconds:.1} s"))
        };
        writeln!(
            svg,
            r#"<text class="bold" x="0" y="{}">2048 tokens of prompt and 256 of answer, {}</text>"#,
            top + 14.0,
            escaped(&self.cpu)
        )
        .unwrap();
        pair(svg, "time, shorter is better", [show(before), show(after)], &ratio, verdict, top + 26.0);
    }
}

fn draw(whole: &Whole, comparisons: &[Comparison]) -> String {
    let mut body = String::new();
    whole.draw(&mut body, 0.0);
    let mut top = 80.0;
    for comparison in comparisons {
        let machine = escaped(&comparison.provenance.machine.to_string());
        writeln!(body, r#"<text class="bold" x="0" y="{}">{machine}</text>"#, top + 14.0).unwrap();
        top += 26.0;
        for figure in &comparison.figures {
            if matches!(figure.phase, Phase::Prefill | Phase::Decode) {
                bars(&mut body, figure, top);
                top += 44.0;
            }
        }
        top += 10.0;
    }
    let key = |x: u32, class: &str, build: &str| {
        format!(
            "<rect class=\"{class}\" x=\"{x}\" y=\"{top}\" width=\"14\" height=\"14\"/>\n\
             <text class=\"soft\" x=\"{}\" y=\"{}\">{build}</text>\n",
            x + 20,
            top + 11.5
        )
    };
    let keys = key(150, "before", BEFORE) + &key(320, "after", "native; at the top optimized and tuned");
    let height = top + 20.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\">\n\
         <title>Seconds and tokens per second of {BEFORE} and {AFTER}</title>\n<style>{STYLE}</style>\n{body}{keys}</svg>\n"
    )
}

#[test]
fn the_picture_in_readme_is_that_of_the_results() {
    let found = results().into_values().filter_map(|measured| match measured {
        Measured::Comparison(comparison) => Some(*comparison),
        _ => None,
    });
    let names = |comparison: &Comparison| -> Vec<String> {
        comparison.builds.iter().map(|build| build.name.clone()).collect()
    };
    let found: Vec<Comparison> = found.filter(|one| names(one) == [BEFORE, AFTER]).collect();
    assert!(!found.is_empty());
    let (path, now) = (docs().join("src/images/before-after.svg"), draw(&Whole::read(), &found));
    generated::check(path, &now);
}
