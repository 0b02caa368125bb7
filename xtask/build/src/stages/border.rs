//! Check that C++ code was inlined into Rust in the finished binary. The flags alone do not prove that the linker
//! inlined it.

use std::path::Path;

use anyhow::{Context, Result, bail};
use object::{Object, ObjectSymbol};

use super::state::Build;

/// Function of the engine's C++ shim that sets one flag. Only Rust calls the function, and no code takes the
/// function's address. If every call is inlined, the function is dropped and its symbol disappears.
pub const WITNESS: &str = "anneal_interrupt";
/// Function of the C++ shim that is too large to be inlined. Its symbol shows that symbols were not stripped.
const ALWAYS_THERE: &str = "anneal_model_load";

/// Looks for the witness in builds whose plan allows inlining between the languages.
///
/// # Errors
/// If the calls were not inlined.
pub fn check(build: &Build) -> Result<()> {
    // An instrumented program stores the address of every function, including inlined ones, next to its counters.
    let counts = build.plan.variant.as_ref().is_some_and(|variant| variant.name.ends_with("pgo-train"));
    if !build.plan.lto.across || counts {
        return Ok(());
    }
    let anneal = build.folder.engine()?;
    if is_inlined(&anneal)? {
        return Ok(());
    }
    bail!(
        "link-time optimisation did not inline C++ into Rust: {} still contains the function {WITNESS} of \
         the C++ shim, which is small enough to be inlined\nhint: both languages must be compiled for the \
         same CPU by the same LLVM; check the commands in {}",
        anneal.display(),
        build.folder.log().display()
    )
}

/// True if the executable at `path` contains no copy of [`WITNESS`].
///
/// # Errors
/// If the file cannot be read or its symbols were stripped.
pub fn is_inlined(path: &Path) -> Result<bool> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let file = object::File::parse(&*bytes)
        .with_context(|| format!("cannot parse {} as an executable", path.display()))?;
    // If LTO makes a function local, it may rename the function to `name.llvm.123`.
    let has = |name: &str| {
        file.symbols().filter_map(|symbol| symbol.name().ok()).any(|symbol| {
            symbol.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    };
    if !has(ALWAYS_THERE) {
        bail!("{} has no symbols, so inlining cannot be checked", path.display());
    }
    Ok(!has(WITNESS))
}
