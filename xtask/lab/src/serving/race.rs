//! Race of servers. In each round, and for each number of clients, the servers run one after another.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base::exit;
use build::compare::candidate::MeasuredProgram;
use build::compare::comparison::Contender;
use build::compare::{CandidateBuild, Phase, Provenance, RunRequest, RunShape, measure_once};
use build::fs;
use build::process;
use build::ui::Ui;
use build_info::words::count;
use gguf::memory::CTX_STEP;
use load::Interface;
use measure::schedule;

use super::equal::{self, Equal};
use super::figures::{Run, Served, ServingFigures, figures};
use super::prompts::Prompts;
use super::sample::{ClientLoad, sample};
use super::server::{MeasuredServer, Server, Settings};

/// Settings of a race.
#[derive(Clone, Debug)]
pub struct Race {
    /// Servers to measure; the first server is compared with the others.
    pub subjects: Vec<MeasuredServer>,
    /// True if `anneal bench` from the first server's build takes part in runs with one client.
    pub bench: bool,
    /// Path of the model.
    pub model: PathBuf,
    /// Numbers of concurrent clients, measured one after the other.
    pub clients: Vec<u32>,
    /// Maximum number of slots. If there are more clients than slots, some clients wait.
    pub most_slots: u32,
    /// Number of tokens of a prompt.
    pub prompt: u32,
    /// Number of tokens of an answer.
    pub generate: u32,
    /// Number of requests per client.
    pub requests: u32,
    /// Number of rounds after the warm-up round.
    pub pairs: usize,
    /// Number of threads per server.
    pub threads: u32,
    /// True if prompts share a prefix that the servers may cache.
    pub warm_prefix: bool,
    /// Interface to use, for servers that support it.
    pub interface: Interface,
    /// Path of the result, which is updated after each round.
    pub out: Option<PathBuf>,
    /// Provenance for the result.
    pub provenance: Provenance,
    /// Remark for the result.
    pub note: Option<String>,
}

/// Participant of a round.
enum Turn<'a> {
    Server(&'a MeasuredServer),
    Bench,
}

impl Race {
    /// Checks the settings before the long measurement starts.
    pub fn check(&self) -> Result<()> {
        let usage = |why: String| Err(exit::usage(why));
        if self.prompt == 0
            || self.generate == 0
            || self.requests == 0
            || self.pairs == 0
            || self.threads == 0
        {
            return usage("-p, -n, -r, --pairs and --threads must be at least 1".to_string());
        }
        if self.clients.is_empty() || self.clients.iter().any(|number| !(1..=4096).contains(number)) {
            return usage("--clients: use numbers from 1 to 4096".to_string());
        }
        if self.context(self.slots(*self.clients.iter().max().unwrap_or(&1))).is_none() {
            return usage(
                "the context would be too large\nhint: use fewer slots or fewer tokens".to_string(),
            );
        }
        if let [ours, theirs, ..] = self.subjects.as_slice()
            && ours.name() == theirs.name()
        {
            return usage(format!(
                "both servers are called {}\nhint: give one a label: LABEL=PATH",
                ours.name()
            ));
        }
        fs::check_model(&self.model)?;
        self.out.as_deref().map_or(Ok(()), build::overwrite_guard::check_record)
    }

    fn slots(&self, clients: u32) -> u32 {
        clients.min(self.most_slots).max(1)
    }

    /// Returns the context size in tokens for `slots`. Each slot needs room for its prompt, its answer and a margin
    /// that servers keep free. llama-server divides its context among the slots.
    fn context(&self, slots: u32) -> Option<u32> {
        const FREE: u32 = 64;
        let one =
            self.prompt.checked_add(self.generate)?.checked_add(FREE)?.checked_next_multiple_of(CTX_STEP)?;
        one.checked_mul(slots).filter(|context| *context <= i32::MAX as u32)
    }

    fn settings(&self, clients: u32) -> Settings {
        let slots = self.slots(clients);
        Settings {
            model: self.model.clone(),
            threads: self.threads,
            slots,
            clients,
            context: self.context(slots).unwrap_or(i32::MAX as u32),
            reuse: self.warm_prefix,
            config: None,
        }
    }

    fn bench_name(&self) -> String {
        format!("{} bench", self.subjects[0].name())
    }

    /// Runs the race. If a server fails or the user stops the race, the file contains the measurements so far.
    pub fn run(&self, ui: &Ui) -> Result<Served> {
        self.check()?;
        let prompts = Prompts::of(&self.model, self.prompt, self.warm_prefix)?;
        let (mut served, mut progress) = (self.begin(), ui.progress("serve"));
        served.equal = self.equal(&prompts, &mut served.commands)?;
        let steps = (self.pairs + 1) * self.clients.len();
        let mut done = 0;
        // Round 0 is a warm-up of the page cache and the clock.
        for round in 0..=self.pairs {
            for &clients in &self.clients {
                if let Err(error) = self.turns(round, clients, &prompts, &mut served.runs) {
                    progress.finish();
                    return Err(self.keep_part(error, served, ui));
                }
                done += 1;
                progress.step(done as u64, steps as u64, "runs");
            }
            served.figures = figures(&served.runs, &served.programs);
            served.stopped =
                (round < self.pairs).then(|| format!("only {round} of {} rounds are complete", self.pairs));
            if round > 0 {
                self.keep(&served)?;
            }
        }
        progress.finish();
        Ok(served)
    }

    fn begin(&self) -> Served {
        let contender = |build: &CandidateBuild| Contender::new(&build.name, build.record.as_ref());
        let mut programs: Vec<Contender> =
            self.subjects.iter().map(|subject| contender(&subject.build)).collect();
        if self.bench {
            let ours = self.subjects[0].build.record.as_ref();
            programs.push(Contender::new(&self.bench_name(), ours));
        }
        let name = self.model.file_name().unwrap_or_default();
        Served {
            provenance: self.provenance.clone(),
            note: self.note.clone(),
            stopped: None,
            model: name.to_string_lossy().into_owned(),
            threads: self.threads,
            prompt: self.prompt,
            generate: self.generate,
            requests: self.requests,
            warm_prefix: self.warm_prefix,
            pairs: self.pairs,
            programs,
            commands: Vec::new(),
            equal: None,
            figures: Vec::new(),
            runs: Vec::new(),
        }
    }

    /// Compares the answers of both servers to one prompt. Also appends the command line of each server to
    /// `commands`.
    fn equal(&self, prompts: &Prompts, commands: &mut Vec<String>) -> Result<Option<Equal>> {
        let prompt = prompts.prompt(u64::MAX);
        let mut said = Vec::new();
        for subject in &self.subjects {
            let server = Server::start(subject, &self.settings(1))?;
            commands.push(without_folders(server.line()));
            said.push(equal::tokens(&server, subject.kind, &prompt, self.generate)?);
            server.stop()?;
        }
        Ok(match said.as_slice() {
            [ours, theirs, ..] => Some(Equal::of(ours, theirs)),
            _ => None,
        })
    }

    /// Runs every participant once, in the order of round `round`.
    fn turns(&self, round: usize, clients: u32, prompts: &Prompts, runs: &mut Vec<Run>) -> Result<()> {
        let mut all: Vec<Turn<'_>> = self.subjects.iter().map(Turn::Server).collect();
        if self.bench && clients == 1 {
            all.push(Turn::Bench);
        }
        let mut told = Vec::new();
        schedule::turns(round, all.len(), |number| {
            process::check_interrupted()?;
            // Keep the order of the runs for the record.
            told.push(match &all[number] {
                Turn::Server(subject) => {
                    let work = ClientLoad {
                        prompts,
                        round: round as u64,
                        clients,
                        requests: self.requests,
                        generate: self.generate,
                        interface: self.interface,
                    };
                    let sample = sample(subject, &self.settings(clients), &work)
                        .with_context(|| format!("{} with {}", subject.name(), count(clients, "client")))?;
                    (subject.name().to_string(), ServingFigures::Served(Box::new(sample)))
                }
                Turn::Bench => (self.bench_name(), self.bench()?),
            });
            Ok::<_, anyhow::Error>(())
        })?;
        // An unfinished round does not count.
        runs.extend(told.into_iter().map(|(program, told)| Run { round, clients, program, told }));
        Ok(())
    }

    /// Runs `anneal bench` at a depth equal to the prompt's length. Also measures the time to load the model.
    fn bench(&self) -> Result<ServingFigures> {
        let build = CandidateBuild { program: MeasuredProgram::Anneal, ..self.subjects[0].build.clone() };
        let request = RunRequest {
            model: &self.model,
            shape: RunShape { prompt: 0, generate: self.generate, depth: self.prompt },
            phases: &[Phase::Decode, Phase::Load],
            threads: self.threads,
            text: None,
        };
        let told = measure_once(&build, &request)?;
        let value = |wanted: Phase| {
            told.iter().find(|(phase, _)| *phase == wanted).map_or(f64::NAN, |(_, value)| *value)
        };
        Ok(ServingFigures::Bench { decode_per_second: value(Phase::Decode), load_ms: value(Phase::Load) })
    }

    fn keep(&self, served: &Served) -> Result<()> {
        match &self.out {
            Some(path) => build::fs::write_atomically(path, &serde_json::to_vec(served)?),
            None => Ok(()),
        }
    }

    /// Adds the path of the file with the measurements so far to `error`. If the user specified no file, prints the
    /// measurements.
    fn keep_part(&self, error: anyhow::Error, mut served: Served, ui: &Ui) -> anyhow::Error {
        served.figures = figures(&served.runs, &served.programs);
        if served.figures.is_empty() {
            return error;
        }
        let why =
            if process::interrupted() { "stopped by the user".to_string() } else { format!("{error:#}") };
        served.stopped = Some(why.lines().next().unwrap_or_default().to_string());
        let Some(path) = &self.out else {
            ui.say(served.table());
            return error;
        };
        match self.keep(&served) {
            Ok(()) => {
                error.context(format!("not finished; the measurements so far are in {}", path.display()))
            }
            Err(second) => {
                error.context(format!("not finished, and the measurements could not be written: {second:#}"))
            }
        }
    }
}

/// Removes this machine's folders from a command.
fn without_folders(line: &str) -> String {
    let name = |word: &'_ str| {
        Path::new(word).file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned())
    };
    line.split(' ')
        .map(|word| if word.contains('/') { name(word.trim_matches('\'')) } else { word.to_string() })
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serving::ServerKind;

    fn race(folder: &Path) -> Race {
        let model = folder.join("m.gguf");
        std::fs::write(&model, "not looked at").unwrap();
        let build = |name: &str| CandidateBuild {
            name: name.to_string(),
            path: "/bin/false".into(),
            program: MeasuredProgram::Anneal,
            record: None,
        };
        Race {
            subjects: vec![
                MeasuredServer { build: build("a"), kind: ServerKind::Anneal },
                MeasuredServer { build: build("b"), kind: ServerKind::LlamaServer },
            ],
            bench: false,
            model,
            clients: vec![1, 100],
            most_slots: 64,
            prompt: 200,
            generate: 64,
            requests: 2,
            pairs: 6,
            threads: 2,
            warm_prefix: false,
            interface: Interface::Http,
            out: None,
            provenance: Provenance {
                date: "2026-11-22".to_string(),
                command: "test".to_string(),
                machine: "none".to_string(),
            },
            note: None,
        }
    }

    #[test]
    fn every_slot_has_room_for_its_prompt_and_answer() {
        let folder = tempfile::tempdir().unwrap();
        let race = race(folder.path());
        // 200 + 64 + 64 tokens are rounded up to a multiple of 256.
        for (clients, slots, context) in [(1, 1, 512), (16, 16, 8192), (100, 64, 32768)] {
            let settings = race.settings(clients);
            assert_eq!((settings.slots, settings.context, settings.clients), (slots, context, clients));
        }
    }

    #[test]
    fn what_cannot_work_is_told_before_anything_runs() {
        let folder = tempfile::tempdir().unwrap();
        let base = race(folder.path());
        assert!(base.check().is_ok());
        let twice = vec![base.subjects[0].clone(), base.subjects[0].clone()];
        let cases: [(Race, &str); 7] = [
            (Race { pairs: 0, ..base.clone() }, "--pairs"),
            (Race { clients: vec![], ..base.clone() }, "--clients"),
            (Race { clients: vec![0], ..base.clone() }, "--clients"),
            (Race { prompt: u32::MAX, ..base.clone() }, "context would be too large"),
            (Race { subjects: twice, ..base.clone() }, "both servers are called a"),
            (Race { model: folder.path().join("gone"), ..base.clone() }, "cannot find the model"),
            (Race { out: Some(folder.path().join("none/o.json")), ..base }, "its folder does not exist"),
        ];
        for (race, words) in cases {
            let found = race.check().map_err(|error| format!("{error:#}")).unwrap_err();
            assert!(found.contains(words), "{words}: {found}");
        }
    }

    #[test]
    fn commands_are_told_without_folders() {
        let line = "/home/a/bin/anneal serve -m '/m/x.gguf' --listen 127.0.0.1:7";
        assert_eq!(without_folders(line), "anneal serve -m x.gguf --listen 127.0.0.1:7");
    }
}
