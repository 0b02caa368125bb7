//! The keys that requests over TCP need.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use llama::error::{Error, Result};

/// Characters of the shortest key: fewer can be tried out.
const SHORTEST: usize = 16;

/// Bytes of the largest file with keys.
const LARGEST: u64 = 1 << 20;

/// The keys in the file at `path`: one in each line; empty lines and those that begin with # do not count.
///
/// # Errors
/// Where there is none, one cannot be sent in a header or is too short, or others may read the file.
pub fn read(path: &Path) -> Result<Vec<String>> {
    let wrong = |why: String| Error::Usage(format!("--api-key-file {}: {why}", path.display()));
    let mode = fs::metadata(path).map_err(|why| wrong(why.to_string()))?.permissions().mode();
    if mode & 0o007 != 0 {
        return Err(wrong("everybody may read it; close it with chmod 600".to_string()));
    }
    let text = base::read_text(path, LARGEST).map_err(|why| wrong(why.to_string()))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let keys: Vec<String> = lines.map(str::to_string).collect();
    if keys.is_empty() {
        return Err(wrong(
            "there is no key in it: put one in each line, as `openssl rand -hex 24` makes them".to_string(),
        ));
    }
    if let Some(at) = keys.iter().position(|key| !key.bytes().all(|byte| byte.is_ascii_graphic())) {
        return Err(wrong(format!("key {} holds what no header can: use letters, digits and signs", at + 1)));
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
            (format!("{key}\n"), 0o644, "everybody may read it"),
            ("# none\n".to_string(), 0o600, "there is no key"),
            ("short\n".to_string(), 0o600, "key 1 is shorter"),
            (format!("{key}\n{key} b\n"), 0o600, "key 2 holds"),
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
