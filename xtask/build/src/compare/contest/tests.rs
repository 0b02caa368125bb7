//! Comparisons of engines that are shell scripts. Their output is fixed, so no test depends on timing.

use std::process::{Command, Stdio};

use build_info::BuildInfo;

use super::*;
use crate::compare::comparison::{BuildOutcome, Figure};
use crate::ui::Global;

/// Folder with fake engines and models, and a log of the runs.
struct Stage {
    folder: tempfile::TempDir,
}

impl Stage {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Creates an engine that reports `prefill` prompt tokens per second and `load` milliseconds, each varied by up
    /// to 2 %. The engine runs `extra` before it prints the values.
    fn engine(&self, name: &str, prefill: u32, load: u32, extra: &str) -> CandidateBuild {
        let script = format!(
            r#"#!/bin/sh
case "$1" in --version|info) echo "{name} $1" >> "$0.log"; exit 0;; esac
echo "{name} $*" >> "$0.log"
n=$(grep -c " bench " "$0.log")
jitter=$(( n * {step} % 5 * 10 - 20 ))
{extra}
prefill=$(( {prefill} * (1000 + jitter) ))
load=$(( {load} * (1000 + jitter) ))
p() {{ printf '{{"part": "%s", "n_prompt": 1, "n_gen": 1, "avg_ns": 1, "avg_per_second": %s}},' "$1" "$2"; }}
case "$*" in
*--parts*)
  printf '['; p prefill ${{prefill}}e-3; p tokenize 3e6; p sample 50
  printf '{{"part": "load", "n_prompt": 0, "n_gen": 0, "avg_ns": %se3}}]' $load;;
*)
  printf '[{{"n_prompt": 8, "n_gen": 0, "avg_ns": 1, "avg_ts": %se-3}},' $prefill
  printf '{{"n_prompt": 0, "n_gen": 4, "avg_ns": 1, "avg_ts": %s}}]' $(( 20 + n % 3 ));;
esac
sleep 0.03
"#,
            step = name.len() + 2,
        );
        let path = self.path(name);
        // Another process writes the script. A process forked by a concurrent test could otherwise inherit the open
        // file, and Linux cannot execute a file that is open for writing (`ETXTBSY`).
        let mut writer = Command::new("sh")
            .args(["-c", "cat > \"$0\" && chmod +x \"$0\""])
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut writer.stdin.take().unwrap(), script.as_bytes()).unwrap();
        assert!(writer.wait().unwrap().success());
        CandidateBuild::at(name, &path).unwrap()
    }

    fn model(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, "not looked at").unwrap();
        path
    }

    fn contest<'a>(
        &self,
        builds: &'a [CandidateBuild],
        models: &'a [PathBuf],
        phases: &'a [Phase],
    ) -> Contest<'a> {
        Contest {
            builds,
            models,
            shapes: &[RunShape { prompt: 8, generate: 4, depth: 0 }],
            phases,
            threads: 1,
            pairs: 12,
            precision: 0.0,
            text: None,
            raw: None,
            provenance: Provenance {
                date: "2026-11-21".to_string(),
                command: "test".to_string(),
                machine: "none".to_string(),
            },
            note: None,
        }
    }
}

fn ui() -> Ui {
    Ui::new(&Global { quiet: true, ..Global::default() })
}

fn outcome<'a>(figures: &'a [Figure], phase: Phase, build: &str) -> &'a BuildOutcome {
    let figure = figures.iter().find(|figure| figure.phase == phase).unwrap();
    figure.results.iter().find(|result| result.build == build).unwrap()
}

#[test]
fn planted_differences_are_told_and_none_are_invented() {
    let stage = Stage::new();
    let builds = [
        stage.engine("plain", 100, 50, ""),
        stage.engine("same", 100, 50, ""),
        stage.engine("quick", 120, 40, ""),
        stage.engine("dull", 80, 60, ""),
    ];
    let models = [stage.model("m.gguf")];
    let phases = [Phase::Load, Phase::Prefill, Phase::BinarySize, Phase::StartInfo, Phase::Tokenize];
    let comparison = stage.contest(&builds, &models, &phases).run(&ui()).unwrap();
    for (phase, build, expected) in [
        (Phase::Prefill, "same", Some("no difference shown")),
        (Phase::Prefill, "quick", Some("faster")),
        (Phase::Prefill, "dull", Some("slower")),
        (Phase::Prefill, "plain", None),
        (Phase::Load, "same", Some("no difference shown")),
        (Phase::Load, "quick", Some("faster")),
        (Phase::Load, "dull", Some("slower")),
        (Phase::Tokenize, "quick", Some("equal")),
    ] {
        let found = outcome(&comparison.figures, phase, build);
        assert_eq!(found.verdict.as_deref(), expected, "{phase} of {build}: {:?}", found.ratio);
        assert_eq!(found.samples.len(), 12, "{phase} of {build}");
        assert_eq!(found.ratio.map(|ratio| ratio.pairs), expected.map(|_| 12));
    }
    assert_eq!(outcome(&comparison.figures, Phase::Tokenize, "dull").median, 3.0);
    let quick = outcome(&comparison.figures, Phase::Prefill, "quick").ratio.unwrap();
    assert!((quick.median - 1.2).abs() < 0.05, "{quick}");
    // The sizes differ by the length of the name in each script.
    let size = outcome(&comparison.figures, Phase::BinarySize, "quick");
    assert_eq!((size.samples.len(), size.ratio.unwrap().pairs), (1, 1));
    // Phases are in the order in which tables list them. Only prefill contributes to the overall result here.
    let order: Vec<Phase> = comparison.figures.iter().map(|figure| figure.phase).collect();
    assert_eq!(order, [Phase::Prefill, Phase::Tokenize, Phase::Load, Phase::StartInfo, Phase::BinarySize]);
    let overall: Vec<&str> = comparison.overall.iter().map(|overall| overall.verdict.as_str()).collect();
    assert_eq!(overall, ["no difference shown", "faster", "slower"]);
    assert_eq!((comparison.rounds.len(), comparison.stopped.clone()), (12, None));
    let text = serde_json::to_string(&comparison).unwrap();
    let read: Comparison = serde_json::from_str(&text).unwrap();
    assert_eq!(read.table().to_string(), comparison.table().to_string());
}

#[test]
fn a_result_names_the_sources_of_each_build() {
    let stage = Stage::new();
    let record = include_bytes!("../../../../../fixtures/builds/cuda-4060ti.json");
    let older: BuildInfo = serde_json::from_slice(record).unwrap();
    let record = BuildInfo { anneal_commit: Some(format!("{}-dirty", "a".repeat(40))), ..older.clone() };
    let builds = [
        CandidateBuild { record: Some(older), ..stage.engine("a", 1, 1, "") },
        CandidateBuild { record: Some(record.clone()), ..stage.engine("b", 1, 1, "") },
    ];
    let models = [stage.model("m.gguf")];
    let contest = Contest { pairs: 1, ..stage.contest(&builds, &models, &[Phase::Prefill]) };
    let written = serde_json::to_value(contest.run(&ui()).unwrap()).unwrap();
    let [older, newer] = [&written["builds"][0], &written["builds"][1]];
    assert_eq!(newer["anneal_commit"], *record.anneal_commit.as_ref().unwrap());
    assert_eq!(newer["llama_version"], record.llama_version);
    assert_eq!(newer["source_digest"], record.source.digest.as_str());
    assert!(older.get("anneal_commit").is_none() && older["source_digest"].is_string(), "{older}");
}

#[test]
fn builds_run_in_turn_on_every_model_in_every_shape() {
    let stage = Stage::new();
    // All engines write to the same log.
    let log = |name: &str| format!("echo {name} $3 $5 $7 ${{14}} >> {}", stage.path("order").display());
    let builds = [
        stage.engine("a", 1, 1, &log("a")),
        stage.engine("b", 1, 1, &log("b")),
        stage.engine("c", 1, 1, &log("c")),
    ];
    let models = [stage.model("m.gguf"), stage.model("n.gguf")];
    let shapes =
        [RunShape { prompt: 8, generate: 4, depth: 0 }, RunShape { prompt: 2, generate: 1, depth: 6 }];
    let phases = [Phase::Prefill, Phase::Decode];
    let contest = Contest { pairs: 2, shapes: &shapes, ..stage.contest(&builds, &models, &phases) };
    let comparison = contest.run(&ui()).unwrap();
    let mut expected = Vec::new();
    for order in ["abc", "bca", "cab"] {
        for model in &models {
            for (sizes, depth) in [("8 4", ""), ("2 1", "-d")] {
                for name in order.chars() {
                    expected.push(format!("{name} {} {sizes} {depth}", model.display()).trim().to_string());
                }
            }
        }
    }
    let ran = std::fs::read_to_string(stage.path("order")).unwrap();
    assert_eq!(ran.lines().collect::<Vec<_>>(), expected);
    // Prefill and decode on two models in two shapes; the first round is not counted.
    assert_eq!(comparison.figures.len(), 8);
    assert!(
        comparison.figures.iter().flat_map(|figure| &figure.results).all(|result| result.samples.len() == 2)
    );
    let titles: Vec<String> = comparison.figures.iter().take(2).map(Figure::title).collect();
    assert_eq!(titles, ["prefill 8", "prefill 2 @ 6"]);
}

#[test]
fn a_build_that_crashes_is_named_and_what_was_measured_is_kept() {
    let stage = Stage::new();
    let crash = "if [ $n = 5 ]; then echo 'GGML_ASSERT(x) failed' >&2; kill -ABRT $$; fi";
    let builds = [stage.engine("steady", 10, 1, ""), stage.engine("shaky", 10, 1, crash)];
    let models = [stage.model("m.gguf")];
    let phases = [Phase::Prefill, Phase::Decode];
    let raw = stage.path("raw.json");
    let contest = Contest { raw: Some(&raw), ..stage.contest(&builds, &models, &phases) };
    let error = format!("{:#}", contest.run(&ui()).unwrap_err());
    for words in ["raw.json", "shaky failed on", "m.gguf", "-p 8 -n 4", "signal: 6", "GGML_ASSERT(x) failed"]
    {
        assert!(error.contains(words), "{words} is not in: {error}");
    }
    let kept: Comparison = serde_json::from_slice(&std::fs::read(&raw).unwrap()).unwrap();
    // The fifth run of `shaky` belongs to the fourth counted round.
    assert_eq!(kept.rounds.len(), 3);
    assert_eq!(outcome(&kept.figures, Phase::Prefill, "shaky").ratio.unwrap().pairs, 3);
    let stopped = kept.stopped.unwrap();
    assert!(stopped.starts_with("in round 4 of 12: shaky failed on"), "{stopped}");

    // A failure in the warm-up round leaves nothing to save.
    std::fs::remove_file(&raw).unwrap();
    let builds = [stage.engine("fine", 10, 1, ""), stage.engine("broken", 10, 1, "exit 3")];
    let contest = Contest { builds: &builds, ..contest };
    let error = format!("{:#}", contest.run(&ui()).unwrap_err());
    assert!(error.contains("broken failed on") && error.contains("exit status: 3"), "{error}");
    assert!(!raw.exists() && !error.contains("raw.json"), "{error}");
}

#[test]
fn what_a_program_does_not_tell_is_an_error() {
    let stage = Stage::new();
    let models = [stage.model("m.gguf")];
    let cases: [(&str, Phase, &[&str]); 5] = [
        ("", Phase::Vocab, &["odd:", "did not report vocab"]),
        ("echo 'no JSON'; exit 0", Phase::Prefill, &["odd:", "invalid JSON", "no JSON"]),
        (
            r#"echo '[{"n_prompt": 8, "n_gen": 0, "avg_ns": 1, "avg_ts": 0}]'; exit 0"#,
            Phase::Prefill,
            &["did not report prefill"],
        ),
        (
            "echo \"error: unexpected argument '--parts' found\" >&2; exit 2",
            Phase::Load,
            &["odd is an older engine"],
        ),
        ("exit 69", Phase::Decode, &["exit status: 69", "printed nothing"]),
    ];
    for (extra, phase, words) in cases {
        let builds = [stage.engine("odd", 1, 1, extra), stage.engine("plain", 1, 1, "")];
        let phases = [phase];
        let error = format!("{:#}", stage.contest(&builds, &models, &phases).run(&ui()).unwrap_err());
        for words in words {
            assert!(error.contains(words), "{words} is not in: {error}");
        }
    }
}

#[test]
fn what_cannot_be_compared_is_told_before_anything_runs() {
    let stage = Stage::new();
    let (a, b) = (stage.engine("a", 1, 1, ""), stage.engine("b", 1, 1, ""));
    let bench =
        CandidateBuild { name: "bench".to_string(), program: MeasuredProgram::LlamaBench, ..b.clone() };
    let two = [a.clone(), b.clone()];
    let one_name = [a.clone(), CandidateBuild { name: "a".to_string(), ..b }];
    let (with_bench, alone) = ([a.clone(), bench], [a]);
    let models = [stage.model("m.gguf")];
    let (gone, empty) = ([stage.path("gone.gguf")], [stage.model("empty.gguf")]);
    std::fs::write(&empty[0], "").unwrap();
    std::fs::create_dir(stage.path("other")).unwrap();
    let doubled = [models[0].clone(), stage.model("other/m.gguf")];
    let (speeds, tokenize) = ([Phase::Prefill, Phase::Decode], [Phase::Tokenize]);
    let flat = [RunShape { prompt: 0, generate: 4, depth: 0 }];
    let base = stage.contest(&two, &models, &speeds);
    let (nowhere, no_text) = (stage.path("none/raw.json"), stage.path("no text"));
    let cases: [(Contest<'_>, &str); 12] = [
        (Contest { raw: Some(&nowhere), ..base.clone() }, "its folder does not exist"),
        (Contest { text: Some(&no_text), ..base.clone() }, "cannot read the text"),
        (Contest { builds: &alone, ..base.clone() }, "at least two builds"),
        (Contest { builds: &one_name, ..base.clone() }, "a is listed twice"),
        (Contest { builds: &with_bench, phases: &tokenize, ..base.clone() }, "does not support tokenize"),
        (Contest { models: &gone, ..base.clone() }, "gone.gguf"),
        (Contest { models: &empty, ..base.clone() }, "is empty"),
        (Contest { models: &doubled, ..base.clone() }, "two models are called m"),
        (Contest { phases: &[Phase::Prefill, Phase::Prefill], ..base.clone() }, "a phase is listed twice"),
        (Contest { shapes: &[base.shapes[0], base.shapes[0]], ..base.clone() }, "is listed twice"),
        (Contest { shapes: &flat, ..base.clone() }, "0 prompt tokens"),
        (Contest { pairs: 0, ..base }, "at least one pair"),
    ];
    for (contest, words) in cases {
        let error = format!("{:#}", contest.run(&ui()).unwrap_err());
        assert!(error.contains(words), "{words} is not in: {error}");
    }
    assert!(!stage.path("a.log").exists() && !stage.path("b.log").exists());
}

#[test]
fn a_round_around_a_disturbed_baseline_is_measured_again() {
    let stage = Stage::new();
    let builds =
        [stage.engine("plain", 100, 50, "[ $n = 8 ] && jitter=-400"), stage.engine("same", 100, 50, "")];
    let models = [stage.model("m.gguf")];
    let comparison = stage.contest(&builds, &models, &[Phase::Prefill]).run(&ui()).unwrap();
    assert_eq!((comparison.rounds.len(), comparison.stop), (12, Some(Stop::Pairs)));
    // Run 8 belongs to round 7, because round 0 is the warm-up.
    let [dropped] = comparison.dropped.as_slice() else { panic!("{:?}", comparison.dropped) };
    assert!(dropped.after == 6 && (dropped.anchor - 60.0).abs() < 1e-6, "{dropped:?}");
    assert_eq!(outcome(&comparison.figures, Phase::Prefill, "same").samples.len(), 12);
    assert!(comparison.floor.is_some_and(|floor| floor > 0.0 && floor < 0.05), "{:?}", comparison.floor);
    assert!(comparison.remarks().iter().any(|remark| remark.contains("1 round was disturbed")));
}

#[test]
fn a_build_that_is_disturbed_alone_makes_the_floor_its_own() {
    let stage = Stage::new();
    // Every other run of `shaken` is 20 % slower; the baseline's runs are not.
    let builds = [
        stage.engine("plain", 100, 50, ""),
        stage.engine("shaken", 100, 50, "[ $((n % 2)) = 1 ] && jitter=-200"),
    ];
    let models = [stage.model("m.gguf")];
    let comparison = stage.contest(&builds, &models, &[Phase::Prefill]).run(&ui()).unwrap();
    assert!(comparison.floor.is_some_and(|floor| floor > 0.05), "{:?}", comparison.floor);
}

#[test]
fn enough_is_enough_where_a_precision_is_asked_for() {
    let stage = Stage::new();
    let builds = [stage.engine("plain", 100, 50, ""), stage.engine("quick", 150, 50, "")];
    let models = [stage.model("m.gguf")];
    let contest = stage.contest(&builds, &models, &[Phase::Prefill]);
    let comparison = Contest { pairs: 60, precision: 0.05, ..contest }.run(&ui()).unwrap();
    assert_eq!((comparison.rounds.len(), comparison.stop), (10, Some(Stop::Decided)));
    assert_eq!(comparison.overall[0].verdict, "faster");
}
