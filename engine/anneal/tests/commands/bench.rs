//! Tests of the output of `anneal bench` and `anneal info` that scripts read.

use crate::common::on_tiny;
use engine_core::runtime_host::RuntimeHost;
use serde_json::Value;

/// Field names of llama-bench, in its order.
const LLAMA_BENCH: [&str; 44] = [
    "build_commit",
    "build_number",
    "cpu_info",
    "gpu_info",
    "backends",
    "model_filename",
    "model_type",
    "model_size",
    "model_n_params",
    "n_batch",
    "n_ubatch",
    "n_threads",
    "cpu_mask",
    "cpu_strict",
    "poll",
    "type_k",
    "type_v",
    "n_gpu_layers",
    "n_cpu_moe",
    "split_mode",
    "main_gpu",
    "no_kv_offload",
    "flash_attn",
    "devices",
    "tensor_split",
    "tensor_buft_overrides",
    "load_mode",
    "lazy_mode",
    "embeddings",
    "no_op_offload",
    "no_host",
    "repack",
    "fit_target",
    "fit_min_ctx",
    "n_prompt",
    "n_gen",
    "n_depth",
    "test_time",
    "avg_ns",
    "stddev_ns",
    "avg_ts",
    "stddev_ts",
    "samples_ns",
    "samples_ts",
];

#[test]
fn fields_are_llama_benchs_in_its_order() {
    let line = on_tiny("bench", &["-p", "16", "-n", "0", "-r", "2", "-o", "jsonl", "-t", "1"]);
    let mut at = 0;
    for name in LLAMA_BENCH {
        let found = line[at..].find(&format!("\"{name}\":"));
        at += found.unwrap_or_else(|| panic!("{name} is missing or out of order: {line}"));
    }
    let record: Value = serde_json::from_str(&line).expect("one JSON object");
    assert_eq!(record["anneal_path"], "kernel");
    assert_eq!(record["samples_ns"].as_array().map(Vec::len), Some(2));
    assert!(record["peak_rss_bytes"].as_u64() > Some(1 << 20), "{record}");
}

#[test]
fn every_combination_is_measured() {
    let lines = on_tiny(
        "bench",
        &[
            "-p", "8,16", "-n", "4", "-pg", "8,4", "-b", "8,32", "-ub", "8", "-r", "1", "-o", "jsonl", "-d",
            "0,16",
        ],
    );
    let tests: Vec<(u64, u64, u64, u64)> = lines
        .lines()
        .map(|line| {
            let record: Value = serde_json::from_str(line).expect("JSON lines");
            let number = |name: &str| record[name].as_u64().unwrap_or(u64::MAX);
            assert!(record["avg_ts"].as_f64() > Some(0.0), "{line}");
            (number("n_batch"), number("n_depth"), number("n_prompt"), number("n_gen"))
        })
        .collect();
    let mut expected = Vec::new();
    for n_batch in [8, 32] {
        for n_depth in [0, 16] {
            expected.extend([(8, 0), (16, 0), (0, 4), (8, 4)].map(|(p, n)| (n_batch, n_depth, p, n)));
        }
    }
    assert_eq!(tests, expected);
}

#[test]
fn formats_agree() {
    let arguments = |format| ["-p", "8", "-n", "0", "-r", "1", "-o", format];
    let json: Value = serde_json::from_str(&on_tiny("bench", &arguments("json"))).expect("a JSON array");
    assert_eq!(json[0]["n_prompt"], 8);
    let csv = on_tiny("bench", &arguments("csv"));
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 2, "{csv}");
    assert!(lines[0].starts_with("build_commit,build_number,cpu_info"), "{csv}");
    assert_eq!(lines[0].split(',').count(), lines[1].split("\",\"").count(), "{csv}");
    let table = on_tiny("bench", &arguments("md"));
    assert!(table.lines().nth(2).is_some_and(|row| row.contains("pp8") && row.contains('±')), "{table}");
}

#[test]
fn the_whole_path_tells_the_time_to_the_first_token() {
    let line = on_tiny("bench", &["--end-to-end", "-p", "32", "-n", "8", "-r", "2", "-o", "jsonl"]);
    let record: Value = serde_json::from_str(&line).expect("one JSON object");
    assert_eq!(record["anneal_path"], "end_to_end");
    assert_eq!((record["n_prompt"].as_u64(), record["n_gen"].as_u64()), (Some(32), Some(8)));
    let (first, whole) = (record["time_to_first_token_ns"].as_u64(), record["avg_ns"].as_u64());
    assert!(first > Some(0) && first < whole, "{record}");
}

#[test]
fn tests_that_cannot_be_run_are_wrong_usage() {
    let cases: [(&[&str], &str); 10] = [
        (&["-t", "8-1"], "smaller number first"),
        (&["-p", "1-8*1"], "never ends"),
        (&["-t", "1-4294967295"], "more than 4096"),
        (&["--poll", "50-101"], "--poll 101"),
        (&["-p", "0", "-n", "0"], "nothing to measure"),
        (&["-pg", "4294967295,1"], "exceed the largest context (268435456 tokens)"),
        (&["-p", "4294967295", "-d", "4294967295"], "exceed the largest context (268435456 tokens)"),
        (&["-n", "300000000"], "exceed the largest context (268435456 tokens)"),
        (&["--end-to-end", "-d", "0,16"], "-d 16"),
        (&["--end-to-end", "-p", "0"], "needs a prompt"),
    ];
    for (arguments, words) in cases {
        // The error occurs before the model is opened.
        let (code, stdout, stderr) = crate::common::parts(&crate::common::anneal(
            [&["bench", "-m", "no-such-model.gguf"], arguments].concat(),
        ));
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{arguments:?}: {stderr}");
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_test_larger_than_memory_is_told_by_flags_that_bench_has() {
    let model = crate::common::tiny().to_str().expect("UTF-8");
    let output = crate::common::anneal(["bench", "-m", model, "-p", "200000000", "-n", "0", "-r", "1"]);
    let (code, _, stderr) = crate::common::parts(&output);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("context") && stderr.contains("-p, -n, -pg, -d"), "{stderr}");
    assert!(!stderr.contains("-c,"), "bench has no -c: {stderr}");
}

#[test]
fn lists_are_ranges_too_and_every_option_has_one() {
    let lines = on_tiny(
        "bench",
        &[
            "-p",
            "4-8*2",
            "-n",
            "0",
            "-t",
            "1-2",
            "-tb",
            "1",
            "--poll",
            "0,50",
            "-lm",
            "mmap,none",
            "--repack",
            "on,off",
            "-fa",
            "0,on",
            "-r",
            "1",
            "--no-warmup",
            "-o",
            "jsonl",
        ],
    );
    let found: Vec<[Value; 6]> = lines
        .lines()
        .map(|line| {
            let record: Value = serde_json::from_str(line).expect("JSON lines");
            ["load_mode", "repack", "flash_attn", "poll", "n_prompt", "n_threads_batch"]
                .map(|name| record[name].clone())
        })
        .collect();
    let mut expected = Vec::new();
    for mode in ["mmap", "none"] {
        for repack in [true, false] {
            for flash_attention in [0, 1] {
                for poll in [0, 50] {
                    // Each of the two numbers of decode threads has its own group of rows.
                    for n_prompt in [4, 8, 4, 8] {
                        let (mode, repack): (Value, Value) = (mode.into(), repack.into());
                        expected.push([
                            mode,
                            repack,
                            flash_attention.into(),
                            poll.into(),
                            n_prompt.into(),
                            1.into(),
                        ]);
                    }
                }
            }
        }
    }
    assert_eq!(found, expected);
}

#[test]
fn several_models_are_measured_one_after_the_other() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let other = folder.path().join("other.gguf");
    std::fs::copy(crate::common::tiny(), &other).expect("a copy");
    let (tiny, other) = (crate::common::tiny().to_str().expect("UTF-8"), other.to_str().expect("UTF-8"));
    let both = format!("{tiny},{other}");
    for models in [vec!["-m", tiny, "-m", other], vec!["-m", &both]] {
        let rest = ["-p", "8", "-n", "0", "-r", "1", "-o", "json"];
        let output = crate::common::anneal([&["bench"], models.as_slice(), &rest].concat());
        let (code, stdout, stderr) = crate::common::parts(&output);
        assert_eq!(code, Some(0), "{stderr}");
        let records: Value = serde_json::from_str(&stdout).expect("a JSON array");
        assert_eq!(records[0]["model_filename"], tiny);
        assert_eq!(records[1]["model_filename"], other);
        assert!(records[1]["load_ns"].as_u64() > Some(0), "{records}");
    }
}

#[test]
fn a_table_shows_what_was_varied() {
    let table = on_tiny(
        "bench",
        &[
            "-p",
            "8",
            "-n",
            "0",
            "-r",
            "1",
            "-t",
            "1",
            "--repack",
            "on,off",
            "-ctk",
            "f16,q8_0",
            "-lm",
            "mmap,none",
        ],
    );
    let rows: Vec<Vec<&str>> =
        table.lines().map(|line| line.split('|').map(str::trim).collect::<Vec<_>>()).collect();
    assert_eq!(rows[0][7..], ["load_mode", "repack", "type_k", ""], "{table}");
    assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{table}");
    let mut found: Vec<String> = rows[2..].iter().map(|row| row[7..].join(" ")).collect();
    found.dedup();
    assert_eq!((found.len(), found[1].as_str()), (8, "mmap on q8_0 "), "{table}");
}

#[test]
fn ctrl_c_leaves_a_whole_array_and_says_what_is_missing() {
    use std::io::{BufRead, BufReader, Read};

    let tiny = crate::common::tiny().to_str().expect("UTF-8");
    for format in ["json", "md"] {
        // The second test takes minutes.
        let mut child = crate::common::command()
            .args(["bench", "-m", tiny, "-p", "8", "-n", "2000000", "-r", "1", "-t", "1", "-o", format])
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut reader = BufReader::new(child.stdout.take().expect("stdout"));
        let mut stdout = String::new();
        // Wait for the row of the first test.
        while !stdout.contains("samples_ts") && !stdout.contains("pp8") {
            assert!(reader.read_line(&mut stdout).expect("a line") > 0, "{stdout}");
        }
        let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
        assert!(killed.is_ok_and(|status| status.success()));
        reader.read_to_string(&mut stdout).expect("the rest");
        let output = child.wait_with_output().expect("it ends");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{stderr}");
        assert!(stderr.contains("interrupted: 1 of 2 tests were measured"), "{stderr}");
        if format == "json" {
            let records: Value = serde_json::from_str(&stdout).expect("a whole array");
            assert_eq!(records.as_array().map(Vec::len), Some(1), "{stdout}");
        }
    }
}

#[test]
fn a_model_that_is_not_there_is_told_before_the_others_are_measured() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let none = folder.path().join("no\n\u{1b}[31mne.gguf");
    let (tiny, none) = (crate::common::tiny().to_str().expect("UTF-8"), none.to_str().expect("UTF-8"));
    let output = crate::common::anneal(["bench", "-m", tiny, "-m", none, "-p", "8", "-n", "0", "-r", "1"]);
    let (code, stdout, stderr) = crate::common::parts(&output);
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    assert!(stderr.contains("no\\n\\u{1b}[31mne.gguf") && !stderr.contains('\u{1b}'), "{stderr}");
}

#[test]
fn what_was_measured_before_a_test_fails_is_a_whole_table() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (tiny, nan) = (crate::common::tiny().to_path_buf(), crate::common::nan(folder.path()));
    let (tiny, nan) = (tiny.to_str().expect("UTF-8"), nan.to_str().expect("UTF-8"));
    for more in [&["-n", "0"][..], &["-n", "0", "--no-warmup"], &["--parts", "prefill"]] {
        let all = ["bench", "-m", tiny, "-m", nan, "-p", "8", "-r", "1", "-o", "json"];
        let (code, stdout, stderr) = crate::common::parts(&crate::common::anneal([&all[..], more].concat()));
        // The speed of a model is not reported if its logits are not valid numbers.
        assert!(code == Some(1) && stderr.contains("not numbers (NaN)"), "{more:?}: {stderr}");
        let records: Value = serde_json::from_str(&stdout).expect("a whole array");
        assert_eq!(records.as_array().map(Vec::len), Some(1), "{more:?}: {stdout}");
    }
}

#[test]
fn sql_is_a_table_and_a_row_for_each_test() {
    let text = on_tiny("bench", &["-p", "8", "-n", "2", "-r", "2", "-o", "sql"]);
    assert!(text.starts_with("CREATE TABLE IF NOT EXISTS llama_bench (\n  build_commit TEXT,"), "{text}");
    assert_eq!(text.matches("CREATE TABLE").count(), 1, "{text}");
    assert_eq!(text.matches("INSERT INTO llama_bench (build_commit,").count(), 2, "{text}");
    // Columns without a value in the first test still have a numeric type.
    assert!(text.contains("tpot_p50_ns INTEGER") && text.contains("roof_share REAL"), "{text}");
    assert!(!text.contains("samples_ns"), "lists are left out: {text}");
    let parts = on_tiny("bench", &["--parts", "vocab,gguf", "-r", "1", "-o", "sql"]);
    assert!(parts.contains("INSERT INTO anneal_parts"), "{parts}");
}

#[test]
fn times_per_token_are_told() {
    let records: Value =
        serde_json::from_str(&on_tiny("bench", &["-p", "8", "-n", "16", "-r", "2", "-o", "json"]))
            .expect("a JSON array");
    assert!(records[0]["tpot_p50_ns"].is_null(), "a prompt has no time per output token: {records}");
    let whole = on_tiny("bench", &["--end-to-end", "-p", "8", "-n", "16", "-r", "2", "-o", "json"]);
    let whole: Value = serde_json::from_str(&whole).expect("a JSON array");
    for record in [&records[1], &whole[0]] {
        let times =
            ["tpot_p50_ns", "tpot_p95_ns", "tpot_p99_ns"].map(|name| record[name].as_u64().unwrap_or(0));
        assert!(times[0] > 0 && times.is_sorted(), "{record}");
        assert!(
            record["tpot_jitter_ns"].as_u64().is_some() && record["load_ns"].as_u64() > Some(0),
            "{record}"
        );
        // Half of the tokens take at least the median time, so sixteen tokens take at least eight times the median.
        assert!(record["avg_ns"].as_u64() > Some(7 * times[0]), "{record}");
    }
    let table = on_tiny("bench", &["--end-to-end", "-p", "8", "-n", "16", "-r", "2"]);
    for title in ["first token ms", "ms/token p50", "p99", "jitter", "load ms"] {
        assert!(table.contains(title), "{title}: {table}");
    }
    let arguments = ["-p", "0", "-n", "4", "-r", "1"];
    assert!(!on_tiny("bench", &arguments).contains("jitter"));
    let table = on_tiny("bench", &[&arguments[..], &["--latency"]].concat());
    let cells: Vec<usize> = table.lines().map(|line| line.matches('|').count()).collect();
    assert!(table.contains("jitter") && cells.iter().all(|count| *count == cells[0]), "{table}");
}

#[test]
fn of_several_numbers_of_threads_a_curve_follows_the_table() {
    let arguments = ["-p", "8", "-n", "4", "-r", "2", "-t", "1,2"];
    let table = on_tiny("bench", &arguments);
    assert!(
        table.contains("\n    pp8, t/s over threads\n") && table.contains("\n    tg4, t/s over"),
        "{table}"
    );
    assert_eq!(table.matches("knee: ").count(), 2, "{table}");
    // Other formats contain only the table, and a single number of threads gives no curve.
    let csv = on_tiny("bench", &[&arguments[..], &["-o", "csv"]].concat());
    assert!(!csv.contains("knee") && csv.lines().count() == 5, "{csv}");
    assert!(!on_tiny("bench", &["-p", "8", "-n", "0", "-r", "2", "-t", "1"]).contains("knee"));
}

/// Runs the command with the state folder `state`.
fn keeping(state: &std::path::Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = crate::common::command();
    command.args(arguments).env("ANNEAL_STATE_DIR", state);
    crate::common::parts(&command.output().expect("the executable runs"))
}

#[test]
fn the_roofline_is_measured_and_kept_and_tests_are_held_against_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let state = folder.path().join("state");
    let tiny = crate::common::tiny().to_str().expect("UTF-8");
    let test = ["bench", "-m", tiny, "-p", "64", "-n", "4", "-r", "1", "-t", "1", "-o", "json"];
    let shares = || {
        let (code, stdout, stderr) = keeping(&state, &test);
        assert_eq!(code, Some(0), "{stderr}");
        let records: Value = serde_json::from_str(&stdout).expect("a JSON array");
        ([0, 1].map(|at| records[at]["roof_share"].as_f64()), stderr)
    };
    assert_eq!(shares().0, [None, None], "nothing was measured yet");

    let (code, stdout, stderr) =
        keeping(&state, &["bench", "--roofline", "-t", "1", "-o", "jsonl", "--no-save"]);
    assert_eq!(code, Some(0), "{stderr}");
    // The trial of the model stores its verdict in the state folder.
    let kept = std::fs::read_dir(&state).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    assert_eq!(kept.collect::<Vec<_>>(), ["trials"], "--no-save");
    let row: Value = serde_json::from_str(&stdout).expect("one JSON object");
    for name in ["read_bytes_per_second", "int8_macs_per_second", "f32_macs_per_second"] {
        assert!(row[name].as_f64() >= row[format!("median_{name}")].as_f64(), "{name}: {row}");
        assert!(row[name].as_f64() > Some(1e6), "{name}: {row}");
    }

    let (code, stdout, stderr) = keeping(&state, &["bench", "--roofline", "-t", "1"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.starts_with("|") && stdout.lines().count() == 3, "{stdout}");
    let file = state.join("roofline.json");
    let mut kept: Value = serde_json::from_slice(&std::fs::read(&file).expect("kept")).expect("JSON");
    assert_eq!(kept["rates"][0]["threads"], 1);
    // The rates are fixed here, because the real limit (memory or compute) depends on the CPU and its load. If the
    // weights of the tiny model fit into a cache, memory is not the limit.
    let caches = roofline::last_level_caches(&RuntimeHost::read().host.expect("a host"));
    let fits = std::fs::metadata(crate::common::tiny()).expect("a model").len() <= caches.0;
    for (read, macs, told) in [(1e15, 1e6, true), (1e6, 1e15, !fits)] {
        let mut planted = kept.clone();
        planted["rates"][0] =
            serde_json::json!({ "threads": 1, "read_bytes": read, "int8_macs": macs, "f32_macs": macs });
        std::fs::write(&file, planted.to_string()).expect("written");
        let (found, stderr) = shares();
        assert!(found.iter().all(|share| share.is_some() == told), "{caches}, {macs}: {found:?} {stderr}");
        assert!(found.iter().flatten().all(|share| *share > 0.0), "{found:?}");
    }
    std::fs::write(&file, kept.to_string()).expect("written");

    let two = ["bench", "-m", tiny, "-p", "64,32", "-n", "4", "-r", "1", "-t", "2", "-o", "json"];
    let (code, stdout, stderr) = keeping(&state, &two);
    let records: Value = serde_json::from_str(&stdout).expect("a JSON array");
    assert_eq!((code, &records[0]["roof_share"]), (Some(0), &Value::Null), "{stderr}");
    assert_eq!(stderr.matches("--roofline -t 1,2").count(), 1, "the hint is printed once: {stderr}");

    kept["affinity"] = serde_json::json!([4000]);
    for (content, words) in
        [(kept.to_string(), "another affinity"), ("{".to_string(), "EOF"), (String::new(), "EOF")]
    {
        std::fs::write(&file, content).expect("written");
        let (found, stderr) = shares();
        assert_eq!(found, [None, None]);
        assert!(stderr.contains(words) && stderr.contains("--roofline"), "{words}: {stderr}");
    }
}

#[test]
fn a_roofline_that_cannot_be_measured_or_kept_is_told() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("a file");
    let cases: [(&[&str], i32, &str); 6] = [
        (&["--roofline", "-t", "100000"], 2, "this process may use"),
        (&["--roofline", "-t", "0"], 2, "this process may use"),
        (&["--roofline", "-m", "x.gguf"], 2, "cannot be used with"),
        (&["--no-save", "-m", "x.gguf"], 2, "cannot be used with"),
        (&["--no-save"], 2, "--roofline"),
        (&[], 2, "--model"),
    ];
    for (arguments, expected, words) in cases {
        let (code, stdout, stderr) = keeping(folder.path(), &[&["bench"], arguments].concat());
        assert_eq!((code, stdout.as_str()), (Some(expected), ""), "{arguments:?}: {stderr}");
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
    }
    // The folder's parent is a file. The error is reported before anything is measured.
    let (code, stdout, stderr) = keeping(&file.join("state"), &["bench", "--roofline", "-t", "1"]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    assert!(stderr.contains("--no-save") && stderr.lines().count() == 3, "{stderr}");
}

#[test]
fn info_explains_where_settings_come_from() {
    let output = crate::common::anneal(["info", "--explain", "--json", "-t", "1", "-ub", "64"]);
    let (code, stdout, stderr) = crate::common::parts(&output);
    assert_eq!(code, Some(0), "{stderr}");
    let info: Value = serde_json::from_str(&stdout).expect("one JSON object");
    let find = |name: &str| {
        let settings = info["settings"].as_array().cloned().unwrap_or_default();
        settings.into_iter().find(|setting| setting["name"] == name).unwrap_or_default()
    };
    let cases = [("threads", "1", "flag"), ("ubatch-size", "64", "flag"), ("batch-size", "2048", "default")];
    for (name, value, source) in cases {
        let setting = find(name);
        assert_eq!((&setting["value"], &setting["source"]), (&value.into(), &source.into()), "{name}");
    }
    assert_eq!(find("cpu-list")["source"], "live_host");
    assert!(info["system_info"].as_str().is_some_and(|text| text.contains("CPU")), "{info}");
}

#[test]
fn parts_are_timed_one_by_one() {
    let all = "prefill,decode,tokenize,detokenize,sample,greedy,load,vocab,gguf";
    let lines =
        on_tiny("bench", &["--parts", all, "-p", "16", "-n", "4", "-r", "2", "-o", "jsonl", "-t", "1"]);
    let records: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON lines")).collect();
    let text = |record: &Value, name: &str| record[name].as_str().unwrap_or_default().to_string();
    let mut found: Vec<String> = records.iter().map(|record| text(record, "part")).collect();
    found.sort();
    let mut wanted: Vec<&str> = all.split(',').collect();
    wanted.sort_unstable();
    assert_eq!(found, wanted);
    for record in &records {
        assert_eq!(record["samples_ns"].as_array().map(Vec::len), Some(2), "{record}");
        assert!(record["avg_per_second"].as_f64() > Some(0.0), "{record}");
        let (unit, work) = (text(record, "unit"), record["work"].as_u64().unwrap_or_default());
        let expected = match text(record, "part").as_str() {
            "prefill" => ("tokens", 16..=16),
            "decode" => ("tokens", 4..=4),
            "tokenize" => ("bytes", 65_536..=131_072),
            "detokenize" => ("tokens", 8_192..=131_072),
            "sample" | "greedy" => ("tokens", 64..=64),
            _ => ("loads", 1..=4),
        };
        assert_eq!(unit, expected.0, "{record}");
        assert!(expected.1.contains(&work), "{record}");
    }
}

#[test]
fn parts_print_every_format_and_take_a_text() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = folder.path().join("text");
    std::fs::write(&text, "one two three ".repeat(8192)).expect("a file");
    let text = text.to_str().expect("UTF-8");
    let arguments = |format| ["--parts", "tokenize,gguf", "--text", text, "-r", "1", "-o", format];
    let json: Value = serde_json::from_str(&on_tiny("bench", &arguments("json"))).expect("a JSON array");
    let tokenized = json.as_array().into_iter().flatten().find(|record| record["part"] == "tokenize");
    // This part takes so long that one run is enough for a sample.
    assert_eq!(tokenized.and_then(|record| record["work"].as_u64()), Some(14 * 8192), "{json}");
    let csv = on_tiny("bench", &arguments("csv"));
    assert_eq!(csv.lines().count(), 3, "{csv}");
    assert!(csv.starts_with("build_commit,model_filename"), "{csv}");
    let table = on_tiny("bench", &arguments("md"));
    assert!(table.lines().any(|row| row.contains("tokenize") && row.contains('±')), "{table}");
}

#[test]
fn parts_that_cannot_be_timed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let empty = folder.path().join("empty");
    std::fs::write(&empty, "").expect("a file");
    let (empty, tiny) = (empty.to_str().expect("UTF-8"), crate::common::tiny().to_str().expect("UTF-8"));
    let cases: [(&[&str], i32, &str); 6] = [
        (&["--parts", "decode", "-n", "0"], 2, "add -n N"),
        (&["--parts", "prefil"], 2, "unknown part"),
        (&["--parts", "load", "--end-to-end"], 2, "cannot be used with"),
        (&["--text", empty], 2, "--parts"),
        (&["--parts", "tokenize", "--text", empty], 2, "the file is empty"),
        (&["--parts", "tokenize", "--text", "no such file"], 1, "cannot read no such file"),
    ];
    for (arguments, expected, words) in cases {
        let (code, stdout, stderr) =
            crate::common::parts(&crate::common::anneal([&["bench", "-m", tiny], arguments].concat()));
        assert_eq!(code, Some(expected), "{arguments:?}: {stderr}");
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
        assert!(!stdout.contains("tokenize"), "{arguments:?}: {stdout}");
    }
}

/// The calls and bytes of matrix products grow with the number of graphs. The figures for attention grow with the
/// number of cells that a token can see.
#[test]
fn operations_have_the_calls_bytes_and_multiply_adds_of_the_model() {
    let args = ["--ops", "-p", "16", "-n", "4", "-r", "2", "-o", "json", "-t", "2"];
    let rows: Vec<Value> = serde_json::from_str(&on_tiny("bench", &args)).expect("a list");
    let of = |prompt: u64| -> Vec<&Value> { rows.iter().filter(|row| row["n_prompt"] == prompt).collect() };
    let sum = |rows: &[&Value], op: &str, field: &str| -> f64 {
        rows.iter().filter(|row| row["op"] == op).filter_map(|row| row[field].as_f64()).sum()
    };
    let (prefill, decode) = (of(16), of(0));
    for (test, tokens) in [(&prefill, 16.0), (&decode, 4.0)] {
        let all: f64 = test.iter().filter_map(|row| row["ns"].as_f64()).sum();
        let whole = test[0]["sample_ns"].as_f64().expect("a time");
        assert!((all / whole - 1.0).abs() < 0.01, "the rows add up to the time: {all} of {whole}");
        assert!(test.iter().any(|row| row["op"] == "(between operations)"));
        // A token can see itself and all earlier tokens.
        let pairs = tokens * (tokens + 1.0) / 2.0;
        let per_pair = sum(test, "FLASH_ATTN_EXT", "macs") / pairs;
        assert!(per_pair > 0.0 && per_pair.fract() == 0.0, "{per_pair}");
    }
    // Both tests evaluate the layers once per graph: one graph for the prompt, and four for the answer.
    let (once, four) = (sum(&prefill, "MUL_MAT", "calls"), sum(&decode, "MUL_MAT", "calls"));
    assert!(once > 0.0 && four == 4.0 * once, "{once} {four}");
    let (once, four) = (sum(&prefill, "MUL_MAT", "bytes"), sum(&decode, "MUL_MAT", "bytes"));
    assert!(once > 0.0 && four == 4.0 * once, "{once} {four}");
    let attention = |rows: &[&Value], field| sum(rows, "FLASH_ATTN_EXT", field);
    assert_eq!(attention(&prefill, "macs") / 136.0, attention(&decode, "macs") / 10.0);
    // The prompt's graph reads 16 cells; the graphs of the answer read 1, 2, 3 and 4.
    assert_eq!(attention(&prefill, "bytes") / 16.0, attention(&decode, "bytes") / 10.0);
}

#[test]
fn operations_of_a_pair_of_phases_are_refused() {
    let output = crate::common::anneal(["bench", "-m", "tiny.gguf", "--ops", "--pg", "16,4"]);
    let (code, _, error) = crate::common::parts(&output);
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("cannot be used with"), "{error}");
}
