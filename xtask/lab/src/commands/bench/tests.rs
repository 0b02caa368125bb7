//! Tests that generate the documentation's excerpts of `docs/results`.

mod page;
mod picture;
