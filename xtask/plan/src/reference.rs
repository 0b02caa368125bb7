//! Reference tools that plans for other machines assume.

use anyhow::{Context, Result};
use toolchain::Toolchain;

/// Returns the tools that plans for other machines assume, because such a plan must not depend on this machine.
pub fn reference_toolchain(arch: &str) -> Result<Toolchain> {
    let text = include_str!("../../../fixtures/toolchains/debian-12-clang-22.json");
    let mut toolchain: Toolchain =
        serde_json::from_str(text).context("the reference toolchain is damaged")?;
    if let Some(rustc) = &mut toolchain.rustc {
        rustc.host = format!("{arch}-unknown-linux-gnu");
    }
    Ok(toolchain)
}
