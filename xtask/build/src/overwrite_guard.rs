//! Protection against overwriting files that Anneal did not create.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Number of bytes at the beginning of a file that are enough to recognise it.
const BEGINNING: u64 = 4096;

/// Checks that a record of measurements can be written to `path` and would replace only an older record.
///
/// # Errors
/// The errors of [`check_target`](crate::fs::check_target), and if `path` cannot be read or contains anything other
/// than a record of measurements.
pub fn check_record(path: &Path) -> Result<()> {
    crate::fs::check_target(path)?;
    check(path, "not a record of measurements", |text| {
        // Each record begins with the date and the command of the measurement: `compare::Provenance`.
        let first = text.trim_start().strip_prefix('{').unwrap_or_default().trim_start();
        first.starts_with("\"date\"") && first.contains("\"command\"")
    })
}

/// Checks that the file at `path`, if it exists, is one that Anneal may overwrite: `is_ours` must recognise the
/// beginning of its text. In errors, `what` describes a file that is not recognised.
///
/// # Errors
/// If the file is not recognised or cannot be read.
pub fn check(path: &Path, what: &str, is_ours: impl Fn(&str) -> bool) -> Result<()> {
    let Ok(found) = std::fs::metadata(path) else { return Ok(()) };
    if !found.is_file() {
        bail!(
            "cannot write {}: it exists and is not a regular file\nhint: choose another path",
            path.display()
        );
    }
    let mut beginning = Vec::new();
    // `mktemp` creates an empty file, so an empty file may be overwritten.
    File::open(path)
        .and_then(|file| file.take(BEGINNING).read_to_end(&mut beginning))
        .with_context(|| format!("cannot examine {}, which would be overwritten", path.display()))?;
    if beginning.is_empty() || is_ours(&String::from_utf8_lossy(&beginning)) {
        return Ok(());
    }
    bail!("cannot overwrite {}: it is {what}\nhint: choose another path, or remove the file", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_and_empty_files_may_be_replaced_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.json");
        check_record(&path).unwrap();
        let long = format!("{{\"date\": \"2026\", \"command\": \"{}", "x".repeat(1 << 20));
        for text in ["", "{\n  \"date\": \"2026-11-21\",\n  \"command\": \"cargo xtask bench\"\n}", &long] {
            std::fs::write(&path, text).unwrap();
            check_record(&path).unwrap_or_else(|error| panic!("{text:.40}: {error}"));
        }
        for text in
            ["precious\n", "{}", "{\"name\": \"date\", \"command\": 1}", "[{\"date\": 1}]", "\n", "\u{0}"]
        {
            std::fs::write(&path, text).unwrap();
            let error = check_record(&path).unwrap_err().to_string();
            assert!(error.contains("x.json") && error.contains("not a record of measurements"), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        assert!(check_record(folder.path()).unwrap_err().to_string().contains("is a folder"));
    }
}
