//! Rewriting of a program by BOLT.

use std::path::Path;

use anyhow::{Context, Result, bail};
use build_info::Bytes;
use build_info::optimized::Layout;
use plan::bolt::{self, BoltTools};

use super::super::state::Build;
use super::elf;
use super::gather::Profile;
use super::report::BoltReader;
use super::request::{BoltTarget, fresh};
use crate::fs;
use crate::process::Run;
use crate::ui::Progress;

/// Maximum growth factor of a program. The old code stays in the file, because pointers that BOLT cannot trace may
/// point to it. The code, which is a third of the engine, therefore occurs twice. A program that more than
/// doubles in size indicates an error in BOLT and would start more slowly.
const GROWTH: u64 = 2;
/// Additional bytes allowed for a small program, for padding to pages of 2 MiB.
const PADDING: u64 = 16 << 20;

/// Returns the inputs of the stage other than the profile, whose digest is part of the build folder's name.
pub fn input(program: &Path, tools: &BoltTools) -> Result<String> {
    let digest = fs::digest_file(program)?;
    Ok(format!("{digest} {} {}", tools.bolt.version, bolt::rewrite().join(" ")))
}

/// Rewrites `program` and writes the result to the path of the engine's candidate. `size` is the program's size before
/// it was linked with relocations.
///
/// # Errors
/// If llvm-bolt fails or its output is unusable.
pub fn rewrite(
    build: &Build,
    program: &BoltTarget,
    profile: &Profile,
    tools: &BoltTools,
    size: Bytes,
    progress: &mut Progress,
) -> Result<()> {
    let candidate = build.folder.candidate();
    let folder = candidate.parent().unwrap_or(build.folder.path());
    fresh(folder)?;
    // The output is written next to the candidate until it is complete, because any file at the candidate's path is
    // assumed to be the newest engine. The name is fixed, unlike the temporary names of `base`, because BOLT writes its
    // command line into the program.
    let beside = folder.join(format!("{}.bolt", program.name));
    let mut reader = BoltReader::default();
    Run::new(&tools.bolt.path, &build.log)
        .args([&program.path])
        .args(["-o".as_ref(), beside.as_os_str()])
        .args(["-data".as_ref(), profile.of(program)?.as_os_str()])
        .args(bolt::rewrite())
        .watch(|_, line| {
            reader.line(line);
            progress.message(line.trim_start_matches("BOLT-INFO: "));
        })?;
    let layout = reader.layout();
    check_size(&beside, size)?;
    elf::check_output(&program.path, &beside)?;
    if layout.hot_functions == 0 {
        bail!(
            "the profile in {} matches no function of {}\nhint: remove the profile, then run the same \
             command again, which gathers a new profile",
            profile.folder().display(),
            program.path.display()
        );
    }
    fs::write_atomically(&build.folder.path().join("layout.json"), &serde_json::to_vec(&layout)?)?;
    std::fs::rename(&beside, &candidate)
        .with_context(|| format!("cannot move {} into place", candidate.display()))
}

/// Returns the layout statistics and the options that BOLT was run with.
pub fn result(build: &Build) -> Result<(Layout, Vec<String>)> {
    let path = build.folder.path().join("layout.json");
    let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let layout = serde_json::from_slice(&text).with_context(|| format!("cannot parse {}", path.display()))?;
    Ok((layout, bolt::rewrite()))
}

fn check_size(made: &Path, before: Bytes) -> Result<()> {
    let size = std::fs::metadata(made).with_context(|| format!("cannot examine {}", made.display()))?.len();
    let most = before.0 * GROWTH + PADDING;
    if size > most {
        bail!(
            "llvm-bolt enlarged the program from {before} to {}: loading more than {} at every start costs \
             more time than a better layout saves",
            Bytes(size),
            Bytes(most)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_grew_too_much_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let made = folder.path().join("made");
        let file = std::fs::File::create(&made).unwrap();
        file.set_len(60 << 20).unwrap();
        check_size(&made, Bytes(23 << 20)).unwrap();
        let error = check_size(&made, Bytes(21 << 20)).unwrap_err().to_string();
        assert!(error.contains("60") && error.contains("21"), "{error}");
    }
}
