//! Compiler and linker flags that change the generated code, except those for instruction sets.

use serde::{Deserialize, Serialize};

/// Flags by tool. Each variant of a build (LTO, instrumented, profiled) adds its own flags.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeGen {
    /// Flags for every C and C++ file, including the engine's shim.
    pub cxx: Vec<String>,
    /// Flags for rustc, except for build scripts.
    pub rust: Vec<String>,
    /// Flags for rustc on crates of this workspace, and on code that these crates instantiate from other crates. A
    /// PGO profile for the 200 other crates would require recompiling all of them for every profile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own_rust: Vec<String>,
    /// Flags for the linker driver of the engine.
    pub link: Vec<String>,
    /// Value of `lto` in the engine's cargo profile, if rustc optimises the Rust side without the linker.
    pub cargo_lto: Option<String>,
}

impl CodeGen {
    /// Returns these flags followed by the flags of `more`.
    pub fn and(mut self, more: CodeGen) -> Self {
        self.cxx.extend(more.cxx);
        self.rust.extend(more.rust);
        self.own_rust.extend(more.own_rust);
        self.link.extend(more.link);
        self.cargo_lto = more.cargo_lto.or(self.cargo_lto);
        self
    }
}
