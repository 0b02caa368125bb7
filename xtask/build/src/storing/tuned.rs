//! Tuning record of this machine, and the entries that are added from a store.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use build_info::{Bytes, Sha256, TuningRecord};

use crate::fs;
use crate::ui::Ui;

/// Maximum size of the record after adding entries from a store. The engine reads at most 64 MiB; the rest is reserved
/// for settings that are tuned on this machine.
const LARGEST: Bytes = Bytes(32 << 20);

/// Returns the path of the record, as the engine determines it: `given`, else `$ANNEAL_TUNING`, else in the state
/// folder.
pub fn path(given: Option<&Path>) -> Option<PathBuf> {
    let variable = || std::env::var_os("ANNEAL_TUNING").filter(|value| !value.is_empty()).map(PathBuf::from);
    given
        .map(Path::to_path_buf)
        .or_else(variable)
        .or_else(|| Some(host::state::folder()?.join("tuning.json")))
}

/// Returns the record at `path`, or `None` if the file does not exist.
///
/// # Errors
/// If the record cannot be read, is damaged, or was written by a later version of Anneal.
pub fn read(path: &Path) -> Result<Option<TuningRecord>> {
    let cannot = || format!("cannot use the tuning record {}", path.display());
    match fs::content(path) {
        Ok(text) => Ok(Some(TuningRecord::parse(&text).with_context(cannot)?)),
        Err(error) if fs::is_absent(&error) => Ok(None),
        Err(error) => Err(error).with_context(cannot),
    }
}

/// Merges the entries of `found` into this machine's record. `build` is the plan hash of the build on this machine.
/// Entries that were measured on this machine are kept. An unreadable record is left unchanged with a warning, because
/// a build also runs without a record.
pub fn merge(found: TuningRecord, build: &Sha256, ui: &Ui) {
    match merged(found, build) {
        Ok(0) => {}
        Ok(count) => ui.done(
            "tuned",
            format_args!(
                "added {count} settings from the store's tuning record to the record of this machine"
            ),
        ),
        Err(error) => ui.warn(format_args!("cannot add the store's tuned settings: {error:#}")),
    }
}

fn merged(found: TuningRecord, build: &Sha256) -> Result<usize> {
    let path = path(None).context("cannot choose a folder for the tuning record: HOME is not set")?;
    merge_into(&path, found, build)
}

fn merge_into(path: &Path, found: TuningRecord, build: &Sha256) -> Result<usize> {
    let folder = path.parent().unwrap_or(path);
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let _lock = host::state::lock(path);
    let mut record = read(path)?.unwrap_or_default();
    let count = record.merge(found.entries.into_iter().map(|mut entry| {
        // The program is the same, but the plan's hash includes the paths of tools, which may differ on this machine.
        entry.key.build = build.to_string();
        entry
    }));
    if count > 0 {
        let mut text = serde_json::to_vec_pretty(&record)?;
        text.push(b'\n');
        ensure!(
            text.len() as u64 <= LARGEST.0,
            "{} would exceed {LARGEST}; most of its settings may belong to builds that no longer \
             exist\nhint: move the file away; `anneal tune` creates a new file",
            path.display()
        );
        fs::write_privately(path, &text)?;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(build: &str) -> TuningRecord {
        let entry = serde_json::json!({
            "key": {
                "build": build,
                "cpu": { "vendor": "v", "name": "n", "features": "f", "affinity": [0] },
                "model": {
                    "architecture": "llama", "layers": 1, "embedding": 1, "feed_forward": 1, "heads": 1, "kv_heads": 1,
                    "vocabulary": 1, "quantisation": "Q4_0", "weights": 1
                },
                "objective": "chat"
            },
            "chosen": {}, "date": "2026-01-01T00:00:00Z", "anneal_version": "0.1.0", "budget_seconds": 1.0,
            "seconds": 1.0, "lossy": false, "tokens": [1, 1], "stages": []
        });
        serde_json::from_value(serde_json::json!({ "schema_version": "1.0", "entries": [entry] })).unwrap()
    }

    #[test]
    fn what_comes_is_named_by_this_machines_plan_and_a_foreign_file_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/tuning.json");
        let build = Sha256::of(b"plan");
        assert_eq!(merge_into(&path, record("theirs"), &build).unwrap(), 1);
        assert_eq!(merge_into(&path, record("theirs"), &build).unwrap(), 0);
        let kept = read(&path).unwrap().unwrap();
        assert_eq!((kept.entries.len(), kept.entries[0].key.build.as_str()), (1, build.as_str()));
        let mode = std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        // The engine could not read the resulting record.
        let mut large = record("theirs");
        large.entries[0].key.objective = "rag".to_string();
        large.entries[0].notes.push("x".repeat(LARGEST.0 as usize));
        let error = merge_into(&path, large, &build).unwrap_err();
        assert!(error.to_string().contains("would exceed 32"), "{error}");
        assert_eq!(read(&path).unwrap().unwrap(), kept);
        for foreign in ["{", "{\"schema_version\":\"9.0\"}"] {
            std::fs::write(&path, foreign).unwrap();
            assert!(merge_into(&path, record("theirs"), &build).is_err());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), foreign);
        }
    }
}
