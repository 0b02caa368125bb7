//! Build of the CPU guard. The guard is compiled for any CPU of the architecture, regardless of the flags for other
//! code.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::features::{self, Feature};
use crate::link::Link;

/// Compiles `csrc/guard.c` with the list of required instruction sets, and links the whole archive.
///
/// # Errors
/// If the compiler fails, or a required instruction set cannot be checked.
pub fn build(link: &Link, out: &Path) -> Result<()> {
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").context("cargo sets CARGO_CFG_TARGET_ARCH")?;
    let required = required(link, &arch)?;
    std::fs::write(out.join("guard_required.h"), header(&required, &link.build_to_use))?;

    // `cc::Build::compile` is not used because CFLAGS and CFLAGS_<target> must not affect this file.
    let compiler = crate::compilers::c(link)?;
    let object = out.join("guard.o");
    let mut command = Command::new(&compiler);
    command.args([
        "-c",
        "csrc/guard.c",
        "-O2",
        "-fPIC",
        "-ffreestanding",
        "-fno-lto",
        "-fno-stack-protector",
    ]);
    match (&link.guard_flags, arch.as_str()) {
        (Some(flags), _) => command.args(flags),
        (None, "x86_64") => command.args(["-march=x86-64", "-mtune=generic"]),
        (None, "aarch64") => command.arg("-march=armv8-a"),
        (None, _) => &mut command,
    };
    command.arg("-I").arg(out).arg("-o").arg(&object);
    let output = command.output().with_context(|| format!("cannot run {}", compiler.display()))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("cannot compile the CPU guard with {}:\n{why}", compiler.display());
    }
    cc::Build::new().object(&object).cargo_metadata(false).try_compile("anneal_guard")?;

    println!("cargo::rustc-link-search=native={}", out.display());
    // The linker would otherwise drop the archive, because no code refers to the constructor.
    println!("cargo::rustc-link-lib=static:+whole-archive=anneal_guard");
    println!("cargo::rerun-if-changed=csrc/guard.c");
    Ok(())
}

/// Returns the instruction sets that the C++ code needs and those that rustc may use.
fn required(link: &Link, arch: &str) -> Result<Vec<&'static Feature>> {
    let names = link.isa_required.iter().map(String::as_str).chain(features::of_rustc(arch));
    features::resolve(arch, names)
}

fn header(required: &[&Feature], build_to_use: &str) -> String {
    let rows: String = required.iter().map(|feature| format!("    {} \\\n", feature.c_row())).collect();
    format!(
        "#define ANNEAL_GUARD_COUNT {}\n#define ANNEAL_GUARD_FEATURES \\\n{rows}\n#define ANNEAL_GUARD_USE {}\n",
        required.len(),
        c_string(build_to_use),
    )
}

fn c_string(text: &str) -> String {
    let mut quoted = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => quoted.extend(['\\', char::from(byte)]),
            b' '..=b'~' => quoted.push(char::from(byte)),
            // Octal escapes, because a hexadecimal escape in C consumes every hexadecimal digit that follows.
            _ => quoted.push_str(&format!("\\{byte:03o}")),
        }
    }
    quoted + "\""
}
