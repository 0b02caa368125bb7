//! Verdicts of trials, stored in this process and in the state folder.

use std::collections::HashMap;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use super::request::TrialVerdict;
use crate::cache::entry;
use crate::cache::place::{remove_left_behind, write_atomically};

/// Maximum number of stored verdicts. The oldest verdicts are removed first.
const MOST: usize = 1024;
/// Maximum size of a verdict's file in bytes.
const LONGEST: u64 = 64 << 10;

/// Verdicts that this process remembers, even without a state folder.
static KNOWN: Mutex<Option<HashMap<String, TrialVerdict>>> = Mutex::new(None);

/// Returns the stored verdict for `key`, if it exists and can be read.
pub(super) fn find(key: &String) -> Option<TrialVerdict> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_with(HashMap::new);
    if let Some(answer) = known.get(key) {
        return Some(answer.clone());
    }
    let answer = read(&folder()?.join(key))?;
    known.insert(key.clone(), answer.clone());
    Some(answer)
}

/// Stores `answer` under `key`. If the file cannot be written, only this process keeps the verdict.
pub(super) fn keep(key: &str, answer: &TrialVerdict) {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_with(HashMap::new);
    if known.len() >= MOST {
        known.clear();
    }
    known.insert(key.to_string(), answer.clone());
    if let Some(folder) = folder() {
        write(&folder, key, answer, MOST);
    }
}

fn folder() -> Option<PathBuf> {
    Some(host::state::folder()?.join("trials"))
}

/// Reads a verdict from a file that only this user can write. Otherwise, another user could declare a bad file to be
/// good.
fn read(path: &Path) -> Option<TrialVerdict> {
    let file = entry::open(path).ok()?;
    serde_json::from_slice(&base::to_end(file, LONGEST).ok()?).ok()
}

fn write(folder: &Path, key: &str, answer: &TrialVerdict, most: usize) {
    let Ok(text) = serde_json::to_string(answer) else { return };
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    let written = made.and_then(|()| write_atomically(&folder.join(key), &[text.as_bytes()]));
    if let Err(why) = written {
        tracing::debug!(folder = %folder.display(), %why, "cannot store the verdict");
        return;
    }
    remove_left_behind(folder, is_key);
    remove_oldest(folder, most);
}

/// True if `name` has the form of a verdict's file name: a digest.
fn is_key(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn remove_oldest(folder: &Path, most: usize) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let verdicts = entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_key));
    let mut verdicts: Vec<_> = verdicts.map(|entry| entry.path()).collect();
    if verdicts.len() <= most {
        return;
    }
    let age = |path: &PathBuf| fs::metadata(path).and_then(|found| found.modified());
    verdicts.sort_by_cached_key(|path| age(path).unwrap_or(SystemTime::UNIX_EPOCH));
    let surplus = verdicts.len() - most;
    verdicts[..surplus].iter().for_each(|path| drop(fs::remove_file(path)));
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::Duration;

    use super::*;

    #[test]
    fn verdicts_are_read_back_bounded_in_number_and_none_where_they_are_damaged() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let trials = folder.path().join("new/trials");
        let key = |number: usize| format!("{number:064x}");
        let bad = TrialVerdict::Died { how: "crashed".to_string() };
        write(&trials, &key(0), &bad, 3);
        assert_eq!(read(&trials.join(key(0))), Some(bad));
        fs::write(trials.join("notes"), "mine").expect("written");
        for number in 1..6 {
            write(&trials, &key(number), &TrialVerdict::Ran, 3);
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(number as u64);
            let file = File::options().write(true).open(trials.join(key(number))).expect("the verdict");
            file.set_modified(time).expect("a time");
        }
        let kept = |number| trials.join(key(number)).exists();
        assert!(fs::read_dir(&trials).expect("a folder").count() == 4 && kept(5) && !kept(1));
        assert!(trials.join("notes").exists(), "a file that is no verdict was removed");
        for damaged in ["", "{", "\"walked\"", "\u{0}"] {
            fs::write(trials.join(key(5)), damaged).expect("written");
            assert_eq!(read(&trials.join(key(5))), None, "{damaged:?}");
        }
        // If the folder cannot be created, the verdict is only kept in this process.
        write(&trials.join("notes/below"), &key(1), &TrialVerdict::Ran, 3);
    }

    #[test]
    fn a_pipe_in_the_place_of_a_verdict_is_no_verdict() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("it runs").success());
        assert!(read(&pipe).is_none());
    }

    #[test]
    fn a_verdict_of_another_user_is_no_verdict() {
        if !rustix::process::geteuid().is_root() {
            return skipped::because("only root can give a file to another user");
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let key = "a".repeat(64);
        write(folder.path(), &key, &TrialVerdict::Ran, 9);
        let path = folder.path().join(&key);
        assert!(read(&path).is_some());
        std::os::unix::fs::chown(&path, Some(65_534), None).expect("another owner");
        assert!(read(&path).is_none());
    }
}
