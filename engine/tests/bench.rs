//! `anneal bench` and `anneal info`: what scripts read.

mod common;

use common::on_tiny;
use serde_json::Value;

/// The names that llama-bench prints, in its order.
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
    let cases: [(&[&str], &str); 6] = [
        (&["-p", "0", "-n", "0"], "nothing to measure"),
        (&["-pg", "4294967295,1"], "at most 268435456 tokens"),
        (&["-p", "4294967295", "-d", "4294967295"], "at most 268435456 tokens"),
        (&["-n", "300000000"], "at most 268435456 tokens"),
        (&["--end-to-end", "-d", "0,16"], "-d 16"),
        (&["--end-to-end", "-p", "0"], "needs a prompt"),
    ];
    for (arguments, words) in cases {
        // Found before the model is looked at.
        let (code, stdout, stderr) =
            common::parts(&common::anneal([&["bench", "-m", "no-such-model.gguf"], arguments].concat()));
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{arguments:?}: {stderr}");
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_test_larger_than_memory_is_told_by_flags_that_bench_has() {
    let model = common::tiny().to_str().expect("UTF-8");
    let output = common::anneal(["bench", "-m", model, "-p", "200000000", "-n", "0", "-r", "1"]);
    let (code, _, stderr) = common::parts(&output);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("context") && stderr.contains("-p, -n, -pg, -d"), "{stderr}");
    assert!(!stderr.contains("-c,"), "bench has no -c: {stderr}");
}

#[test]
fn info_explains_where_settings_come_from() {
    let output = common::anneal(["info", "--explain", "--json", "-t", "1", "-ub", "64"]);
    let (code, stdout, stderr) = common::parts(&output);
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
    // More than enough of it: once is a sample.
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
    let (empty, tiny) = (empty.to_str().expect("UTF-8"), common::tiny().to_str().expect("UTF-8"));
    let cases: [(&[&str], i32, &str); 6] = [
        (&["--parts", "decode", "-n", "0"], 2, "give -n"),
        (&["--parts", "prefil"], 2, "unknown part"),
        (&["--parts", "load", "--end-to-end"], 2, "cannot be used with"),
        (&["--text", empty], 2, "--parts"),
        (&["--parts", "tokenize", "--text", empty], 2, "the file is empty"),
        (&["--parts", "tokenize", "--text", "no such file"], 1, "cannot read no such file"),
    ];
    for (arguments, expected, words) in cases {
        let (code, stdout, stderr) =
            common::parts(&common::anneal([&["bench", "-m", tiny], arguments].concat()));
        assert_eq!(code, Some(expected), "{arguments:?}: {stderr}");
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
        assert!(!stdout.contains("tokenize"), "{arguments:?}: {stdout}");
    }
}
