//! Readings that sysinfo does not provide, from the folder of a process in `/proc` (proc(5)).

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Clock ticks per second in `/proc`: `USER_HZ`, which is 100 on every architecture of Linux.
pub const TICKS_PER_SECOND: f64 = 100.0;

/// Folder of a process in `/proc`.
#[derive(Clone, Debug)]
pub struct ProcFolder(PathBuf);

impl ProcFolder {
    /// Returns the folder of this process.
    pub fn this() -> Self {
        Self::below(Path::new("/"), "self")
    }

    /// Returns the folder of process `pid`.
    pub fn of(pid: u32) -> Self {
        Self::below(Path::new("/"), &pid.to_string())
    }

    /// Returns the folder of `process`, a process ID or `self`, on a machine whose files are below `root`.
    pub fn below(root: &Path, process: &str) -> Self {
        Self(root.join("proc").join(process))
    }

    /// Returns the folder of every process that this user can see, with the process ID.
    pub fn all(root: &Path) -> Vec<(u32, Self)> {
        let entries = fs::read_dir(root.join("proc")).into_iter().flatten().flatten();
        let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
        entries.filter_map(number).map(|pid: u32| (pid, Self::below(root, &pid.to_string()))).collect()
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the process's name, at most 15 bytes; `None` if the process has ended.
    pub fn name(&self) -> Option<String> {
        Some(self.read("comm")?.trim_end().to_string())
    }

    /// Returns the process's command line; empty for a thread of the kernel, or if the process has ended.
    pub fn command_line(&self) -> Vec<String> {
        self.words("cmdline")
    }

    /// Returns the variables of the process's environment at its start whose names `keep` accepts. `None` if this user
    /// may not read them.
    pub fn environment(&self, keep: impl Fn(&str) -> bool) -> Option<BTreeMap<String, String>> {
        fs::File::open(self.0.join("environ")).ok()?;
        let words = self.words("environ").into_iter();
        let pairs =
            words.filter_map(|word| word.split_once('=').map(|(a, b)| (a.to_string(), b.to_string())));
        Some(pairs.filter(|(name, _)| keep(name)).collect())
    }

    /// Returns the zero-terminated texts in a file.
    fn words(&self, name: &str) -> Vec<String> {
        // The kernel limits the size of arguments and environment to a quarter of the stack's limit.
        const LARGEST: u64 = 16 << 20;
        let mut bytes = Vec::new();
        let read =
            fs::File::open(self.0.join(name)).and_then(|file| file.take(LARGEST).read_to_end(&mut bytes));
        if read.is_err() {
            return Vec::new();
        }
        let text = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
        if text.is_empty() {
            return Vec::new();
        }
        text.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
    }

    /// Returns the peak of the process's resident memory in bytes (`VmHWM`); `None` if the process has ended.
    pub fn peak_resident(&self) -> Option<u64> {
        field(&self.read("status")?, "VmHWM:").map(|kib| kib << 10)
    }

    /// Sets the peak of the process's resident memory to the current value. A kernel that cannot reset the peak keeps
    /// the old value.
    pub fn reset_peak(&self) {
        // Value 5 resets the peak: see clear_refs in proc(5).
        let _ = fs::write(self.0.join("clear_refs"), "5");
    }

    /// Returns the path of the process's program. A deleted program has the suffix ` (deleted)`.
    pub fn program(&self) -> Option<PathBuf> {
        fs::read_link(self.0.join("exe")).ok()
    }

    /// Returns the ID of the parent process.
    pub fn parent(&self) -> Option<u32> {
        StatFields::of(&self.read("stat")?)?.number(4)
    }

    /// Returns the time at which the process was started, in ticks of [`TICKS_PER_SECOND`] since the start of the
    /// machine.
    pub fn started(&self) -> Option<u64> {
        StatFields::of(&self.read("stat")?)?.number(22)
    }

    /// Reads the process's CPU time and page faults.
    pub fn counters(&self) -> Option<Counters> {
        Counters::parse(&self.read("stat")?)
    }

    /// Returns the voluntary and the involuntary context switches of all living threads of the process.
    pub fn switches(&self) -> Option<(u64, u64)> {
        let mut sum = (0, 0);
        for task in fs::read_dir(self.0.join("task")).ok()?.flatten() {
            // A thread may end between the listing and this read.
            let Ok(text) = fs::read_to_string(task.path().join("status")) else { continue };
            sum.0 += field(&text, "voluntary_ctxt_switches:").unwrap_or(0);
            sum.1 += field(&text, "nonvoluntary_ctxt_switches:").unwrap_or(0);
        }
        Some(sum)
    }

    /// Returns the total time that the living threads of the process were ready to run but had no CPU. `None` if the
    /// kernel does not report it: see `schedstat` in Documentation/scheduler/sched-stats.rst.
    pub fn waited(&self) -> Option<Duration> {
        let mut sum = 0;
        for task in fs::read_dir(self.0.join("task")).ok()?.flatten() {
            // A thread may end between the listing and this read.
            let Ok(text) = fs::read_to_string(task.path().join("schedstat")) else { continue };
            sum += text.split_whitespace().nth(1)?.parse::<u64>().ok()?;
        }
        Some(Duration::from_nanos(sum))
    }

    pub(super) fn read(&self, name: &str) -> Option<String> {
        let bytes = fs::read(self.0.join(name)).ok()?;
        // A process may choose a name that is not UTF-8.
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// CPU time in ticks of [`TICKS_PER_SECOND`], and page faults of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Page faults that were served from memory.
    pub minor_faults: u64,
    /// Page faults that were served from a disk.
    pub major_faults: u64,
    /// CPU ticks in user mode.
    pub user: u64,
    /// CPU ticks in the kernel on behalf of the process.
    pub system: u64,
    /// CPU ticks of the process's descendants that have ended and been waited for.
    pub children: u64,
}

impl Counters {
    /// Parses `/proc/PID/stat`.
    pub fn parse(text: &str) -> Option<Self> {
        let fields = StatFields::of(text)?;
        let children: u64 = fields.number(16)?;
        Some(Self {
            minor_faults: fields.number(10)?,
            major_faults: fields.number(12)?,
            user: fields.number(14)?,
            system: fields.number(15)?,
            children: children.saturating_add(fields.number(17)?),
        })
    }

    /// Returns the CPU ticks of the process and its children.
    pub fn with_children(&self) -> u64 {
        self.user.saturating_add(self.system).saturating_add(self.children)
    }
}

/// Fields of the file `stat` of a process or thread, with the numbers of proc(5).
pub(super) struct StatFields<'a> {
    /// ID of the process or thread.
    pub(super) id: &'a str,
    /// Fields from the third on.
    rest: Vec<&'a str>,
}

impl<'a> StatFields<'a> {
    pub(super) fn of(text: &'a str) -> Option<Self> {
        // The name, in parentheses, may contain spaces and parentheses.
        let (start, rest) = text.rsplit_once(')')?;
        let id = start.split_whitespace().next()?;
        Some(Self { id, rest: rest.split_whitespace().collect() })
    }

    /// Returns field `number`, which is at least 3.
    pub(super) fn text(&self, number: usize) -> Option<&'a str> {
        self.rest.get(number.checked_sub(3)?).copied()
    }

    /// Returns field `number`, which is at least 3, as a number.
    pub(super) fn number<T: FromStr>(&self, number: usize) -> Option<T> {
        self.text(number)?.parse().ok()
    }
}

/// Returns the number after `name` in the text of a status file.
pub(super) fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_time_and_that_of_children_are_added() {
        let all = |text: &str| Counters::parse(text).map(|counters| counters.with_children());
        assert_eq!(all("7 (a b) c) S 1 1 1 1 1 1 1 0 3 0 100 20 3000 400 20 0 1"), Some(3520));
        assert_eq!(all("7 (a) S 1 1"), None);
        assert_eq!(all(""), None);
    }

    #[test]
    fn memory_is_read_from_the_kernels_words() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("proc/7");
        fs::create_dir_all(&folder).unwrap();
        let process = ProcFolder::below(root.path(), "7");
        assert_eq!(process.peak_resident(), None);
        for (text, expected) in [
            ("Name:\tanneal\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n", Some(2 << 20)),
            ("VmHWM: many kB\n", None),
        ] {
            fs::write(folder.join("status"), text).unwrap();
            assert_eq!(process.peak_resident(), expected, "{text}");
        }
        assert!(ProcFolder::this().peak_resident().is_some_and(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn words_and_variables_are_separated_by_zeros() {
        let root = tempfile::tempdir().unwrap();
        let process = ProcFolder::below(root.path(), "7");
        assert_eq!((process.command_line(), process.environment(|_| true)), (Vec::new(), None));
        fs::create_dir_all(process.path()).unwrap();
        fs::write(process.path().join("cmdline"), "a\0--b\0\0c d\0").unwrap();
        fs::write(process.path().join("environ"), "A=1\0KEY=2\0B=x=y\0odd\0").unwrap();
        fs::write(process.path().join("comm"), b"a\xff\n").unwrap();
        assert_eq!(process.command_line(), ["a", "--b", "", "c d"]);
        let kept = process.environment(|name| name != "KEY").unwrap();
        assert_eq!(
            kept.into_iter().collect::<Vec<_>>(),
            [("A".into(), "1".into()), ("B".into(), "x=y".into())]
        );
        assert_eq!(process.name().as_deref(), Some("a\u{fffd}"));
        assert_eq!(ProcFolder::all(root.path()).len(), 1);
    }

    #[test]
    fn waiting_for_a_cpu_is_added_up_over_the_threads() {
        let root = tempfile::tempdir().unwrap();
        let task = |id: &str, text: &str| {
            let folder = root.path().join("proc/7/task").join(id);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("schedstat"), text).unwrap();
        };
        let process = ProcFolder::below(root.path(), "7");
        assert_eq!(process.waited(), None);
        task("7", "900 30 5\n");
        task("8", "100 12 1\n");
        assert_eq!(process.waited(), Some(Duration::from_nanos(42)));
        task("9", "100\n");
        assert_eq!(process.waited(), None, "a kernel without statistics");
    }
}
