//! Grammars in GBNF, llama.cpp's notation: [`read`] parses a grammar, and [`translate`] turns it into a grammar for
//! llguidance.

mod grammar;
mod lexemes;
mod read;
mod regular;
mod repeats;
mod translate;

pub(crate) use read::read;
pub(crate) use translate::translate;
