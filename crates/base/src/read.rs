//! Reads of whole files, up to a size limit.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens the regular file at `path` for reading. Follows links.
pub fn open(path: &Path) -> io::Result<File> {
    // Without O_NONBLOCK, opening a pipe would block until the other end is opened.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file\nhint: give the path of a regular file")),
    }
}

/// Reads the regular file at `path`, which may have at most `most` bytes.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    to_end(open(path)?, most)
}

/// Reads the regular file at `path`, a UTF-8 text of at most `most` bytes.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    text(read(path, most)?)
}

/// Reads a UTF-8 text of at most `most` bytes from `path`, which may be a pipe (as in a shell's `<(command)`).
pub fn read_text_or_pipe(path: &Path, most: u64) -> io::Result<String> {
    text(to_end(File::open(path)?, most)?)
}

/// Reads `source` to its end, up to `most` bytes. The limit is needed because a device such as `/dev/zero` has no
/// end.
pub fn to_end(source: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        true => Err(io::Error::new(io::ErrorKind::FileTooLarge, too_large(most))),
        false => Ok(bytes),
    }
}

/// Returns the message for a file of more than `most` bytes.
fn too_large(most: u64) -> String {
    let (limit, unit) = match most {
        _ if most >= 1 << 20 => (most >> 20, "MiB"),
        _ if most >= 1 << 10 => (most >> 10, "KiB"),
        _ => (most, "bytes"),
    };
    format!("it is larger than {limit} {unit}")
}

/// True if `error`, returned when a file was opened or read, means that the path is wrong: it does not exist, or
/// is a folder.
pub fn is_wrong_path(error: &io::Error) -> bool {
    use io::ErrorKind::{IsADirectory, NotADirectory, NotFound};
    matches!(error.kind(), IsADirectory | NotADirectory | NotFound)
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        io::Error::new(io::ErrorKind::InvalidData, format!("it is not UTF-8: byte {at} is invalid"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_files_and_large_files_are_refused() {
        let folder = crate::scratch("read").unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "four").unwrap();
        assert_eq!(read_text(&path, 4).unwrap(), "four");
        assert_eq!(read(&path, 3).unwrap_err().to_string(), "it is larger than 3 bytes");
        assert_eq!(
            read_text_or_pipe(Path::new("/dev/zero"), 9).unwrap_err().to_string(),
            "it is larger than 9 bytes"
        );

        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        for special in [&pipe, &link, folder.path()] {
            let error = read(special, 9).unwrap_err().to_string();
            assert!(error.contains("not a regular file"), "{}: {error}", special.display());
        }

        for wrong in [folder.path().to_path_buf(), folder.path().join("none"), path.join("below")] {
            assert!(is_wrong_path(&read_text_or_pipe(&wrong, 9).unwrap_err()), "{}", wrong.display());
        }
        assert!(!is_wrong_path(&read(&path, 3).unwrap_err()));

        std::fs::write(&path, b"\xff").unwrap();
        assert!(!is_wrong_path(&read_text(&path, 9).unwrap_err()));
        assert_eq!(read_text(&path, 9).unwrap_err().to_string(), "it is not UTF-8: byte 0 is invalid");
    }
}
