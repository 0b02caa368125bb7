//! The rewriting itself.

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

/// How many times its size a program may have afterwards. The old code stays in the file beside the new, since
/// pointers of programs that BOLT does not see through may lead there; so code, which is a third of the engine, comes
/// twice, and more than double the whole is a mistake of BOLT's that every start would pay for.
const GROWTH: u64 = 2;
/// What padding to pages of 2 MiB may add to a small one.
const PADDING: u64 = 16 << 20;

/// What the stage is run on, beyond the profile that names the build folder.
pub fn input(program: &Path, tools: &BoltTools) -> Result<String> {
    let digest = fs::digest_file(program)?;
    Ok(format!("{digest} {} {}", tools.bolt.version, bolt::rewrite().join(" ")))
}

/// Makes the engine's candidate of `program`, which had `size` before it was linked with relocations.
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
    // Beside, until it is seen to be whole: the newest engine is what lies in the candidate's place. The name is always the same,
    // unlike the temporary names of `base`: BOLT writes its command line into the program.
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
            "the profile in {} fits no function of {}: remove it, and run the same again to gather a new one",
            profile.folder().display(),
            program.path.display()
        );
    }
    fs::write_atomically(&build.folder.path().join("layout.json"), &serde_json::to_vec(&layout)?)?;
    std::fs::rename(&beside, &candidate)
        .with_context(|| format!("cannot put {} into place", candidate.display()))
}

/// What was done, and the options it was done with.
pub fn result(build: &Build) -> Result<(Layout, Vec<String>)> {
    let path = build.folder.path().join("layout.json");
    let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let layout =
        serde_json::from_slice(&text).with_context(|| format!("cannot understand {}", path.display()))?;
    Ok((layout, bolt::rewrite()))
}

fn check_size(made: &Path, before: Bytes) -> Result<()> {
    let size = std::fs::metadata(made).with_context(|| format!("cannot look at {}", made.display()))?.len();
    let most = before.0 * GROWTH + PADDING;
    if size > most {
        bail!(
            "llvm-bolt made a program of {} out of one of {before}: more than {} would cost more at every start than a \
             better layout gives back",
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
