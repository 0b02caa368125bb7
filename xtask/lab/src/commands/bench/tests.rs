//! Tests that write what the documentation shows of `docs/results`.

mod page;
mod picture;
