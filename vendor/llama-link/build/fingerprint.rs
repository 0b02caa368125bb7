//! What a default tree is made of, in twelve digits for its folder's name.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha256::Sha256;

/// Of the definitions, the compilers' versions, and the CPU that `native` stands for as the first compiler sees it.
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
    // Instruction sets and tuning, as macros: __AVX512F__, __znver5__, ….
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
