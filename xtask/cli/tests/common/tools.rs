//! Tools that a test needs in addition to those of every build.

use std::path::Path;

use toolchain::SearchPath;
use toolchain::setup::{Needs, Requirement, examine, list};

/// True if this machine has all `required` tools. Otherwise reports the running test as skipped. `cargo xtask test`
/// installs the tools if it can.
pub fn are_there(required: &[Requirement]) -> bool {
    let search = SearchPath::live(Path::new("no folder of tools"));
    let toolchain = toolchain::discover(&search, None);
    let needs = Needs { required: required.to_vec(), recommended: Vec::new() };
    let plan = examine(&needs, &toolchain, &search);
    if plan.missing.is_empty() {
        return true;
    }
    skipped::for_want_of(list(&plan.missing), plan.command_line());
    false
}
