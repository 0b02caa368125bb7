//! Method of gathering BOLT's profile, as selected by the user.

use std::fmt;

use anyhow::{Result, bail};
use build_info::optimized::BoltMethod;

/// Requested method of gathering the profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Gather {
    /// Counters in the program: work on any CPU and count every branch, but make the program several times slower
    #[default]
    Instrument,
    /// perf with the CPU's branch records: sample the branches while the program runs at full speed
    Perf,
    /// perf if the CPU has branch records, else counters
    Auto,
}

impl fmt::Display for Gather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Gather::Instrument => "instrument",
            Gather::Perf => "perf",
            Gather::Auto => "auto",
        })
    }
}

impl Gather {
    /// Returns the method to use. `branch_records` succeeds if perf provides branch records; its error is the reason
    /// why perf provides none.
    ///
    /// Counters are the default, because they count every branch on every CPU, including virtual ones. The resulting
    /// profile is equally good for every run of the same program.
    ///
    /// # Errors
    /// If perf is requested but provides no branch records.
    pub fn method(self, branch_records: impl FnOnce() -> Result<(), String>) -> Result<BoltMethod> {
        match self {
            Gather::Instrument => Ok(BoltMethod::Instrument),
            Gather::Auto => Ok(branch_records().map_or(BoltMethod::Instrument, |()| BoltMethod::Perf)),
            Gather::Perf => match branch_records() {
                Ok(()) => Ok(BoltMethod::Perf),
                Err(why) => bail!(
                    "perf cannot record branches on this machine: {why}\nhint: branch records need a CPU \
                     with LBR, BRBE or BRS, and a kernel that permits them \
                     (/proc/sys/kernel/perf_event_paranoid); most virtual machines provide none\nhint: \
                     `--method instrument` works everywhere"
                ),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perf_is_used_only_where_the_cpu_records_branches() {
        use BoltMethod::{Instrument, Perf};
        let no = || Err("PMU Hardware or event type doesn't support branch stack sampling".to_string());
        let cases = [
            (Gather::Instrument, true, Some(Instrument)),
            (Gather::Instrument, false, Some(Instrument)),
            (Gather::Perf, true, Some(Perf)),
            (Gather::Perf, false, None),
            (Gather::Auto, true, Some(Perf)),
            (Gather::Auto, false, Some(Instrument)),
        ];
        for (asked, records, expected) in cases {
            let method = asked.method(|| if records { Ok(()) } else { no() });
            match expected {
                Some(expected) => assert_eq!(method.unwrap(), expected, "{asked} {records}"),
                None => {
                    let error = method.unwrap_err().to_string();
                    assert!(
                        error.contains("branch stack") && error.contains("--method instrument"),
                        "{error}"
                    );
                }
            }
        }
    }
}
