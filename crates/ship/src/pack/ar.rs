//! The outer format of a Debian package: `ar`, of which it needs so little that it is written here.

use std::io::Write;

use anyhow::{Result, ensure};

/// What every archive begins with.
pub const MAGIC: &[u8] = b"!<arch>\n";

/// Writes one member, whose content is `content`.
pub fn member(to: &mut impl Write, name: &str, mtime: u64, content: &[u8]) -> Result<()> {
    ensure!(name.len() <= 16, "the name {name} is too long for ar");
    ensure!(content.len() < 10_000_000_000, "{name} is too large for ar");
    writeln!(to, "{name:<16}{mtime:<12}{:<6}{:<6}{:<8}{:<10}`", 0, 0, "100644", content.len())?;
    to.write_all(content)?;
    // The next one begins at an even place.
    if content.len() % 2 == 1 {
        to.write_all(b"\n")?;
    }
    Ok(())
}
