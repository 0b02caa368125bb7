//! Tests of reports, from the measurement files to the page.

use std::path::Path;

use build::ui::Global;
use build::ui::Ui;
use build::workspace::Workspace;
use serde_json::{Value, json};

use super::{Inputs, Page, gather, page, read_all};

fn docs(name: &str) -> std::path::PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results")).join(name)
}

fn inputs(texts: &[&str]) -> anyhow::Result<Inputs> {
    let folder = tempfile::tempdir()?;
    let write = |(number, text): (usize, &&str)| {
        let path = folder.path().join(format!("{number}.json"));
        std::fs::write(&path, text)?;
        Ok(path)
    };
    let files = texts.iter().enumerate().map(write).collect::<anyhow::Result<Vec<_>>>()?;
    read_all(&files)
}

fn row(model: &str, prompt: u64, generate: u64, threads: u64, speed: f64) -> Value {
    json!({
        "model_filename": format!("/somewhere/{model}.gguf"), "cpu_info": "a CPU", "n_prompt": prompt, "n_gen": generate,
        "n_threads": threads, "avg_ts": speed, "stddev_ts": 0.5, "n_ubatch": 512, "samples_ts": [speed, speed],
        "model_n_params": 1e9, "model_size": 5e8, "test_time": "2026-01-01T00:00:00Z", "anneal_path": "kernel",
        "roof_share": 0.5, "roof_bound": if prompt > 0 { "compute" } else { "memory" },
        "tpot_p50_ns": 1e6, "tpot_p95_ns": 2e6, "tpot_p99_ns": 3e6, "tpot_jitter_ns": 1e5
    })
}

fn roofline() -> Value {
    json!({"date": "2026-01-01T00:00:00Z", "cpu": "a CPU", "affinity": [0, 1], "rates": [
        {"threads": 1, "read_bytes": 1e10, "int8_macs": 4e11, "int8_wide_macs": 2e11, "f32_macs": 1e11},
        {"threads": 2, "read_bytes": 2e10, "int8_macs": 8e11, "int8_wide_macs": 4e11, "f32_macs": 2e11}]})
}

fn tuning() -> Value {
    let interval = json!({"median": 1.1, "low": 1.05, "high": 1.15, "pairs": 20});
    json!({"schema_version": "1.0", "entries": [{
        "key": {"build": "b", "cpu": {"name": "a CPU"}, "objective": "chat",
                "model": {"architecture": "qwen2", "layers": 28, "quantisation": "Q4_K_M", "weights": 900}},
        "chosen": {"decode_threads": 3, "repack": false}, "seconds": 100.0, "date": "2026-01-01T00:00:00Z",
        "confirmation": {"total": interval, "prefill": interval, "decode": interval}, "stages": []}]})
}

#[test]
fn a_file_is_what_its_content_says() {
    let sweep: Vec<Value> = [1, 2, 4].map(|threads| row("m", 0, 64, threads, threads as f64)).to_vec();
    let lines: Vec<String> = sweep.iter().map(Value::to_string).collect();
    let cases: [(String, &[&str]); 9] = [
        (json!(sweep).to_string(), &["Host", "Threads", "Jitter", "Commands to repeat"]),
        (lines.join("\n"), &["Host", "Threads", "Jitter", "Commands to repeat"]),
        (format!("{}\n\n", lines[0]), &["Host", "Threads", "Jitter", "Commands to repeat"]),
        (roofline().to_string(), &["Host", "Roofline", "Commands to repeat"]),
        (operations().to_string(), &["Operations", "Commands to repeat"]),
        (tuning().to_string(), &["Host", "Effects of settings", "Commands to repeat"]),
        (
            json!({"checks": [{"name": "speed", "state": "passed", "said": "1.0"}], "subjects": [], "verdict": "accept"})
                .to_string(),
            &["Other results", "Commands to repeat"],
        ),
        (
            json!({"base": {"profile": "native"}, "steps": [{"name": "x", "kept": true}], "result": {}}).to_string(),
            &["Other results", "Commands to repeat"],
        ),
        (
            json!({"ranking": [{"name": "native", "against_base": {"median": 1.1, "low": 1.0, "high": 1.2}}]}).to_string(),
            &["Other results", "Commands to repeat"],
        ),
    ];
    for (text, expected) in cases {
        let report = page(&inputs(&[&text]).unwrap(), false);
        let titles: Vec<&str> = report.sections.iter().map(|section| section.title.as_str()).collect();
        assert_eq!(titles, expected, "{text:.200}");
        report.html();
    }
}

#[test]
fn all_published_results_are_understood() {
    let entries = std::fs::read_dir(docs("")).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> = entries.filter(|path| path.extension().is_some_and(|end| end == "json")).collect();
    assert!(files.len() > 3, "{files:?}");
    let report = page(&read_all(&files).unwrap(), false);
    assert!(report.plots().count() > 10);
    let markdown = report.markdown("plots");
    let text = std::fs::read_to_string(docs("native-vs-upstream-default.json")).unwrap();
    let file: Value = serde_json::from_str(&text).unwrap();
    let [median, low, high] = ["median", "low", "high"]
        .map(|name| file["figures"][0]["results"][1]["ratio"][name].as_f64().unwrap());
    let ratio = format!("{median:.3} [{low:.3}, {high:.3}]");
    let text = std::fs::read_to_string(docs("first-minutes-zen4.json")).unwrap();
    let file: Value = serde_json::from_str(&text).unwrap();
    let steps = file["first_minutes"].as_array().unwrap();
    let build = steps.iter().find(|step| step["step"] == "build").unwrap();
    let [against, own] = ["against_seconds", "seconds"].map(|name| {
        let samples: Vec<f64> = build[name].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
        measure::median(&samples)
    });
    let first_build = format!("| build | {against:.1} s | {own:.1} s |");
    for expected in [
        ratio.as_str(),
        "cargo xtask bench compare --builds upstream-default,native",
        "### overhead",
        first_build.as_str(),
    ] {
        assert!(markdown.contains(expected), "{expected}");
    }
}

/// Returns rows of `anneal bench --ops`: two kinds of operations in a prompt, and the time between operations.
fn operations() -> Value {
    let row = |op: &str, ns: f64, roof_share: Option<f64>| {
        json!({
            "model_filename": "/models/m.gguf", "model_type": "qwen2 1B Q4_K", "n_prompt": 64, "n_gen": 0, "n_depth": 0,
            "n_threads": 2, "kernels": "avx2", "samples": 3, "sample_ns": 10_000_000, "op": op, "op_type": "q4_K",
            "shape": "8×4×64", "calls": 2, "ns": ns, "roof_share": roof_share
        })
    };
    let mut between = row("(between operations)", 1e6, None);
    (between["op_type"], between["shape"]) = (Value::Null, Value::Null);
    json!([row("ADD", 1e6, None), row("MUL_MAT", 8e6, Some(0.5)), between])
}

#[test]
fn operations_are_drawn_longest_first_with_the_time_that_is_possible() {
    let report = page(&inputs(&[&operations().to_string()]).unwrap(), false);
    let bars = report.plots().find_map(|plot| match &plot.kind {
        report::PlotKind::Bars(bars) => Some(bars),
        _ => None,
    });
    let rows = &bars.expect("a plot").rows;
    let shown: Vec<_> = rows.iter().map(|bar| (bar.label.as_str(), bar.value, bar.possible)).collect();
    let expected = [
        ("MUL_MAT q4_K 8×4×64", 8.0, Some(4.0)),
        ("ADD q4_K 8×4×64", 1.0, None),
        ("(between operations)", 1.0, None),
    ];
    assert_eq!(shown, expected);
    assert_eq!((rows[0].group.as_str(), rows[0].note.as_str()), ("pp64, 2 threads, kernels avx2", "80.0 %"));
    let markdown = report.markdown("plots");
    let command = "anneal bench --ops -m m.gguf -p 64 -n 0 -d 0 -t 2 --kernels avx2 -r 3 -o jsonl";
    assert!(markdown.contains(command), "{markdown}");
}

/// Figures that clients notice are plotted against each other server; the table contains all other figures.
#[test]
fn servers_are_drawn_and_tabled() {
    let inputs = read_all(&[docs("by-hand/serve-tiny-zen4.json")]).unwrap();
    let report = page(&inputs, false);
    let titles: Vec<&str> = report.sections.iter().map(|section| section.title.as_str()).collect();
    assert_eq!(titles, ["Host", "Servers", "Commands to repeat"]);
    let markdown = report.markdown("plots");
    let figure = &inputs.servers[0].1.figures[0];
    let (own, ratio) = (&figure.results[0], figure.results[1].ratio.unwrap());
    for expected in [
        "Made from 1 comparison of servers, read from".to_string(),
        format!("| {} | all clients | {:.0} t/s | llama-server |", figure.clients, own.median),
        format!("{:.3} [{:.3}, {:.3}]", ratio.median, ratio.low, ratio.high),
        "outside libllama".to_string(),
        "cargo xtask bench serve -m tiny.gguf".to_string(),
    ] {
        assert!(markdown.contains(&expected), "{expected} is not in\n{markdown}");
    }
    assert_eq!(report.plots().count(), 1);
    assert!(!markdown.contains("the servers agree"), "{markdown}");
    // Circumstances that reduce the reliability of figures are reported.
    let text = std::fs::read_to_string(docs("by-hand/serve-tiny-zen4.json")).unwrap();
    let mut altered: Value = serde_json::from_str(&text).unwrap();
    altered["equal"] = json!({ "asked": 32, "same": 1 });
    let unequal = page(&self::inputs(&[&altered.to_string()]).unwrap(), false).markdown("plots");
    assert!(
        unequal.contains("Of 32 tokens generated for one prompt, the servers agree on the first 1."),
        "{unequal}"
    );
}

#[test]
fn what_is_not_understood_is_named_and_nothing_of_it_is_taken() {
    let whole = std::fs::read_to_string(docs("native-vs-llama-bench.json")).unwrap();
    let half = &whole[..whole.len() / 2];
    let good = row("m", 0, 64, 1, 1.0).to_string();
    let second_is_damaged = format!("{good}\n{{\"avg_ts\": 1\n");
    let cases: [(&str, &str); 14] = [
        ("", "the file is empty"),
        ("\n \n", "the file is empty"),
        ("{", "damaged or not JSON"),
        (half, "damaged or not JSON"),
        ("{\"a\": NaN}", "damaged or not JSON"),
        ("7", "unknown kind of file"),
        ("[]", "an empty list"),
        ("[{}]", "entry 1 of the list"),
        ("{\"avg_ts\": \"x\", \"n_threads\": 1}", "lacks the number `avg_ts`"),
        ("{\"avg_ts\": 1, \"n_threads\": -1}", "lacks the number `n_threads`"),
        ("{\"figures\": [], \"builds\": [], \"threads\": 1}", "looks like a comparison, but is damaged"),
        ("{\"entries\": [], \"schema_version\": \"2.0\"}", "version \"2.0\""),
        ("{\"rates\": 1, \"affinity\": [], \"cpu\": 1}", "looks like a roofline"),
        (&second_is_damaged, "line 2"),
    ];
    for (text, expected) in cases {
        let error = format!("{:#}", inputs(&[&good, text]).unwrap_err());
        assert!(error.contains("1.json") && error.contains(expected), "{text:.80}: {error}");
    }
    let deep = "[".repeat(1 << 16);
    assert!(inputs(&[&deep]).is_err());
    let absent = read_all(&["/nowhere/x.json".into()]).unwrap_err();
    assert!(format!("{absent:#}").contains("cannot read /nowhere/x.json"), "{absent:#}");
    assert!(format!("{:#}", read_all(&["/".into()]).unwrap_err()).contains("cannot read /: it is a folder"));
}

#[test]
fn what_a_file_says_of_its_ratios_is_what_they_say() {
    let whole: Value =
        serde_json::from_str(&std::fs::read_to_string(docs("native-vs-llama-bench.json")).unwrap()).unwrap();
    let with = |median: f64, low: f64, high: f64| {
        let mut altered = whole.clone();
        let ratio = json!({"median": median, "low": low, "high": high, "pairs": 20});
        let result = &mut altered["figures"][0]["results"][1];
        (result["ratio"], result["verdict"]) = (ratio.clone(), json!("faster"));
        let build = result["build"].clone();
        altered["overall"] = json!([{"build": build, "ratio": ratio, "verdict": "faster"}]);
        altered
    };
    let cases = [
        ([0.9, 0.8, 0.95], "slower"),
        ([1.0, 0.9, 1.1], "no difference shown"),
        ([1.1, 1.05, 1.2], "faster"),
    ];
    for ([median, low, high], expected) in cases {
        let inputs = inputs(&[&with(median, low, high).to_string()]).unwrap();
        let (_, comparison) = &inputs.comparisons[0];
        assert_eq!(comparison.overall[0].verdict, expected);
        assert_eq!(comparison.figures[0].results[1].verdict.as_deref(), Some(expected));
    }
    let servers: Value =
        serde_json::from_str(&std::fs::read_to_string(docs("by-hand/serve-tiny-zen4.json")).unwrap())
            .unwrap();
    let of_servers = |median: f64, low: f64, high: f64| {
        let mut altered = servers.clone();
        let result = &mut altered["figures"][0]["results"][1];
        result["ratio"] = json!({"median": median, "low": low, "high": high, "pairs": 20});
        result["verdict"] = json!("faster");
        altered
    };
    let read = inputs(&[&of_servers(0.9, 0.8, 0.95).to_string()]).unwrap();
    assert_eq!(read.servers[0].1.figures[0].results[1].verdict.as_deref(), Some("slower"));
    let mut strange_server = servers.clone();
    strange_server["figures"][0]["results"][1]["program"] = json!("nobody");
    let mut strange_figure = servers.clone();
    strange_figure["figures"][0]["name"] = json!("beauty");
    let mut turned = servers.clone();
    turned["figures"][0]["results"].as_array_mut().unwrap().reverse();
    let mut stranger = whole.clone();
    stranger["figures"][0]["results"][1]["build"] = json!("nobody");
    let bad = json!({"median": -1.0, "low": -2.0, "high": 0.0, "pairs": 20});
    let mut tuned = tuning();
    tuned["entries"][0]["confirmation"]["total"] = bad.clone();
    let cases = [
        (with(-1.0, -2.0, 0.0), "the ratio -1 [-2, 0] is impossible"),
        (with(0.0, 0.0, 0.0), "is impossible"),
        (with(1.3, 1.1, 1.2), "is impossible"),
        (stranger, "\"nobody\" does not belong to any listed build"),
        (strange_server, "\"nobody\" does not belong to any listed program"),
        (of_servers(1.3, 1.1, 1.2), "is impossible"),
        (strange_figure, "beauty with 1 client: unknown figure"),
        (turned, "the first result does not belong to the first listed program"),
        (json!({"ranking": [{"name": "native", "against_base": bad}]}), "is impossible"),
        (tuned, "is impossible"),
    ];
    for (value, expected) in cases {
        let error = format!("{:#}", inputs(&[&value.to_string()]).unwrap_err());
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_row_of_threads_is_a_curve_and_points_lie_at_their_share_of_the_roof() {
    let mut rows: Vec<Value> = [1, 2].map(|threads| row("m", 0, 64, threads, threads as f64)).to_vec();
    rows.push(row("m", 512, 0, 2, 100.0));
    let report = page(&inputs(&[&json!(rows).to_string(), &roofline().to_string()]).unwrap(), false);
    let kinds: Vec<&report::PlotKind> = report.plots().map(|plot| &plot.kind).collect();
    let curves = kinds
        .iter()
        .find_map(|kind| if let report::PlotKind::Curves(curves) = kind { Some(curves) } else { None });
    assert_eq!(curves.unwrap().series[0].points, [(1.0, 1.0, 0.5), (2.0, 2.0, 0.5)]);
    let roof = kinds
        .iter()
        .find_map(|kind| if let report::PlotKind::Roofline(roof) = kind { Some(roof) } else { None });
    let points = &roof.unwrap().points;
    // 1e9 weights in 5e8 bytes give two multiply-adds per byte, and 512 times as many for a prompt of 512 tokens.
    assert_eq!((points[0].intensity, points[0].macs), (2.0, 0.5 * 1e10 * 2.0));
    assert_eq!((points[1].intensity, points[1].macs), (1024.0, 0.5 * 8e11));
}

#[test]
fn hostile_words_and_empty_lists_make_a_page() {
    let evil = "</style><script>alert('x')</script>|\u{1b}\u{0}";
    let mut hostile = row(evil, 0, 64, 1, 1e308);
    hostile["cpu_info"] = json!("x".repeat(10 << 20));
    hostile["type_k"] = json!(evil);
    let mut other = row(evil, 0, 64, 2, -1.0);
    other["samples_time_to_first_token_ns"] = json!([]);
    let mut comparison: Value =
        serde_json::from_str(&std::fs::read_to_string(docs("native-vs-llama-bench.json")).unwrap()).unwrap();
    for field in ["note", "machine", "command", "date"] {
        comparison[field] = json!(evil);
    }
    comparison["figures"][0]["model"] = json!(evil);
    let mut empty = comparison.clone();
    for field in ["builds", "figures", "overall", "rounds"] {
        empty[field] = json!([]);
    }
    let mut tuned = tuning();
    tuned["entries"][0]["chosen"] = json!({evil: evil, "x": [], "y": {}});
    tuned["entries"].as_array_mut().unwrap().extend([json!(7), json!({"key": evil, "stages": [7]})]);
    let texts = [json!([hostile, other]), comparison, empty, tuned].map(|value| value.to_string());
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let report = page(&inputs(&texts).unwrap(), true);
    let html = report.html();
    assert!(!html.contains("<script") && !html.contains('\u{1b}'));
    assert_eq!(html.matches("</style>").count(), 1);
    assert!(html.len() < 1 << 20, "{}", html.len());
    assert!(!report.markdown("plots").split("```").step_by(2).any(|part| part.contains("<script")));
}

#[test]
fn a_page_is_written_whole_and_the_plots_of_the_last_one_are_gone() {
    let folder = tempfile::tempdir().unwrap();
    let files = [docs("native-vs-llama-bench.json"), docs("optimised-builds.json")];
    let write = |files: &[std::path::PathBuf]| {
        let report = page(&read_all(files).unwrap(), false);
        Page { report }.write(folder.path()).unwrap()
    };
    let first = write(&files);
    // The user created these files, and one of them has a name like Anneal's files.
    for name in ["mine.svg", "99-mine.svg"] {
        std::fs::write(folder.path().join("plots").join(name), "keep").unwrap();
    }
    let second = write(&files[..1]);
    assert!(second.plots.len() < first.plots.len());
    let mut there: Vec<_> =
        std::fs::read_dir(folder.path().join("plots")).unwrap().map(|entry| entry.unwrap().path()).collect();
    there.sort();
    let mut expected = second.plots.clone();
    expected.extend(["99-mine.svg", "mine.svg"].map(|name| folder.path().join("plots").join(name)));
    assert_eq!(there, expected);
    // Pages that Anneal did not write are kept.
    for name in ["report.html", "report.md"] {
        let other = tempfile::tempdir().unwrap();
        std::fs::write(other.path().join(name), "<!doctype html>\n# What I measured\n").unwrap();
        let report = page(&read_all(&files[..1]).unwrap(), false);
        let error = Page { report }.write(other.path()).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("is not a report of Anneal"), "{error}");
        let names: Vec<_> =
            std::fs::read_dir(other.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [name]);
    }
    // Every picture that the Markdown page refers to exists.
    let markdown = std::fs::read_to_string(second.markdown).unwrap();
    let pictures: Vec<&str> =
        markdown.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    assert_eq!(pictures.len(), second.plots.len());
    assert!(pictures.iter().all(|picture| folder.path().join(picture).is_file()), "{pictures:?}");
}

#[test]
fn without_files_it_takes_what_lies_there_and_leaves_damage_out() {
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().join("target/anneal/results");
    std::fs::create_dir_all(&results).unwrap();
    let workspace = Workspace::at(folder.path());
    let ui = Ui::new(&Global { quiet: true, ..Global::default() });
    std::fs::write(results.join("a.jsonl"), row("m", 0, 64, 1, 1.0).to_string()).unwrap();
    std::fs::write(results.join("b.json"), "{").unwrap();
    std::fs::write(results.join("c.txt"), "no result").unwrap();
    let found = gather(&workspace, &ui).unwrap();
    assert_eq!(found.rows.len(), 1);
    assert!(found.files.contains(&results.join("a.jsonl")) && !found.files.contains(&results.join("b.json")));
    assert!(!found.is_empty() && !found.measured_nothing());
    assert!(Inputs::default().is_empty() && Inputs::default().measured_nothing());
}

#[test]
fn what_is_not_finished_says_so() {
    let stopped = "the run was not finished when this file was written";
    let step = json!({"name": "one thread", "kept": false, "verdict": "not-accepted", "reasons": ["decode is slower\n"]});
    let cases = [
        (json!({"checks": [], "subjects": [], "stopped": stopped}), vec![stopped]),
        (
            json!({"base": {}, "steps": [step], "result": {}, "stopped": stopped}),
            vec![stopped, "decode is slower"],
        ),
        (json!({"ranking": []}), vec!["is not finished"]),
    ];
    for (value, expected) in cases {
        let markdown = page(&inputs(&[&value.to_string()]).unwrap(), false).markdown("plots");
        for words in expected {
            assert!(markdown.contains(words), "{markdown}");
        }
    }
}

#[test]
fn builds_that_took_turns_are_told_apart() {
    let of = |build: &str, threads, speed| {
        let mut row = row("m", 0, 64, threads, speed);
        row["build"] = json!(build);
        row
    };
    let rows = [of("upstream", 1, 1.0), of("native", 1, 2.0), of("upstream", 2, 3.0), of("native", 2, 4.0)];
    let report = page(&inputs(&[&json!(rows).to_string(), &roofline().to_string()]).unwrap(), false);
    let curves = report.plots().find_map(|plot| match &plot.kind {
        report::PlotKind::Curves(curves) => Some(curves),
        _ => None,
    });
    let series: Vec<_> =
        curves.unwrap().series.iter().map(|line| (line.name.as_str(), line.points.len())).collect();
    assert_eq!(series, [("decode 64, build native", 2), ("decode 64, build upstream", 2)]);
    let points = report.plots().find_map(|plot| match &plot.kind {
        report::PlotKind::Roofline(roofline) => Some(roofline.points.len()),
        _ => None,
    });
    assert_eq!(points, Some(2));
    let markdown = report.markdown("plots");
    let command = "cargo xtask bench --builds upstream,native -m m.gguf -p 0 -n 64 -t 1,2 -r 2";
    assert!(markdown.contains(command), "{markdown}");
}

#[test]
fn rows_of_other_settings_are_repeated_by_other_commands() {
    let of = |poll: u64, flash: i64, threads: u64| {
        let mut row = row("a b", 0, 64, threads, 1.0);
        (row["poll"], row["flash_attn"], row["n_threads_batch"]) =
            (json!(poll), json!(flash), json!(threads));
        row
    };
    let rows = [of(0, 1, 1), of(0, 1, 2), of(50, -1, 2)];
    let markdown = page(&inputs(&[&json!(rows).to_string()]).unwrap(), false).markdown("plots");
    for command in [
        "anneal bench -m 'a b.gguf' -p 0 -n 64 -t 1,2 -fa on --poll 0 -r 2 -o jsonl",
        "anneal bench -m 'a b.gguf' -p 0 -n 64 -t 2 -fa auto --poll 50 -r 2 -o jsonl",
    ] {
        assert!(markdown.contains(command), "{markdown}");
    }
}

#[test]
fn one_machine_in_more_and_in_fewer_words_is_one() {
    let long = "2 cores of a CPU (family 25 model 17), 24 GiB, Debian 13";
    let of = |machine: &str| json!({"ranking": [], "machine": machine}).to_string();
    let rows = row("m", 0, 64, 1, 1.0).to_string();
    for texts in [[of(long), rows.clone()], [rows, of(long)]] {
        let markdown = page(&inputs(&texts.each_ref().map(String::as_str)).unwrap(), false).markdown("plots");
        assert!(!markdown.contains("more than one machine"), "{markdown}");
        assert!(markdown.contains("24 GiB"), "{markdown}");
    }
    let two = page(&inputs(&[&of(long), &of("another")]).unwrap(), false).markdown("plots");
    assert!(two.contains("more than one machine"), "{two}");
}

#[test]
fn floats_lie_under_the_roof_of_floats() {
    let mut half = row("m", 512, 0, 1, 100.0);
    half["model_type"] = json!("llama 1B F16");
    // Prefill uses a different number of threads from decode.
    half["n_threads_batch"] = json!(2);
    let report = page(&inputs(&[&half.to_string(), &roofline().to_string()]).unwrap(), false);
    let point = report.plots().find_map(|plot| match &plot.kind {
        report::PlotKind::Roofline(roofline) => Some(roofline.points[0].macs),
        _ => None,
    });
    assert_eq!(point, Some(0.5 * 2e11));
}

#[test]
fn a_small_page() {
    let rows: Vec<Value> = [1, 2].map(|threads| row("m", 0, 64, threads, 10.0 * threads as f64)).to_vec();
    let texts = [json!(rows), roofline(), tuning()].map(|value| value.to_string());
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let report = page(&inputs(&texts).unwrap(), false);
    insta::assert_snapshot!(report.markdown("plots"));
}

#[test]
fn machines_are_named_only_when_asked() {
    let host =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/hosts/i3-6100.json"))
            .unwrap();
    let mut host: Value = serde_json::from_str(&host).unwrap();
    host["hostname"] = json!("secret-name");
    let found = inputs(&[&host.to_string()]).unwrap();
    assert!(!page(&found, false).html().contains("secret-name"));
    assert!(page(&found, true).html().contains("secret-name"));
}
