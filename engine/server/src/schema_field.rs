//! Field of a request that contains the JSON schema of the answer, and positions in this schema.

use llama::error::Error;

/// Field that contains the JSON schema of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchemaField {
    /// Field with the whole schema.
    Whole(&'static str),
    /// Parameters of the tools that the answer may call, by their indices in `tools`. The schema comes from
    /// [`chat::forced_schema`].
    Tools(Vec<usize>),
}

impl SchemaField {
    /// Returns the name of the part of the request that is at `place` in the schema.
    pub fn name(&self, place: &str) -> String {
        let (name, rest) = match self {
            SchemaField::Whole(name) => ((*name).to_string(), place),
            SchemaField::Tools(tools) => match in_arguments(place) {
                Some((at, rest)) if at < tools.len() => {
                    (format!("tools[{}].function.parameters", tools[at]), rest)
                }
                _ => ("tools".to_string(), ""),
            },
        };
        if rest.is_empty() { name } else { format!("{name}.{rest}") }
    }

    /// Returns the name of the part of the request that causes `error`.
    pub fn of_error(&self, error: &Error) -> String {
        match error {
            Error::Grammar { place, .. } => self.name(place),
            _ => self.name(""),
        }
    }
}

/// Splits a place in the schema of tool calls into the position of the tool and the place in its parameters.
fn in_arguments(place: &str) -> Option<(usize, &str)> {
    let (at, rest) = match place.strip_prefix("anyOf[") {
        None => (0, place),
        Some(rest) => {
            let (at, rest) = rest.split_once("].")?;
            (at.parse().ok()?, rest)
        }
    };
    let rest = rest.strip_prefix("properties.arguments")?;
    Some((at, rest.strip_prefix('.').unwrap_or(rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_named_as_in_the_request() {
        let whole = SchemaField::Whole("response_format.schema");
        let (one, several) = (SchemaField::Tools(vec![3]), SchemaField::Tools(vec![0, 2]));
        for (field, place, expected) in [
            (&whole, "", "response_format.schema"),
            (&whole, "properties.a", "response_format.schema.properties.a"),
            (&one, "properties.arguments", "tools[3].function.parameters"),
            (&one, "properties.arguments.properties.a", "tools[3].function.parameters.properties.a"),
            (&several, "anyOf[1].properties.arguments.items", "tools[2].function.parameters.items"),
            (&several, "anyOf[7].properties.arguments", "tools"),
            (&several, "", "tools"),
        ] {
            assert_eq!(field.name(place), expected, "{place}");
        }
    }
}
