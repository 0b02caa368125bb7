//! Grammars without a model.

use llama::error::Result;
use llguidance::api::ParserLimits;

use crate::gbnf;
use crate::guide::with_stack;

/// Tokens of a vocabulary that nobody has; none of them has a name.
const N_VOCAB: u32 = 1000;

/// Whether `text` is a grammar in GBNF that can be followed, apart from the names of tokens in it.
///
/// # Errors
/// What is wrong, and where.
pub fn check_gbnf(text: &str) -> std::result::Result<(), String> {
    let grammar = gbnf::read(text, &|_| None)?;
    let translated: Result<std::result::Result<_, String>> =
        with_stack(move || gbnf::translate(grammar, N_VOCAB, &[], &ParserLimits::default()).map(drop));
    translated.map_err(|error| error.to_string())?
}
