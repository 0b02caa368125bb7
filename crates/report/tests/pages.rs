//! Tests of empty and large pages, of values that are not numbers, and of hostile texts.

use report::{
    Bar, Bars, Block, Curves, Interval, Intervals, Plot, PlotKind, Point, ReportPage, Roof, Roofline,
    Section, Series, Spread, Spreads, Table,
};

/// Returns the names of all elements in order. Returns an error if an element is not closed, or if another element's
/// end tag closes it. `html` allows elements without an end tag.
fn elements(text: &str, html: bool) -> Result<Vec<String>, String> {
    let (mut names, mut open, mut rest) = (Vec::new(), Vec::new(), text);
    while let Some((words, after)) = rest.split_once('<') {
        if words.contains('>') && open.last().is_none_or(|name| name != "style") {
            return Err(format!("a bare > in {words:?}"));
        }
        let (tag, after) = after.split_once('>').ok_or_else(|| format!("< without >: {after:.40}"))?;
        rest = after;
        let name: String =
            tag.trim_start_matches('/').chars().take_while(|c| c.is_ascii_alphanumeric()).collect();
        if tag.starts_with('!') {
            continue;
        }
        if tag.matches('"').count() % 2 != 0 {
            return Err(format!("a quote is open in <{tag}>"));
        }
        if tag.starts_with('/') {
            let last = open.pop();
            if last.as_ref() != Some(&name) {
                return Err(format!("</{name}> ends {last:?}"));
            }
        } else {
            names.push(name.clone());
            if !(tag.ends_with('/') || html && name == "meta") {
                open.push(name);
            }
        }
    }
    if open.is_empty() { Ok(names) } else { Err(format!("not closed: {open:?}")) }
}

/// Returns the names of the attributes of all elements.
fn attributes(text: &str) -> Vec<String> {
    let tags = text.split('<').skip(1).filter_map(|rest| rest.split_once('>')).map(|(tag, _)| tag);
    // Quoted values are skipped.
    let plain = tags.flat_map(|tag| tag.split('"').step_by(2).map(str::to_string).collect::<Vec<_>>());
    let names = plain.flat_map(|part| {
        part.split_whitespace()
            .filter_map(|word| word.strip_suffix('=').map(str::to_string))
            .collect::<Vec<_>>()
    });
    names.collect()
}

fn plots(words: &str, value: f64, rows: usize) -> Vec<Plot> {
    let name = |number: usize| format!("{words}{number}");
    let kinds = [
        PlotKind::Intervals(Intervals {
            rows: (0..rows)
                .map(|number| Interval {
                    group: name(number / 3),
                    label: name(number),
                    value: words.to_string(),
                    verdict: words.to_string(),
                    series: number,
                    median: value,
                    low: value - 0.1,
                    high: value * 1.1,
                })
                .collect(),
        }),
        PlotKind::Curves(Curves {
            x: words.to_string(),
            y: words.to_string(),
            series: (0..rows)
                .map(|number| Series {
                    name: name(number),
                    points: (0..rows).map(|x| (x as f64, value, 0.5)).collect(),
                })
                .collect(),
        }),
        PlotKind::Spreads(Spreads {
            unit: words.to_string(),
            rows: (0..rows)
                .map(|number| Spread {
                    group: name(number / 2),
                    label: name(number),
                    p50: value,
                    p95: value * 2.0,
                    p99: value * 3.0,
                })
                .collect(),
        }),
        PlotKind::Bars(Bars {
            unit: words.to_string(),
            possible: words.to_string(),
            rows: (0..rows)
                .map(|number| Bar {
                    group: name(number / 2),
                    label: name(number),
                    note: words.to_string(),
                    value,
                    possible: (number > 0).then_some(value / 2.0),
                })
                .collect(),
        }),
        PlotKind::Roofline(Roofline {
            bandwidth: value * 1e9,
            roofs: (0..rows).map(|number| Roof { name: name(number), macs: value * 1e11 }).collect(),
            points: (0..rows)
                .map(|number| Point {
                    name: name(number),
                    intensity: value,
                    macs: value * 1e10,
                    share: Some(value),
                })
                .collect(),
        }),
    ];
    let plot = |(number, kind)| Plot {
        name: format!("plot-{number}"),
        title: words.to_string(),
        caption: words.to_string(),
        kind,
    };
    kinds.into_iter().enumerate().map(plot).collect()
}

fn page(words: &str, value: f64, rows: usize) -> ReportPage {
    let text = || words.to_string();
    let mut blocks = vec![
        Block::Heading(text()),
        Block::Text(text()),
        Block::Table(Table { header: vec![text(), text()], rows: vec![vec![text(), text()]; rows] }),
        Block::Commands(vec![text(); rows]),
    ];
    blocks.extend(plots(words, value, rows).into_iter().map(Block::Plot));
    ReportPage { title: text(), lead: text(), sections: vec![Section { title: text(), blocks }] }
}

fn check(page: &ReportPage) {
    let html = page.html();
    let names = elements(&html, true).unwrap_or_else(|why| panic!("{why} in {html:.2000}"));
    for forbidden in ["script", "img", "iframe", "object", "link", "b", "foreignObject"] {
        assert!(!names.iter().any(|name| name == forbidden), "<{forbidden}>");
    }
    let attributes = attributes(&html);
    assert!(attributes.iter().any(|name| name == "href"), "{attributes:?}");
    assert!(!attributes.iter().any(|name| name.starts_with("on") || name == "src"), "{attributes:?}");
    assert!(!html.replace("http://www.w3.org/2000/svg", "").contains("=\"http"), "a page needs no network");
    let numbers = |text: &str| ["=\"NaN", "=\"inf", "=\"-inf"].iter().any(|bad| text.contains(bad));
    for plot in page.plots() {
        let svg = plot.file();
        elements(&svg, false).unwrap_or_else(|why| panic!("{why} in {svg:.2000}"));
        assert!(!numbers(&svg), "{svg:.2000}");
        assert!(!svg.chars().any(|c| c.is_control() && c != '\n'), "control characters");
        let heights = svg.split("height=\"").filter_map(|rest| rest.split('"').next()?.parse::<f64>().ok());
        assert!(heights.clone().count() > 0 && heights.into_iter().all(|height| height < 5000.0));
    }
}

#[test]
fn the_parser_of_these_tests_sees_what_is_wrong() {
    for wrong in ["<p>", "<p></b>", "</p>", "<p", "<p title=\"x></p>", "a > b<p></p>"] {
        assert!(elements(wrong, true).is_err(), "{wrong}");
    }
    assert_eq!(elements("<!doctype html><meta a=\"b\"><p><br/></p>", true).unwrap(), ["meta", "p", "br"]);
    assert_eq!(attributes("<a href=\"x\" onclick=\"y=z\">"), ["href", "onclick"]);
}

#[test]
fn any_number_of_rows_is_a_page() {
    for rows in [0, 1, 2, 40] {
        check(&page("words", 1.02, rows));
    }
    check(&ReportPage { sections: vec![Section::default(), Section::default()], ..page("words", 1.0, 1) });
}

#[test]
fn numbers_that_cannot_be_drawn_do_no_harm() {
    for value in
        [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN, -1.0, 0.0, 1e-320, 1e17, 1e-17]
    {
        check(&page("words", value, 3));
    }
}

#[test]
fn words_that_mean_harm_are_words() {
    let long = "long ".repeat(2 << 20);
    let solid = "x".repeat(10 << 20);
    let hostile = [
        "<script>alert(1)</script>",
        "\"><img src=x onerror=alert(1)>",
        "' onmouseover='alert(1)",
        "</title></svg></style><script>",
        "]]><b>&amp;&lt;b&gt;",
        "{{ 7*7 }}{% raw %}",
        "a|b\\|c\n\n# heading\n```\n<b>",
        "`<b>` and ` alone",
        "\u{0}\u{1b}[31m\u{202e}\u{fffe}\u{feff}",
        "",
        &long,
        &solid,
    ];
    for words in hostile {
        let page = page(words, 1.0, 2);
        check(&page);
        assert!(page.html().len() < 400_000, "{words:.30}");
        let markdown = page.markdown("plots");
        assert!(!markdown.contains('\u{1b}') && markdown.len() < 400_000, "{words:.30}");
        let fences = markdown.lines().filter(|line| line.trim_start().starts_with("```")).count();
        assert_eq!(fences, 2, "{markdown:.2000}");
        // A fence starts a line. Other occurrences of three backticks are part of a command.
        let outside = format!("\n{markdown}").split("\n```").step_by(2).collect::<String>();
        assert!(
            !outside.contains("<script") && !outside.contains("<b>") && !outside.contains("<img"),
            "{outside:.2000}"
        );
        // Both columns of the table are kept.
        let rows = outside.lines().filter(|line| line.starts_with("| ") && line.ends_with(" |"));
        let columns: Vec<usize> = rows.map(|line| line.matches(" | ").count()).take(3).collect();
        assert!(columns.iter().all(|columns| *columns == 1), "{columns:?}: {outside:.2000}");
    }
}

#[test]
fn long_labels_of_times_are_shown_whole() {
    let drawn = |labels: &[&str]| {
        let rows = labels.iter().map(|label| Spread {
            group: "tiny".to_string(),
            label: label.to_string(),
            p50: 1.0,
            p95: 2.0,
            p99: 3.0,
        });
        let kind = PlotKind::Spreads(Spreads { unit: "milliseconds".to_string(), rows: rows.collect() });
        Plot { name: String::new(), title: String::new(), caption: String::new(), kind }.file()
    };
    let short = drawn(&["decode 8, 1 thread", "decode 8, 2 threads"]);
    assert!(short.contains(">decode 8, 2 threads<") && short.contains("height=\"152\""), "{short}");
    let long = drawn(&[
        "decode 8, 1 thread, flash attention 1",
        "decode 128 @ 4096, 2 threads, K q8_0, V q8_0, flash attention 1",
    ]);
    for line in [
        "decode 8, 1 thread, flash attention 1",
        "decode 128 @ 4096, 2 threads, K q8_0, V q8_0,",
        "flash attention 1",
    ] {
        assert!(long.contains(&format!(">{line}<")), "{line}: {long}");
    }
    assert!(!long.contains('…'));
    // A very long text is truncated.
    assert!(drawn(&[&"endless, ".repeat(60)]).contains('…'));
}

fn small() -> ReportPage {
    let interval = |label: &str, series, median: f64| Interval {
        group: "qwen · 512".to_string(),
        label: label.to_string(),
        value: "125 t/s".to_string(),
        verdict: "faster".to_string(),
        series,
        median,
        low: median - 0.02,
        high: median + 0.02,
    };
    let plot = Plot {
        name: "01-prefill".to_string(),
        title: "Prefill".to_string(),
        caption: "Right of 1 is faster.".to_string(),
        kind: PlotKind::Intervals(Intervals {
            rows: vec![interval("native", 0, 1.26), interval("native-lto", 1, 1.25)],
        }),
    };
    let table = Table {
        header: vec!["build".to_string(), "compiler".to_string()],
        rows: vec![vec!["native".to_string(), "clang 22 | <lld>".to_string()]],
    };
    ReportPage {
        title: "What was measured".to_string(),
        lead: "Of 1 comparison.".to_string(),
        sections: vec![
            Section {
                title: "Comparisons".to_string(),
                blocks: vec![
                    Block::Heading("native".to_string()),
                    Block::Text("With `perf` off, 16 rounds.".to_string()),
                    Block::Table(table),
                    Block::Plot(plot),
                ],
            },
            Section {
                title: "Commands to repeat".to_string(),
                blocks: vec![Block::Commands(vec!["cargo xtask bench compare --pairs 16".to_string()])],
            },
        ],
    }
}

#[test]
fn a_small_page_as_markdown() {
    insta::assert_snapshot!(small().markdown("plots"));
}

#[test]
fn a_small_page_as_html() {
    let html = small().html();
    let (_, body) = html.split_once("</style>").unwrap();
    insta::assert_snapshot!(body);
}

#[test]
fn a_plot_stands_alone() {
    insta::assert_snapshot!(small().plots().next().unwrap().file());
}
