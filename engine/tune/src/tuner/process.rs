//! Runner that measures candidates in separate processes.
//!
//! Each way of loading the model has its own process. As many processes are kept as fit into memory. If a process dies,
//! hangs or gives an invalid answer, its candidate fails, and the next request starts another process.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use build_info::tuning::{Chosen, CpuKey, ModelShape};
use build_info::{Bytes, Logits};
use engine_core::child_process::{LastWords, death, lines};
use host::process::cpu_seconds;
use measure::Watch;

use super::check::{OutputComparison, Rounding, compare};
use super::space::{changes_numerics, memory};
use super::task::{DEEPEST, Failure, RunFigures, Runner, TuningEvent, Work};
use super::worker::{WorkerAnswer, WorkerRequest, lead};

/// Number of last stderr lines that are reported for a dead process.
const LAST_WORDS: usize = 4;
/// Interval between two checks for an interrupt by the user.
const GLANCE: Duration = Duration::from_millis(100);
/// Maximum time for loading. It is long, because a large model may be on a slow disk.
const LOADING: Duration = Duration::from_secs(600);
/// Name of the file in a tuning run's folder to which a worker writes its output. The folder contains no other file.
const LOGITS: &str = "logits";
/// Age at which a folder is considered abandoned. A tuning run writes to its folder every few minutes.
const LEFT_BEHIND: Duration = Duration::from_secs(24 * 60 * 60);
/// Fraction of the available memory that all processes together may use.
const SHARE: f64 = 0.8;

/// Runner for real tuning runs.
pub struct Processes<'a> {
    command: Vec<PathBuf>,
    shape: ModelShape,
    ceiling: Option<Bytes>,
    patience: Duration,
    workers: Vec<Worker>,
    /// Number of tokens before the text, and the untuned output after them.
    reference: Option<(u32, Logits)>,
    /// Number of tokens before the text, and the effect of rounding on the output after them.
    rounding: Option<(u32, Rounding)>,
    folder: base::TempDir,
    started: Instant,
    watch: Option<(Watch, f64)>,
    on_event: &'a mut dyn FnMut(TuningEvent<'_>),
}

/// Process that has loaded the model in one way.
struct Worker {
    loaded: Chosen,
    takes: Bytes,
    child: Child,
    /// Input of the process. Dropping this value closes the input.
    stdin: ChildStdin,
    answers: Receiver<String>,
    last_words: LastWords,
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the name prefix of the folders that belong to tuning runs of `record`.
fn prefix(record: &Path) -> String {
    format!(".{}.work-", record.file_stem().unwrap_or_default().to_string_lossy())
}

/// Removes the folders that killed tuning runs of `record` left in `folder`. A folder is kept in three cases:
///
/// - its name is not one that [`base::scratch_in`] creates;
/// - it contains anything other than a tuning run's file;
/// - it is younger than [`LEFT_BEHIND`]: it may belong to a tuning run in progress, because some file systems have no
///   locks.
fn remove_left_behind(folder: &Path, record: &Path) {
    let prefix = prefix(record);
    let is_old = |found: fs::Metadata| {
        found.modified().ok().and_then(|time| time.elapsed().ok()).is_some_and(|age| age > LEFT_BEHIND)
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        // The metadata of a link describes the link itself, so links are not followed.
        let Ok(found) = entry.metadata() else { continue };
        let is_ours = entry.file_name().to_str().is_some_and(|name| base::is_scratch(name, &prefix));
        if !found.is_dir() || !is_ours || !is_old(found) {
            continue;
        }
        let mut inside = fs::read_dir(entry.path()).into_iter().flatten();
        let is_logits = |inside: fs::DirEntry| {
            let Ok(found) = inside.metadata() else { return false };
            inside.file_name() == LOGITS && found.is_file() && is_old(found)
        };
        if inside.all(|inside| inside.is_ok_and(is_logits)) {
            let _ = fs::remove_file(entry.path().join(LOGITS));
            let _ = fs::remove_dir(entry.path());
        }
    }
}

impl<'a> Processes<'a> {
    /// Starts processes with `command`: the program and its arguments. A process without output for `patience` is
    /// killed. The files are in a folder next to `record`, which is removed at the end. The caller holds the record's
    /// lock.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn new(
        command: Vec<PathBuf>,
        shape: ModelShape,
        ceiling: Option<Bytes>,
        patience: Duration,
        record: &Path,
        on_event: &'a mut dyn FnMut(TuningEvent<'_>),
    ) -> std::io::Result<Self> {
        let beside =
            record.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // A killed tuning run could not remove its folder.
        remove_left_behind(beside, record);
        let folder = base::scratch_in(beside, &prefix(record))?;
        Ok(Self {
            command,
            shape,
            ceiling,
            patience,
            workers: Vec::new(),
            reference: None,
            rounding: None,
            folder,
            started: Instant::now(),
            watch: None,
            on_event,
        })
    }

    /// Sends `request` to the process that loaded the model with `settings`, and waits for its answer.
    fn ask(&mut self, settings: &Chosen, request: &WorkerRequest) -> Result<WorkerAnswer, Failure> {
        let at = self.worker(settings)?;
        let answer = self.workers[at].ask(request, self.patience);
        match answer {
            Ok(WorkerAnswer::Error(why)) => Err(Failure::Failed(why)),
            Ok(answer) => Ok(answer),
            Err(failure) => {
                self.end(at);
                Err(failure)
            }
        }
    }

    /// Ends the process with the index `at`. The kernel then adds its CPU time to this process's, so the current round
    /// cannot detect disturbances by other processes.
    fn end(&mut self, at: usize) {
        self.workers.remove(at);
        self.watch = None;
    }

    /// Returns the index of the process for `settings`. The process is moved to the end, so that the first process is
    /// the least recently used.
    fn worker(&mut self, settings: &Chosen) -> Result<usize, Failure> {
        let loaded = loading(settings);
        match self.workers.iter().position(|worker| worker.loaded == loaded) {
            Some(at) => {
                let worker = self.workers.remove(at);
                self.workers.push(worker);
            }
            None => {
                self.make_room(settings);
                let takes = memory(&self.shape, settings, 0);
                let mut worker = Worker::start(&self.command, loaded, takes)?;
                let request = WorkerRequest::Load { settings: settings.clone() };
                let answer = worker.ask(&request, self.patience.max(LOADING));
                self.workers.push(worker);
                let failure = match answer {
                    Ok(WorkerAnswer::Loaded) => None,
                    Ok(WorkerAnswer::Error(why)) => Some(Failure::Failed(why)),
                    Ok(other) => Some(Failure::Failed(format!("it answered {other:?} to a load request"))),
                    Err(failure) => Some(failure),
                };
                if let Some(failure) = failure {
                    self.end(self.workers.len() - 1);
                    return Err(failure);
                }
            }
        }
        Ok(self.workers.len() - 1)
    }

    /// Ends the least recently used processes until another process fits into memory.
    fn make_room(&mut self, settings: &Chosen) {
        // The process needs memory for a context and for the two states that it keeps.
        let needed = memory(&self.shape, settings, 3 * DEEPEST).0;
        while !self.workers.is_empty() {
            let taken: u64 = self.workers.iter().map(|worker| worker.takes.0).sum();
            let ceiling = self.ceiling.is_none_or(|ceiling| needed.saturating_add(taken) <= ceiling.0);
            // The available memory no longer includes the memory of the other processes.
            let available = engine_core::runtime_host::RuntimeHost::read().memory();
            let fits = available.is_none_or(|available| needed as f64 <= available.0 as f64 * SHARE);
            if ceiling && fits {
                return;
            }
            self.end(0);
        }
    }

    /// Returns the output with `settings` after `lead` tokens.
    fn logits(&mut self, settings: &Chosen, lead: u32) -> Result<(Logits, usize), Failure> {
        let out = self.folder.path().join(LOGITS);
        let request = WorkerRequest::Check { settings: settings.clone(), lead, out: out.clone() };
        let text = match self.ask(settings, &request)? {
            WorkerAnswer::Checked { text } => text,
            other => return Err(Failure::Failed(format!("it answered {other:?} to a check"))),
        };
        let failed =
            |why: String| Failure::Failed(format!("its output in {} cannot be used: {why}", out.display()));
        let bytes = fs::read(&out).map_err(|error| failed(error.to_string()))?;
        let _ = fs::remove_file(&out);
        let logits = Logits::parse(&bytes).map_err(|error| failed(error.to_string()))?;
        Ok((logits, text))
    }

    /// Measures the difference between `reference`, the untuned output after `lead` tokens, and the output in smaller
    /// graphs.
    fn rounding(&mut self, reference: &Logits, lead: u32) -> Result<Rounding, Failure> {
        /// Smaller than the text, so that the text needs several graphs.
        const GRAPH: u32 = 32;
        if let Some((_, rounding)) = self.rounding.filter(|(tokens, _)| *tokens == lead) {
            return Ok(rounding);
        }
        let smaller = Chosen { n_ubatch: Some(GRAPH), ..Chosen::default() };
        let (logits, text) = self.logits(&smaller, lead)?;
        let found = compare(reference, &logits, text);
        let rounding = Rounding { mean_kld: found.mean_kld, top1: found.top1 };
        self.rounding = Some((lead, rounding));
        Ok(rounding)
    }

    /// Returns the CPU seconds that the processes have used.
    fn seconds_taken(&self) -> f64 {
        self.workers.iter().filter_map(|worker| cpu_seconds(worker.child.id())).sum()
    }
}

/// Returns the settings that take effect when a model is loaded. Also includes the affinity, because threads that
/// outlive a run keep their affinity.
fn loading(settings: &Chosen) -> Chosen {
    Chosen {
        repack: settings.repack,
        tiled: settings.tiled,
        load_mode: settings.load_mode.clone(),
        huge_pages: settings.huge_pages,
        cpu_variant: settings.cpu_variant.clone(),
        kernels: settings.kernels.clone(),
        affinity: settings.affinity.clone(),
        ..Chosen::default()
    }
}

impl Worker {
    fn start(command: &[PathBuf], loaded: Chosen, takes: Bytes) -> Result<Self, Failure> {
        let failed = |why: String| Failure::Failed(format!("cannot start its process: {why}"));
        let Some((program, arguments)) = command.split_first() else {
            return Err(failed("no program".into()));
        };
        let spawned = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = spawned.map_err(|error| failed(format!("{}: {error}", program.display())))?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
            let _ = child.kill();
            let _ = child.wait();
            return Err(failed("no pipes".to_string()));
        };
        let listening = || Ok((lines(stdout)?, LastWords::listen(stderr, LAST_WORDS)?));
        match listening() {
            Ok((answers, last_words)) => Ok(Self { loaded, takes, child, stdin, answers, last_words }),
            Err(why) => {
                let why: std::io::Error = why;
                let _ = child.kill();
                let _ = child.wait();
                Err(failed(format!("cannot start a thread that reads its output: {why}")))
            }
        }
    }

    /// Sends a request and waits for the answer. After an error, the process cannot be used again.
    fn ask(&mut self, request: &WorkerRequest, patience: Duration) -> Result<WorkerAnswer, Failure> {
        let text = serde_json::to_string(request).map_err(|error| Failure::Failed(error.to_string()))?;
        if writeln!(self.stdin, "{text}").and_then(|()| self.stdin.flush()).is_err() {
            return Err(self.epitaph());
        }
        let asked = Instant::now();
        loop {
            match self.answers.recv_timeout(GLANCE) {
                Ok(line) => {
                    let strange = |error| format!("it sent an invalid answer, {line:?} ({error})");
                    return serde_json::from_str(&line).map_err(|error| Failure::Failed(strange(error)));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.epitaph()),
                Err(RecvTimeoutError::Timeout) if llama::interrupted() => return Err(Failure::Interrupted),
                Err(RecvTimeoutError::Timeout) if asked.elapsed() > patience => {
                    let seconds = patience.as_secs();
                    return Err(Failure::Failed(format!(
                        "it printed nothing for {seconds} s and was killed"
                    )));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Describes how the process died.
    fn epitaph(&mut self) -> Failure {
        if llama::interrupted() {
            return Failure::Interrupted;
        }
        // The process's stdout is closed, so the process has ended or is about to end.
        let began = Instant::now();
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if began.elapsed() < Duration::from_secs(2) => std::thread::sleep(GLANCE / 10),
                _ => break None,
            }
        };
        // The last lines may still be on their way. The wait is limited, because a grandchild could keep the pipe open
        // forever.
        while !self.last_words.is_over() && began.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(GLANCE / 10);
        }
        let how = status.map_or("it closed its output".to_string(), |status| format!("it {}", death(status)));
        let words = self.last_words.lines();
        Failure::Failed(match words.is_empty() {
            true => how,
            false => format!("{how}; its last output: {}", words.join(" | ")),
        })
    }
}

impl Runner for Processes<'_> {
    fn measure(&mut self, settings: &Chosen, work: Work) -> Result<RunFigures, Failure> {
        match self.ask(settings, &WorkerRequest::Measure { settings: settings.clone(), work })? {
            WorkerAnswer::Measured { sample, peak } => Ok(RunFigures { sample, peak }),
            other => Err(Failure::Failed(format!("it answered {other:?} to a measurement"))),
        }
    }

    fn check(&mut self, settings: &Chosen) -> Result<OutputComparison, Failure> {
        let lead = lead(settings);
        // Only the last output is kept, because outputs are large. Once the graph size is chosen, all candidates need
        // the same output.
        let reference = match self.reference.take().filter(|(tokens, _)| *tokens == lead) {
            Some((_, reference)) => reference,
            None => self.logits(&Chosen::default(), lead)?.0,
        };
        let found = self.logits(settings, lead).map(|(logits, text)| compare(&reference, &logits, text));
        let found = match found {
            Ok(found) if changes_numerics(settings) && !found.is_exact() => self
                .rounding(&reference, lead)
                .map(|rounding| OutputComparison { rounding: Some(rounding), ..found }),
            found => found,
        };
        self.reference = Some((lead, reference));
        found
    }

    fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    fn is_interrupted(&self) -> bool {
        llama::interrupted()
    }

    fn cores_busy_elsewhere(&mut self) -> Option<f64> {
        let taken = self.seconds_taken();
        let before = self.watch.replace((Watch::start(), taken));
        let (watch, before) = before?;
        let round = watch.stop();
        let ours = (taken - before) / round.seconds.max(1e-3);
        Some((round.cores_busy_elsewhere? - ours).max(0.0))
    }

    fn given(&mut self) -> Option<CpuKey> {
        engine_core::runtime_host::RuntimeHost::read().host.as_ref().map(CpuKey::of)
    }

    fn keep_only(&mut self, settings: &Chosen) {
        let stay = [loading(settings), Chosen::default()];
        self.workers.retain(|worker| stay.contains(&worker.loaded));
        self.watch = None;
    }

    fn tell(&mut self, event: TuningEvent<'_>) {
        (self.on_event)(event);
    }
}

/// Returns the command that starts a worker: this program, as `anneal tune-worker`.
///
/// # Errors
/// If the path of the program's file is unknown.
pub fn own_command(model: &Path) -> std::io::Result<Vec<PathBuf>> {
    Ok(vec![std::env::current_exe()?, "tune-worker".into(), "-m".into(), model.to_path_buf()])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the command of a worker, written in shell, that answers the load request, then runs `then` for every
    /// further request.
    fn shell(then: &str) -> Vec<PathBuf> {
        let script = format!("read line; echo '\"loaded\"'; while read line; do {then}; done");
        ["/bin/sh", "-c", &script].map(PathBuf::from).to_vec()
    }

    fn shape() -> ModelShape {
        ModelShape {
            architecture: String::new(),
            layers: 1,
            embedding: 1,
            feed_forward: 1,
            heads: 1,
            kv_heads: 1,
            vocabulary: 1,
            quantisation: String::new(),
            weights: Bytes(1),
        }
    }

    fn processes<'a>(
        command: Vec<PathBuf>,
        patience: Duration,
        on_event: &'a mut dyn FnMut(TuningEvent<'_>),
    ) -> Processes<'a> {
        let record = std::env::temp_dir().join("tuning.json");
        Processes::new(command, shape(), None, patience, &record, on_event).expect("a folder")
    }

    #[test]
    fn whatever_becomes_of_a_worker_is_an_error_in_words_and_the_next_request_starts_another() {
        let good =
            r#"echo '{"measured":{"sample":{"prompt":1,"prefill_ns":5,"generated":0,"decode_ns":0}}}'"#;
        let work = Work { prompt: 1, generate: 0, ..Work::default() };
        let cases = [
            ("kill -9 $$", "killed (signal 9), probably by the kernel because memory ran out"),
            ("echo out of luck >&2; kill -11 $$", "it crashed (signal 11); its last output: out of luck"),
            ("exit 3", "it ended with exit code 3"),
            ("echo nonsense", "an invalid answer"),
            ("echo '{\"error\":\"no room\"}'", "no room"),
            ("sleep 60", "it printed nothing for 1 s"),
            ("echo '\"loaded\"'", "to a measurement"),
        ];
        for (then, words) in cases {
            let mut ignore = |_: TuningEvent<'_>| {};
            let patience = Duration::from_secs(1);
            let mut runner = processes(shell(then), patience, &mut ignore);
            for attempt in 0..2 {
                match runner.measure(&Chosen::default(), work) {
                    Err(Failure::Failed(why)) => assert!(why.contains(words), "{then}, {attempt}: {why}"),
                    other => panic!("{then}: {other:?}"),
                }
            }
            runner.command = shell(good);
            runner.workers.clear();
            let found = runner.measure(&Chosen::default(), work).expect("a sample");
            assert_eq!((found.sample.prefill_ns, found.peak), (5, None));
            let folder = runner.folder.path().to_path_buf();
            drop(runner);
            assert!(!folder.exists());
        }
    }

    #[test]
    fn what_a_killed_tuning_left_goes_and_what_others_put_there_stays() {
        let place = tempfile::tempdir().expect("a temporary folder");
        let elsewhere = tempfile::tempdir().expect("a temporary folder");
        fs::write(elsewhere.path().join(LOGITS), "precious").expect("a file");
        let path = |name: &str| place.path().join(name);
        let (old, young) = (LEFT_BEHIND + Duration::from_secs(60), LEFT_BEHIND - Duration::from_secs(60));
        let folders = [
            (".tuning.work-0123456789ab", &[LOGITS][..], old, false),
            (".tuning.work-empty0000000", &[], old, false),
            (".tuning.work-running00000", &[LOGITS], young, true),
            (".tuning.work-theirs000000", &["thesis.tex", LOGITS], old, true),
            (".tuning.work-left", &[LOGITS], old, true),
            (".tuning.work-from-a-friend", &[LOGITS], old, true),
            (".other.work-0123456789ab", &[LOGITS], old, true),
            ("tuning.work", &[LOGITS], old, true),
        ];
        for (name, files, age, _) in &folders {
            fs::create_dir(path(name)).expect("a folder");
            files.iter().for_each(|file| fs::write(path(name).join(file), "mine").expect("a file"));
            for at in files.iter().map(|file| path(name).join(file)).chain([path(name)]) {
                let then = std::time::SystemTime::now() - *age;
                fs::File::open(at).and_then(|file| file.set_modified(then)).expect("a time");
            }
        }
        std::os::unix::fs::symlink(elsewhere.path(), path(".tuning.work-link00000000")).expect("a link");
        let mut ignore = |_: TuningEvent<'_>| {};
        let patience = Duration::from_secs(1);
        let record = path("tuning.json");
        let runner =
            Processes::new(shell(""), shape(), None, patience, &record, &mut ignore).expect("a folder");
        let own = runner.folder.path().to_path_buf();
        assert_eq!(own.parent(), Some(place.path()));
        drop(runner);
        assert!(!own.exists());
        for (name, files, _, stays) in &folders {
            assert_eq!(path(name).exists(), *stays, "{name}");
            assert!(!stays || fs::read_dir(path(name)).expect("a folder").count() == files.len(), "{name}");
        }
        assert_eq!(fs::read(elsewhere.path().join(LOGITS)).expect("a file"), b"precious");
    }

    #[test]
    fn the_end_of_a_worker_is_not_taken_for_work_of_others() {
        let mut ignore = |_: TuningEvent<'_>| {};
        let mut runner = processes(shell("kill -9 $$"), Duration::from_secs(5), &mut ignore);
        runner.cores_busy_elsewhere();
        assert!(runner.watch.is_some());
        runner
            .measure(&Chosen::default(), Work { prompt: 1, generate: 0, ..Work::default() })
            .expect_err("it was killed");
        assert_eq!(runner.cores_busy_elsewhere(), None);
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let mut ignore = |_: TuningEvent<'_>| {};
        let command = vec![PathBuf::from("/no/such/program")];
        let mut runner = processes(command, Duration::from_secs(1), &mut ignore);
        let failure = runner.check(&Chosen::default()).expect_err("nothing to start");
        assert!(matches!(&failure, Failure::Failed(why) if why.contains("/no/such/program")), "{failure:?}");
    }

    #[test]
    fn one_process_serves_what_is_loaded_alike() {
        let mut ignore = |_: TuningEvent<'_>| {};
        let good =
            r#"echo '{"measured":{"sample":{"prompt":1,"prefill_ns":5,"generated":0,"decode_ns":0}}}'"#;
        let mut runner = processes(shell(good), Duration::from_secs(5), &mut ignore);
        let work = Work { prompt: 1, generate: 0, ..Work::default() };
        let unpacked = Chosen { repack: Some(false), ..Chosen::default() };
        let threads = Chosen { decode_threads: Some(1), ..Chosen::default() };
        let bound = Chosen { affinity: Some("on".to_string()), ..Chosen::default() };
        for settings in [&Chosen::default(), &threads, &unpacked, &bound, &Chosen::default()] {
            runner.measure(settings, work).expect("a sample");
        }
        assert_eq!(runner.workers.len(), 3);
        runner.keep_only(&threads);
        assert_eq!(runner.workers.len(), 1);
    }
}
