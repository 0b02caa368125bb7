//! CPU time of this process and of the programs it ran: what a piece of work costs, however busy the machine was.

use host::process::{Counters, ProcFolder, TICKS_PER_SECOND};

/// CPU time of this process and of those of its children, and theirs, that have ended and been waited for.
#[derive(Clone, Copy, Debug)]
pub struct CpuTime {
    ticks: Option<u64>,
}

impl CpuTime {
    /// Until now.
    pub fn now() -> Self {
        Self { ticks: ProcFolder::this().counters().as_ref().map(Counters::with_children) }
    }

    /// Seconds from then until now; `None` where the system does not tell. What a server does on demand (sccache's, say)
    /// is not in it.
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
