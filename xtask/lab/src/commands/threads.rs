//! The range of `--threads`.

/// Most threads that the engine takes.
pub const MOST_THREADS: i64 = 512;
