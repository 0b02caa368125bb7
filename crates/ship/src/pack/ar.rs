//! Writer of `ar`, the outer format of a Debian package. Only the features that the package needs are implemented.

use std::io::Write;

use anyhow::{Result, ensure};

/// First bytes of every `ar` archive.
pub const MAGIC: &[u8] = b"!<arch>\n";

/// Writes a member with the content `content`.
pub fn member(to: &mut impl Write, name: &str, mtime: u64, content: &[u8]) -> Result<()> {
    ensure!(name.len() <= 16, "the name {name} is too long for ar");
    ensure!(content.len() < 10_000_000_000, "{name} is too large for ar");
    writeln!(to, "{name:<16}{mtime:<12}{:<6}{:<6}{:<8}{:<10}`", 0, 0, "100644", content.len())?;
    to.write_all(content)?;
    // Members begin at even offsets.
    if content.len() % 2 == 1 {
        to.write_all(b"\n")?;
    }
    Ok(())
}
