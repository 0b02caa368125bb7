//! Functions that may be called, and the parts of an answer.

use serde_json::{Map, Value};

/// A function that may be called.
#[derive(Clone, Debug, PartialEq)]
pub struct Offered {
    /// Its name.
    pub name: String,
    /// The schema of its arguments; none where it takes none.
    pub parameters: Option<Map<String, Value>>,
}

/// A part of an answer: what is certain of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Text.
    Text(String),
    /// A call begins: of the function of this name.
    Call(String),
    /// More of the arguments of the last call: JSON.
    Arguments(String),
}
