//! Tests of the split layout: the state after the hand-over equals that of a single context, and errors state the
//! reason.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use build_info::Bytes;
use engine::Error;
use engine_core::generate::{Request, Stop, generate};
use engine_core::model;
use engine_core::runtime_host::RuntimeHost;
use engine_core::sequence::Sequence;
use engine_core::settings::{Requested, Settings, Source};
use engine_core::split::{Layouts, Session};
use gguf::probe::Probe;
use llama::options::{FlashAttention, KvType, SplitLayout};
use llama::{Context, Model, Token};
use sampling::Chain;
use serde_json::Value;

use crate::common::{anneal, never_repacked, parts, quantised, tiny};

/// Returns the tiny model in Q4_0 if the kernels of this build repack its weights. Otherwise, the running test is
/// reported as skipped.
fn in_two_layouts() -> Option<PathBuf> {
    let path = quantised("Q4_0");
    let repacked = load(&path, true).repacked() > 0;
    assert_eq!(repacked, crate::common::repacks_q4_0(), "{:?}", crate::common::isa_required());
    if !repacked {
        skipped::because("the kernels of this build repack no weights, so every model has one layout");
    }
    repacked.then_some(path)
}

/// Returns settings with one thread, so that sums always have the same order.
fn settings(requested: Requested) -> Settings {
    let requested = Requested { n_ctx: Some(1024), decode_threads: Some(1), ..requested };
    Settings::resolve(&requested, &RuntimeHost::default()).expect("valid settings")
}

fn load(path: &Path, repack: bool) -> Arc<Model> {
    let settings = settings(Requested { repack: Some(repack), ..Requested::default() });
    model::open(path, &settings, &RuntimeHost::default()).expect("it loads")
}

/// Evaluates a prompt, single tokens, a second prompt, and single tokens again. Returns the logits after each step.
fn rows(sequence: &mut impl Sequence, tokens: &[Token]) -> Vec<Vec<f32>> {
    let (first, rest) = tokens.split_at(tokens.len() / 2);
    let mut rows = Vec::new();
    for part in [first, rest] {
        let (prompt, singles) = part.split_at(part.len() - 5);
        for tokens in std::iter::once(prompt).chain(singles.chunks(1)) {
            let context = sequence.context_for(tokens.len()).expect("a context");
            context.decode(tokens).expect("it evaluates");
            rows.push(sequence.current().logits().expect("logits").to_vec());
        }
    }
    rows
}

fn tokens(count: usize) -> Vec<Token> {
    Probe::Llama.tokens(count).into_iter().map(u32::cast_signed).collect()
}

/// Returns the session of `layouts`, and a plain context of `model`.
fn both(layouts: &Layouts, model: &Arc<Model>, settings: &Settings) -> (Session, Context) {
    let runtime_host = RuntimeHost::default();
    let session = layouts.session(settings, &runtime_host, false).expect("a session");
    (session, model::context(model, settings, &runtime_host, false).expect("a context"))
}

#[test]
fn between_equal_layouts_nothing_is_lost_not_even_a_bit() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("probe.gguf");
    Probe::Llama.write(&path).expect("a probe");
    let plain = Requested { split_from: Some(16), ..Requested::default() };
    let cases = [
        plain.clone(),
        // Without flash attention, V is stored transposed.
        Requested { flash_attention: Some(FlashAttention::Off), ..plain.clone() },
        Requested { type_k: Some(KvType::Q8_0), type_v: Some(KvType::Q8_0), ..plain.clone() },
        // The prompt is evaluated in several calls and graphs.
        Requested { n_batch: Some(48), n_ubatch: Some(32), ..plain.clone() },
        Requested { decode_threads: Some(1), prefill_threads: Some(2), ..plain },
    ];
    for repack in [false, true] {
        let (one, other) = (load(&path, repack), load(&path, repack));
        let layouts = Layouts::pair(Arc::clone(&one), other);
        for requested in &cases {
            let (mut session, mut context) = both(&layouts, &one, &settings(requested.clone()));
            let expected = rows(&mut context, &tokens(301));
            // The second time starts after clearing, when both contexts contain data of the first time.
            for time in ["first", "second"] {
                session.clear();
                assert!(!session.is_split());
                assert!(rows(&mut session, &tokens(301)) == expected, "{time} time, {repack}: {requested:?}");
                assert!(session.is_split(), "one context did it all: {requested:?}");
                let handed = session.take_hand_over().expect("it was handed over");
                assert!(handed.size > Bytes(1_000) && !handed.time.is_zero(), "{handed:?}");
            }
        }
    }
}

/// Returns the mean Kullback-Leibler divergence in nats.
fn divergence(one: &[Vec<f32>], other: &[Vec<f32>]) -> f64 {
    let log_softmax = |row: &[f32]| -> Vec<f64> {
        let most = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let sum: f64 = row.iter().map(|logit| (f64::from(*logit) - most).exp()).sum();
        row.iter().map(|logit| f64::from(*logit) - most - sum.ln()).collect()
    };
    let row = |(one, other): (&Vec<f32>, &Vec<f32>)| -> f64 {
        let (p, q) = (log_softmax(one), log_softmax(other));
        p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum()
    };
    one.iter().zip(other).map(row).sum::<f64>() / one.len() as f64
}

#[test]
fn between_two_layouts_only_rounding_differs() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("probe.gguf");
    Probe::Llama.write(&path).expect("a probe");
    let (repacked, in_file) = (load(&path, true), load(&path, false));
    let settings = settings(Requested { split_from: Some(16), ..Requested::default() });
    let layouts = Layouts::pair(Arc::clone(&repacked), Arc::clone(&in_file));
    let (mut session, mut one) = both(&layouts, &repacked, &settings);
    let (_, mut other) = both(&layouts, &in_file, &settings);
    let (split, one, other) =
        (rows(&mut session, &tokens(301)), rows(&mut one, &tokens(301)), rows(&mut other, &tokens(301)));
    assert!(split[0] == other[0], "the prompt was not evaluated with the weights as in the file");
    // The limit is the same as that of the gate for two builds of one model.
    for (name, plain) in [("repacked", &one), ("as in the file", &other)] {
        let found = divergence(plain, &split);
        assert!(found <= 5e-5, "{name}: {found:e}");
    }
    let shifted = [&one[1..], &one[..1]].concat();
    assert!(divergence(&one, &shifted) > 1e-3, "the limit tells nothing apart");
}

#[test]
fn a_state_that_does_not_fit_is_told() {
    let model = load(tiny(), true);
    let runtime_host = RuntimeHost::default();
    let context =
        |requested| model::context(&model, &settings(requested), &runtime_host, false).expect("a context");
    let mut full = context(Requested::default());
    full.decode(&tokens(40)).expect("it evaluates");
    let state = full.save().expect("a state");
    let other_type = Requested { type_k: Some(KvType::Bf16), ..Requested::default() };
    let other_way = Requested { flash_attention: Some(FlashAttention::Off), ..Requested::default() };
    for (requested, words) in
        [(other_type, "mismatched key type"), (other_way, "incompatible V transposition")]
    {
        let error = context(requested).restore(&state).expect_err("another cache").to_string();
        assert!(error.contains("cannot restore the state") && error.contains(words), "{error}");
    }
    context(Requested::default()).restore(&state).expect("the same cache");
}

/// Returns settings in which a flag or a tuning record requests a split layout.
fn on(flag: bool) -> Settings {
    let mut settings = settings(Requested { split_layout: Some(SplitLayout::On), ..Requested::default() });
    settings.split_layout.source = if flag { Source::Flag } else { Source::Default };
    settings
}

#[test]
fn too_little_memory_is_an_error_for_a_flag_and_a_reason_else() {
    let Some(path) = in_two_layouts() else { return };
    let runtime_host = |available| {
        let mut runtime_host = RuntimeHost::read();
        let host = runtime_host.host.as_mut().expect("a host");
        (host.memory.available, host.limits.memory) = (Bytes(available), None);
        runtime_host
    };
    let (flag, measured) = (on(true), on(false));
    let told = |error: Option<String>| {
        let text = error.expect("a reason");
        assert!(text.contains("MiB") && text.contains("remove --split-layout, lower -c"), "{text}");
    };
    let (size, copy) = (load(&path, false).size(), load(&path, true).repacked());

    // The memory suffices for only one of the two copies.
    let little = runtime_host(size + copy / 2);
    let error = Layouts::open(&path, &flag, &little).err();
    assert!(matches!(error, Some(Error::SplitTooLarge { .. })), "{error:?}");
    told(error.map(|error| error.to_string()));
    told(Layouts::open(&path, &measured, &little).expect("the plain path").why_not().map(str::to_string));

    // The memory suffices for both copies, but only for one of the two contexts of 2 MiB each.
    let little = runtime_host(size + copy + (3 << 20));
    let layouts = Layouts::open(&path, &flag, &little).expect("both");
    assert_eq!(layouts.why_not(), None);
    let error = layouts.session(&flag, &little, false).err();
    assert!(matches!(error, Some(Error::SplitTooLarge { .. })), "{error:?}");
    told(error.map(|error| error.to_string()));
    told(layouts.session(&measured, &little, false).expect("the plain path").why_not(1));
}

#[test]
fn where_both_layouts_are_the_same_the_plain_path_runs_and_says_so() {
    let layouts = Layouts::open(&never_repacked(), &on(true), &RuntimeHost::default()).expect("it loads");
    assert!(layouts.why_not().is_some_and(|why| why.contains("both layouts are the same")));
    let mut session = layouts.session(&on(true), &RuntimeHost::default(), false).expect("a session");
    rows(&mut session, &tokens(200));
    assert!(!session.is_split() && session.why_not(200).is_some());
    // The tuning record only applies to repacked weights.
    let mut settings = on(false);
    settings.repack.value = false;
    let layouts = Layouts::open(&quantised("Q4_0"), &settings, &RuntimeHost::default()).expect("it loads");
    assert!(layouts.why_not().is_some_and(|why| why.contains("repacking is off")));
}

/// The interrupt flag belongs to the whole process, so the test runs in a separate process.
#[test]
fn an_interrupted_prefill_ends_in_order() {
    const ALONE: &str = "ANNEAL_TEST_INTERRUPT";
    if std::env::var_os(ALONE).is_none() {
        let mut alone = Command::new(std::env::current_exe().expect("this program"));
        let name = "split::an_interrupted_prefill_ends_in_order";
        let output = alone.args([name, "--exact", "--nocapture"]).env(ALONE, "1").output().expect("a child");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
        return;
    }
    let path = quantised("Q4_0");
    let settings = on(true);
    let layouts = Layouts::open(&path, &settings, &RuntimeHost::default()).expect("it loads");
    let mut session = layouts.session(&settings, &RuntimeHost::default(), true).expect("a session");
    let options = settings.sampling_options().with_seed(0);
    let mut chain = Chain::new(&options, layouts.model()).expect("a chain");
    let prompt = "steel ".repeat(100);
    let request = Request { prompt: &prompt, n_predict: 8, ignore_end: true };
    let mut generation = || {
        generate(&mut session, &mut chain, &request, &mut |_| ControlFlow::Continue(())).expect("no error")
    };
    llama::interrupt(true);
    let stopped = generation();
    llama::interrupt(false);
    assert_eq!((stopped.stop, stopped.tokens.len(), stopped.hand_over), (Stop::Interrupted, 0, None));
    assert_eq!(session.n_ctx(), 1024);
}

fn run(arguments: &[&str]) -> (Value, String) {
    let path = quantised("Q4_0");
    let mut all = vec!["run", "--json", "--ignore-eos", "--greedy", "-m", path.to_str().expect("UTF-8")];
    all.extend(arguments);
    let (code, stdout, stderr) = parts(&anneal(&all));
    assert_eq!(code, Some(0), "{all:?}: {stderr}");
    (serde_json::from_str(&stdout).expect("one JSON object"), stderr)
}

#[test]
fn run_hands_over_and_tells_it() {
    if in_two_layouts().is_none() {
        return;
    }
    let prompt = "The smith brings the steel to a red heat. ".repeat(8);
    let arguments = ["-p", &prompt, "-n", "12", "--split-layout", "on"];
    let ((first, stderr), (second, _)) = (run(&arguments), run(&arguments));
    assert_eq!(first["tokens"], second["tokens"], "greedy differs from itself");
    assert_eq!(first["split_layout"], true, "{first}");
    assert!(first["timings"]["hand_over_ms"].as_f64() > Some(0.0), "{first}");
    assert!(stderr.contains("handed over"), "{stderr}");
    // A single token needs no decode, so no state is handed over.
    let (one, stderr) = run(&["-p", &prompt, "-n", "1", "--split-layout", "on"]);
    assert_eq!(one["tokens"][0], first["tokens"][0]);
    assert!(one["timings"]["hand_over_ms"].is_null() && stderr.contains("nothing handed over"), "{stderr}");
    // The prompt is evaluated with the weights in the file's layout.
    let (in_file, _) = run(&["-p", &prompt, "-n", "1", "--no-repack"]);
    assert_eq!(one["tokens"], in_file["tokens"]);
    let (short, stderr) = run(&["-p", "red", "-n", "4", "--split-layout", "on"]);
    assert_eq!(short["split_layout"], false);
    assert!(stderr.contains("--split-from is 64"), "{stderr}");
    for off in [&["--split-layout", "auto"][..], &["--split-layout", "off"], &[]] {
        let (plain, stderr) = run(&[&["-p", &prompt, "-n", "4"], off].concat());
        assert_eq!(plain["split_layout"], false, "{off:?}");
        assert!(!stderr.contains("split"), "{stderr}");
    }
}

#[test]
fn a_full_context_is_counted_the_same() {
    if in_two_layouts().is_none() {
        return;
    }
    let prompt = "red heat ".repeat(20);
    let arguments = ["-p", &prompt, "-n", "-1", "-c", "256", "--split-layout", "on", "--split-from", "2"];
    let (json, _) = run(&arguments);
    assert_eq!((&json["stop"], &json["split_layout"]), (&"context_full".into(), &true.into()), "{json}");
    let (prompt, tokens) = (json["prompt_tokens"].as_u64(), json["tokens"].as_array().map(Vec::len));
    assert_eq!(prompt.zip(tokens).map(|(prompt, tokens)| prompt + tokens as u64), Some(257));
}

#[test]
fn bench_measures_it_on_both_paths() {
    let Some(path) = in_two_layouts() else { return };
    let bench = |more: &[&str]| -> Value {
        let path = path.to_str().expect("UTF-8");
        let mut all = vec!["bench", "-m", path, "-r", "2", "-o", "json", "--split-layout", "on"];
        all.extend(more);
        let (code, stdout, stderr) = parts(&anneal(&all));
        assert_eq!(code, Some(0), "{stderr}");
        serde_json::from_str(&stdout).expect("JSON")
    };
    let seen = |records: &Value| -> Vec<(bool, usize)> {
        let records = records.as_array().expect("records").iter();
        let handed = |record: &Value| record["samples_hand_over_ns"].as_array().map_or(usize::MAX, Vec::len);
        records.map(|record| (record["split_layout"] == true, handed(record))).collect()
    };
    assert_eq!(seen(&bench(&["--end-to-end", "-p", "96,16", "-n", "8"])), [(true, 2), (false, 0)]);
    let kernel = bench(&["-p", "96", "-n", "8", "-pg", "96,8"]);
    assert_eq!(seen(&kernel), [(true, 0), (false, 0), (true, 2)], "prefill, decode, both");
    // At a depth, a prompt starts after a generation.
    assert_eq!(seen(&bench(&["-p", "96", "-n", "8", "-d", "80"])), [(true, 2), (false, 0)]);
}

#[test]
fn layouts_are_compared_in_turns() {
    let Some(path) = in_two_layouts() else { return };
    let bench = |model: &Path, more: &[&str]| {
        let mut all =
            vec!["bench", "-m", model.to_str().expect("UTF-8"), "--end-to-end", "--compare-layouts"];
        all.extend(more);
        parts(&anneal(&all))
    };
    let (code, stdout, stderr) = bench(&path, &["-pg", "80,4", "-r", "6", "-o", "json"]);
    assert!(code == Some(0) && !stderr.contains("note: "), "{stderr}");
    let records: Value = serde_json::from_str(&stdout).expect("JSON");
    for (record, against) in records.as_array().expect("records").iter().zip(["repacked", "file"]) {
        let samples = |name: &str| record[name].as_array().map(Vec::len);
        for name in ["samples_split_ns", "samples_against_ns", "samples_hand_over_ns", "rounds"] {
            assert_eq!(samples(name), Some(6), "{name}: {record}");
        }
        let number = |name: &str| record[name].as_f64().expect("a number");
        assert_eq!(record["against"], against);
        assert!(number("times_as_fast_low") <= number("times_as_fast"), "{record}");
        assert!(number("times_as_fast") <= number("times_as_fast_high"), "{record}");
    }
    let (_, table, stderr) = bench(&path, &["-pg", "80,4", "-r", "1"]);
    assert_eq!(table.lines().count(), 4, "{table}");
    assert!(table.contains("too few pairs") && stderr.contains("measure more with -r 6"), "{table}{stderr}");
    let cases: [(&Path, &[&str], i32, &str); 3] = [
        (&never_repacked(), &["-pg", "80,4"], 1, "both layouts are the same"),
        (&path, &["-pg", "16,4"], 2, "--split-from is 64"),
        (&path, &["-pg", "80,4", "--no-repack"], 2, "remove one of the two"),
    ];
    for (model, arguments, expected, words) in cases {
        let (code, _, stderr) = bench(model, arguments);
        assert_eq!(code, Some(expected), "{arguments:?}: {stderr}");
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
    }
}

#[test]
fn what_cannot_be_meant_is_wrong_usage() {
    let path = quantised("Q4_0");
    let path = path.to_str().expect("UTF-8");
    let cases: [(&[&str], &str); 5] = [
        (&["run", "-m", path, "-p", "a", "--split-layout", "on", "--no-repack"], "remove one of the two"),
        (&["run", "-m", path, "-p", "a", "--split-layout", "both"], "use one of auto, on, off"),
        (&["run", "-m", path, "-p", "a", "--split-from", "0"], "at least 1 token"),
        (&["run", "-m", path, "-p", "a", "--split-from", "many"], "1 or more"),
        (&["bench", "-m", path, "--parts", "decode", "--split-layout", "on"], "cannot be used with"),
    ];
    for (arguments, words) in cases {
        let (code, stdout, stderr) = parts(&anneal(arguments));
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{arguments:?}: {stderr}");
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn both_contexts_share_their_threads() {
    let threads = |split: &str| {
        let mut child = crate::common::command()
            .args(["run", "-p", "the smith brings the steel", "-n", "1000000", "-c", "4096", "--ignore-eos"])
            .args(["-t", "2", "-tb", "3", "--split-from", "2", "--split-layout", split, "-m"])
            .arg(quantised("Q4_0"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the executable runs");
        // The first text shows that both phases have run.
        let mut first = [0; 16];
        let read = std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut first);
        let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).map(Iterator::count);
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        read.expect("some text");
        tasks.expect("its threads")
    };
    assert_eq!(threads("on"), threads("off"));
}
