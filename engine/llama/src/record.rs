//! The record of the build that this program is.

use std::path::PathBuf;

/// Path of the record of this build, if it has one: `build_info.json` in the executable's folder or in the one above it
/// (`bin/anneal` in a build folder).
pub fn path() -> Option<PathBuf> {
    let executable = std::env::current_exe().ok()?;
    let folder = executable.parent()?;
    let candidates = [Some(folder), folder.parent()];
    candidates
        .into_iter()
        .flatten()
        .map(|folder| folder.join("build_info.json"))
        // Whatever it is: what is no file is told of when it is read.
        .find(|path| path.exists())
}
