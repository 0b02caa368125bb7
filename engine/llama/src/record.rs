//! Paths of the files that belong to this program: the build record and the kernel libraries.

use std::path::{Path, PathBuf};

use build_info::record::WHEEL_FOLDER;

/// Returns the path of this build's record, if the file exists: `build_info.json` in the wheel's folder, in the
/// executable's folder, or in the folder above (for `bin/anneal` in a build folder).
pub fn path() -> Option<PathBuf> {
    record_of(&std::env::current_exe().ok()?)
}

fn record_of(program: &Path) -> Option<PathBuf> {
    let folder = program.parent()?;
    let candidates = [wheel_of(program), Some(folder.to_path_buf()), folder.parent().map(Path::to_path_buf)];
    candidates
        .into_iter()
        .flatten()
        .map(|folder| folder.join("build_info.json"))
        // Any kind of entry is accepted: if the entry is not a file, reading it reports the error.
        .find(|path| path.exists())
}

/// Returns the folder of the kernel libraries of `program`: the wheel's folder if the program was installed from a
/// wheel, else `lib`, next to the program's folder.
pub fn kernels_of(program: &Path) -> PathBuf {
    let above = program.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    wheel_of(program).unwrap_or_else(|| above.join("lib"))
}

fn wheel_of(program: &Path) -> Option<PathBuf> {
    let folder = program.parent()?.parent()?.join(WHEEL_FOLDER);
    folder.is_dir().then_some(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wheel_keeps_its_files_apart_from_those_of_other_packages() {
        let prefix = tempfile::tempdir().unwrap();
        let at = |name: &str| prefix.path().join(name);
        let program = at("bin/anneal");
        assert_eq!((record_of(&program), kernels_of(&program)), (None, at("lib")));
        std::fs::write(at("build_info.json"), "{}").unwrap();
        assert_eq!(record_of(&program), Some(at("build_info.json")));
        // The environment may contain a file of the same name from another package.
        std::fs::create_dir_all(at("lib/anneal-wheel")).unwrap();
        std::fs::write(at("lib/anneal-wheel/build_info.json"), "{}").unwrap();
        assert_eq!(record_of(&program), Some(at("lib/anneal-wheel/build_info.json")));
        assert_eq!(kernels_of(&program), at("lib/anneal-wheel"));
        assert_eq!(kernels_of(Path::new("/anneal")), Path::new("/lib"));
    }
}
