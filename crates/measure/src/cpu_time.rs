//! CPU time of this process and of the programs it ran: what a piece of work costs, however busy the machine was.

use std::fs;

/// Clock ticks a second; see `usage`.
const TICKS: f64 = 100.0;

/// CPU time of this process and of those of its children, and theirs, that have ended and been waited for.
#[derive(Clone, Copy, Debug)]
pub struct CpuTime {
    ticks: Option<u64>,
}

impl CpuTime {
    /// Until now.
    pub fn now() -> Self {
        Self { ticks: fs::read_to_string("/proc/self/stat").ok().as_deref().and_then(ticks) }
    }

    /// Seconds from then until now; `None` where the system does not tell. What a server does on demand (sccache's, say)
    /// is not in it.
    pub fn seconds_since(&self) -> Option<f64> {
        let now = Self::now().ticks?;
        Some(now.saturating_sub(self.ticks?) as f64 / TICKS)
    }
}

/// Fields 14 to 17 of proc_pid_stat(5): user and system time of the process, and of its children.
fn ticks(text: &str) -> Option<u64> {
    let (_, fields) = text.rsplit_once(')')?;
    let times: Option<Vec<u64>> =
        fields.split_whitespace().skip(11).take(4).map(|word| word.parse().ok()).collect();
    times.filter(|times| times.len() == 4).map(|times| times.iter().sum())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn own_time_and_that_of_children_are_added() {
        assert_eq!(ticks("7 (a b) c) S 1 1 1 1 1 1 1 0 3 0 100 20 3000 400 20 0 1"), Some(3520));
        assert_eq!(ticks("7 (a) S 1 1"), None);
        assert_eq!(ticks(""), None);
    }

    #[test]
    fn what_a_child_took_is_seen_when_it_has_ended() {
        let begin = CpuTime::now();
        let loops = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        assert!(Command::new("sh").args(["-c", loops]).status().is_ok_and(|status| status.success()));
        assert!(begin.seconds_since().is_some_and(|seconds| seconds > 0.0), "{begin:?}");
    }
}
