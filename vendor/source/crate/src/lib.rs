//! Empty crate; Cargo.toml explains its purpose.
