//! API keys for requests over TCP.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use llama::error::{Error, Result};

/// Minimum length of a key, in characters. Shorter keys can be guessed.
const SHORTEST: usize = 16;

/// Maximum size of a key file, in bytes.
const LARGEST: u64 = 1 << 20;

/// Reads the keys in the file at `path`, one per line. Empty lines and lines that begin with `#` are ignored.
///
/// # Errors
/// If the file contains no key, a key is too short or cannot be sent in a header, or other users can read the file.
pub fn read(path: &Path) -> Result<Vec<String>> {
    let wrong = |why: String| Error::Usage(format!("--api-key-file {}: {why}", path.display()));
    let metadata = fs::metadata(path).map_err(|why| wrong(why.to_string()))?;
    if !metadata.is_file() {
        return Err(wrong("not a regular file\nhint: pass a file with one key per line".to_string()));
    }
    if metadata.permissions().mode() & 0o007 != 0 {
        return Err(wrong("every user can read the file\nhint: restrict it with chmod 600".to_string()));
    }
    let text = base::read_text(path, LARGEST).map_err(|why| wrong(why.to_string()))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let keys: Vec<String> = lines.map(str::to_string).collect();
    if keys.is_empty() {
        return Err(wrong(
            "the file contains no key\nhint: put one key on each line, for example from `openssl rand -hex 24`"
                .to_string(),
        ));
    }
    if let Some(at) = keys.iter().position(|key| !key.bytes().all(|byte| byte.is_ascii_graphic())) {
        return Err(wrong(format!(
            "key {} contains characters that are not allowed in a header\nhint: use ASCII letters, digits and \
            punctuation",
            at + 1
        )));
    }
    if let Some(at) = keys.iter().position(|key| key.len() < SHORTEST) {
        return Err(wrong(format!("key {} is shorter than {SHORTEST} characters", at + 1)));
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_line_that_can_be_sent_and_not_guessed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("keys");
        let key = "0123456789abcdef";
        let cases = [
            (format!("# mine\n{key}\n\n {key}x \n"), 0o600, ""),
            (format!("{key}\n"), 0o644, "every user can read the file"),
            ("# none\n".to_string(), 0o600, "the file contains no key"),
            ("short\n".to_string(), 0o600, "key 1 is shorter"),
            (format!("{key}\n{key} b\n"), 0o600, "key 2 contains"),
        ];
        for (text, mode, expected) in cases {
            fs::write(&path, &text).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
            let found = read(&path);
            match expected {
                "" => assert_eq!(found.ok(), Some(vec![key.to_string(), format!("{key}x")])),
                _ => {
                    let message = found.err().map(|error| error.to_string()).unwrap_or_default();
                    assert!(message.contains(expected), "{text:?}: {message}");
                }
            }
        }
        assert!(read(&folder.path().join("none")).is_err());
    }
}
