//! Fingerprint of a default tree: twelve hexadecimal digits, which name the tree's folder.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha256::Sha256;

/// Returns the fingerprint of the definitions, the versions of the compilers, and the CPU that the first compiler
/// selects for the flag `native`.
///
/// # Errors
/// If a compiler cannot be run.
pub fn of<P: AsRef<Path>>(
    definitions: &[(String, String)],
    compilers: [P; 2],
    native: &str,
) -> Result<String> {
    let mut bytes = Vec::new();
    for (name, value) in definitions {
        bytes.extend(format!("{name}={value}\n").into_bytes());
    }
    for compiler in &compilers {
        bytes.extend(output(compiler.as_ref(), &["--version"])?);
    }
    // The predefined macros show the instruction sets and the tuning: __AVX512F__, __znver5__, ….
    bytes.extend(output(compilers[0].as_ref(), &[native, "-dM", "-E", "-x", "c", "/dev/null"])?);
    Ok(Sha256::of(bytes).short().to_string())
}

fn output(compiler: &Path, arguments: &[&str]) -> Result<Vec<u8>> {
    let output = Command::new(compiler).args(arguments).output();
    let output = output.with_context(|| format!("cannot run {}", compiler.display()))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("{} {} failed: {why}", compiler.display(), arguments.join(" "));
    }
    Ok(output.stdout)
}
