//! Causes for which a trial load ended without an answer.

/// Cause for which a trial ended without an answer, as far as the parent process can determine it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialCause {
    /// The file: every further trial would end in the same way.
    File,
    /// Too much CPU time for the size of the file; most such trials would never end. On a slower machine, a good file
    /// might need as much time.
    CpuTime,
    /// A lack of memory, threads or elapsed time, or a signal from outside.
    Machine,
    /// The trial's program, which could not be started.
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
                "the file itself may be good: check that the program exists and is executable, and that memory and processes \
                 are free; in the library, `Options::trial_program` sets another program"
            }
            TrialCause::Machine => {
                "the file itself may be good: try again when more memory and processes are free"
            }
        }
    }
}
