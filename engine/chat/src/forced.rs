//! Tool calls that the client requires: a schema that constrains the answer, and a reader that extracts the call from
//! the answer.

use serde_json::{Value, json};

use super::part::{Offered, Part};
use super::scan::Scan;

/// Returns the JSON schema of an answer that calls one of `functions`: `{"name": …, "arguments": …}`.
pub fn schema(functions: &[&Offered]) -> Value {
    let one = |function: &Offered, place: &str| {
        json!({
            "type": "object",
            "properties": { "name": { "const": function.name }, "arguments": arguments(function, place) },
            "required": ["name", "arguments"],
            "additionalProperties": false,
        })
    };
    let mut schema = match functions {
        [function] => one(function, "#"),
        functions => {
            let all = functions.iter().enumerate();
            let all: Vec<Value> =
                all.map(|(index, function)| one(function, &format!("#/anyOf/{index}"))).collect();
            json!({ "anyOf": all })
        }
    };
    // Spacing as in Python's JSON output, on which models were trained.
    schema["x-guidance"] =
        json!({ "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": " });
    schema
}

/// Returns the schema of the arguments of `function`, adapted for its position `place` in the outer schema.
fn arguments(function: &Offered, place: &str) -> Value {
    let Some(parameters) = &function.parameters else {
        return json!({ "type": "object", "properties": {}, "additionalProperties": false });
    };
    let mut parameters = parameters.clone();
    // `$id` sets the base of references, and `$schema` sets the dialect. Both must now come from the outer schema.
    parameters.shift_remove("$id");
    parameters.shift_remove("$schema");
    parameters.entry("type").or_insert_with(|| json!("object"));
    let mut schema = Value::Object(parameters);
    move_references(&mut schema, &format!("{place}/properties/arguments"));
    schema
}

/// Redirects references to the root of `schema` to `place`. The recursion is bounded by the depth limit of the JSON
/// parser.
fn move_references(schema: &mut Value, place: &str) {
    match schema {
        Value::Array(list) => list.iter_mut().for_each(|within| move_references(within, place)),
        Value::Object(map) => {
            for (key, within) in map {
                match within {
                    Value::String(to) if key == "$ref" => {
                        if let Some(rest) =
                            to.strip_prefix('#').filter(|rest| rest.is_empty() || rest.starts_with('/'))
                        {
                            *to = format!("{place}{rest}");
                        }
                    }
                    within => move_references(within, place),
                }
            }
        }
        _ => {}
    }
}

/// Incremental reader that extracts the call from a streamed answer that matches [`schema`].
#[derive(Clone, Debug, Default)]
pub struct ForcedReader {
    /// Text up to the start of the arguments.
    head: String,
    at: At,
    scan: Scan,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    #[default]
    Head,
    Arguments,
    Over,
}

impl ForcedReader {
    /// True if the call is complete.
    pub fn is_over(&self) -> bool {
        self.at == At::Over
    }

    /// Adds `piece` to the input, and returns the parts that are now certain.
    pub fn push(&mut self, piece: &str) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut arguments = String::new();
        for character in piece.chars() {
            match self.at {
                At::Head => self.head(character, &mut parts),
                At::Arguments => self.argument(character, &mut arguments),
                At::Over => break,
            }
        }
        if !arguments.is_empty() {
            parts.push(Part::Arguments(arguments));
        }
        parts
    }

    fn head(&mut self, character: char, parts: &mut Vec<Part>) {
        self.head.push(character);
        let depth = self.scan.depth;
        self.scan.follow(character);
        if character != ':' || self.scan.in_text || depth != 1 {
            return;
        }
        // With `null` as the value of the last key, the text so far is complete JSON.
        let Ok(read) = serde_json::from_str::<Value>(&format!("{}null}}", self.head)) else { return };
        if let (Some(name), Some(Value::Null)) = (read["name"].as_str(), read.get("arguments")) {
            parts.push(Part::Call(name.to_string()));
            (self.at, self.scan) = (At::Arguments, Scan::default());
        }
    }

    fn argument(&mut self, character: char, arguments: &mut String) {
        let between = self.scan.depth == 0 && !self.scan.in_text;
        if between && character.is_whitespace() {
            return;
        }
        if between && matches!(character, '}' | ']') {
            self.at = At::Over;
            return;
        }
        arguments.push(character);
        self.scan.follow(character);
        if self.scan.depth == 0 && !between && matches!(character, '}' | ']') && !self.scan.in_text {
            self.at = At::Over;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(name: &str, parameters: Value) -> Offered {
        Offered { name: name.to_string(), parameters: parameters.as_object().cloned() }
    }

    #[test]
    fn references_lead_where_they_did() {
        let tree = json!({
            "$id": "x", "$schema": "y", "$ref": "#", "properties": { "a": { "$ref": "#/$defs/a" }, "$ref": { "type": "string" } },
            "$defs": { "a": { "$ref": "#here" } },
        });
        let expected = |place: &str| {
            json!({
                "$ref": place, "properties": { "a": { "$ref": format!("{place}/$defs/a") }, "$ref": { "type": "string" } },
                "$defs": { "a": { "$ref": "#here" } }, "type": "object",
            })
        };
        let (one, two) = (offered("f", tree), offered("g", Value::Null));
        let alone = schema(&[&one]);
        assert_eq!(alone["properties"]["arguments"], expected("#/properties/arguments"));
        assert_eq!(alone["properties"]["name"], json!({ "const": "f" }));
        let both = schema(&[&two, &one]);
        assert_eq!(both["anyOf"][1]["properties"]["arguments"], expected("#/anyOf/1/properties/arguments"));
        let none = json!({ "type": "object", "properties": {}, "additionalProperties": false });
        assert_eq!(both["anyOf"][0]["properties"]["arguments"], none);
    }

    #[test]
    fn a_call_is_taken_out_wherever_pieces_end() {
        let cases = [
            (r#"{"name":"f","arguments":{"a":[1,"}"]}}"#, Some("f"), r#"{"a":[1,"}"]}"#, true),
            ("{ \"name\" : \"f\" ,\n \"arguments\" :  { } \n } ", Some("f"), "{ }", true),
            (r#"{"name":"f\"\\","arguments":"\"\\}"}"#, Some("f\"\\"), r#""\"\\}""#, true),
            (r#"{"name":"arguments\":","arguments":7}"#, Some("arguments\":"), "7", true),
            (r#"{"name":"f","arguments":{"a":{"name":"g"#, Some("f"), r#"{"a":{"name":"g"#, false),
            (r#"{"name":"f","arguments":{"a":"\"}"}"#, Some("f"), r#"{"a":"\"}"}"#, true),
            (r#"{"name":"f","arguments":{"a":"}"#, Some("f"), r#"{"a":"}"#, false),
            (r#"{"name":"f","argu"#, None, "", false),
            ("", None, "", false),
            // No schema allows these texts, but they must not cause a panic.
            ("}}]]::\"", None, "", false),
            (r#"{"name":7,"arguments":{}}"#, None, "", false),
            (r#"{"name":"f","arguments":}}}}"#, Some("f"), "", true),
        ];
        for (text, name, arguments, over) in cases {
            for piece in [1, 3, usize::MAX] {
                let mut reader = ForcedReader::default();
                let characters: Vec<char> = text.chars().collect();
                let pieces = characters.chunks(piece).map(|piece| piece.iter().collect::<String>());
                let parts: Vec<Part> = pieces.flat_map(|piece| reader.push(&piece)).collect();
                let (mut found, mut told) = (None, String::new());
                for part in parts {
                    match part {
                        Part::Call(name) => assert_eq!(found.replace(name), None),
                        Part::Arguments(more) => told.push_str(&more),
                        Part::Text(text) | Part::Thought(text) => panic!("{text:?} is not a call"),
                    }
                }
                let found = (found.as_deref(), told.as_str(), reader.is_over());
                assert_eq!(found, (name, arguments, over), "{text} in pieces of {piece}");
            }
        }
    }
}
