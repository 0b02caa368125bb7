//! The head of an ELF file: which machine it is for.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use base::exit;

/// `e_machine` of the machines that Anneal is built for, as Rust calls them.
const MACHINES: [(u16, &str); 2] = [(62, "x86_64"), (183, "aarch64")];

/// Refuses a program that is for another machine than this one, before anybody tries to run it.
///
/// # Errors
/// With exit code 69 when it is for another one.
pub fn check_host(program: &Path) -> Result<()> {
    let mut head = [0; 20];
    File::open(program)
        .and_then(|mut file| file.read_exact(&mut head))
        .with_context(|| format!("cannot read the head of {}", program.display()))?;
    ensure!(
        head.starts_with(b"\x7fELF"),
        "{} is no program for Linux: it has no ELF header",
        program.display()
    );
    let machine = u16::from_le_bytes([head[18], head[19]]);
    let (class, order) = (head[4], head[5]);
    let known = MACHINES.iter().find(|(number, _)| *number == machine && class == 2 && order == 1);
    let built_for =
        known.map_or_else(|| format!("machine {machine} of ELF"), |(_, name)| (*name).to_string());
    let here = std::env::consts::ARCH;
    if built_for != here {
        return Err(exit::lacks(format!(
            "it is built for {built_for} and this machine is {here}: take the archive with {here} in its name"
        )));
    }
    Ok(())
}
