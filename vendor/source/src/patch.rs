//! Patches: unified diffs with a header that states their purpose.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha256::Sha256;

use crate::digest::Listing;
use crate::progress::FetchProgress;
use crate::tools::{Tools, run};

/// Hint for a missing git.
pub(crate) const INSTALL_GIT: &str = "install git, which applies the patches";

/// Patch with a valid header.
#[derive(Clone, Debug)]
pub struct Patch {
    /// File name of the patch.
    pub name: String,
    /// SHA-256 of the patch file.
    pub digest: Sha256,
    /// Reason for the patch, from its header `Why:`, as one line.
    pub why: String,
    /// Condition under which the patch can be removed, from its header `Upstream:`, as one line.
    pub upstream: Option<String>,
    /// Disadvantage of a build without the patch, from its header `Optional:`. `None` if the patch must apply.
    pub optional: Option<String>,
    pub(crate) path: PathBuf,
}

/// Loads the patches in `dir`, in the order of application: ascending by name.
pub(crate) fn load(dir: &Path) -> Result<Vec<Patch>> {
    let failed = || format!("cannot list the patches in {}", dir.display());
    let mut patches = Vec::new();
    for entry in fs::read_dir(dir).with_context(failed)? {
        let path = entry.with_context(failed)?.path();
        if path.extension().is_none_or(|extension| extension != "patch") {
            continue;
        }
        let path = path.canonicalize().with_context(|| format!("cannot read {}", path.display()))?;
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let name =
            path.file_name().and_then(|name| name.to_str()).context("a patch whose name is not UTF-8")?;
        let why = header(&text, "Why").with_context(|| {
            format!(
                "the patch {name} does not say why it exists\nhint: add a line `Why: …` above its first diff \
                 (see {})",
                dir.join("README.md").display()
            )
        })?;
        patches.push(Patch {
            name: name.to_string(),
            digest: Sha256::of(&text),
            why,
            upstream: header(&text, "Upstream"),
            optional: header(&text, "Optional"),
            path,
        });
    }
    patches.sort_by(|one, other| one.name.as_bytes().cmp(other.name.as_bytes()));
    Ok(patches)
}

/// Returns the value of the header `key:` above the first diff, as one line. The value ends at an empty line or at the
/// next header.
fn header(patch: &[u8], key: &str) -> Option<String> {
    let text = String::from_utf8_lossy(patch);
    let mut above = text.lines().take_while(|line| !line.starts_with("diff ") && !line.starts_with("--- "));
    let first = above.find_map(|line| {
        let value = line.strip_prefix(key)?.strip_prefix(':')?.trim();
        (!value.is_empty()).then_some(value)
    })?;
    let rest = above.take_while(|line| !line.trim().is_empty() && !is_header(line)).map(str::trim);
    Some(std::iter::once(first).chain(rest).collect::<Vec<_>>().join(" "))
}

/// True if `line` begins a header, such as `Upstream: …`.
fn is_header(line: &str) -> bool {
    line.split_once(':').is_some_and(|(name, _)| {
        name.starts_with(|first: char| first.is_ascii_uppercase())
            && name.chars().all(|letter| letter.is_ascii_alphabetic() || letter == '-')
    })
}

/// Creates the command that applies `patch` to `tree`, with further arguments of `git apply`.
pub(crate) fn git_apply(patch: &Patch, tree: &Path, tools: &Tools, further: &[&str]) -> Command {
    let mut git = tools.git();
    git.args(["-c", "apply.ignoreWhitespace=no", "apply", "--verbose", "--whitespace=nowarn", "-p1"])
        .args(further)
        .arg("--")
        .arg(&patch.path)
        .current_dir(tree)
        // The messages are parsed.
        .env("LC_ALL", "C")
        // The store is in the target folder of a repository. If git found that repository, it would resolve the patch's
        // paths from the top of the repository, find no paths below this folder, and succeed without a change.
        .env("GIT_CEILING_DIRECTORIES", tree.parent().unwrap_or(tree));
    git
}

/// Applies `patch` to `tree`, whose listing is `before`. Returns the new listing, or `None` if the patch is optional
/// and does not apply to this tree.
pub(crate) fn apply(
    patch: &Patch,
    tree: &Path,
    before: &Listing,
    tools: &Tools,
    progress: FetchProgress<'_>,
) -> Result<Option<Listing>> {
    let tree = tree.canonicalize().with_context(|| format!("cannot open {}", tree.display()))?;
    let git = |further: &[&str]| git_apply(patch, &tree, tools, further);
    if let Some(lost) = &patch.optional
        && run(&mut git(&["--check"]), INSTALL_GIT).is_err()
    {
        // A missing git is still an error. Otherwise, machines with git and machines without git would build
        // different trees.
        run(tools.git().arg("--version"), INSTALL_GIT)?;
        progress(&format!(
            "the patch {} does not apply to this version of llama.cpp and is skipped: {lost}",
            patch.name
        ));
        return Ok(None);
    }
    run(&mut git(&[]), INSTALL_GIT).with_context(|| {
        format!(
            "the patch {} does not apply to this version of llama.cpp\nhint: recreate it, or remove it if upstream \
             contains the change",
            patch.name
        )
    })?;
    let after = Listing::of(&tree)
        .with_context(|| format!("the patch {} creates an invalid source tree", patch.name))?;
    if after == *before {
        bail!("the patch {} changes nothing in this version of llama.cpp\nhint: remove it", patch.name);
    }
    Ok(Some(after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_says_why_above_the_first_diff() {
        let cases = [
            ("Why: gcc 11 rejects it\n--- a/x\n+++ b/x\n", true),
            ("Subject: mend\n\nWhy: it is wrong\n\ndiff --git a/x b/x\n--- a/x\n", true),
            ("--- a/x\n+++ b/x\nWhy: too late\n", false),
            ("diff --git a/x b/x\n", false),
            ("Why:  \n--- a/x\n", false),
            ("Mend the build.\n--- a/x\n", false),
            ("", false),
        ];
        for (text, expected) in cases {
            assert_eq!(header(text.as_bytes(), "Why").is_some(), expected, "{text:?}");
        }
    }

    #[test]
    fn a_header_ends_at_the_next_header_or_an_empty_line() {
        let text = b"Why: it is\nslow on: some machines\nOptional: slow\n\nUpstream: sent\n\nmore\n--- a/x\n";
        let cases = [("Why", "it is slow on: some machines"), ("Optional", "slow"), ("Upstream", "sent")];
        for (key, expected) in cases {
            assert_eq!(header(text, key).as_deref(), Some(expected), "{key}");
        }
    }
}
