//! Texts and tokens of a request, read without a JSON tree, so that a token takes 4 bytes instead of 72.

use std::fmt;

use llama::Token;
use sampling::whole;
use serde::de::{Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

/// A text, a list of tokens, or a list of both.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A text.
    Text(String),
    /// A list of tokens, or an empty list.
    Tokens(Vec<Token>),
    /// A list of strings and lists of tokens.
    List(Vec<Input>),
}

/// Reason why a value is not an [`Input`].
#[derive(Clone, Debug, PartialEq)]
pub enum InputFault {
    /// Neither a text nor a list.
    Kind(Value),
    /// A list of tokens contains a value that is not a token.
    Token(Value),
    /// A list contains an element that is neither a text nor a list.
    Item(Value),
    /// A list has too many elements. Contains the number of elements.
    Many(usize),
    /// The value is not valid JSON. Contains the parser's message.
    Json(String),
}

/// Reads `raw`. A list may have at most `most` texts or lists of tokens.
pub fn read(raw: &RawValue, most: usize) -> Result<Input, InputFault> {
    let text = raw.get();
    let json = |error: serde_json::Error| InputFault::Json(error.to_string());
    match text.as_bytes().first() {
        Some(b'"') => serde_json::from_str(text).map(Input::Text).map_err(json),
        Some(b'[') => {
            let mut reader = serde_json::Deserializer::from_str(text);
            reader.deserialize_seq(BoundedList(most)).map_err(json)?
        }
        _ => Err(InputFault::Kind(sketch(raw))),
    }
}

/// Returns an empty list for a list, an empty object for an object, and any other value unchanged.
pub fn sketch(raw: &RawValue) -> Value {
    match raw.get().as_bytes().first() {
        Some(b'[') => Value::Array(Vec::new()),
        Some(b'{') => Value::Object(serde_json::Map::new()),
        _ => serde_json::from_str(raw.get()).unwrap_or_default(),
    }
}

fn token(number: &Value) -> Option<Token> {
    whole(number).and_then(|token| Token::try_from(token).ok())
}

/// Visitor that reads a list. The number is the maximum number of texts or lists of tokens.
struct BoundedList(usize);

impl<'de> Visitor<'de> for BoundedList {
    type Value = Result<Input, InputFault>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let (mut tokens, mut items, mut fault) = (Vec::new(), Vec::new(), None);
        let mut count = 0;
        while let Some(element) = list.next_element::<Element>()? {
            count += 1;
            fault = match element {
                Element::Scalar(value) if items.is_empty() && value.is_number() => match token(&value) {
                    Some(token) => {
                        tokens.push(token);
                        continue;
                    }
                    None => Some(InputFault::Token(value)),
                },
                other if !tokens.is_empty() => Some(InputFault::Token(other.sketch())),
                Element::Text(_) | Element::Tokens(_) if count > self.0 => Some(InputFault::Many(count)),
                Element::Text(text) => {
                    items.push(Input::Text(text));
                    continue;
                }
                Element::Tokens(tokens) => {
                    items.push(Input::Tokens(tokens));
                    continue;
                }
                Element::Wrong(value) => Some(InputFault::Token(value)),
                Element::Scalar(value) => Some(InputFault::Item(value)),
            };
            break;
        }
        // Elements after the invalid one are only counted.
        while list.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok(match fault {
            Some(InputFault::Many(_)) => Err(InputFault::Many(count)),
            Some(fault) => Err(fault),
            None if items.is_empty() => Ok(Input::Tokens(tokens)),
            None => Ok(Input::List(items)),
        })
    }
}

/// Element of a list.
enum Element {
    Text(String),
    Tokens(Vec<Token>),
    /// A value in a list of tokens that is not a token.
    Wrong(Value),
    /// A number, `null`, a boolean, or an object without its fields.
    Scalar(Value),
}

impl Element {
    /// Returns the result of [`sketch`] for the element.
    fn sketch(self) -> Value {
        match self {
            Element::Text(text) => Value::String(text),
            Element::Tokens(_) | Element::Wrong(_) => Value::Array(Vec::new()),
            Element::Scalar(value) => value,
        }
    }
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Element;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E>(self) -> Result<Element, E> {
                Ok(Element::Scalar(Value::Null))
            }

            fn visit_bool<E>(self, value: bool) -> Result<Element, E> {
                Ok(Element::Scalar(value.into()))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Element, E> {
                Ok(Element::Scalar(number.into()))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Element, E> {
                Ok(Element::Scalar(number.into()))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Element, E> {
                Ok(Element::Scalar(number.into()))
            }

            fn visit_str<E>(self, text: &str) -> Result<Element, E> {
                Ok(Element::Text(text.to_string()))
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Element, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Element::Scalar(Value::Object(serde_json::Map::new())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Element, A::Error> {
                let mut tokens = Vec::new();
                let mut wrong = None;
                while let Some(value) = list.next_element::<Scalar>()? {
                    match token(&value.0) {
                        Some(token) => tokens.push(token),
                        None => {
                            wrong = Some(value.0);
                            break;
                        }
                    }
                }
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(wrong.map_or(Element::Tokens(tokens), Element::Wrong))
            }
        }

        deserializer.deserialize_any(Any)
    }
}

/// Value in a list of tokens. Lists and objects are read without their contents.
struct Scalar(Value);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        Ok(Scalar(sketch(raw)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(json: &str) -> Result<Input, InputFault> {
        read(&RawValue::from_string(json.to_string()).expect("JSON"), 2)
    }

    #[test]
    fn texts_and_tokens_come_in_four_shapes() {
        let text = |text: &str| Input::Text(text.to_string());
        let deep = format!("[{}]", "[".repeat(100_000) + &"]".repeat(100_000));
        let cases = [
            (r#""a\u00e9""#, Ok(text("aé"))),
            ("[1, 2.0, -3]", Ok(Input::Tokens(vec![1, 2, -3]))),
            ("[]", Ok(Input::Tokens(Vec::new()))),
            (r#"["a", [1], []]"#, Err(InputFault::Many(3))),
            (r#"["a", [1, 2]]"#, Ok(Input::List(vec![text("a"), Input::Tokens(vec![1, 2])]))),
            ("[[]]", Ok(Input::List(vec![Input::Tokens(Vec::new())]))),
            (r#"[1, "a"]"#, Err(InputFault::Token(json!("a")))),
            ("[1, [2]]", Err(InputFault::Token(json!([])))),
            ("[1.5]", Err(InputFault::Token(json!(1.5)))),
            ("[99999999999]", Err(InputFault::Token(json!(99_999_999_999_u64)))),
            ("[[1, [2]]]", Err(InputFault::Token(json!([])))),
            (r#"["a", 1]"#, Err(InputFault::Item(json!(1)))),
            ("[null]", Err(InputFault::Item(json!(null)))),
            (r#"[{"a": 1}]"#, Err(InputFault::Item(json!({})))),
            ("7", Err(InputFault::Kind(json!(7)))),
            (r#"{"a": 1}"#, Err(InputFault::Kind(json!({})))),
            (r#""\ud800""#, Err(InputFault::Json("unexpected end of hex escape at line 1 column 8".into()))),
            (&deep, Err(InputFault::Token(json!([])))),
        ];
        for (json, expected) in cases {
            let short: String = json.chars().take(40).collect();
            assert_eq!(parsed(json), expected, "{short}");
        }
    }
}
