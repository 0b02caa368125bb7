//! Trial of patches on another version of llama.cpp.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::patch::{INSTALL_GIT, Patch, git_apply};
use crate::tools::{Tools, run};
use crate::{digest, folder};

/// Result of applying a patch to another version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PatchFit {
    /// Every hunk applies at its line.
    Applies,
    /// Every hunk applies, but some at other lines.
    Moved,
    /// The version already contains the change.
    Contained,
    /// At least one hunk does not apply.
    Fails,
}

/// Patch that was tried on another version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatchTrial {
    /// File name of the patch.
    pub name: String,
    /// Result of the trial.
    pub fit: PatchFit,
    /// Moved hunks with their distances, or the first hunk of each file that does not apply.
    pub hunks: Vec<String>,
    /// Earlier patches that do not apply and change a file of this patch. They may be the cause if this patch fails.
    pub after: Vec<String>,
}

impl fmt::Display for PatchFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            PatchFit::Applies => "applies",
            PatchFit::Moved => "applies with moved context",
            PatchFit::Contained => "already contained upstream",
            PatchFit::Fails => "does not apply",
        })
    }
}

impl fmt::Display for PatchTrial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.fit)?;
        if !self.hunks.is_empty() {
            write!(f, ": {}", self.hunks.join("; "))?;
        }
        if self.fit == PatchFit::Fails && !self.after.is_empty() {
            write!(f, "; changes a file of {}, which does not apply either", self.after.join(", "))?;
        }
        Ok(())
    }
}

/// Tries `patches` in order on a copy of the unpatched tree `tree`. The copy is made in a temporary folder in `beside`.
/// A patch that does not apply is left out before the next patch is tried.
///
/// # Errors
/// If the tree cannot be copied, or git is missing.
pub(crate) fn try_patches(
    tree: &Path,
    patches: &[Patch],
    beside: &Path,
    tools: &Tools,
) -> Result<Vec<PatchTrial>> {
    run(tools.git().arg("--version"), INSTALL_GIT)?;
    fs::create_dir_all(beside).with_context(|| format!("cannot create {}", beside.display()))?;
    let scratch = base::scratch_in(beside, ".trial-")
        .with_context(|| format!("cannot create a folder in {}", beside.display()))?;
    let copy = scratch.path().join("llama.cpp");
    folder::copy(&digest::files(tree)?, &copy)?;
    let mut trials: Vec<PatchTrial> = Vec::new();
    let mut failed: Vec<(&str, Vec<String>)> = Vec::new();
    for patch in patches {
        let text = fs::read(&patch.path).with_context(|| format!("cannot read {}", patch.path.display()))?;
        let text = String::from_utf8_lossy(&text);
        let own = changed_files(&text);
        let (fit, hunks) = try_one(patch, &text, &copy, tools)?;
        let shares = |(_, files): &&(&str, Vec<String>)| files.iter().any(|file| own.contains(file));
        let after = failed.iter().filter(shares).map(|(name, _)| name.to_string()).collect();
        if fit == PatchFit::Fails {
            failed.push((&patch.name, own));
        }
        trials.push(PatchTrial { name: patch.name.clone(), fit, hunks, after });
    }
    Ok(trials)
}

/// Tries one patch on `tree`, and applies the patch if possible.
fn try_one(patch: &Patch, text: &str, tree: &Path, tools: &Tools) -> Result<(PatchFit, Vec<String>)> {
    let git = |further: &[&str]| -> Result<Output> {
        let mut command = git_apply(patch, tree, tools, further);
        command.stdin(Stdio::null()).output().context("cannot run git apply")
    };
    let applied = git(&[])?;
    let said = String::from_utf8_lossy(&applied.stderr).into_owned();
    if applied.status.success() {
        let moved = moved_hunks(&said);
        return Ok((if moved.is_empty() { PatchFit::Applies } else { PatchFit::Moved }, moved));
    }
    if git(&["--check", "--reverse"])?.status.success() {
        return Ok((PatchFit::Contained, Vec::new()));
    }
    Ok((PatchFit::Fails, failed_hunks(&said, text)))
}

/// Returns the files that a patch changes.
fn changed_files(patch: &str) -> Vec<String> {
    patch.lines().filter_map(|line| line.strip_prefix("+++ b/")).map(str::to_string).collect()
}

/// Returns the moved hunks in the messages of `git apply --verbose`, such as `ggml.c: hunk 2, 12 lines down`.
fn moved_hunks(said: &str) -> Vec<String> {
    let (mut file, mut moved) = ("", Vec::new());
    for line in said.lines() {
        if let Some(name) = line.strip_prefix("Checking patch ").and_then(|rest| rest.strip_suffix("...")) {
            file = name;
        }
        // Hunk #2 succeeded at 620 (offset -5 lines).
        let offset = line.strip_prefix("Hunk #").and_then(|rest| {
            let (number, rest) = rest.split_once(" succeeded at ")?;
            let (_, offset) = rest.split_once("(offset ")?;
            Some((number, offset.split_whitespace().next()?.parse::<i64>().ok()?))
        });
        if let Some((number, offset)) = offset.filter(|(_, offset)| *offset != 0) {
            let side = if offset < 0 { "up" } else { "down" };
            let lines = match offset.unsigned_abs() {
                1 => "1 line".to_string(),
                many => format!("{many} lines"),
            };
            moved.push(format!("{file}: hunk {number}, {lines} {side}"));
        }
    }
    // git reports a hunk again when it writes the file.
    moved.dedup();
    moved
}

/// Returns the first hunk of each file that does not apply, from the messages of `git apply`.
fn failed_hunks(said: &str, patch: &str) -> Vec<String> {
    let mut failed = Vec::new();
    for line in said.lines() {
        let Some(error) = line.strip_prefix("error: ") else { continue };
        if let Some((file, line)) = error.strip_prefix("patch failed: ").and_then(|at| at.rsplit_once(':')) {
            let hunk = hunk_at(patch, file, line);
            failed.push(hunk.map_or(format!("{file}:{line}"), |hunk| format!("{file}: {hunk}")));
        } else if !error.ends_with(": patch does not apply") && error != "while searching for:" {
            failed.push(error.to_string());
        }
    }
    failed
}

/// Returns the header of the hunk of `file` that begins at `line` of the original.
fn hunk_at<'a>(patch: &'a str, file: &str, line: &str) -> Option<&'a str> {
    let of_file = patch.lines().skip_while(|text| text.strip_prefix("+++ b/") != Some(file)).skip(1);
    let mut hunks =
        of_file.take_while(|text| !text.starts_with("+++ ")).filter(|text| text.starts_with("@@ -"));
    hunks.find(|hunk| hunk[4..].split([',', ' ']).next() == Some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_git_name_the_hunks() {
        let said = "Checking patch a/x.c...\nHunk #2 succeeded at 620 (offset -5 lines).\n\
                    Hunk #3 succeeded at 700 (offset 12 lines).\nHunk #4 succeeded at 9.\nChecking patch y.c...\n";
        assert_eq!(moved_hunks(said), ["a/x.c: hunk 2, 5 lines up", "a/x.c: hunk 3, 12 lines down"]);
        assert_eq!(moved_hunks("Checking patch x...\nApplied patch x cleanly.\n"), [""; 0]);
        let patch =
            "--- a/x.c\n+++ b/x.c\n@@ -12,3 +12,4 @@ int main(void)\n one\n@@ -120,3 +121,4 @@ other\n";
        let cases = [
            (
                "error: patch failed: x.c:120\nerror: x.c: patch does not apply\n",
                "x.c: @@ -120,3 +121,4 @@ other",
            ),
            (
                "error: while searching for:\n one\n\nerror: patch failed: x.c:12\n",
                "x.c: @@ -12,3 +12,4 @@ int main(void)",
            ),
            ("error: patch failed: y.c:7\n", "y.c:7"),
            ("error: z.c: No such file or directory\n", "z.c: No such file or directory"),
        ];
        for (said, expected) in cases {
            assert_eq!(failed_hunks(said, patch), [expected], "{said}");
        }
    }
}
