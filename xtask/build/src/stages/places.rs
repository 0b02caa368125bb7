//! Folders of this machine, which must not appear in a program for other machines.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::state::Build;

/// Returns the folders whose paths must not appear in a distributed program (workspace, cargo, rustup), each with the
/// name that replaces its path.
pub fn places(root: &Path) -> impl Iterator<Item = (PathBuf, &'static str)> {
    let home = |name: &str, below: &str| {
        std::env::var_os(name).map(PathBuf::from).or_else(|| Some(std::env::home_dir()?.join(below)))
    };
    [
        (Some(root.to_path_buf()), "anneal"),
        (home("CARGO_HOME", ".cargo"), "cargo"),
        (home("RUSTUP_HOME", ".rustup"), "rustup"),
    ]
    .into_iter()
    .filter_map(|(place, name)| Some((place?, name)))
}

/// Returns the flags of clang and gcc that replace folders in file names, which occur in assertions and debug
/// information. Empty for a program that stays on this machine, where a debugger must find the files, and for zig,
/// whose scripts set the flags.
pub fn prefix_maps(build: &Build) -> Vec<String> {
    if build.plan.zig.is_some() || !build.plan.is_for_others() {
        return Vec::new();
    }
    let map = |(place, name): (PathBuf, &str)| format!("-ffile-prefix-map={}={name}", place.display());
    places(build.workspace.root()).map(map).collect()
}

/// Writes the flags to a file that CMake includes at llama.cpp's `project`, and returns its path; `None` if there are
/// no flags. nvcc passes the flags to the host compiler, which preprocesses all files.
///
/// # Errors
/// If the file cannot be written.
pub fn cmake_include(build: &Build) -> Result<Option<PathBuf>> {
    let maps = prefix_maps(build);
    if maps.is_empty() {
        return Ok(None);
    }
    let path = build.folder.path().join("places.cmake");
    crate::fs::write_atomically(&path, text(&maps).as_bytes())?;
    Ok(Some(path))
}

fn text(maps: &[String]) -> String {
    // CMake does not interpret the content of bracket arguments.
    let options = |language: &str, before: &str| {
        maps.iter()
            .map(|map| format!("  [==[$<$<COMPILE_LANGUAGE:{language}>:{before}{map}>]==]\n"))
            .collect::<String>()
    };
    format!(
        "# Keeps folders of this machine out of builds for other machines. Written by \
         Anneal.\nadd_compile_options(\n{}{})\n",
        options("C,CXX", ""),
        options("CUDA", "-Xcompiler=")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cmake_is_told_for_each_language() {
        let said = text(&["-ffile-prefix-map=/a b=anneal".to_string()]);
        assert!(
            said.contains("  [==[$<$<COMPILE_LANGUAGE:C,CXX>:-ffile-prefix-map=/a b=anneal>]==]\n"),
            "{said}"
        );
        assert!(
            said.contains("  [==[$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-ffile-prefix-map=/a b=anneal>]==]\n"),
            "{said}"
        );
    }
}
