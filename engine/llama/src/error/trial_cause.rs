//! Causes of a trial load that ended without an answer.

/// Cause of a trial that ended without an answer, as far as the parent can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialCause {
    /// The file: every further trial would end the same way.
    File,
    /// The file needs more CPU time than its size explains, often without end. On a slower machine a good file might, too.
    CpuTime,
    /// A lack of memory, threads or elapsed time, or a signal from outside.
    Machine,
    /// The program of the trial, which could not be started.
    Program,
}

impl TrialCause {
    /// Advice for the user.
    pub fn hint(self) -> &'static str {
        match self {
            TrialCause::File => {
                "the file is damaged or malicious, or this build cannot run it: get it again from a source that you \
                 trust, or try another build; to have the same file tried again, `touch` it"
            }
            TrialCause::CpuTime => {
                "the file is probably damaged or malicious: get it again from a source that you trust"
            }
            TrialCause::Program => {
                "the file itself may be good: see that the program is there and may be run, and that memory and processes \
                 are free; the library takes another program from `Options::trial_program`"
            }
            TrialCause::Machine => {
                "the file itself may be good: try again when more memory and processes are free"
            }
        }
    }
}
