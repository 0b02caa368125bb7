//! Where things lie on this machine: what a program for others does not tell.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::state::Build;

/// Folders of this machine, and what stands for each in a program.
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

/// Flags of clang and gcc by which files are called what stands for their folders: assertions name their files, and lines of
/// debuggers do. None for a program that stays here, whose lines a debugger is to find, nor where zig's scripts give them.
pub fn prefix_maps(build: &Build) -> Vec<String> {
    if build.plan.zig.is_some() || !build.plan.is_for_others() {
        return Vec::new();
    }
    let map = |(place, name): (PathBuf, &str)| format!("-ffile-prefix-map={}={name}", place.display());
    places(build.workspace.root()).map(map).collect()
}

/// The same for CMake, in a file that it reads at llama.cpp's `project`; nothing where there are none. nvcc hands them to
/// the compiler of the CPU's side, by which it reads all files.
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
    // Brackets: CMake looks for nothing in what stands between them.
    let options = |language: &str, before: &str| {
        maps.iter()
            .map(|map| format!("  [==[$<$<COMPILE_LANGUAGE:{language}>:{before}{map}>]==]\n"))
            .collect::<String>()
    };
    format!(
        "# No folder of this machine in what is made for others: written by Anneal.\nadd_compile_options(\n{}{})\n",
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
