//! Reading of files that the user specifies: only regular files, and only up to a maximum size.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

/// Maximum size of a file that is read, in bytes. The result of a comparison of many builds takes a few megabytes.
const LARGEST: u64 = 64 << 20;

/// Returns the content of the file `path`.
///
/// # Errors
/// If the file cannot be read, is larger than the limit, or is not a regular file. A pipe may never have a writer,
/// and Ctrl-C could not interrupt the wait; a device may have no end. The message does not name the file, because the
/// caller knows its purpose. For a missing file, the system's error is in the chain.
pub fn content(path: &Path) -> Result<Vec<u8>> {
    let found = std::fs::metadata(path)?;
    if !found.is_file() {
        match found.is_dir() {
            true => bail!("it is a folder\nhint: give the path of a file in it"),
            false => {
                bail!("it is a device or pipe\nhint: write its output to a file and pass that file")
            }
        }
    }
    let mut bytes = Vec::new();
    // Files in /proc report no size, so the limit is checked again after reading.
    File::open(path)?.take(LARGEST + 1).read_to_end(&mut bytes)?;
    let size = found.len().max(bytes.len() as u64);
    ensure!(size <= LARGEST, "it is larger than {} MiB, the limit for input files", LARGEST >> 20);
    Ok(bytes)
}

/// Returns the content of the text file `path`.
///
/// # Errors
/// The errors of [`content`], and if the file is not valid UTF-8.
pub fn text(path: &Path) -> Result<String> {
    String::from_utf8(content(path)?).ok().context("it is not a text file")
}

/// Checks that `path`, the value of `-m`, is a file with content.
///
/// # Errors
/// If `path` does not exist, is not a file, or is empty.
pub fn check_model(path: &Path) -> Result<()> {
    let found = std::fs::metadata(path)
        .with_context(|| format!("cannot find the model {}\nhint: check the path of -m", path.display()))?;
    ensure!(found.is_file(), "the model {} is not a file\nhint: pass a .gguf file", path.display());
    ensure!(found.len() > 0, "the model {} is empty\nhint: copy or download it again", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_a_sane_size_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("good"), "text").unwrap();
        std::fs::write(path("bytes"), [0xff, 0]).unwrap();
        File::create(path("large")).unwrap().set_len(LARGEST + 1).unwrap();
        std::os::unix::fs::symlink(path("good"), path("link")).unwrap();
        // A socket is rejected like a pipe. A pipe is not tested here: if the check failed, the test would block
        // forever.
        let _listener = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();

        assert_eq!(content(&path("good")).unwrap(), b"text");
        assert_eq!(text(&path("link")).unwrap(), "text");
        let cases = [
            (folder.path().to_path_buf(), "it is a folder"),
            (path("socket"), "a device or pipe"),
            ("/dev/zero".into(), "a device or pipe"),
            (path("large"), "larger than 64 MiB"),
            (path("bytes"), "not a text file"),
        ];
        for (path, expected) in cases {
            let error = text(&path).unwrap_err();
            assert!(error.to_string().contains(expected), "{}: {error}", path.display());
        }
        let absent = content(&path("absent")).context("what it was to be").unwrap_err();
        assert!(super::super::is_absent(&absent), "{absent:#}");
    }
}
