//! Draws docs/src/images/before-after.svg, the picture in README, from docs/results. The picture shows tokens per
//! second on one machine, for upstream's default build and for builds with another compiler, other settings and
//! patches.

use std::fmt::Write;

use build::compare::Phase;
use build::compare::comparison::{Comparison, Figure};
use report::escaped;

use super::page::{Measured, docs, results};

/// File of the comparison that is drawn.
const FILE: &str = "native-vs-upstream-default-zen3.json";

/// Builds in the order of their bars, each with the CSS class of its bar and a label.
const BUILDS: [(&str, &str, &str); 4] = [
    ("upstream-default", "default", "upstream's default, gcc"),
    ("upstream-default+compiler:best", "compiler", "upstream's default, clang"),
    ("native+patched_kernels:false+prefetch:false", "settings", "native without patches"),
    ("native", "native", "native"),
];

const WIDTH: u32 = 720;
/// Left end of the bars, and length of the longest bar of a group.
const BARS: (f64, f64) = (170.0, 290.0);
const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#1b1f24}.soft{fill:#57606a}.bold{font-weight:600}\
    .default{fill:#d0d7de}.compiler{fill:#a9b4bf}.settings{fill:#6cb2e0}.native{fill:#0072b2}\
    @media(prefers-color-scheme:dark){text{fill:#e6edf3}.soft{fill:#9198a1}\
    .default{fill:#424a53}.compiler{fill:#6e7781}.settings{fill:#2f7fb3}.native{fill:#56b4e9}}";

/// Draws the bars of one phase of one model from `top` down.
fn group(svg: &mut String, figure: &Figure, top: f64) {
    let result = |build: &str| {
        figure.results.iter().find(|result| result.build == build).expect("a build of the file")
    };
    let longest = BUILDS.iter().map(|(build, ..)| result(build).median).fold(0.0, f64::max);
    let model = figure.model.as_deref().unwrap_or_default();
    let lines = [(figure.title(), "bold"), (model.to_string(), "soft")];
    for (line, (text, class)) in lines.iter().enumerate() {
        let y = top + 14.0 + 18.0 * line as f64;
        writeln!(svg, r#"<text class="{class}" x="0" y="{y}">{}</text>"#, escaped(text)).unwrap();
    }
    for (row, (build, class, _)) in BUILDS.iter().enumerate() {
        let result = result(build);
        let (top, length) = (top + 18.0 * row as f64, BARS.1 * result.median / longest);
        writeln!(svg, r#"<rect class="{class}" x="{}" y="{top}" width="{length:.1}" height="14"/>"#, BARS.0)
            .unwrap();
        let (x, y) = (BARS.0 + length + 8.0, top + 11.5);
        writeln!(svg, r#"<text class="soft" x="{x:.1}" y="{y}">{}</text>"#, figure.phase.show(result.median))
            .unwrap();
        let Some(ratio) = &result.ratio else { continue };
        let class = if result.verdict.as_deref() == Some("faster") { "bold" } else { "soft" };
        let words = format!("{:.2} [{:.2}, {:.2}]", ratio.median, ratio.low, ratio.high);
        writeln!(svg, r#"<text class="{class}" x="{}" y="{y}" text-anchor="end">{words}</text>"#, WIDTH - 1)
            .unwrap();
    }
}

fn draw(comparison: &Comparison) -> String {
    let mut body = String::new();
    let machine = escaped(&comparison.provenance.machine.to_string());
    let mut top = 26.0;
    writeln!(body, r#"<text class="bold" x="0" y="14">{machine}</text>"#).unwrap();
    for figure in &comparison.figures {
        if matches!(figure.phase, Phase::Prefill | Phase::Decode) {
            group(&mut body, figure, top);
            top += 18.0 * BUILDS.len() as f64 + 14.0;
        }
    }
    for (column, (_, class, label)) in BUILDS.iter().enumerate() {
        let (x, y) = (f64::from(WIDTH) / 2.0 * (column % 2) as f64, top + 20.0 * (column / 2) as f64);
        writeln!(body, r#"<rect class="{class}" x="{x}" y="{y}" width="14" height="14"/>"#).unwrap();
        writeln!(body, r#"<text class="soft" x="{}" y="{}">{label}</text>"#, x + 20.0, y + 11.5).unwrap();
    }
    let height = top + 40.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\">\n\
         <title>Tokens per second of four builds, longer is better, with ratios to upstream's default build</title>\n\
         <style>{STYLE}</style>\n{body}</svg>\n"
    )
}

#[test]
fn the_picture_in_readme_is_that_of_the_results() {
    let Some(Measured::Comparison(comparison)) = results().remove(FILE) else {
        panic!("docs/results/{FILE} is not a comparison")
    };
    let path = docs().join("src/images/before-after.svg");
    generated::check(path, &draw(&comparison));
}
