//! The environment variable of stores.

/// The variable that names a store.
pub const VARIABLE: &str = "ANNEAL_STORE";
