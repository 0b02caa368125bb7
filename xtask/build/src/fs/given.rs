//! Files that the user names: only what is one is read, and not without end.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

/// Largest file that is read. Comparisons of many builds have megabytes; what is larger is something else.
const LARGEST: u64 = 64 << 20;

/// What `path` holds.
///
/// # Errors
/// Without the file's name: the caller knows what it was to be. Of a missing file the system's error is in the chain.
/// A pipe is refused: nobody may ever write to it, and waiting for that could not be stopped by ctrl-C. A device may
/// have no end.
pub fn content(path: &Path) -> Result<Vec<u8>> {
    let found = std::fs::metadata(path)?;
    if !found.is_file() {
        match found.is_dir() {
            true => bail!("it is a folder, not a file: name a file in it"),
            false => {
                bail!("it is a device or pipe, not a file: write what it tells to a file, and name that")
            }
        }
    }
    let mut bytes = Vec::new();
    // What the kernel makes up, as in /proc, has no size beforehand.
    File::open(path)?.take(LARGEST + 1).read_to_end(&mut bytes)?;
    let size = found.len().max(bytes.len() as u64);
    ensure!(
        size <= LARGEST,
        "it has more than {} MiB, which is more than any that is meant here: this is something else",
        LARGEST >> 20
    );
    Ok(bytes)
}

/// The same of a text.
///
/// # Errors
/// Those of [`content`]; when it is no UTF-8.
pub fn text(path: &Path) -> Result<String> {
    String::from_utf8(content(path)?).ok().context("it is no text")
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
        // Refused like a pipe, and of a reader that opens it no endless test is made.
        let _listener = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();

        assert_eq!(content(&path("good")).unwrap(), b"text");
        assert_eq!(text(&path("link")).unwrap(), "text");
        let cases = [
            (folder.path().to_path_buf(), "a folder, not a file"),
            (path("socket"), "a device or pipe, not a file"),
            ("/dev/zero".into(), "a device or pipe, not a file"),
            (path("large"), "more than 64 MiB"),
            (path("bytes"), "no text"),
        ];
        for (path, expected) in cases {
            let error = text(&path).unwrap_err();
            assert!(error.to_string().contains(expected), "{}: {error}", path.display());
        }
        let absent = content(&path("absent")).context("what it was to be").unwrap_err();
        assert!(super::super::is_absent(&absent), "{absent:#}");
    }
}
