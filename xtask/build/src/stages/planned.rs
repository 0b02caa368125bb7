//! Stored plan of a build folder.

use std::path::Path;

use anyhow::{Context, Result};
use build_info::Sha256;
use plan::Plan;

/// Returns the plan of the build in `folder`, whose record has the plan hash `hash`.
///
/// # Errors
/// If the plan cannot be read, or was written by a different version of this program.
pub fn read(folder: &Path, hash: &Sha256) -> Result<Plan> {
    let path = folder.join("plan.json");
    let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Plan::parse(&text, hash).with_context(|| {
        format!("{} was written by another version of cargo xtask\nhint: build it again", path.display())
    })
}

#[cfg(test)]
mod tests {
    use plan::testing::reference_plan;

    use super::*;

    #[test]
    fn a_plan_is_read_again_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let write = |text: &str| std::fs::write(folder.path().join("plan.json"), text).unwrap();
        for profile in ["native", "portable", "upstream-default"] {
            let written = reference_plan(profile).relocatable();
            write(&serde_json::to_string_pretty(&written).unwrap());
            let read = read(folder.path(), &written.hash()).unwrap();
            assert_eq!(
                (read.hash(), read.codegen, read.variant),
                (written.hash(), written.codegen, written.variant)
            );
        }
        let hash = reference_plan("native").hash();
        for text in ["", "{}", &serde_json::to_string(&reference_plan("portable")).unwrap()] {
            write(text);
            let error = read(folder.path(), &hash).unwrap_err().to_string();
            assert!(error.contains("another version of cargo xtask"), "{error}");
        }
    }
}
