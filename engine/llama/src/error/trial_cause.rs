//! Causes of trial loads that ended without an answer.

/// Cause of a trial that ended without an answer, as far as the parent process can determine it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialCause {
    /// The file: every further trial would end in the same way.
    File,
    /// Too much CPU time for the size of the file. Most such trials would never end, but on a slow machine, an intact
    /// file might take just as long.
    CpuTime,
    /// A lack of memory, threads or time, or a signal from outside the process.
    Machine,
    /// The program of the trial, which could not be started.
    Program,
}

impl TrialCause {
    /// Returns the hint for the user.
    pub fn hint(self) -> &'static str {
        match self {
            TrialCause::File => {
                "the file is damaged or malicious, or this build cannot run it: download it again from a source that you \
                 trust, or try another build; to try the same file again, `touch` it"
            }
            TrialCause::CpuTime => {
                "the file is probably damaged or malicious: download it again from a source that you trust"
            }
            TrialCause::Program => {
                "the file itself may be intact: check that the program exists and is executable, and that the limits on \
                 memory and processes allow it to start; users of the library can set another program with \
                 `Options::trial_program`"
            }
            TrialCause::Machine => {
                "the file itself may be intact: try again when more memory and processes are free"
            }
        }
    }
}
