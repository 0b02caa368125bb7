//! The tables of the results page.
