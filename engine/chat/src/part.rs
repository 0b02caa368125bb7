//! Functions that a model may call, and the parts of its answer.

use serde_json::{Map, Value};

/// Function that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Offered {
    /// Name of the function.
    pub name: String,
    /// JSON schema of the arguments. `None` if the function takes no arguments.
    pub parameters: Option<Map<String, Value>>,
}

/// Part of an answer that later output cannot change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Thoughts, without the markers and the white space around them.
    Thought(String),
    /// Text of the answer.
    Text(String),
    /// Start of a call to the named function.
    Call(String),
    /// Next piece of the JSON arguments of the last call.
    Arguments(String),
}
