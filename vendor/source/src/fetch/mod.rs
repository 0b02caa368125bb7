//! Fetchers, one file for each origin. Each fetcher puts an unpacked tree into the staging folder.

pub(crate) mod git;
pub(crate) mod krate;
pub(crate) mod path;
pub(crate) mod sdist;

/// Properties of an unpacked tree that its fetcher knows.
pub(crate) struct Fetched {
    /// Version within the origin; `None` if only the digest identifies the tree.
    pub(crate) version: Option<String>,
    /// Commit, or the text that llama.cpp shows instead of a commit; `None` if only the digest identifies the tree.
    pub(crate) build_commit: Option<String>,
    /// Origin of the tree, for messages.
    pub(crate) from: String,
    /// Instructions for the user if the tree does not match its pin.
    pub(crate) mend: String,
}

/// Shortens a commit as llama.cpp does.
fn short(commit: &str) -> String {
    commit.chars().take(9).collect()
}
