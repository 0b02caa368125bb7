//! Field of a request that contains the JSON schema of the answer, and positions in this schema.

use llama::error::Error;

/// Field that contains the JSON schema of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchemaField {
    /// Field with the whole schema.
    Whole(&'static str),
    /// Parameters of the tools that the answer may call. The schema comes from [`chat::forced_schema`].
    Tools {
        /// Indices of the tools in the field `tools`.
        indices: Vec<usize>,
        /// Path from a tool to the schema of its parameters, such as `function.parameters`.
        path: &'static str,
    },
}

impl SchemaField {
    /// Returns the field with `path` as the path from a tool to the schema of its parameters.
    #[must_use]
    pub fn with_path(self, path: &'static str) -> Self {
        match self {
            SchemaField::Tools { indices, .. } => SchemaField::Tools { indices, path },
            whole @ SchemaField::Whole(_) => whole,
        }
    }

    /// Returns the name of the part of the request that is at `place` in the schema.
    pub fn name(&self, place: &str) -> String {
        let (name, rest) = match self {
            SchemaField::Whole(name) => ((*name).to_string(), place),
            SchemaField::Tools { indices, path } => match in_arguments(place) {
                Some((at, rest)) if at < indices.len() => (format!("tools[{}].{path}", indices[at]), rest),
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

    /// Returns `error` with the place of the invalid part as the client knows it.
    pub fn renamed(&self, error: Error) -> Error {
        match (self, error) {
            (SchemaField::Tools { .. }, Error::Grammar { what, place, why }) if !place.is_empty() => {
                Error::Grammar { what, place: self.name(&place), why }
            }
            (_, error) => error,
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
        let tools = |indices| SchemaField::Tools { indices, path: "function.parameters" };
        let (one, several) = (tools(vec![3]), tools(vec![0, 2]));
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
        let error = |place: &str| Error::Grammar {
            what: "JSON schema",
            place: place.to_string(),
            why: "x".to_string(),
        };
        for (field, place, expected) in [
            (&several, "anyOf[1].properties.arguments.items", "tools[2].function.parameters.items: x"),
            (&several, "", "x"),
            (&whole, "properties.a", "properties.a: x"),
        ] {
            let message = field.renamed(error(place)).to_string();
            assert_eq!(message, format!("cannot use the JSON schema: {expected}"));
        }
    }
}
