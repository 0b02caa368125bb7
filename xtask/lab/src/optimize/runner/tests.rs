//! Tests of heats with engines that are scripts.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use build::compare::Provenance;
use build::compare::candidate::MeasuredProgram;
use build::ui::Global;
use measure::halving;

use super::*;
use crate::optimize::nothing_measured;
use crate::optimize::record::{self, Record};

const HEAT: Heat = Heat { prompt: 8, generate: 4, pairs: 6, precision: 0.0 };

/// Engines in a folder, with a record.
struct Stable {
    folder: tempfile::TempDir,
    runners: Vec<Runner>,
    objective: Objective,
    ui: Ui,
}

impl Stable {
    /// Creates one engine for each `(prefill, decode, extra)`. The engine counts its runs, runs `extra` and prints
    /// the speeds.
    fn new(engines: &[(f64, f64, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("m.gguf"), "not looked at").unwrap();
        let runner = |(number, (prefill, decode, extra)): (usize, &(f64, f64, &str))| {
            let path = folder.path().join(format!("anneal{number}"));
            let runs = folder.path().join(format!("runs{number}")).display().to_string();
            let script = format!(
                "#!/bin/sh\necho >> '{runs}'\nRUNS=$(grep -c '' '{runs}')\n{extra}\ncat <<'END'\n\
                 [{{\"n_prompt\": 8, \"n_gen\": 0, \"avg_ns\": 1, \"avg_ts\": {prefill}}},\n\
                 {{\"n_prompt\": 0, \"n_gen\": 4, \"avg_ns\": 1, \"avg_ts\": {decode}}}]\nEND\n"
            );
            // Another process writes the script, because a script cannot be run while a forked child has it open for
            // writing.
            let mut writer = Command::new("sh")
                .args(["-c", "cat > \"$0\" && chmod +x \"$0\""])
                .arg(&path)
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            writer.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
            assert!(writer.wait().unwrap().success());
            let name = format!("build {number}");
            Runner {
                key: BuildKey { plan: build_info::Sha256::of(&name), engine: build_info::Sha256::of(script) },
                engine: CandidateBuild { name, path, program: MeasuredProgram::Anneal, record: None },
            }
        };
        let runners = engines.iter().enumerate().map(runner).collect();
        let ui = Ui::new(&Global { quiet: true, ..Global::default() });
        Self { folder, runners, objective: "8:4".parse().unwrap(), ui }
    }

    fn store(&self) -> Store {
        let provenance = Provenance { date: String::new(), command: String::new(), machine: String::new() };
        let model = record::model(&self.model()).unwrap();
        let record = Record::new(provenance, &self.objective, model, 1, 60.0);
        Store::open(&self.folder.path().join("optimize.json"), record, false, |why| panic!("{why}"))
    }

    fn model(&self) -> PathBuf {
        self.folder.path().join("m.gguf")
    }

    fn runs(&self) -> Vec<usize> {
        let count = |number| std::fs::read_to_string(self.folder.path().join(format!("runs{number}")));
        (0..self.runners.len()).map(|number| count(number).unwrap_or_default().lines().count()).collect()
    }

    /// Runs one heat. Returns the standings, and the dropped builds with the reasons.
    fn race(&self, store: &mut Store) -> Result<(Vec<Standing>, BTreeMap<usize, String>)> {
        let until = Instant::now() + Duration::from_secs(600);
        let model = self.model();
        let mut track =
            Track::new(&self.ui, &model, &self.objective, self.runners.iter().collect(), store, until);
        let field: Vec<usize> = (0..self.runners.len()).collect();
        let standings = halving::run(&mut track, &[HEAT], &field)?;
        Ok((standings, track.outs))
    }
}

#[test]
fn prompt_and_answer_count_together_and_what_was_run_is_not_run_again() {
    // The times are 8 / 8 + 4 / 4 = 2 s, 8 / 16 + 4 / 4 = 1.5 s and 8 / 8 + 4 / 1 = 5 s.
    let stable = Stable::new(&[(8.0, 4.0, ""), (16.0, 4.0, ""), (8.0, 1.0, "")]);
    let mut store = stable.store();
    let (standings, _) = stable.race(&mut store).unwrap();
    let ratios: Vec<(usize, f64)> = standings.iter().map(|s| (s.who, s.against_base.median)).collect();
    assert_eq!(ratios, [(1, 2.0 / 1.5), (0, 1.0), (2, 2.0 / 5.0)]);
    // The additional round is a warm-up.
    assert_eq!(stable.runs(), [7, 7, 7]);
    assert_eq!(store.record.heats[0].laps.len(), 21);
    store.save().unwrap();

    let mut store = stable.store();
    let (again, _) = stable.race(&mut store).unwrap();
    assert_eq!(again, standings);
    assert_eq!(stable.runs(), [7, 7, 7], "nothing was run again");

    // An interrupted round runs again from its start.
    let mut store = stable.store();
    store.record.heats[0].laps.truncate(10);
    stable.race(&mut store).unwrap();
    assert_eq!(stable.runs(), [11, 11, 11]);
}

#[test]
fn who_crashes_or_prints_nonsense_is_out_and_the_others_go_on() {
    let crash = "[ $RUNS -lt 3 ] || kill -9 $$";
    let stable =
        Stable::new(&[(8.0, 4.0, ""), (99.0, 99.0, crash), (9.0, 4.0, ""), (9.0, 9.0, "echo nonsense")]);
    let mut store = stable.store();
    let (standings, outs) = stable.race(&mut store).unwrap();
    assert_eq!(standings.iter().map(|s| s.who).collect::<Vec<_>>(), [2, 0]);
    assert_eq!(outs.keys().copied().collect::<Vec<_>>(), [1, 3]);
    assert!(outs[&1].contains("build 1 failed"), "{}", outs[&1]);
    assert_eq!(nothing_measured(&standings, &outs), None);

    let dead = Stable::new(&[(1.0, 1.0, "exit 3"), (1.0, 1.0, "exit 3")]);
    // The only remaining build does not run alone, and does not win.
    let (standings, outs) = dead.race(&mut dead.store()).unwrap();
    assert_eq!((standings.len(), outs.len()), (1, 1));
    let why = nothing_measured(&standings, &outs).unwrap();
    assert!(why.starts_with("failed: build 0 failed"), "{why}");
}

#[test]
fn a_record_that_cannot_be_written_is_no_crash_of_a_build() {
    let stable = Stable::new(&[(8.0, 4.0, ""), (9.0, 4.0, "")]);
    let mut store = stable.store();
    std::fs::create_dir(stable.folder.path().join("optimize.json")).unwrap();
    let error = stable.race(&mut store).unwrap_err();
    assert!(error.to_string().contains("optimize.json"), "{error:#}");
    assert_eq!(stable.runs(), [1, 1], "no build was dropped");
}

#[test]
fn no_time_is_no_verdict() {
    let stable = Stable::new(&[(8.0, 4.0, ""), (80.0, 40.0, "")]);
    let mut store = stable.store();
    let model = stable.model();
    let runners = stable.runners.iter().collect();
    let mut track = Track::new(&stable.ui, &model, &stable.objective, runners, &mut store, Instant::now());
    let standings = halving::run(&mut track, &[HEAT], &[0, 1]).unwrap();
    let (winner, verdict) =
        halving::choose(&standings, |who| who as u32, |who| format!("build {who}")).unwrap();
    assert_eq!(winner, 0, "{verdict}");
    assert!(verdict.contains("too few"), "{verdict}");
    assert_eq!(nothing_measured(&standings, &track.outs), None, "no build failed");
}
