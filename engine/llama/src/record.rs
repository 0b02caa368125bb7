//! Record of the build of this program.

use std::path::PathBuf;

/// Path of the record of this build, if it has one: `build_info.json` in the executable's folder or in the one above
/// it (`bin/anneal` in a build folder).
pub fn path() -> Option<PathBuf> {
    let executable = std::env::current_exe().ok()?;
    let folder = executable.parent()?;
    let candidates = [Some(folder), folder.parent()];
    candidates
        .into_iter()
        .flatten()
        .map(|folder| folder.join("build_info.json"))
        // Any kind of entry counts here: if it is not a file, reading it reports that.
        .find(|path| path.exists())
}
