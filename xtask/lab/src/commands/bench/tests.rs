//! Tests that generate the excerpts of `docs/results` in the documentation.

mod page;
mod picture;
