//! Comparison of the present build with a build without one patch.

use std::fmt;

use build_info::Sha256;
use llama_source::{Need, Patch, PatchNeed};
use serde::{Deserialize, Serialize};

use super::decision::{Body, Decision, UpgradeRecord};

/// Verdict on a patch, with the comparison that led to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WithoutRecord {
    /// Verdict.
    #[serde(flatten)]
    pub need: PatchNeed,
    /// Comparison. B is the build without the patch.
    pub comparison: UpgradeRecord,
}

impl WithoutRecord {
    /// Returns the verdict on `patch` of the sources `tree`. `comparison` decided whether a build without the patch may
    /// replace the present build.
    pub fn of(patch: &Patch, tree: &Sha256, comparison: UpgradeRecord) -> Self {
        let need = match comparison.decision {
            Decision::Kept => Need::NotShown,
            Decision::Left => Need::Needed,
            Decision::CannotTell => Need::CannotTell,
        };
        let need = PatchNeed {
            patch: patch.name.clone(),
            patch_digest: patch.digest.clone(),
            tree: tree.clone(),
            need,
            reasons: comparison.reasons.clone(),
        };
        Self { need, comparison }
    }
}

impl fmt::Display for WithoutRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.need.patch.trim_end_matches(".patch"), self.need.need)?;
        write!(f, "{}", Body(&self.comparison))
    }
}
