//! Threads of a process, from the folder `task` in its folder of `/proc` (proc(5)).

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::folder::{ProcFolder, StatFields};

/// Maximum number of threads that are read. Servers have hundreds of threads at most.
const MOST: usize = 4096;

/// State and counters of one thread at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ThreadReading {
    /// ID of the thread.
    pub tid: u32,
    /// State letter: `R` runs or is ready to run, `S` sleeps, `D` waits for a disk.
    pub state: char,
    /// CPU time, user and system, in ticks of [`TICKS_PER_SECOND`](super::TICKS_PER_SECOND).
    pub ticks: u64,
    /// CPU that the thread ran on last.
    pub cpu: u32,
    /// Nice value, from -20 to 19.
    pub nice: i32,
    /// Scheduling policy: 0 is normal, 3 is batch, 5 is idle (sched(7)).
    pub policy: u32,
    /// CPU time; more precise than `ticks`, but `None` if the kernel has no scheduler statistics.
    pub ran: Option<Duration>,
    /// Time that the thread was ready to run but had no CPU; `None` if the kernel has no scheduler statistics.
    pub waited: Option<Duration>,
}

impl ProcFolder {
    /// Returns the living threads of the process, in no particular order; empty if the process has ended.
    pub fn thread_readings(&self) -> Vec<ThreadReading> {
        let tasks = fs::read_dir(self.path().join("task")).into_iter().flatten().flatten();
        // A thread may end between the listing and the read.
        tasks.take(MOST).filter_map(|task| read(&task.path())).collect()
    }
}

fn read(folder: &Path) -> Option<ThreadReading> {
    let mut thread = parse(&fs::read_to_string(folder.join("stat")).ok()?)?;
    if let Ok(text) = fs::read_to_string(folder.join("schedstat")) {
        let mut nanos = text.split_whitespace().map(|word| word.parse().ok().map(Duration::from_nanos));
        (thread.ran, thread.waited) = (nanos.next().flatten(), nanos.next().flatten());
    }
    Some(thread)
}

/// Parses the file `stat` of a thread.
fn parse(text: &str) -> Option<ThreadReading> {
    let fields = StatFields::of(text)?;
    let user: u64 = fields.number(14)?;
    Some(ThreadReading {
        tid: fields.id.parse().ok()?,
        state: fields.text(3)?.chars().next()?,
        ticks: user.saturating_add(fields.number(15)?),
        cpu: fields.number(39)?,
        nice: fields.number(19)?,
        policy: fields.number(41)?,
        ran: None,
        waited: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str =
        "8 (a) b) D 1 1 1 0 -1 0 0 0 0 0 70 5 0 0 20 7 3 0 100 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 1 0 5 0";

    #[test]
    fn threads_are_read_with_or_without_statistics() {
        let root = tempfile::tempdir().unwrap();
        let process = ProcFolder::below(root.path(), "8");
        assert_eq!(process.thread_readings(), []);
        let folder = root.path().join("proc/8/task/8");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("stat"), STAT).unwrap();
        fs::create_dir_all(root.path().join("proc/8/task/9")).unwrap();
        let mut expected = ThreadReading {
            tid: 8,
            state: 'D',
            ticks: 75,
            cpu: 1,
            nice: 7,
            policy: 5,
            ran: None,
            waited: None,
        };
        assert_eq!(process.thread_readings(), [expected.clone()]);
        fs::write(folder.join("schedstat"), "750000000 30 5\n").unwrap();
        (expected.ran, expected.waited) = (Some(Duration::from_millis(750)), Some(Duration::from_nanos(30)));
        assert_eq!(process.thread_readings(), [expected]);
    }

    #[test]
    fn damaged_files_are_skipped() {
        for text in ["", "8", "8 (a", "8 (a) R 1 1", "x (a) R"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
        let all = ProcFolder::this().thread_readings();
        assert!(all.iter().any(|thread| thread.tid == std::process::id()), "{all:?}");
    }
}
