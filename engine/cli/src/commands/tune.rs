//! Command `anneal tune`.

use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use base::StatusLine;
use base::exit::{INTERRUPTED, TRY_AGAIN};
use build_info::words::{printable, printable_lines};
use build_info::{Bytes, Policy, threads};
use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::{Explained, Requested, Settings};
use engine_core::tuning;
use host::process::Throttling;
use llama::error::Error;
use llama::options::RequireGpu;
use llama::own_kernels::{self, MatrixKernels};
use measure::conditions::{self, Condition};
use tune::tuner::process::{Processes, own_command};
use tune::tuner::space::{Surroundings, stages};
use tune::tuner::{Objective, Stop, Task, TuningEvent, TuningProgress, may_replace, report, tune};

use super::flags::RequireFlag;
use super::hub::HubFlags;
use crate::interrupt;

mod manage;
mod place;

use place::{BESIDE, TuningLock};

/// Find the fastest settings for a model on this machine, and save them
///
/// Compares thread counts, weight layouts, graph sizes and more with the defaults, in interleaved runs. Keeps a setting
/// only if its 95 % interval shows a gain and the output does not change. Commands that start later use the result. If
/// a run is interrupted, the next run resumes where it stopped. The old result stays in use until a new result is
/// complete.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// GGUF model
    #[arg(short, long, value_name = "FILE", required_unless_present_any = ["hf", "show", "reset", "export"])]
    model: Option<PathBuf>,
    #[command(flatten)]
    hub: HubFlags,
    /// Purpose: chat (1:4), rag (8:1), batch (1:1), latency (32:1), or the prompt and answer token counts as P:G
    /// [default: chat; for --show, --reset and --export: any]
    #[arg(long = "for", value_name = "PURPOSE")]
    objective: Option<Objective>,
    /// Time limit for the whole tuning run, for example 90s, 3m or 1h
    #[arg(long, value_name = "TIME", default_value = "3m", value_parser = duration, conflicts_with_all = ["show", "reset", "export"])]
    budget: Duration,
    /// Maximum memory that a run may use, for example 8GiB [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = engine_core::size::parse)]
    memory: Option<Bytes>,
    /// Also try settings that lose accuracy: quantised KV caches
    #[arg(long, conflicts_with_all = ["show", "reset", "export"])]
    allow_lossy: bool,
    /// Start over instead of resuming an interrupted tuning run
    #[arg(long, conflicts_with_all = ["show", "reset", "export"])]
    fresh: bool,
    /// Print the settings that would be tried, without measuring
    #[arg(long)]
    dry_run: bool,
    /// Print the saved results that match -m and --for; without these flags, print all results
    #[arg(long, conflicts_with_all = ["reset", "export", "dry_run"])]
    show: bool,
    /// Delete the saved results that match -m and --for; without these flags, delete all results
    #[arg(long, conflicts_with_all = ["export", "dry_run"])]
    reset: bool,
    /// Export the saved results that match -m and --for to a file that --tuning accepts (- for stdout); without these
    /// flags, export all results
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    export: Option<PathBuf>,
    /// Tuning record [default: $ANNEAL_TUNING, else tuning.json in the state folder]
    #[arg(long, value_name = "FILE")]
    tuning: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    require: RequireFlag,
}

/// Maximum age of an interrupted tuning run that can be resumed.
const RESUMED: Duration = Duration::from_secs(24 * 3600);

pub fn run(args: &Args) -> Result<ExitCode> {
    let Some(path) = tuning::path(args.tuning.as_deref()) else {
        return Err(Error::Usage(
            "cannot determine the path of the tuning record: HOME is not set\nhint: set HOME, or specify a file with \
            --tuning".to_string(),
        )
        .into());
    };
    let model = args.hub.any(args.model.as_deref())?;
    if args.show || args.reset || args.export.is_some() {
        return manage::run(args, model.as_deref(), &path);
    }
    // clap requires a model unless --show, --reset or --export is given.
    let Some(model) = model.as_deref() else {
        bail!("no model is given\nhint: use -m FILE or --hf OWNER/REPO")
    };
    if !args.dry_run {
        // The record is checked before the measurement, so that no time is spent on a result that cannot be saved.
        tuning::check_changeable(&path)?;
        tuning::check_room(&path)?;
        if let Some(aside) = tuning::will_be_put_aside(&path) {
            let (path, aside) = (path.display(), aside.display());
            llama::notice::warn(&format!("{path} is damaged and will be renamed to {aside}"));
        }
    }
    let runtime_host = super::read_runtime_host();
    let required = required(args, model, &runtime_host)?;
    let task = task(args, model, &runtime_host)?;
    if args.dry_run {
        let text = match args.json {
            true => serde_json::to_string_pretty(&plan(&task))? + "\n",
            false => report::dry_run(&task.objective, &task.stages, task.budget.as_secs_f64()),
        };
        return print(&text);
    }
    let _lock = match lock(&path)? {
        Some(lock) => lock,
        None => {
            let _ = writeln!(
                io::stderr(),
                "error: another tuning run is in progress, and simultaneous runs would disturb each other\nhint: try again later"
            );
            return Ok(ExitCode::from(TRY_AGAIN));
        }
    };
    interrupt::stop_in_order();
    carry_out(args, model, &path, &runtime_host, &task, required)
}

/// Returns the `--require-gpu` value for the workers. If a GPU is required, first loads the model once, to report a
/// failure immediately.
///
/// # Errors
/// If a GPU is required and cannot be used.
fn required(args: &Args, model: &Path, runtime_host: &RuntimeHost) -> Result<RequireGpu> {
    let mut requested = Requested::default();
    args.require.ask(&mut requested);
    let settings = Settings::resolve(&requested, runtime_host)?;
    let required = settings.require_gpu.value;
    if required != RequireGpu::No && !args.dry_run {
        llama::start(false);
        engine_core::model::open(model, &settings, runtime_host)?;
    }
    Ok(match required {
        // The placement is checked only once, because candidates are loaded many times.
        RequireGpu::Full => RequireGpu::Yes,
        other => other,
    })
}

fn task(args: &Args, model: &Path, runtime_host: &RuntimeHost) -> Result<Task> {
    let objective = args.objective.clone().unwrap_or_default();
    let key = tuning::key_of(model, &objective.to_string(), runtime_host)?;
    let Some(host) = &runtime_host.host else { bail!("cannot read the state of this machine") };
    // An environment variable overrides the candidates' settings, so there is nothing to try.
    let environment = &runtime_host.environment;
    let cpu_variants = match environment.cpu_variant {
        Some(_) => Vec::new(),
        None => llama::kernels::alternatives(),
    };
    let other_kernels = match environment.kernels {
        Some(_) => None,
        None => own_kernels::alternative(),
    };
    let around = Surroundings {
        host,
        objective: &objective,
        own_threads: crate::openmp::runtime().is_none(),
        huge_pages: llama::huge_pages(),
        cpu_variants: &cpu_variants,
        own_kernels: own_kernels::choice().is_some_and(|choice| choice.is_own()),
        other_kernels: other_kernels.map(MatrixKernels::name),
        allow_lossy: args.allow_lossy,
    };
    let stages = stages(&around);
    let cores = threads::budget(host, Policy::Max).cores;
    Ok(Task {
        key,
        objective,
        budget: args.budget,
        ceiling: args.memory,
        lossy: args.allow_lossy,
        stages,
        cores,
    })
}

fn carry_out(
    args: &Args,
    model: &Path,
    path: &Path,
    runtime_host: &RuntimeHost,
    task: &Task,
    required: RequireGpu,
) -> Result<ExitCode> {
    let partial = partial(path);
    let mut progress = resume(args, &partial, task);
    let is_resumed = !progress.done.is_empty();
    let mut conditions = conditions::look();
    say(&conditions);
    let place = TuningLock::take();
    if place.is_taken() {
        let _ = writeln!(io::stderr(), "warning: {BESIDE}");
    }
    let throttling = Throttling::read(Path::new("/"), "self");
    let mut on_event = printer();
    // A run normally takes at most about a hundredth of the budget, so a run that takes half of the budget is
    // assumed to hang.
    let patience = (task.budget / 2).max(Duration::from_secs(30));
    let shape = task.key.model.clone();
    let mut command = own_command(model)?;
    command.push(format!("--require-gpu={required}").into());
    let mut runner = Processes::new(command, shape, task.ceiling, patience, path, &mut on_event)
        .with_context(|| {
            format!(
                "cannot create a folder next to {}\nhint: choose another record with --tuning",
                path.display()
            )
        })?;
    let mut save = |progress: &TuningProgress| -> std::result::Result<(), String> {
        let text = serde_json::to_string(progress).map_err(|error| error.to_string())?;
        tuning::write_atomically(&partial, text.as_bytes())
            .map_err(|error| format!("cannot write {}: {error}", partial.display()))
    };
    let result = tune(task, &mut runner, &mut progress, &mut save);
    drop(runner);
    let mut entry = match result {
        Ok(entry) => entry,
        Err(stop) => return stopped(stop, &progress),
    };
    // An empty result must not replace the result of a longer tuning run.
    if entry.stages.iter().flat_map(|stage| &stage.candidates).all(|candidate| candidate.samples.is_empty()) {
        let _ = fs::remove_file(&partial);
        let _ = writeln!(
            io::stderr(),
            "error: the time limit was too short for even one stage; the tuning record is unchanged\nhint: raise \
            --budget, or tune when the machine is less busy"
        );
        return Ok(ExitCode::from(TRY_AGAIN));
    }
    if let Some(throttled) = conditions::throttled(&throttling) {
        say(std::slice::from_ref(&throttled));
        conditions.push(throttled);
    }
    entry.notes.extend(conditions.iter().map(|condition| format!("during the measurement: {condition}")));
    if place.was_shared() {
        entry.notes.push(format!("during the measurement: {BESIDE}"));
    }
    let mut kept = None;
    tuning::change(path, |record| {
        let old = record.entries.iter().find(|old| old.key == entry.key);
        kept = old.filter(|old| !may_replace(old, &entry, &progress.chosen)).cloned();
        if kept.is_none() {
            record.put(entry.clone());
        }
    })?;
    if kept.is_none() {
        let _ = fs::remove_file(&partial);
    }
    let out = match args.json {
        true => serde_json::to_string_pretty(&entry)? + "\n",
        false => {
            // On a terminal, each stage has already been printed, unless an earlier run decided it.
            let is_terminal = io::stdout().is_terminal() && io::stderr().is_terminal();
            let text = if is_terminal && !is_resumed { report::summary } else { report::entry };
            printable_lines(&text(&entry, &defaults(runtime_host)?)).into_owned()
        }
    };
    print(&out)?;
    if let Some(old) = kept {
        let _ = writeln!(
            io::stderr(),
            "error: the time limit was too short to choose any setting, so the tuning record keeps the result of \
            {}\nhint: raise --budget (the same command resumes with the undecided stages), or delete the result \
            with --reset",
            old.date
        );
        return Ok(ExitCode::from(TRY_AGAIN));
    }
    let _ = writeln!(io::stderr(), "written to {}", printable(&path.to_string_lossy()));
    Ok(ExitCode::SUCCESS)
}

/// Prints the conditions that disturb the measurement.
fn say(conditions: &[Condition]) {
    for condition in conditions {
        let _ = writeln!(io::stderr(), "warning: {}", printable(&condition.to_string()));
    }
}

/// Returns the progress of an interrupted tuning run with the same task, or empty progress if there is none.
fn resume(args: &Args, partial: &Path, task: &Task) -> TuningProgress {
    let new = TuningProgress::new(task);
    if args.fresh {
        return new;
    }
    let Ok(text) = fs::read(partial) else { return new };
    let stderr = &mut io::stderr();
    match serde_json::from_slice::<TuningProgress>(&text) {
        Ok(progress) if progress.is_of(task) && progress.is_sound() => {
            let decided = progress.done.iter().filter(|stage| stage.is_decided());
            let decided: Vec<&str> = decided.map(|stage| stage.name.as_str()).collect();
            if !decided.is_empty() && is_old(partial) {
                let _ = writeln!(
                    stderr,
                    "starting over, because the interrupted tuning run is more than a day old"
                );
                return new;
            }
            if !decided.is_empty() {
                let decided = decided.join(", ");
                let _ = writeln!(
                    stderr,
                    "resuming after these stages: {}; to start over, use --fresh",
                    printable(&decided)
                );
            }
            progress
        }
        Ok(_) => {
            let _ = writeln!(
                stderr,
                "discarding the progress of an interrupted tuning run, because it had a different model, \
                 purpose, machine or set of options"
            );
            new
        }
        Err(error) => {
            let said = format!("{} is damaged ({error}); starting over", partial.display());
            let _ = writeln!(stderr, "warning: {}", printable(&said));
            new
        }
    }
}

/// True if the file at `path` is more than a day old. System updates may have changed the machine since then.
fn is_old(path: &Path) -> bool {
    let written = fs::metadata(path).and_then(|found| found.modified()).ok();
    // The age is unknown if the clock was set back.
    written.and_then(|written| written.elapsed().ok()).is_some_and(|age| age > RESUMED)
}

fn stopped(stop: Stop, progress: &TuningProgress) -> Result<ExitCode> {
    let kept = match progress.done.iter().any(|stage| stage.is_decided()) {
        false => "nothing was decided yet; the tuning record is unchanged",
        true => {
            "the decisions so far are saved, and the same command resumes tuning; the tuning record is unchanged"
        }
    };
    match stop {
        Stop::Interrupted => {
            let _ = writeln!(io::stderr(), "interrupted: {kept}");
            Ok(ExitCode::from(INTERRUPTED))
        }
        Stop::Changed(why) => {
            let _ = writeln!(io::stderr(), "error: {}; the tuning record is unchanged", printable(&why));
            Ok(ExitCode::from(TRY_AGAIN))
        }
        Stop::Failed(why) => Err(Error::Tune(format!("cannot tune: {why}")).into()),
        Stop::Unwritable(why) => Err(Error::Tune(why).into()),
    }
}

/// Returns a function that prints each event as a line on stderr, and shows a status line on a terminal.
fn printer() -> impl FnMut(TuningEvent<'_>) {
    let mut line = StatusLine::new();
    move |event| {
        if let TuningEvent::Rung { round, left, best } = event {
            let best = best.map_or(String::new(), |(name, ratio)| format!(", {name} {ratio:.3}"));
            line.show(&format!("  round {round}, {left} candidates against the baseline{best}"));
            return;
        }
        line.clear();
        let mut stderr = io::stderr().lock();
        // The last output of a worker may contain control characters.
        let _ = match event {
            TuningEvent::Stage { name, candidates, left } if left > 0.0 => {
                writeln!(stderr, "{name}: {candidates} candidates, {left:.0} s left for tuning")
            }
            TuningEvent::Stage { name, candidates, .. } => {
                writeln!(stderr, "{name}: {candidates} candidates")
            }
            TuningEvent::Rung { .. } => Ok(()),
            TuningEvent::Dropped { name, why } => {
                writeln!(stderr, "  {name}: dropped, {}", printable(why))
            }
            TuningEvent::Decided(stage) => writeln!(stderr, "{}", printable(&report::stage(stage))),
            TuningEvent::Warning(text) => writeln!(stderr, "warning: {}", printable(text)),
        };
    }
}

/// Returns the settings without tuning.
fn defaults(runtime_host: &RuntimeHost) -> Result<Vec<Explained>> {
    Ok(Settings::resolve(&Requested::default(), runtime_host)?.explain())
}

fn plan(task: &Task) -> serde_json::Value {
    let stages: Vec<_> = task
        .stages
        .iter()
        .map(|stage| {
            let changes: Vec<_> = stage
                .changes
                .iter()
                .map(|change| serde_json::json!({ "name": change.name, "settings": change.set }))
                .collect();
            serde_json::json!({ "name": stage.name, "candidates": changes })
        })
        .collect();
    serde_json::json!({ "key": task.key, "budget_seconds": task.budget.as_secs_f64(), "stages": stages })
}

fn print(text: &str) -> Result<ExitCode> {
    let mut stdout = engine_core::terminal::stdout();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).context("cannot write to stdout")?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the path of the progress file, next to the record.
fn partial(path: &Path) -> PathBuf {
    path.with_extension("partial.json")
}

/// Locks the record for one tuning run. `None` if another tuning run holds the lock. The lock is released when
/// the process ends.
///
/// # Errors
/// If the lock file cannot be written.
fn lock(path: &Path) -> Result<Option<File>> {
    let file = path.with_extension("lock");
    let open = || -> io::Result<File> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder)?;
        }
        base::open_or_create(&file)
    };
    let lock = open().with_context(|| {
        format!("cannot write {}\nhint: choose another file with --tuning", file.display())
    })?;
    match lock.try_lock() {
        Ok(()) => Ok(Some(lock)),
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        // The file system does not support locks.
        Err(fs::TryLockError::Error(_)) => Ok(Some(lock)),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let wrong =
        || format!("{text:?} is not a valid time\nhint: use a time from 10s to 24h, such as 90s, 3m or 1h");
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = match unit {
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    let seconds = number.parse::<f64>().map_err(|_| wrong())? * factor;
    if !(10.0..=86_400.0).contains(&seconds) {
        return Err(wrong());
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_decided_is_trusted_for_a_day() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("tuning.partial.json");
        let file = File::create(&path).expect("a file");
        for (hours, old) in [(0, false), (23, false), (25, true)] {
            let written = std::time::SystemTime::now() - Duration::from_secs(hours * 3600);
            file.set_modified(written).expect("a time");
            assert_eq!(is_old(&path), old, "{hours} h");
        }
        assert!(!is_old(&folder.path().join("none")));
    }

    #[test]
    fn times_have_units() {
        for (text, expected) in [("90s", 90), ("3m", 180), ("1.5m", 90), ("1h", 3600)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(expected)), "{text}");
        }
        for text in ["", "3", "m", "3d", "-3m", "1s", "99h", "1e9s", "..m", "NaNs"] {
            assert!(duration(text).is_err(), "{text:?} was taken");
        }
    }
}
