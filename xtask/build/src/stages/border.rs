//! Proof in the finished binary that C++ was inlined into Rust: a flag that was passed proves nothing.

use std::path::Path;

use anyhow::{Context, Result, bail};
use object::{Object, ObjectSymbol};

use super::state::Build;

/// A function of the engine's C++ shim that stores one flag, is called from Rust alone, and whose address nobody
/// takes. Inlined everywhere it is dropped, so its symbol is gone.
pub const WITNESS: &str = "anneal_interrupt";
/// A function of llama.cpp that is too large to be inlined: it shows that the symbols were not stripped.
const ALWAYS_THERE: &str = "anneal_model_load";

/// Looks for the witness where the plan says that calls can be inlined across the border.
///
/// # Errors
/// When they were not.
pub fn check(build: &Build) -> Result<()> {
    // Counters keep the address of every function, inlined or not.
    let counts = build.plan.variant.as_ref().is_some_and(|variant| variant.name.ends_with("pgo-train"));
    if !build.plan.lto.across || counts {
        return Ok(());
    }
    let anneal = build.folder.newest_engine().context("the build folder holds no anneal")?;
    if is_inlined(&anneal)? {
        return Ok(());
    }
    bail!(
        "link-time optimisation did not reach across C++ and Rust: {} still holds the function {WITNESS} of the C++ \
         shim, which is small enough to be inlined into Rust. Both sides must be compiled for one CPU by one LLVM; \
         see the commands in {}",
        anneal.display(),
        build.folder.log().display()
    )
}

/// Whether no copy of [`WITNESS`] is left in the executable at `path`.
pub fn is_inlined(path: &Path) -> Result<bool> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let file = object::File::parse(&*bytes)
        .with_context(|| format!("{} is no executable that can be understood", path.display()))?;
    // LTO may rename what it makes local: `name.llvm.123`.
    let has = |name: &str| {
        file.symbols().filter_map(|symbol| symbol.name().ok()).any(|symbol| {
            symbol.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    };
    if !has(ALWAYS_THERE) {
        bail!("{} holds no symbols: what was inlined cannot be seen", path.display());
    }
    Ok(!has(WITNESS))
}
