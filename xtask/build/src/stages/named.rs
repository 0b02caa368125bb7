//! Lookup of finished builds by name.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use base::exit;
use build_info::BuildInfo;

use super::folder::Builds;
use super::planned;
use crate::process::Executable;
use crate::profile;
use crate::workspace::Workspace;

/// Returns the folder of the build `name`. The name is a profile with a current build, possibly with overrides
/// (`native+repack:false`), or a build folder in the output of `show`.
///
/// # Errors
/// If the profile `name` has no build; a usage error if no profile and no build is called `name`.
pub fn named(workspace: &Workspace, name: &str) -> Result<PathBuf> {
    let finished = |folder: &PathBuf| folder.join("bin/anneal").is_file();
    // A name must not be a path.
    let plain = !name.is_empty() && !name.contains('/') && name != "." && name != "..";
    let folder = Some(workspace.current(name)).filter(|folder| plain && finished(folder));
    if let Some(folder) = folder {
        return Ok(folder);
    }
    let there = match current(workspace).as_slice() {
        [] => "no build is finished yet".to_string(),
        names => format!("finished builds: {}", names.join(", ")),
    };
    let profiles = workspace.build_profiles();
    if let Ok(known) = profile::load(&profiles, name) {
        // The name is normalised, because values may contain characters that are not allowed in file names.
        let folder = workspace.current(&known.name);
        if finished(&folder) {
            return Ok(folder);
        }
        return Err(anyhow!(
            "{name} has no build; {there}\nhint: to build {name}, run `cargo xtask build --profile {name}`"
        ));
    }
    let known = profile::names(&profiles).unwrap_or_default().join(", ");
    Err(exit::usage(format!(
        "unknown build {name:?}; {there}; profiles: {known}\nhint: `cargo xtask show` lists all builds; a \
         build that `pgo` or `bolt` keeps becomes the current build of its profile"
    )))
}

/// Returns the engine of the finished build in `folder`, with the emulator that runs it on this machine, if needed.
///
/// # Errors
/// If the record cannot be read or the emulator is missing.
pub fn executable(folder: &Path) -> Result<Executable> {
    let anneal = Executable::new(folder.join("bin/anneal"));
    let info = BuildInfo::read(&folder.join("build_info.json"))?;
    if let Some(reason) = &info.not_run {
        bail!("{} cannot be run here: {reason}", info.profile);
    }
    if info.emulated.is_none() {
        return Ok(anneal);
    }
    let plan = planned::read(folder, &info.plan_hash)?;
    Ok(anneal.after(plan.emulator_command()))
}

/// Returns the profiles that have a current build.
fn current(workspace: &Workspace) -> Vec<String> {
    let found = Builds::of(workspace).all().unwrap_or_default();
    found.into_iter().filter_map(|build| build.current_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_finds_its_build_or_says_which_there_are() {
        let folder = tempfile::tempdir().unwrap();
        let workspace = Workspace::at(folder.path());
        std::fs::create_dir_all(workspace.build_profiles()).unwrap();
        let own = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles/build");
        for name in ["base", "native", "portable"] {
            let file = format!("{name}.toml");
            std::fs::copy(own.join(&file), workspace.build_profiles().join(&file)).unwrap();
        }
        let build = |name: &str| {
            let folder = format!("{name}-0123456789ab");
            let made = workspace.anneal().join(&folder);
            for inside in ["bin", "stages"] {
                std::fs::create_dir_all(made.join(inside)).unwrap();
            }
            std::fs::write(made.join("bin/anneal"), "").unwrap();
            std::os::unix::fs::symlink(&folder, workspace.current(name)).unwrap();
        };
        build("native");
        let flags = "native+extra_flags:-fno-plt,-fwrapv";
        let set = profile::load(&workspace.build_profiles(), flags).unwrap().name;
        assert!(!set.contains(','), "{set}");
        build(&set);

        for (name, expected) in [
            ("native", "native"),
            (flags, &set),
            (&set, &set),
            ("native-0123456789ab", "native-0123456789ab"),
        ] {
            assert_eq!(named(&workspace, name).unwrap(), workspace.current(expected), "{name}");
        }
        let cases = [
            ("portable", 1, "portable has no build; finished builds: native"),
            ("native+repack:false", 1, "has no build"),
            ("native-pgo", 2, "unknown build \"native-pgo\"; finished builds: native"),
            ("nope", 2, "profiles: native, portable"),
            ("native+nope:1", 2, "unknown build"),
            ("..", 2, "unknown build"),
            ("", 2, "unknown build"),
        ];
        for (name, code, words) in cases {
            let error = named(&workspace, name).unwrap_err();
            assert_eq!(exit::code_of(&error), code, "{name}: {error}");
            assert!(error.to_string().contains(words), "{name}: {error}");
        }
    }
}
