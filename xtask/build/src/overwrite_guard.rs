//! Whether a file that is there may be replaced: by what we write only what we wrote.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Bytes of a file's beginning that tell what it is.
const BEGINNING: u64 = 4096;

/// Sees that a record of measurements can be put at `path`, and takes the place of nothing else.
///
/// # Errors
/// Those of [`check_target`](crate::fs::check_target); when `path` is there, holds something, and is no such record; when it
/// cannot be read.
pub fn check_record(path: &Path) -> Result<()> {
    crate::fs::check_target(path)?;
    check(path, "no record of measurements", |text| {
        // Each begins with when it was measured and how that is repeated: `compare::Provenance`.
        let first = text.trim_start().strip_prefix('{').unwrap_or_default().trim_start();
        first.starts_with("\"date\"") && first.contains("\"command\"")
    })
}

/// Sees that what is at `path`, if anything, is recognised by the beginning of its text; `what` it is not, the error says.
///
/// # Errors
/// When it is not, or cannot be read.
pub fn check(path: &Path, what: &str, is_ours: impl Fn(&str) -> bool) -> Result<()> {
    let Ok(found) = std::fs::metadata(path) else { return Ok(()) };
    if !found.is_file() {
        bail!("cannot write {}: it is there and is no regular file; name another place", path.display());
    }
    let mut beginning = Vec::new();
    // An empty one is what `mktemp` makes.
    File::open(path)
        .and_then(|file| file.take(BEGINNING).read_to_end(&mut beginning))
        .with_context(|| format!("cannot look at {}, which would be replaced", path.display()))?;
    if beginning.is_empty() || is_ours(&String::from_utf8_lossy(&beginning)) {
        return Ok(());
    }
    bail!("cannot write {}: it is there and is {what}; name another place, or remove it", path.display())
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
            assert!(error.contains("x.json") && error.contains("is no record of measurements"), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        assert!(check_record(folder.path()).unwrap_err().to_string().contains("is a folder"));
    }
}
