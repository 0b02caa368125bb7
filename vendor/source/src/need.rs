//! Result of comparing the present build with a build without one patch. `vendor status` prints it.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha256::Sha256;

use crate::patch::Patch;

/// Largest size of a record in bytes. A record contains all samples of a comparison.
const LARGEST: u64 = 16 << 20;

/// Verdict on a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Need {
    /// The build without the patch fails, is slower, or gives another output.
    Needed,
    /// No figure is worse without the patch, on this machine and with this model.
    NotShown,
    /// The measurements were inconclusive.
    CannotTell,
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Need::Needed => "needed",
            Need::NotShown => "no figure is worse without it",
            Need::CannotTell => "cannot tell",
        })
    }
}

/// Verdict on a patch, with the sources that were built.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PatchNeed {
    /// File name of the patch.
    pub patch: String,
    /// Digest of the patch.
    pub patch_digest: Sha256,
    /// Digest of llama.cpp without patches.
    pub tree: Sha256,
    /// Verdict.
    pub need: Need,
    /// Reasons for the verdict.
    pub reasons: Vec<String>,
}

impl PatchNeed {
    /// Returns the path of the record of the patch `name` below `root`, which is `target/anneal`.
    pub fn path(root: &Path, name: &str) -> PathBuf {
        root.join("upgrade").join(format!("without-{}.json", name.trim_end_matches(".patch")))
    }

    /// Reads the verdict on `patch` and the sources `tree`. Returns `None` if there is no such verdict, or if it is
    /// about another version of the patch or of llama.cpp.
    pub fn read(root: &Path, patch: &Patch, tree: &Sha256) -> Option<Self> {
        let text = base::read(&Self::path(root, &patch.name), LARGEST).ok()?;
        let need: Self = serde_json::from_slice(&text).ok()?;
        (need.patch_digest == patch.digest && need.tree == *tree).then_some(need)
    }
}

impl fmt::Display for PatchNeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.need)?;
        let first_lines = self.reasons.iter().map(|reason| reason.lines().next().unwrap_or_default());
        match self.need {
            Need::NotShown => Ok(()),
            _ => write!(f, ": {}", first_lines.collect::<Vec<_>>().join("; ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patch;

    #[test]
    fn a_verdict_is_read_only_for_its_own_sources() {
        let temp = tempfile::tempdir().unwrap();
        let (root, patches) = (temp.path(), temp.path().join("patches"));
        std::fs::create_dir_all(&patches).unwrap();
        std::fs::create_dir_all(root.join("upgrade")).unwrap();
        std::fs::write(patches.join("0001-a.patch"), "Why: a reason.\n\n--- a\n+++ b\n").unwrap();
        let patch = patch::load(&patches).unwrap().remove(0);
        let [tree, other] = ["one", "other"].map(Sha256::of);
        assert_eq!(PatchNeed::read(root, &patch, &tree), None);
        let need = PatchNeed {
            patch: patch.name.clone(),
            patch_digest: patch.digest.clone(),
            tree: tree.clone(),
            need: Need::Needed,
            reasons: vec!["decode is slower\nby far".to_string()],
        };
        let path = PatchNeed::path(root, &patch.name);
        std::fs::write(&path, serde_json::to_vec(&need).unwrap()).unwrap();
        assert_eq!(PatchNeed::read(root, &patch, &tree), Some(need.clone()));
        assert_eq!(PatchNeed::read(root, &patch, &other), None);
        assert_eq!(need.to_string(), "needed: decode is slower");
        let changed = Patch { digest: other, ..patch };
        assert_eq!(PatchNeed::read(root, &changed, &tree), None);
    }
}
