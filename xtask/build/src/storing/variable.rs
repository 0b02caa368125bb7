//! Environment variable of stores.

/// Environment variable with the location of a store.
pub const VARIABLE: &str = "ANNEAL_STORE";
