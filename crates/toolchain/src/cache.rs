//! Cache of the versions that tools print. Asking a program for its version takes 5 to 300 ms; checking a file's
//! stamp takes 10 µs.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io, thread};

use serde::{Deserialize, Serialize};

use crate::probe::{self, Refusal};

/// Version of the file's format. Files with another version are ignored.
const FORMAT: u32 = 1;

/// Lifetime of a recorded failure in seconds. A failure may be temporary: a proxy script works once its target is
/// installed.
const FAILURES_LAST: u64 = 600;

/// Maximum number of concurrent probes. Probes mostly wait for the disk.
const PROBES_AT_ONCE: usize = 8;

/// Query to one program.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub program: PathBuf,
    pub args: &'static [&'static str],
    /// Other files that determine the answer.
    pub also: Vec<PathBuf>,
    /// Other text that determines the answer.
    pub salt: String,
}

impl Question {
    pub(crate) fn new(program: &Path, args: &'static [&'static str]) -> Self {
        Self { program: program.to_path_buf(), args, also: Vec::new(), salt: String::new() }
    }

    fn key(&self) -> String {
        format!("{} {} {}", self.program.display(), self.args.join(" "), self.salt).trim_end().to_string()
    }

    /// Returns the canonical path, size and modification time of the program, and size and modification time of the
    /// other files.
    fn stamp(&self) -> String {
        let canonical = fs::canonicalize(&self.program).unwrap_or_default();
        let mut stamp = format!("{} {}", canonical.display(), stamp_of(&canonical));
        for path in &self.also {
            stamp += &format!(" {}", stamp_of(path));
        }
        stamp
    }
}

fn stamp_of(path: &Path) -> String {
    fs::metadata(path).map_or_else(
        |_| "-".to_string(),
        |found| format!("{}:{}.{:09}", found.size(), found.mtime(), found.mtime_nsec()),
    )
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct CachedAnswer {
    stamp: String,
    /// Output of the program; `None` if the program failed or was too slow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    answer: Option<String>,
    /// Number of consecutive runs that took too long. A single slow run does not prove that the program is slow.
    #[serde(default, skip_serializing_if = "is_zero")]
    too_slow: u32,
    /// Time of the query in seconds since 1970.
    asked: u64,
}

impl CachedAnswer {
    fn is_known(&self, now: u64) -> bool {
        let young = now.checked_sub(self.asked).is_some_and(|age| age < FAILURES_LAST);
        self.answer.is_some() || (young && self.too_slow != 1)
    }

    fn told(self) -> Result<String, Refusal> {
        let refusal = if self.too_slow > 0 { Refusal::OutOfTime } else { Refusal::Failed };
        self.answer.ok_or(refusal)
    }
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Stored {
    format: u32,
    entries: BTreeMap<String, CachedAnswer>,
}

/// Returns the answers to `questions`, in order. Uses the cached answer in the file `cache` if the program is
/// unchanged, and runs the program otherwise. A damaged cache is treated as empty. If the cache cannot be written, only
/// the next run takes longer. A program that took longer than `patience` once is asked again in the next run, because
/// the program may just have waited for the disk.
pub(crate) fn answers(
    questions: &[Question],
    cache: Option<&Path>,
    patience: Duration,
) -> Vec<Result<String, Refusal>> {
    let old = cache.map_or_else(Stored::default, read);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let known: Vec<Option<CachedAnswer>> = questions
        .iter()
        .map(|question| {
            let entry = old.entries.get(&question.key()).filter(|entry| entry.stamp == question.stamp())?;
            entry.is_known(now).then(|| entry.clone())
        })
        .collect();

    let fresh = Mutex::new(BTreeMap::new());
    let next = AtomicUsize::new(0);
    let unknown: Vec<usize> = (0..questions.len()).filter(|&index| known[index].is_none()).collect();
    thread::scope(|scope| {
        for _ in 0..PROBES_AT_ONCE.min(unknown.len()) {
            scope.spawn(|| {
                while let Some(&index) = unknown.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let question = &questions[index];
                    // The stamp is taken before the program runs, so that a replacement during the run causes a new
                    // query.
                    let stamp = question.stamp();
                    let answer = probe::ask(&question.program, question.args, patience);
                    let before = old.entries.get(&question.key()).filter(|entry| entry.stamp == stamp);
                    let too_slow = match answer {
                        Err(Refusal::OutOfTime) => before.map_or(0, |entry| entry.too_slow).saturating_add(1),
                        _ => 0,
                    };
                    let entry = CachedAnswer { stamp, answer: answer.ok(), too_slow, asked: now };
                    fresh.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(index, entry);
                }
            });
        }
    });
    let mut fresh = fresh.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    let entries: Vec<Option<CachedAnswer>> =
        known.into_iter().enumerate().map(|(index, entry)| entry.or_else(|| fresh.remove(&index))).collect();

    if let Some(path) = cache {
        let entries = questions.iter().map(Question::key).zip(&entries);
        let new = Stored {
            format: FORMAT,
            entries: entries.filter_map(|(key, entry)| Some((key, entry.clone()?))).collect(),
        };
        if new != old {
            let _ = write(path, &new);
        }
    }
    entries.into_iter().map(|entry| entry.ok_or(Refusal::Failed)?.told()).collect()
}

fn read(path: &Path) -> Stored {
    let text = fs::read(path).unwrap_or_default();
    serde_json::from_slice(&text).ok().filter(|stored: &Stored| stored.format == FORMAT).unwrap_or_default()
}

/// Replaces the cache at `path` atomically.
fn write(path: &Path, stored: &Stored) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    base::replace(path, &serde_json::to_vec_pretty(stored)?, base::Access::Usual)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Machine;

    const PATIENCE: Duration = Duration::from_secs(3);

    /// Creates a program that counts its runs.
    fn counting(machine: &Machine, answer: &str) -> PathBuf {
        let log = machine.root().join("runs");
        machine.script("bin/tool", &format!("echo run >> '{}'\n{answer}", log.display()))
    }

    fn runs(machine: &Machine) -> usize {
        fs::read_to_string(machine.root().join("runs")).unwrap_or_default().lines().count()
    }

    #[test]
    fn a_program_is_asked_again_only_when_it_changed() {
        let machine = Machine::new();
        let cache = machine.root().join("sub folder/tools.json");
        let question = [Question::new(&counting(&machine, "echo 1.0"), &["--version"])];
        let ask = || answers(&question, Some(&cache), PATIENCE)[0].clone();
        assert_eq!(ask().as_deref(), Ok("1.0\n"));
        assert_eq!(ask().as_deref(), Ok("1.0\n"));
        assert_eq!(runs(&machine), 1, "the second answer came from the cache");
        counting(&machine, "echo 2.00");
        assert_eq!(ask().as_deref(), Ok("2.00\n"));
        assert_eq!(runs(&machine), 2);
        let left = crate::search::entries(&machine.root().join("sub folder"));
        assert_eq!(left, std::slice::from_ref(&cache), "nothing is left beside the cache");
    }

    #[test]
    fn what_else_decides_on_the_answer_is_part_of_the_key() {
        let machine = Machine::new();
        let cache = machine.root().join("tools.json");
        let mut question = Question::new(&counting(&machine, "echo 1.0"), &[]);
        question.also.push(machine.file("settings.toml", "a"));
        let ask = |question: &Question| answers(std::slice::from_ref(question), Some(&cache), PATIENCE);
        ask(&question);
        machine.file("settings.toml", "another");
        ask(&question);
        assert_eq!(runs(&machine), 2, "another file changed");
        question.salt = "nightly".to_string();
        ask(&question);
        assert_eq!(runs(&machine), 3, "another toolchain is asked for");
    }

    #[test]
    fn a_damaged_cache_is_as_good_as_none() {
        let good = r#"{"format":1,"entries":{}}"#;
        for damaged in ["", "{", "[]", "\0\0", r#"{"format":99,"entries":{}}"#, &good[..good.len() - 1]] {
            let machine = Machine::new();
            let cache = machine.file("tools.json", damaged);
            let question = [Question::new(&counting(&machine, "echo 1.0"), &[])];
            assert_eq!(answers(&question, Some(&cache), PATIENCE)[0].as_deref(), Ok("1.0\n"), "{damaged:?}");
            assert_eq!(read(&cache).entries.len(), 1, "{damaged:?} was replaced");
        }
        let machine = Machine::new();
        let question = [Question::new(&counting(&machine, "echo 1.0"), &[])];
        // A folder in place of the file can be neither read nor written, which is not an error.
        assert_eq!(answers(&question, Some(machine.root()), PATIENCE)[0].as_deref(), Ok("1.0\n"));
    }

    #[test]
    fn a_link_under_a_temporary_name_is_not_followed() {
        let machine = Machine::new();
        let cache = machine.root().join("tools.json");
        let victim = machine.file("victim", "precious");
        std::os::unix::fs::symlink(&victim, cache.with_extension(format!("{}.tmp", std::process::id())))
            .unwrap();
        let question = [Question::new(&counting(&machine, "echo 1.0"), &[])];
        answers(&question, Some(&cache), PATIENCE);
        assert_eq!(read(&cache).entries.len(), 1);
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
    }

    #[test]
    fn failures_are_remembered_for_a_while() {
        let machine = Machine::new();
        let cache = machine.root().join("tools.json");
        let question = [Question::new(&counting(&machine, "exit 1"), &[])];
        answers(&question, Some(&cache), PATIENCE);
        assert_eq!(answers(&question, Some(&cache), PATIENCE), [Err(Refusal::Failed)]);
        assert_eq!(runs(&machine), 1);
        let mut stored = read(&cache);
        stored.entries.values_mut().for_each(|entry| entry.asked -= FAILURES_LAST);
        write(&cache, &stored).unwrap();
        answers(&question, Some(&cache), PATIENCE);
        assert_eq!(runs(&machine), 2, "an old failure is tried again");
    }

    #[test]
    fn that_time_was_up_is_remembered_the_second_time() {
        let machine = Machine::new();
        let cache = machine.root().join("tools.json");
        let question = [Question::new(&counting(&machine, "sleep 60"), &[])];
        let ask = || answers(&question, Some(&cache), Duration::from_secs(1));
        assert_eq!(ask(), [Err(Refusal::OutOfTime)]);
        assert_eq!(ask(), [Err(Refusal::OutOfTime)]);
        assert_eq!(runs(&machine), 2, "it was asked again at once");
        assert_eq!(ask(), [Err(Refusal::OutOfTime)]);
        assert_eq!(runs(&machine), 2, "it hangs");
        let mut stored = read(&cache);
        stored.entries.values_mut().for_each(|entry| entry.asked -= FAILURES_LAST);
        write(&cache, &stored).unwrap();
        assert_eq!(ask(), [Err(Refusal::OutOfTime)]);
        assert_eq!(runs(&machine), 3, "and may have been mended");
    }
}
