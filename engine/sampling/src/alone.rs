//! Grammar checks that need no model.

use llama::error::Result;
use llguidance::api::ParserLimits;

use crate::gbnf;
use crate::guide::with_stack;

/// Size of a fictitious vocabulary, in tokens; none of the tokens has a name.
const N_VOCAB: u32 = 1000;

/// Checks that `text` is a valid GBNF grammar. Names of tokens are not checked.
///
/// # Errors
/// The error and its position, as text.
pub fn check_gbnf(text: &str) -> std::result::Result<(), String> {
    let grammar = gbnf::read(text, &|_| None)?;
    let translated: Result<std::result::Result<_, String>> =
        with_stack(move || gbnf::translate(grammar, N_VOCAB, &[], &ParserLimits::default()).map(drop));
    translated.map_err(|error| error.to_string())?
}
