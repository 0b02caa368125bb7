//! Reads the target architecture from the header of an ELF file.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use base::exit;

/// Values of `e_machine` for the architectures that Anneal supports, with Rust's names.
const MACHINES: [(u16, &str); 2] = [(62, "x86_64"), (183, "aarch64")];

/// Checks that a program is built for this machine's architecture, before the program is run.
///
/// # Errors
/// If the program is for another architecture, with exit code 69.
pub fn check_host(program: &Path) -> Result<()> {
    let mut head = [0; 20];
    File::open(program)
        .and_then(|mut file| file.read_exact(&mut head))
        .with_context(|| format!("cannot read the header of {}", program.display()))?;
    ensure!(
        head.starts_with(b"\x7fELF"),
        "{} is not a program for Linux: it has no ELF header",
        program.display()
    );
    let machine = u16::from_le_bytes([head[18], head[19]]);
    let (class, order) = (head[4], head[5]);
    let known = MACHINES.iter().find(|(number, _)| *number == machine && class == 2 && order == 1);
    let built_for =
        known.map_or_else(|| format!("the unknown ELF machine {machine}"), |(_, name)| (*name).to_string());
    let here = std::env::consts::ARCH;
    if built_for != here {
        return Err(exit::lacks(format!(
            "the program is for {built_for}, but this machine is {here}\nhint: use the archive with {here} in \
             its name"
        )));
    }
    Ok(())
}
