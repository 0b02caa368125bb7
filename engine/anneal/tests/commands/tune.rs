//! Tests of the `anneal tune` command: it stores a record even if it finds no better settings, and the engine uses the
//! record.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::common::{parts, tiny};
use serde_json::{Value, json};

/// Runs `anneal` with the state folder `state`.
fn anneal(state: &Path, arguments: &[&str]) -> Output {
    command(state, arguments).output().expect("the executable runs")
}

fn command(state: &Path, arguments: &[&str]) -> Command {
    let mut command = crate::common::command();
    command.args(arguments).env("ANNEAL_STATE_DIR", state);
    command
}

fn model() -> &'static str {
    tiny().to_str().expect("a path in UTF-8")
}

/// Returns the settings that `info --explain` shows, as (name, value, source).
fn settings(state: &Path, arguments: &[&str]) -> (Vec<(String, String, String)>, String) {
    let all = [&["info", "--explain", "--json", "-m", model()], arguments].concat();
    let (code, stdout, stderr) = parts(&anneal(state, &all));
    assert_eq!(code, Some(0), "{stderr}");
    let info: Value = serde_json::from_str(&stdout).expect("JSON");
    let text = |line: &Value, name: &str| line[name].as_str().unwrap_or_default().to_string();
    let lines = info["settings"].as_array().expect("settings");
    let lines = lines.iter().map(|line| (text(line, "name"), text(line, "value"), text(line, "source")));
    (lines.collect(), stderr)
}

/// Tunes once per process, and copies the record to the folder `state`. Returns the record's entry.
fn tune(state: &Path) -> Value {
    static RECORD: OnceLock<(Vec<u8>, Value)> = OnceLock::new();
    let (record, entry) = RECORD.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        // The budget grows if the machine is so loaded that not even one stage fits.
        let tune = |budget| {
            let all = ["tune", "-m", model(), "--for", "rag", "--budget", budget, "--json"];
            parts(&anneal(folder.path(), &all))
        };
        let tuned = ["20s", "60s", "240s"].into_iter().map(tune).find(|(code, ..)| *code != Some(75));
        let (code, stdout, stderr) = tuned.expect("time for a stage in four minutes");
        assert_eq!(code, Some(0), "{stderr}");
        let mut left: Vec<_> = fs::read_dir(folder.path())
            .expect("a folder")
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["trials", "tuning.json", "tuning.lock"]);
        let record = fs::read(folder.path().join("tuning.json")).expect("a record");
        (record, serde_json::from_str(&stdout).expect("an entry"))
    });
    fs::write(state.join("tuning.json"), record).expect("written");
    entry.clone()
}

/// Applies `change` to the first entry of the tuning record in `state`.
fn plant(state: &Path, change: impl FnOnce(&mut Value)) {
    let path = state.join("tuning.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&path).expect("a record")).expect("JSON");
    change(&mut record["entries"][0]);
    fs::write(&path, record.to_string()).expect("written");
}

#[test]
fn a_tuning_is_written_down_used_shown_exported_and_forgotten() {
    let state = tempfile::tempdir().expect("a temporary folder");
    let entry = tune(state.path());
    assert_eq!(entry["key"]["objective"], "rag");
    assert_eq!(entry["key"]["model"]["architecture"], "llama");
    assert_eq!(entry["stages"][0]["name"], "layout");
    let samples = entry["stages"][0]["candidates"][0]["samples"].as_array().expect("samples");
    assert!(samples.iter().all(|sample| sample["prefill_ns"].as_u64() > Some(0)), "{samples:?}");

    // The engine uses the settings in the record, regardless of the result of the tuning run.
    plant(state.path(), |entry| entry["chosen"] = json!({ "poll": 7, "n_ubatch": 96, "tiled": false }));
    let (lines, stderr) = settings(state.path(), &["-ub", "64"]);
    let line = |name: &str| lines.iter().find(|line| line.0 == name).cloned().expect("a line");
    let is =
        |name: &str, value: &str, source: &str| (name.to_string(), value.to_string(), source.to_string());
    assert_eq!(line("poll"), is("poll", "7", "tuning_record"), "{stderr}");
    assert_eq!(line("ubatch-size"), is("ubatch-size", "64", "flag"));
    assert_eq!(line("tiled"), is("tiled", "off", "tuning_record"));
    let (lines, _) = settings(state.path(), &["--no-tuning"]);
    assert!(lines.iter().all(|line| line.2 != "tuning_record"), "{lines:?}");
    let run = ["run", "-m", model(), "-p", "hello", "-n", "4", "--greedy"];
    let (code, tuned, stderr) = parts(&anneal(state.path(), &run));
    assert_eq!((code, stderr.contains("warning")), (Some(0), false), "{stderr}");
    let (_, untuned, _) = parts(&anneal(state.path(), &[&run[..], &["--no-tuning"]].concat()));
    assert_eq!(tuned, untuned);

    // `bench` uses the record on request, or prints the reason why it cannot.
    let bench = |more: &[&str]| {
        let all = ["bench", "-m", model(), "-p", "8", "-n", "0", "-r", "1", "-o", "json"];
        parts(&anneal(state.path(), &[&all[..], &["--tuned", "rag"], more].concat()))
    };
    let (code, stdout, stderr) = bench(&["-ub", "64"]);
    assert_eq!(code, Some(0), "{stderr}");
    let rows: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!((&rows[0]["poll"], &rows[0]["n_ubatch"]), (&json!(7), &json!(64)), "{stdout}");
    plant(state.path(), |entry| entry["chosen"]["type_v"] = json!("q8_0"));
    let cases: [(&[&str], i32, &str); 4] = [
        (
            &["-fa", "1,0"],
            2,
            "the tuning record contradicts the requested settings: -fa off with -ctv q8_0: llama.cpp reads a quantised V \
             cache only with flash attention\nhint: remove the flag, or ignore the record by omitting --tuned",
        ),
        (&["--parts", "gguf"], 2, "--parts"),
        (&["--quants", "Q8_0"], 2, "--quants"),
        (&["--tuning", "/dev/null"], 1, "not a regular file"),
    ];
    for (more, expected, words) in cases {
        let (code, stdout, stderr) = bench(more);
        assert_eq!((code, stdout.as_str()), (Some(expected), ""), "{more:?}: {stderr}");
        assert!(stderr.contains(words), "{more:?}: {stderr}");
    }
    plant(state.path(), |entry| entry["chosen"]["type_v"] = Value::Null);

    let (code, stdout, _) = parts(&anneal(state.path(), &["tune", "--show", "-m", model()]));
    assert_eq!(code, Some(0));
    assert!(stdout.contains("for rag (2048 prompt tokens and 256 generated)"), "{stdout}");
    assert!(!stdout.contains("not used here"), "{stdout}");
    let build = entry["key"]["build"].clone();
    plant(state.path(), |entry| entry["key"]["build"] = json!("another"));
    let (_, stdout, _) = parts(&anneal(state.path(), &["tune", "--show"]));
    assert!(stdout.contains("not used here: this model was tuned with another build"), "{stdout}");
    plant(state.path(), |entry| entry["key"]["build"] = build);
    let out = state.path().join("exported.json");
    let export = ["tune", "--export", out.to_str().expect("a path in UTF-8")];
    assert_eq!(parts(&anneal(state.path(), &export)).0, Some(0));
    let elsewhere = tempfile::tempdir().expect("a temporary folder");
    let (lines, _) = settings(elsewhere.path(), &["--tuning", out.to_str().expect("a path in UTF-8")]);
    assert!(lines.contains(&is("poll", "7", "tuning_record")), "{lines:?}");

    // An objective that was not tuned is not shown, and other objectives are kept.
    let (code, stdout, stderr) = parts(&anneal(state.path(), &["tune", "--show", "--for", "chat"]));
    assert!(code == Some(0) && stdout.is_empty() && stderr.contains("no matching entry"), "{stderr}");
    let (code, _, stderr) = parts(&anneal(state.path(), &["tune", "--reset", "--for", "chat"]));
    assert!(code == Some(0) && stderr.starts_with("0 entries deleted"), "{stderr}");
    let (code, stdout, _) = parts(&anneal(state.path(), &["tune", "--show", "--for", "rag"]));
    assert!(code == Some(0) && stdout.contains("for rag"), "{stdout}");

    assert_eq!(parts(&anneal(state.path(), &["tune", "--reset", "-m", model()])).0, Some(0));
    let (lines, _) = settings(state.path(), &[]);
    assert!(lines.iter().all(|line| line.2 != "tuning_record"), "{lines:?}");
}

#[test]
fn a_record_that_does_not_fit_is_said_once_and_lost_never() {
    let state = tempfile::tempdir().expect("a temporary folder");
    tune(state.path());
    let path = state.path().join("tuning.json");
    let good = fs::read(&path).expect("a record");
    type Case<'a> = (fn(&mut Value), &'a [&'a str], &'a str);
    let cases: [Case; 6] = [
        (|entry| entry["key"]["cpu"]["features"] = json!("0"), &[], "another CPU"),
        (|entry| entry["key"]["cpu"]["affinity"] = json!([77]), &[], "other CPUs or another quota (CPUs 77)"),
        (|entry| entry["key"]["build"] = json!("x"), &[], "another build"),
        (|_| {}, &["--for", "chat"], "tuned for rag only"),
        (|entry| entry["chosen"] = json!({ "poll": 1000 }), &[], "--poll 1000"),
        (|entry| entry["chosen"] = json!({ "load_mode": "fast" }), &[], "unknown load mode"),
    ];
    for (change, arguments, words) in cases {
        fs::write(&path, &good).expect("written");
        plant(state.path(), change);
        let (lines, stderr) = settings(state.path(), arguments);
        assert!(stderr.contains(words) && stderr.matches("warning: ").count() == 1, "{words}: {stderr}");
        assert!(lines.iter().all(|line| line.2 != "tuning_record"), "{words}: {lines:?}");
    }
    for (damaged, words) in
        [(&b"{\"schema"[..], "damaged"), (b"{\"schema_version\":\"7.0\"}", "schema version 7.0")]
    {
        fs::write(&path, damaged).expect("written");
        let (_, stderr) = settings(state.path(), &[]);
        assert!(stderr.contains(words), "{stderr}");
        assert_eq!(fs::read(&path).expect("there"), damaged);
        let (code, _, stderr) = parts(&anneal(state.path(), &["tune", "--show"]));
        assert!(code == Some(1) && stderr.contains(words), "{stderr}");
    }
    // The record now belongs to a newer program. The error is reported before any measurement, and the record is
    // kept.
    for arguments in [&["tune", "-m", model()][..], &["tune", "--reset"]] {
        let (code, stdout, stderr) = parts(&anneal(state.path(), arguments));
        assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
        assert!(stderr.contains("--tuning") && !stderr.contains("candidates"), "{stderr}");
    }
    assert_eq!(fs::read(&path).expect("there"), b"{\"schema_version\":\"7.0\"}");
    fs::write(&path, "{\"schema").expect("written");
    let (code, _, stderr) = parts(&anneal(state.path(), &["tune", "--reset"]));
    assert!(code == Some(0) && stderr.contains("tuning.json.damaged"), "{stderr}");
    assert_eq!(fs::read(state.path().join("tuning.json.damaged")).expect("kept"), b"{\"schema");
    assert!(!path.exists());
    // Text from the record must not control the terminal.
    fs::write(&path, &good).expect("written");
    plant(state.path(), |entry| entry["key"]["cpu"]["name"] = json!("a\u{1b}[2Jb"));
    let (code, stdout, _) = parts(&anneal(state.path(), &["tune", "--show"]));
    assert!(code == Some(0) && stdout.contains("a\\u{1b}[2Jb"), "{stdout:?}");
    // An entry for a model of another shape has no effect.
    fs::write(&path, &good).expect("written");
    plant(state.path(), |entry| entry["key"]["model"]["layers"] = json!(99));
    assert_eq!(settings(state.path(), &[]).1, "");
}

#[test]
fn bad_input_is_refused_in_words_and_leaves_no_record() {
    let state = tempfile::tempdir().expect("a temporary folder");
    let missing = state.path().join("missing.gguf");
    let missing = missing.to_str().expect("a path in UTF-8");
    let cases: [(&[&str], i32, &str); 8] = [
        (&[], 2, "--model"),
        (&["-m", missing], 1, "no such file"),
        (&["-m", model(), "--for", "speed"], 2, "chat, rag, batch, latency"),
        (&["-m", model(), "--budget", "3"], 2, "90s, 3m or 1h"),
        (&["-m", model(), "--memory", "lots"], 2, "8GiB or 500MiB"),
        (&["-m", model(), "--memory", "1MiB"], 1, "raise --memory"),
        (&["--export", "/no/such/folder/x.json"], 1, "has no matching entry"),
        (&["-m", model(), "--tuning", "/proc/tuning.json"], 1, "--tuning"),
    ];
    for (arguments, code, words) in cases {
        let (found, stdout, stderr) = parts(&anneal(state.path(), &[&["tune"], arguments].concat()));
        assert_eq!(found, Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(words) && !stderr.contains("internal error"), "{arguments:?}: {stderr}");
        assert_eq!(stdout, "", "{arguments:?}");
    }
    assert!(!state.path().join("tuning.json").exists());

    let (code, stdout, _) = parts(&anneal(state.path(), &["tune", "-m", model(), "--dry-run"]));
    assert_eq!(code, Some(0), "{stdout}");
    let layout = stdout.lines().find(|line| line.starts_with("layout")).unwrap_or_default();
    // With Anneal's kernels, llama.cpp's tiled kernels are not used.
    let (own, tiled) = (layout.contains("kernels ggml"), layout.contains("no tiled kernels"));
    assert!(layout.contains("no repacking") && own != tiled, "{stdout}");
    assert!(!state.path().join("tuning.json").exists());
}

#[test]
fn two_at_once_are_refused_and_ctrl_c_leaves_the_old_record() {
    let state = tempfile::tempdir().expect("a temporary folder");
    let path = state.path().join("tuning.json");
    let old = "{\"schema_version\":\"1.0\",\"entries\":[]}";
    fs::write(&path, old).expect("written");
    let arguments = ["tune", "-m", model(), "--budget", "10m"];
    let mut first = command(state.path(), &arguments);
    let mut first = first.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the executable runs");
    // The first stage is reported when it starts: the lock is held, and workers run.
    let mut said = std::io::BufReader::new(first.stderr.take().expect("a pipe"));
    let mut line = String::new();
    // Warnings about other load on the machine may come first.
    while !line.starts_with("layout: ") {
        assert!(line.is_empty() || line.starts_with("warning: "), "{line}");
        line.clear();
        assert!(std::io::BufRead::read_line(&mut said, &mut line).expect("a line") > 0, "it ended");
    }

    let (code, _, stderr) = parts(&anneal(state.path(), &arguments));
    assert_eq!((code, stderr.contains("another tuning run is in progress")), (Some(75), true), "{stderr}");

    let pid = first.id().to_string();
    // Workers that would become orphans when the process ends.
    let workers: Vec<_> = processes().filter(|process| parent(process).as_deref() == Some(&pid)).collect();
    let of_ours = format!("worker\0-m\0{}", model());
    let line = |process: &Path| fs::read(process.join("cmdline")).unwrap_or_default();
    let runs = |process: &Path| String::from_utf8_lossy(&line(process)).contains(&of_ours);
    assert!(workers.iter().any(|process| runs(process)), "{workers:?}");
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill runs").success());
    let code = first.wait().expect("it ends").code();
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut said, &mut rest).expect("text");
    assert_eq!(code, Some(130), "{rest}");
    assert!(rest.contains("interrupted: "), "{rest}");
    assert_eq!(fs::read_to_string(&path).expect("there"), old);
    let began = Instant::now();
    while workers.iter().any(|process| runs(process)) {
        assert!(began.elapsed() < Duration::from_secs(120), "a worker is left: {workers:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the `/proc` folders of all processes.
fn processes() -> impl Iterator<Item = PathBuf> {
    fs::read_dir("/proc").expect("/proc").filter_map(Result::ok).map(|entry| entry.path())
}

/// Returns the process ID of the parent of `process`.
fn parent(process: &Path) -> Option<String> {
    let stat = fs::read_to_string(process.join("stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(1).map(str::to_string)
}

#[test]
fn an_export_replaces_an_older_one_and_nothing_else() {
    let state = tempfile::tempdir().expect("a temporary folder");
    tune(state.path());
    let there = |name: &str, content: &[u8]| {
        let path = state.path().join(name);
        fs::write(&path, content).expect("written");
        path.to_str().expect("a path in UTF-8").to_string()
    };
    let folder = state.path().to_str().expect("a path in UTF-8").to_string();
    let own = state.path().join("tuning.json").to_str().expect("a path in UTF-8").to_string();
    let fifo = state.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo runs").success());
    let fifo = fifo.to_str().expect("a path in UTF-8").to_string();
    let model = there("m.gguf", &fs::read(tiny()).expect("a model"));
    let cases = [
        (&model, "it is not a tuning record"),
        (&there("other.json", b"{\"a\":1}"), "it is not a tuning record"),
        (&folder, "it is a folder"),
        (&fifo, "is not a regular file\nhint: choose another path"),
        (&own, "is the tuning record itself"),
    ];
    for (out, words) in cases {
        let before = fs::metadata(out).expect("there").len();
        let (code, stdout, stderr) = parts(&anneal(state.path(), &["tune", "--export", out]));
        assert_eq!((code, stdout.as_str()), (Some(1), ""), "{out}: {stderr}");
        assert!(stderr.contains(words), "{out}: {stderr}");
        assert_eq!(fs::metadata(out).expect("still there").len(), before);
    }
    let mut exported = Vec::new();
    for out in ["-", "/dev/stdout"] {
        let (code, stdout, stderr) = parts(&anneal(state.path(), &["tune", "--export", out]));
        assert_eq!(code, Some(0), "{stderr}");
        exported.push(stdout);
    }
    let older = there("older.json", exported[0].as_bytes());
    for out in [&there("empty.json", b""), &older] {
        assert_eq!(parts(&anneal(state.path(), &["tune", "--export", out])).0, Some(0), "{out}");
        assert_eq!(fs::read_to_string(out).expect("an export"), exported[1]);
    }
}

/// Worker process as started by `tune`, with the model loaded.
struct Worker {
    process: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Worker {
    fn loaded() -> Self {
        let mut process = crate::common::command()
            .args(["tune-worker", "-m", model()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the executable runs");
        let stdin = process.stdin.take().expect("a pipe");
        let stdout = BufReader::new(process.stdout.take().expect("a pipe"));
        let mut worker = Self { process, stdin, stdout };
        worker.ask(&json!({ "load": { "settings": {} } }));
        assert_eq!(worker.answer(), "\"loaded\"\n");
        worker
    }

    fn ask(&mut self, request: &Value) {
        self.stdin.write_all(format!("{request}\n").as_bytes()).expect("asked");
    }

    /// Returns the next line. Empty at the end of the output.
    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("an answer or the end");
        line
    }
}

#[test]
fn a_worker_ends_with_its_driver_even_in_the_middle_of_a_measurement() {
    let mut worker = Worker::loaded();
    // The work takes longer than the time until the pipe is closed.
    worker.ask(&json!({ "measure": { "settings": {}, "work": { "prompt": 1, "generate": 30_000 } } }));
    let Worker { mut process, stdin, mut stdout } = worker;
    drop(stdin);
    assert_eq!(process.wait().expect("it ends").code(), Some(0));
    let mut line = String::new();
    assert_eq!(stdout.read_line(&mut line).expect("the end"), 0, "{line}");
}

#[test]
fn what_one_run_took_is_not_held_against_the_next() {
    let mut worker = Worker::loaded();
    // Without flash attention, the attention scores of all pairs of tokens are stored.
    let large = json!({ "n_ubatch": 2048, "flash_attention": "off" });
    let mut peak = |settings: &Value, prompt: u32| -> u64 {
        worker.ask(
            &json!({ "measure": { "settings": settings, "work": { "prompt": prompt, "generate": 1 } } }),
        );
        let answer: Value = serde_json::from_str(&worker.answer()).expect("JSON");
        answer["measured"]["peak"].as_u64().unwrap_or_else(|| panic!("{answer}"))
    };
    let (large, small) = (peak(&large, 2048), peak(&json!({}), 16));
    assert!(small + (16 << 20) < large, "{small} after {large}");
}

#[test]
fn the_output_is_looked_at_behind_graphs_of_the_size_that_is_tried() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut worker = Worker::loaded();
    let mut logits = |settings: Value, lead: u32| {
        let out = folder.path().join("logits");
        worker.ask(&json!({ "check": { "settings": settings, "lead": lead, "out": out } }));
        assert_eq!(worker.answer(), "{\"checked\":{\"text\":64}}\n");
        build_info::Logits::parse(&fs::read(out).expect("logits")).expect("logits")
    };
    let alone = logits(json!({}), 0);
    let behind = logits(json!({}), 320);
    assert_eq!((alone.tokens.len(), behind.tokens.len()), (80, 80));
    assert_eq!(alone.tokens[..64], behind.tokens[..64]);
    assert!(alone.rows().zip(behind.rows()).any(|(a, b)| a != b), "the preceding tokens have no effect");
    let smaller = logits(json!({ "n_ubatch": 256 }), 320);
    let far = behind.rows().zip(smaller.rows()).take(64).flat_map(|(a, b)| a.iter().zip(b));
    assert!(far.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) < 0.1);
}
