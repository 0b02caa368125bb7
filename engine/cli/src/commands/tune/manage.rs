//! Commands `anneal tune --show`, `--reset` and `--export`.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use base::exit::TRY_AGAIN;
use build_info::tuning::{CpuKey, Entry, Miss};
use build_info::words::{printable, printable_lines};
use build_info::{Bytes, TuningRecord};
use engine_core::runtime_host::RuntimeHost;
use engine_core::tuning;
use gguf::partial::PartialFile;
use llama::error::Error;
use tune::tuner::{TuningProgress, report};

use super::{Args, defaults, lock, partial, print};

pub fn run(args: &Args, model: Option<&Path>, path: &Path) -> Result<ExitCode> {
    let _lock = match args.reset.then(|| lock(path)).transpose()? {
        // A tuning run in progress would save the deleted results again.
        Some(None) => {
            let _ = writeln!(
                io::stderr(),
                "error: a tuning run is in progress\nhint: stop it with ctrl-C, or try again when it has finished"
            );
            return Ok(ExitCode::from(TRY_AGAIN));
        }
        lock => lock,
    };
    let damaged = if args.reset { tuning::put_aside_if_damaged(path)? } else { None };
    if let Some(aside) = damaged {
        let _ = fs::remove_file(partial(path));
        let (path, aside) = (path.to_string_lossy(), aside.to_string_lossy());
        let _ = writeln!(
            io::stderr(),
            "{} was damaged and has been renamed to {}",
            printable(&path),
            printable(&aside)
        );
        return Ok(ExitCode::SUCCESS);
    }
    let record = tuning::read(path)
        .map_err(|why| Error::Tune(format!("cannot use the tuning record {}: {why}", path.display())))?;
    let mut entries = tuning::entries_of(record.unwrap_or_default(), model)?;
    let purpose = args.objective.as_ref().map(ToString::to_string);
    entries.retain(|entry| purpose.as_ref().is_none_or(|purpose| entry.key.objective == *purpose));
    if args.reset {
        return reset(model, path, purpose.as_deref(), &entries);
    }
    let record = TuningRecord { entries, ..TuningRecord::default() };
    let json = serde_json::to_string_pretty(&record)? + "\n";
    if let Some(out) = &args.export {
        if record.entries.is_empty() {
            bail!("cannot export: {} has no matching entry\nhint: run `anneal tune` first", path.display());
        }
        return export(out, path, &json, record.entries.len());
    }
    if args.json {
        return print(&json);
    }
    if record.entries.is_empty() {
        let what = match model.is_some() || purpose.is_some() {
            true => "no matching entry",
            false => "no entry yet",
        };
        let _ = writeln!(io::stderr(), "{what} in {}", printable(&path.to_string_lossy()));
        return Ok(ExitCode::SUCCESS);
    }
    let runtime_host = crate::commands::read_runtime_host();
    let defaults = defaults(&runtime_host)?;
    let texts = record.entries.iter().map(|entry| {
        let unused = not_used(entry, &runtime_host).map(|why| format!("not used here: {why}\n"));
        report::entry(entry, &defaults) + &unused.unwrap_or_default()
    });
    let texts: Vec<String> = texts.collect();
    // Another program may have written the record, so control characters are escaped.
    print(&printable_lines(&texts.join("\n")))
}

/// Returns the reason why `entry` would not be used on this machine. `None` if `entry` would be used for its model.
fn not_used(entry: &Entry, runtime_host: &RuntimeHost) -> Option<Miss> {
    let cpu = CpuKey::of(runtime_host.host.as_ref()?);
    let record = TuningRecord { entries: vec![entry.clone()], ..TuningRecord::default() };
    let defaults = runtime_host.defaults().cloned().unwrap_or_default();
    record.lookup(&tuning::build_of(runtime_host), &defaults, &cpu, &entry.key.model, None).err()
}

/// Deletes `entries`, and the progress of an interrupted tuning run for the same model and purpose.
///
/// # Errors
/// If the record cannot be changed.
fn reset(model: Option<&Path>, path: &Path, purpose: Option<&str>, entries: &[Entry]) -> Result<ExitCode> {
    let gone = |entry: &Entry| entries.iter().any(|other| other.key == entry.key);
    if !entries.is_empty() {
        tuning::change(path, |record| record.entries.retain(|entry| !gone(entry)))?;
    }
    let shape = model.map(tuning::shape_of).transpose()?;
    let progress =
        fs::read(partial(path)).ok().and_then(|text| serde_json::from_slice::<TuningProgress>(&text).ok());
    let another = progress.is_some_and(|progress| {
        shape.is_some_and(|shape| progress.key.model != shape)
            || purpose.is_some_and(|purpose| progress.key.objective != purpose)
    });
    if !another {
        let _ = fs::remove_file(partial(path));
    }
    let path = path.to_string_lossy();
    let _ = writeln!(io::stderr(), "{} deleted from {}", count(entries.len()), printable(&path));
    Ok(ExitCode::SUCCESS)
}

/// Writes `json` to `out`, which may be stdout. Overwrites only an older export.
///
/// # Errors
/// If `out` is the record itself or another kind of file, or if it cannot be written.
fn export(out: &Path, record: &Path, json: &str, entries: usize) -> Result<ExitCode> {
    if ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"].iter().any(|stdout| out == Path::new(stdout)) {
        return print(json);
    }
    let place = |error| Error::Place(Box::new(error));
    let partial = PartialFile::beside(out, Bytes(json.len() as u64)).map_err(place)?;
    let same = out.canonicalize().ok().zip(record.canonicalize().ok()).is_some_and(|(a, b)| a == b);
    if same {
        bail!(
            "cannot export to {}: it is the tuning record itself\nhint: choose another file",
            out.display()
        );
    }
    if !may_be_replaced(out) {
        bail!("cannot overwrite {}: it is not a tuning record\nhint: choose another file", out.display());
    }
    partial
        .open()
        .map_err(place)?
        .write_all(json.as_bytes())
        .with_context(|| format!("cannot write {}", out.display()))?;
    partial.commit().map_err(place)?;
    let out = out.to_string_lossy();
    let _ = writeln!(io::stderr(), "{} written to {}", count(entries), printable(&out));
    Ok(ExitCode::SUCCESS)
}

/// True if `path` may be overwritten: the file does not exist, is empty (like a file from `mktemp`), or is a tuning
/// record.
fn may_be_replaced(path: &Path) -> bool {
    let Ok(metadata) = fs::metadata(path) else { return true };
    // The first byte distinguishes records from models, so that no model is read into memory.
    let mut first = [0];
    let begins = |mut file: fs::File| io::Read::read_exact(&mut file, &mut first).is_ok() && first == *b"{";
    metadata.len() == 0
        || (fs::File::open(path).is_ok_and(begins)
            && fs::read(path).is_ok_and(|text| TuningRecord::parse(&text).is_ok()))
}

fn count(entries: usize) -> String {
    if entries == 1 { "1 entry".to_string() } else { format!("{entries} entries") }
}
