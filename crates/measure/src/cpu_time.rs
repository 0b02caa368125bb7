//! CPU time of this process and the programs that it ran: the cost of the work, independent of the machine's load.

use host::process::{Counters, ProcFolder, TICKS_PER_SECOND};

/// CPU time of this process and of all its descendants that have ended and been waited for.
#[derive(Clone, Copy, Debug)]
pub struct CpuTime {
    ticks: Option<u64>,
}

impl CpuTime {
    /// Returns the CPU time used so far.
    pub fn now() -> Self {
        Self { ticks: ProcFolder::this().counters().as_ref().map(Counters::with_children) }
    }

    /// Returns the CPU seconds used since this snapshot; `None` if the system does not report CPU time. The work of a
    /// server process, for example sccache's, is not included.
    pub fn seconds_since(&self) -> Option<f64> {
        let now = Self::now().ticks?;
        Some(now.saturating_sub(self.ticks?) as f64 / TICKS_PER_SECOND)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn what_a_child_took_is_seen_when_it_has_ended() {
        let begin = CpuTime::now();
        let loops = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        assert!(Command::new("sh").args(["-c", loops]).status().is_ok_and(|status| status.success()));
        assert!(begin.seconds_since().is_some_and(|seconds| seconds > 0.0), "{begin:?}");
    }
}
