//! Functions that a model may call, and the parts of its answer.

use serde_json::{Map, Value};

use super::scan::Scan;

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

/// Progress of the last call in an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallProgress {
    has_begun: bool,
    is_complete: bool,
    /// Position within the arguments.
    scan: Scan,
}

impl CallProgress {
    /// True if the answer contains a call.
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// True if the answer contains a call and the arguments of its last call are complete.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Advances past `part`.
    pub fn follow(&mut self, part: &Part) {
        match part {
            Part::Call(_) => *self = CallProgress { has_begun: true, ..CallProgress::default() },
            Part::Arguments(json) => {
                json.chars().for_each(|character| self.scan.follow(character));
                self.is_complete |= self.scan.depth == 0 && !self.scan.in_text;
            }
            Part::Text(_) | Part::Thought(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_complete_after_their_last_bracket() {
        for (arguments, is_complete) in [
            (&["{}"][..], true),
            (&["{\"a", "\": [1", "]}"], true),
            (&["{\"a\": \"}\""], false),
            (&["{\"a\": 1"], false),
            (&[], false),
        ] {
            let mut progress = CallProgress::default();
            assert!(!progress.has_begun() && !progress.is_complete());
            progress.follow(&Part::Call("f".to_string()));
            arguments.iter().for_each(|piece| progress.follow(&Part::Arguments(piece.to_string())));
            progress.follow(&Part::Text("and on {".to_string()));
            assert!(progress.has_begun());
            assert_eq!(progress.is_complete(), is_complete, "{arguments:?}");
        }
    }
}
