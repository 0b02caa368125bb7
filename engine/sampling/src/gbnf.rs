//! Grammars in GBNF, llama.cpp's notation: [`read`] takes one apart, [`translate`] makes something of it that can be followed.

mod grammar;
mod lexemes;
mod read;
mod regular;
mod repeats;
mod translate;

pub(crate) use read::read;
pub(crate) use translate::translate;
