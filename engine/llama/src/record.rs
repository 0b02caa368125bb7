//! Path of the build record of this program.

use std::path::PathBuf;

/// Returns the path of this build's record, if the file exists: `build_info.json` in the executable's folder or in
/// the folder above (for `bin/anneal` in a build folder).
pub fn path() -> Option<PathBuf> {
    let executable = std::env::current_exe().ok()?;
    let folder = executable.parent()?;
    let candidates = [Some(folder), folder.parent()];
    candidates
        .into_iter()
        .flatten()
        .map(|folder| folder.join("build_info.json"))
        // Any kind of entry is accepted: if the entry is not a file, reading it reports the error.
        .find(|path| path.exists())
}
