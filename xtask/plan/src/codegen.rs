//! Flags that change what the compilers and the linker make of the code, beyond the instruction sets.

use serde::{Deserialize, Serialize};

/// Flags by the tool that takes them. Each variant of a build (LTO, instrumented, profiled) adds its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeGen {
    /// For every C and C++ file, the engine's shim included.
    pub cxx: Vec<String>,
    /// For rustc; never for build scripts.
    pub rust: Vec<String>,
    /// For rustc on crates of this workspace, what they instantiate of others included: a profile for all 200 others would
    /// have them compiled anew for each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own_rust: Vec<String>,
    /// For the linker driver of the engine.
    pub link: Vec<String>,
    /// `lto` of the engine's cargo profile, where rustc optimises the Rust side by itself.
    pub cargo_lto: Option<String>,
}

impl CodeGen {
    /// These flags with those of `more` after them.
    pub fn and(mut self, more: CodeGen) -> Self {
        self.cxx.extend(more.cxx);
        self.rust.extend(more.rust);
        self.own_rust.extend(more.own_rust);
        self.link.extend(more.link);
        self.cargo_lto = more.cargo_lto.or(self.cargo_lto);
        self
    }
}
