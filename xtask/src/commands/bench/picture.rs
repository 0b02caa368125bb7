//! docs/src/images/before-after.svg, README's picture: what upstream's default build and ours do, on every machine of
//! which docs/results holds that comparison. Drawn by the test here, so that it shows what was measured and nothing else.

use std::fmt::Write;

use report::escaped;

use crate::compare::Phase;
use crate::compare::comparison::{Comparison, Figure};

use super::page::{Measured, docs, results};

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
    let most = before.median.max(after.median);
    writeln!(svg, r#"<text x="0" y="{}">{}</text>"#, top + 22.0, figure.title()).unwrap();
    for (class, result, top) in [("before", before, top), ("after", after, top + 18.0)] {
        let (from, length) = (BARS.0, BARS.1 * result.median / most);
        writeln!(svg, r#"<rect class="{class}" x="{from}" y="{top}" width="{length:.1}" height="14"/>"#)
            .unwrap();
        let words = figure.phase.show(result.median);
        let (x, y) = (from + length + 8.0, top + 11.5);
        writeln!(svg, r#"<text class="soft" x="{x:.1}" y="{y}">{words}</text>"#).unwrap();
    }
    let verdict = after.verdict.as_deref().unwrap_or_default();
    let (x, class) = (WIDTH - 1, if verdict == "faster" { "bold" } else { "soft" });
    let said =
        if verdict == "faster" { format!("{:.2} times as fast", ratio.median) } else { verdict.to_string() };
    writeln!(svg, r#"<text class="{class}" x="{x}" y="{}" text-anchor="end">{said}</text>"#, top + 11.5)
        .unwrap();
    let interval = format!("[{:.2}, {:.2}]", ratio.low, ratio.high);
    writeln!(svg, r#"<text class="soft" x="{x}" y="{}" text-anchor="end">{interval}</text>"#, top + 29.5)
        .unwrap();
}

fn draw(comparisons: &[Comparison]) -> String {
    let mut body = String::new();
    let mut top = 0.0;
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
    let keys = key(150, "before", BEFORE) + &key(320, "after", AFTER);
    let height = top + 20.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\">\n\
         <title>Tokens per second of {BEFORE} and {AFTER}</title>\n<style>{STYLE}</style>\n{body}{keys}</svg>\n"
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
    let (path, now) = (docs().join("src/images/before-after.svg"), draw(&found));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let drawn = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(drawn == now, "run `UPDATE_DOCS=1 cargo test -p xtask results` and look at the picture");
}
