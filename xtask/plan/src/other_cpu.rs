//! Tests of a program that requires another CPU of this machine's architecture.

use build_info::Host;
use build_info::record::Tool;
use serde::{Deserialize, Serialize};

use crate::march;
use crate::tools::Tools;

/// Emulated CPU if qemu has no model of the CPU: everything that qemu emulates.
const EVERYTHING: &str = "max";

/// CPU that a program requires and that the build host lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherCpu {
    /// Required instruction sets that the build host's CPU lacks.
    pub lacking: Vec<String>,
    /// Emulator that runs the program on the build host; `None` if no emulator is installed.
    pub emulator: Option<CpuEmulator>,
}

/// qemu's user mode for this machine's architecture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuEmulator {
    /// Emulator.
    pub tool: Tool,
    /// Emulated CPU, as named by the emulator.
    pub cpu: String,
}

impl OtherCpu {
    /// Plans the tests of a program for the CPU `name`, which has the instruction sets `required`. Returns `None` if
    /// the host's own CPU runs the program.
    pub(crate) fn plan(
        name: &str,
        required: &[String],
        host: &Host,
        tools: &Tools,
        notes: &mut Vec<String>,
    ) -> Option<Self> {
        let lacking: Vec<String> =
            required.iter().filter(|feature| !host.cpu.has(feature)).cloned().collect();
        if lacking.is_empty() {
            return None;
        }
        let cpu = march::emulated(name).unwrap_or(EVERYTHING).to_string();
        let emulator = tools.qemu_user.clone().map(|tool| CpuEmulator { tool, cpu });
        let other = Self { lacking, emulator };
        notes.push(match &other.emulator {
            Some(CpuEmulator { tool, cpu }) => format!(
                "{}, so the smoke test and the gate run in qemu {}, as {cpu}",
                other.shortfall(),
                tool.version
            ),
            None => format!(
                "{}, and qemu-x86_64 is not installed (Debian: qemu-user), so the smoke test and the gate do not \
                 run",
                other.shortfall()
            ),
        });
        Some(other)
    }

    /// Returns a clause about the instruction sets that this machine's CPU lacks.
    pub fn shortfall(&self) -> String {
        format!("the CPU of this machine lacks {}", self.lacking.join(" "))
    }
}

impl CpuEmulator {
    /// Returns the start of the command line that runs a program. The program and its arguments follow.
    pub fn command(&self) -> [String; 3] {
        [self.tool.path.to_string_lossy().into_owned(), "-cpu".into(), self.cpu.clone()]
    }
}
