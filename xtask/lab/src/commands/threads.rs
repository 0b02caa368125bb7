//! Range of `--threads`.

/// Maximum number of threads that the engine accepts.
pub const MOST_THREADS: i64 = 512;
