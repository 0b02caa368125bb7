//! Trial loads: a child process, which may crash, first loads each file that is new to this machine.
//!
//! llama.cpp checks its assumptions about a model with assertions. A failed assertion or a memory fault ends the
//! process. The pre-check (crate `gguf`) refuses files with defects that are known to cause such faults. A trial load
//! catches other defects: a short-lived child process of the same program loads the file on the CPU and evaluates a
//! token. If the child crashes, only this load fails. The verdict is stored ([`verdicts`]), so that a known file needs
//! no further trial.
//!
//! `docs/src/develop/containment.md` describes the order of the checks, and the faults that the checks cannot catch.

mod child;
mod key;
pub mod request;
mod verdicts;
pub mod worker;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gguf::GgufFile;
use gguf::check::Checked;
use llama::error::{Error, Result, TrialCause as Cause};
use llama::own_kernels::MatrixKernels;
use llama::variant::Variant;
use request::{Purpose, TrialRequest, TrialStage, TrialVerdict};

use crate::settings::Settings;

pub use child::{Child, End};
pub use request::COMMAND;

/// Maximum total size of a model's files for which a trial also repacks the weights and evaluates a prompt and an
/// embedding. A larger model is mapped, and only one token is evaluated. This evaluation reads the weights once,
/// which the load would do anyway.
const SMALL: u64 = 256 << 20;

/// Base time limit of a trial; the limit grows with the size of the model's files. This constant and
/// [`SLOWEST_READ`] are generous, because a slow disk must not make a load fail.
const PATIENCE: Duration = Duration::from_secs(60);

/// Number of file bytes for which the time limit is extended by one second.
const SLOWEST_READ: u64 = 10 << 20;

/// Maximum number of threads in a trial: each thread's stack counts against the child's memory limit.
const MOST_THREADS: u32 = 16;

/// Policy for a load if no child can be started, or if the child runs out of memory or time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// The load continues after one warning. A crash affects no other client.
    Warn,
    /// The load is refused, because a crash would affect other clients of the process.
    Refuse,
}

/// Program that runs the trials of this process, and the policy if the program cannot be started.
static PROGRAM: OnceLock<(PathBuf, Fallback)> = OnceLock::new();

/// Makes this process run its trials with its own program. Only the first call has an effect.
pub fn use_this_program(fallback: Fallback) {
    // The link refers to the running program, even if the program's file has been replaced or removed since the start.
    // Without /proc, the name with which the program was started is used.
    let link = PathBuf::from("/proc/self/exe");
    let named = || std::env::args_os().next().map(PathBuf::from).filter(|name| name.components().count() > 1);
    let found = || std::env::current_exe().ok().or_else(named);
    let program = if fs::metadata(&link).is_ok() { Some(link) } else { found() };
    let _ = PROGRAM.set((program.unwrap_or_default(), fallback));
}

/// Returns the program for trials of loads with `settings`; `None` if this process does not run trials.
fn program(settings: Option<&Settings>) -> Option<(&Path, Fallback)> {
    let own = PROGRAM.get().map(|(program, fallback)| (program.as_path(), *fallback));
    let given = settings.and_then(|settings| settings.trial_program.as_deref());
    given.map(|program| (program, Fallback::Refuse)).or(own)
}

/// Checks the model in `parts` before it is loaded with `settings`. Runs a trial unless the verdict is known.
///
/// # Errors
/// - [`Error::BadModel`] if the pre-check refuses the model
/// - [`Error::Trial`] if the child ended or took too long
/// - [`Error::Load`] and [`Error::Adapter`] if llama.cpp refused the files
/// - [`Error::Changed`] if the files changed during the trial
pub fn of_load(parts: &[&GgufFile], settings: &Settings) -> Result<Checked> {
    // Files that fail this check need no child.
    let checked = gguf::check::model(parts)?;
    let Some(program) = program(Some(settings)) else { return Ok(checked) };
    // The child also needs kernels. If the kernels are missing, this call reports a specific error.
    crate::place::load_kernels(settings)?;
    let small = size(parts) <= SMALL;
    let request = TrialRequest {
        files: paths(parts),
        adapters: settings.variant.adapters.iter().map(Into::into).collect(),
        rope: settings.variant.rope,
        purpose: if small { Purpose::All } else { Purpose::Token },
        repack: small && settings.repack.value,
        threads: if small { 1 } else { settings.decode_threads.value.min(MOST_THREADS) },
        cpu_variant: settings.cpu_variant.value.clone(),
        kernels: in_use(),
    };
    of(parts, &settings.variant, request, program)?;
    Ok(checked)
}

/// Returns the kernels for products and attention that this process uses; they are chosen once per process.
fn in_use() -> MatrixKernels {
    llama::own_kernels::choice().map_or(MatrixKernels::Auto, |choice| choice.kernels)
}

/// Runs a trial of the model in `parts` before the model is quantised.
///
/// # Errors
/// [`Error::Trial`] if the child ended or took too long. If llama.cpp refuses the model, no error is returned, because
/// quantisation then reports its own error.
pub fn of_quantising(parts: &[GgufFile]) -> Result<()> {
    let Some(program) = program(None) else { return Ok(()) };
    let parts: Vec<&GgufFile> = parts.iter().collect();
    let request = TrialRequest { purpose: Purpose::Quantise, ..TrialRequest::new(paths(&parts)) };
    match of(&parts, &Variant::default(), request, program) {
        Err(error @ (Error::Trial { .. } | Error::Changed { .. } | Error::Interrupted)) => Err(error),
        _ => Ok(()),
    }
}

fn paths(parts: &[&GgufFile]) -> Vec<PathBuf> {
    parts.iter().map(|part| part.path().to_path_buf()).collect()
}

/// Returns the size of the files. An unreadable file is treated as empty, because opening it later reports the
/// error.
fn size(parts: &[&GgufFile]) -> u64 {
    parts.iter().filter_map(|part| fs::metadata(part.path()).ok()).map(|found| found.len()).sum()
}

fn of(
    parts: &[&GgufFile],
    variant: &Variant,
    request: TrialRequest,
    (program, fallback): (&Path, Fallback),
) -> Result<()> {
    let path = parts.first().map(|part| part.path().to_path_buf()).unwrap_or_default();
    let key = || key::of(parts, variant, &request, program);
    let before = key();
    if let Some(answer) = before.as_ref().and_then(verdicts::find) {
        return judge(&path, &request, answer, true);
    }
    let size = size(parts);
    let patience = PATIENCE + Duration::from_secs(size / SLOWEST_READ);
    let mut child = match Child::start(program) {
        Ok(child) => child,
        Err(why) => {
            let how = format!("could not be started ({}: {why})", program.display());
            return without(&path, how, Cause::Program, fallback);
        }
    };
    let answer = match child.ask(&request, patience) {
        Ok(answer) => answer,
        Err(End::Interrupted) => return Err(Error::Interrupted),
        Err(End::Died { how, cause: Cause::File }) => TrialVerdict::Died { how },
        // The load itself would take as long as the trial, or never end.
        Err(End::Died { how, cause: cause @ Cause::CpuTime }) => {
            return Err(Error::Trial { path, how, is_known: false, cause });
        }
        Err(End::Died { how, cause }) => return without(&path, how, cause, fallback),
    };
    tracing::debug!(model = %path.display(), ?answer, "tried");
    // The files must not have changed during the trial.
    if key() != before {
        return Err(Error::Changed { path });
    }
    if !answer.is_final() && fallback == Fallback::Warn {
        return Ok(());
    }
    if let Some(key) = before.filter(|_| answer.is_final()) {
        verdicts::keep(&key, &answer);
    }
    judge(&path, &request, answer, false)
}

/// Converts a verdict to the result of the load.
fn judge(path: &Path, request: &TrialRequest, answer: TrialVerdict, is_known: bool) -> Result<()> {
    let path = path.to_path_buf();
    match answer {
        TrialVerdict::Ran => Ok(()),
        TrialVerdict::Refused { stage: TrialStage::Load, why } => Err(Error::Load { path, why }),
        TrialVerdict::Refused { stage: TrialStage::Adapter(number), why } => {
            let adapter = request.adapters.get(number).map(|adapter| adapter.path());
            Err(Error::Adapter { path: adapter.unwrap_or(path), why })
        }
        TrialVerdict::Refused { stage: TrialStage::Run, why } => {
            Err(Error::Trial { path, how: format!("failed: {why}"), is_known, cause: Cause::File })
        }
        TrialVerdict::Died { how } => Err(Error::Trial { path, how, is_known, cause: Cause::File }),
    }
}

/// Handles a trial of `path` that gave no verdict, for a reason other than the file itself. `how` describes how the
/// trial ended. With [`Fallback::Warn`], the load continues: the load reports faults of the file itself, and a crash
/// affects no other client.
fn without(path: &Path, how: String, cause: Cause, fallback: Fallback) -> Result<()> {
    static WARNED: AtomicBool = AtomicBool::new(false);
    match fallback {
        Fallback::Refuse => Err(Error::Trial { path: path.to_path_buf(), how, is_known: false, cause }),
        Fallback::Warn => {
            if !WARNED.swap(true, Ordering::Relaxed) {
                let path = path.display();
                llama::notice::warn(&format!(
                    "loading {path} without a successful trial: its trial load {how}"
                ));
                llama::notice::note(&format!("hint: {}", cause.hint()));
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_child_a_server_refuses_and_a_command_goes_on() {
        let how = "could not be started (anneal: out of memory)";
        let without = |fallback| without(Path::new("m.gguf"), how.to_string(), Cause::Program, fallback);
        let refused = without(Fallback::Refuse).expect_err("refused");
        assert!(
            refused.hint().is_some_and(|hint| hint.contains("limits on memory and processes")),
            "{:?}",
            refused.hint()
        );
        assert_eq!(
            refused.to_string(),
            "cannot load m.gguf: its trial load could not be started (anneal: out of memory)"
        );
        assert!(without(Fallback::Warn).is_ok() && without(Fallback::Warn).is_ok());
    }

    #[test]
    fn a_file_that_needs_too_much_time_is_refused_in_a_command_too_and_tried_again() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (path, program) = (folder.path().join("m.gguf"), folder.path().join("program"));
        gguf::synth::write(&path, &gguf::synth::SynthOptions::new(gguf::synth::Preset::Tiny))
            .expect("a model");
        fs::write(&program, "#!/bin/sh\nread request\nkill -XCPU $$\n").expect("a script");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(&program, mode).expect("a program");
        let file = GgufFile::open(&path).expect("a model");
        let request = TrialRequest::new(vec![path.clone()]);
        for fallback in [Fallback::Warn, Fallback::Refuse, Fallback::Warn] {
            match of(&[&file], &Variant::default(), request.clone(), (&program, fallback)) {
                Err(error @ Error::Trial { is_known: false, cause: Cause::CpuTime, .. }) => {
                    assert!(error.hint().is_some_and(|hint| hint.contains("source that you trust")));
                }
                other => panic!("{fallback:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_verdict_is_the_error_that_the_load_would_have_had() {
        let adapter = llama::variant::Adapter { path: "lora.gguf".into(), scale: 1.0 };
        let mut request = TrialRequest::new(vec!["m.gguf".into()]);
        request.adapters.push((&adapter).into());
        let judge =
            |answer| judge(Path::new("m.gguf"), &request, answer, true).map_err(|why| why.to_string());
        let refused = |stage| TrialVerdict::Refused { stage, why: "wrong".to_string() };
        let known = "(found at an earlier load)";
        let cases = [
            (TrialVerdict::Ran, Ok(())),
            (refused(TrialStage::Load), Err("cannot load m.gguf: wrong".to_string())),
            (refused(TrialStage::Adapter(0)), Err("cannot use the adapter lora.gguf: wrong".to_string())),
            (
                refused(TrialStage::Run),
                Err(format!("cannot load m.gguf: its trial load failed: wrong {known}")),
            ),
            (
                TrialVerdict::Died { how: "crashed".to_string() },
                Err(format!("cannot load m.gguf: its trial load crashed {known}")),
            ),
        ];
        for (answer, expected) in cases {
            assert_eq!(judge(answer.clone()), expected, "{answer:?}");
        }
    }
}
