//! One file for each origin: from wherever it is to an unpacked tree in the staging folder.

pub(crate) mod git;
pub(crate) mod krate;
pub(crate) mod path;
pub(crate) mod sdist;

/// What a fetch knows of the tree that it unpacked.
pub(crate) struct Fetched {
    /// Version within the origin; `None` where only the digest tells one tree from another.
    pub(crate) version: Option<String>,
    /// The commit, or what llama.cpp shall name in its place; `None` likewise.
    pub(crate) build_commit: Option<String>,
    /// Where the tree was taken from, for people.
    pub(crate) from: String,
    /// What to do if it is not the pinned one.
    pub(crate) mend: String,
}

/// A commit as llama.cpp prints it.
fn short(commit: &str) -> String {
    commit.chars().take(9).collect()
}
