//! Fields of a JSON object. Each field is taken separately, and errors name the field.
//!
//! A request needs at most twelve times its size in memory, plus 32 MiB. Prompts, messages and lists of tokens
//! ([`STRAIGHT`]) are parsed later, directly into their final form. All other fields are parsed into trees. A number
//! in a tree takes 72 bytes, so the trees of a request have at most [`VALUES`] values.

use std::fmt::{self, Display};
use std::ops::RangeInclusive;

use build_info::words::nearest;
use sampling::whole;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::api_error::{ApiError, ApiErrorKind};
use super::budget::SharedCharge;
use super::count::Count;
use super::input::{self, Input, InputFault, sketch};

/// Names of the fields that are not parsed into trees.
const STRAIGHT: [&str; 6] = ["content", "embed", "input", "messages", "prompt", "tokens"];

/// Maximum number of fields in a request.
const MOST: usize = 256;

/// Maximum number of values in the trees of a request, including the trees of its messages.
pub const VALUES: usize = 65_536;

/// Stored field.
#[derive(Debug)]
enum Field {
    /// Parsed value of any field that is not in [`STRAIGHT`].
    Tree(Value),
    /// Unparsed value of a field in [`STRAIGHT`].
    Raw(Box<RawValue>),
}

impl Field {
    fn is_null(&self) -> bool {
        match self {
            Field::Tree(value) => value.is_null(),
            Field::Raw(raw) => raw.get() == "null",
        }
    }
}

/// Fields of a request that have not been taken yet.
#[derive(Debug)]
pub struct Fields {
    /// Fields in the order of the request.
    all: Vec<(String, Field)>,
    /// Names of the fields that the code has requested, for error messages.
    known: Vec<&'static str>,
    /// Number of values that may still be parsed into trees.
    left: usize,
    /// Charge for the bytes of the request.
    waiting: SharedCharge,
}

/// Maximum number of characters that an error quotes from an invalid value.
const REPEATED: usize = 60;

impl Fields {
    /// Parses `bytes`, which must be a JSON object.
    ///
    /// # Errors
    /// If `bytes` is not a JSON object, or exceeds a limit.
    pub fn read(bytes: &[u8]) -> Result<Self, ApiError> {
        let refused = |message: String| Err(ApiError::new(ApiErrorKind::Invalid, message));
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => {
                return refused(format!(
                    "the request is not valid UTF-8: byte {} is invalid",
                    error.valid_up_to()
                ));
            }
        };
        let mut fields =
            Fields { all: Vec::new(), known: Vec::new(), left: VALUES, waiting: SharedCharge::default() };
        let mut reader = serde_json::Deserializer::from_str(text);
        let read = (&mut reader).deserialize_any(FieldsVisitor(&mut fields));
        match read.and_then(|read| reader.end().map(|()| read)) {
            Ok(Ok(())) => Ok(fields),
            Ok(Err(refusal)) => Err(refusal),
            Err(error) => refused(format!("the request {}", fault(&error))),
        }
    }

    /// Sets the charge for the bytes of the request.
    #[must_use]
    pub fn charged(mut self, waiting: SharedCharge) -> Self {
        self.waiting = waiting;
        self
    }

    /// Returns the number of values that were parsed into trees.
    pub fn values(&self) -> usize {
        VALUES - self.left
    }

    /// Returns the charge for the bytes of the request. The caller holds the charge while the request waits.
    pub fn waiting(&self) -> SharedCharge {
        self.waiting.clone()
    }

    /// Adds a field. If a name occurs twice, the second value replaces the first.
    fn put(&mut self, name: String, raw: &RawValue) -> Result<(), ApiError> {
        let field = match STRAIGHT.contains(&name.as_str()) {
            true => Field::Raw(raw.to_owned()),
            false => Field::Tree(self.tree(&name, raw)?),
        };
        match self.all.iter().position(|(known, _)| *known == name) {
            Some(at) => self.all[at].1 = field,
            None if self.all.len() < MOST => self.all.push((name, field)),
            None => {
                let message = format!("the request has more than {MOST} fields");
                return Err(ApiError::new(ApiErrorKind::Invalid, message));
            }
        }
        Ok(())
    }

    /// Parses `raw`, the value of the field `name`, into a tree.
    fn tree(&mut self, name: &str, raw: &RawValue) -> Result<Value, ApiError> {
        self.count(name, raw)?;
        serde_json::from_str(raw.get()).map_err(|error| not_json(name, &error))
    }

    /// Counts the values in `raw`, the value of the field `name`, before it is parsed.
    ///
    /// # Errors
    /// If `raw` is not JSON, or if the request has too many values.
    pub fn count(&mut self, name: &str, raw: &RawValue) -> Result<(), ApiError> {
        let mut reader = serde_json::Deserializer::from_str(raw.get());
        let Err(error) = Count(&mut self.left).deserialize(&mut reader) else { return Ok(()) };
        if self.left > 0 {
            return Err(not_json(name, &error));
        }
        let name: String = name.chars().take(REPEATED).collect();
        let what =
            format!("the request has more than {VALUES} values, not counting texts and lists of tokens");
        Err(ApiError::field(&name, what))
    }

    /// Adds `name` to the known fields. Several readers may look for the same field.
    fn note(&mut self, name: &'static str) {
        if !self.known.contains(&name) {
            self.known.push(name);
        }
    }

    fn remove(&mut self, name: &str) -> Option<Field> {
        let at = self.all.iter().position(|(known, _)| known == name)?;
        let (_, field) = self.all.remove(at);
        (!field.is_null()).then_some(field)
    }

    /// Takes the value of `name`. `None` if the field is missing or null. For a list or object in [`STRAIGHT`],
    /// returns only an empty value of the same kind.
    pub fn take(&mut self, name: &'static str) -> Option<Value> {
        self.note(name);
        match self.remove(name)? {
            Field::Tree(value) => Some(value),
            Field::Raw(raw) => Some(sketch(&raw)),
        }
    }

    /// Takes the unparsed value of `name`, which must be in [`STRAIGHT`]. `None` if the field is missing or null.
    pub fn raw(&mut self, name: &'static str) -> Option<Box<RawValue>> {
        self.note(name);
        match self.remove(name)? {
            Field::Raw(raw) => Some(raw),
            Field::Tree(_) => None,
        }
    }

    /// Takes the texts or tokens of the field `name`, which must be in [`STRAIGHT`]. A list may have at most `most`
    /// texts.
    pub fn input(&mut self, name: &'static str, most: usize) -> Option<Result<Input, InputFault>> {
        self.raw(name).map(|raw| input::read(&raw, most))
    }

    /// Returns the names of the fields that the code has requested.
    #[cfg(test)]
    pub fn known(&self) -> &[&'static str] {
        &self.known
    }

    /// Returns the value of `name` without taking it. Not for fields in [`STRAIGHT`].
    pub fn peek(&self, name: &str) -> Option<&Value> {
        match self.all.iter().find(|(known, _)| known == name)? {
            (_, Field::Tree(value)) if !value.is_null() => Some(value),
            _ => None,
        }
    }

    /// True if `name` has a value other than null.
    pub fn has(&mut self, name: &'static str) -> bool {
        self.note(name);
        self.all.iter().any(|(known, field)| known == name && !field.is_null())
    }

    /// Takes a boolean.
    pub fn bool(&mut self, name: &'static str) -> Result<Option<bool>, ApiError> {
        self.take(name)
            .map(|value| value.as_bool().ok_or_else(|| wrong(name, "use true or false", &value)))
            .transpose()
    }

    /// Takes a string.
    pub fn text(&mut self, name: &'static str) -> Result<Option<String>, ApiError> {
        self.note(name);
        match self.remove(name) {
            None => Ok(None),
            Some(Field::Tree(Value::String(text))) => Ok(Some(text)),
            Some(Field::Tree(value)) => Err(wrong(name, "use a string", &value)),
            Some(Field::Raw(raw)) if raw.get().starts_with('"') => {
                serde_json::from_str(raw.get()).map(Some).map_err(|error| not_json(name, &error))
            }
            Some(Field::Raw(raw)) => Err(wrong(name, "use a string", &sketch(&raw))),
        }
    }

    /// Takes an integer in `range`.
    pub fn whole(&mut self, name: &'static str, range: RangeInclusive<u32>) -> Result<Option<u32>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = whole(&value).and_then(|number| u32::try_from(number).ok());
        match number.filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let range = format!("use a whole number from {} to {}", range.start(), range.end());
                Err(wrong(name, range, &value))
            }
        }
    }

    /// Takes a number of tokens of at least `least`; -1, which means as many as fit, becomes the largest number.
    pub fn tokens(&mut self, name: &'static str, least: u32) -> Result<Option<u32>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = whole(&value).map(|number| if number == -1 { i64::from(u32::MAX) } else { number });
        match number.and_then(|number| u32::try_from(number).ok()) {
            Some(number) if number >= least => Ok(Some(number)),
            _ => {
                let range = format!("use a whole number from {least} to {}, or -1 for no limit", u32::MAX);
                Err(wrong(name, range, &value))
            }
        }
    }

    /// Takes a number in `range`.
    pub fn number(
        &mut self,
        name: &'static str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_f64().filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                Err(wrong(name, format!("use a number from {} to {}", range.start(), range.end()), &value))
            }
        }
    }

    /// Rejects fields that were not taken, so that a misspelt field is not ignored silently.
    pub fn finish(self) -> Result<(), ApiError> {
        let Some((name, _)) = self.all.first() else { return Ok(()) };
        let shown_name: String = name.chars().take(REPEATED).collect();
        let mend = match nearest(name, self.known.iter().copied()) {
            Some(near) => format!("unknown field; did you mean {near}?"),
            None => format!("unknown field; supported fields: {}", self.known.join(", ")),
        };
        Err(ApiError::field(&shown_name, mend))
    }
}

/// Returns the string in the key `key` of `value`, which is at `at` in the request.
///
/// # Errors
/// If the key has no string.
pub fn text_at<'a>(at: &str, value: &'a Value, key: &str) -> Result<&'a str, ApiError> {
    value[key].as_str().ok_or_else(|| wrong_key(at, value, key, "use a string"))
}

/// Returns the error for an invalid field in otherwise valid JSON, for example with an unpaired surrogate or nesting
/// that is too deep.
pub fn not_json(name: &str, error: &serde_json::Error) -> ApiError {
    let name: String = name.chars().take(REPEATED).collect();
    ApiError::field(&name, format!("{} (counted from the start of the field)", fault(error)))
}

/// Describes `error`. Two of the parser's limits can also reject valid JSON.
fn fault(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let position = text.rfind(" at line ").map_or("", |at| &text[at..]);
    if text.starts_with("recursion limit") {
        format!("is nested more than {DEPTH} levels deep{position}")
    } else if text.starts_with("number out of range") {
        format!("has a number that is out of range{position}")
    } else {
        format!("is not JSON: {text}")
    }
}

/// Maximum nesting depth of a request and of a field. The limit comes from serde_json.
pub const DEPTH: usize = 127;

/// Visitor that reads a request into its fields. The inner `Result` reports an error of the request, and the outer
/// `Result` reports invalid JSON.
struct FieldsVisitor<'a>(&'a mut Fields);

impl FieldsVisitor<'_> {
    fn refused<E>(value: &Value) -> Result<Result<(), ApiError>, E> {
        let message = format!("the request must be a JSON object, not {}", shown(value));
        Ok(Err(ApiError::new(ApiErrorKind::Invalid, message)))
    }
}

impl<'de> Visitor<'de> for FieldsVisitor<'_> {
    type Value = Result<(), ApiError>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while let Some((name, raw)) = map.next_entry::<String, &RawValue>()? {
            if let Err(refusal) = self.0.put(name, raw) {
                // If the rest of the text has a syntax error, that error is reported instead.
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                return Ok(Err(refusal));
            }
        }
        Ok(Ok(()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut left = usize::MAX;
        while list.next_element_seed(Count(&mut left))?.is_some() {}
        FieldsVisitor::refused(&Value::Array(Vec::new()))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        FieldsVisitor::refused(&Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        FieldsVisitor::refused(&value.into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        FieldsVisitor::refused(&number.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        FieldsVisitor::refused(&number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
        FieldsVisitor::refused(&number.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        FieldsVisitor::refused(&text.chars().take(REPEATED + 1).collect::<String>().into())
    }
}

/// Returns the error for the field `name` with the invalid `value`. `what` states the expected value.
pub fn wrong(name: &str, what: impl Display, value: &Value) -> ApiError {
    ApiError::field(name, format!("{what}, not {}", shown(value)))
}

/// Returns the error for the missing or invalid key `key` of `value`, which is at `at` in the request and must be an
/// object. `what` states the expected value.
pub fn wrong_key(at: &str, value: &Value, key: &str, what: impl Display) -> ApiError {
    let field = format!("{at}.{key}");
    match value.as_object().map(|object| object.get(key)) {
        None => wrong(at, "use an object", value),
        Some(None) => ApiError::field(&field, format!("is missing: {what}")),
        Some(Some(found)) => wrong(&field, what, found),
    }
}

/// Formats a value for an error, shortened if it is long.
pub fn shown(value: &Value) -> String {
    let text = match value {
        // The string is shortened before formatting, so that a long string is not formatted completely.
        Value::String(text) => format!("{:?}", text.chars().take(REPEATED + 1).collect::<String>()),
        Value::Array(_) => "a list".to_string(),
        Value::Object(_) => "an object".to_string(),
        other => other.to_string(),
    };
    match text.char_indices().nth(REPEATED) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_named() {
        type Take = fn(&mut Fields) -> Result<(), ApiError>;
        let count: Take = |fields| fields.whole("n", 1..=9).map(drop);
        let number: Take = |fields| fields.number("x", 0.0..=2.0).map(drop);
        let truth: Take = |fields| fields.bool("b").map(drop);
        let text: Take = |fields| fields.text("t").map(drop);
        let range = "use a whole number from 1 to 9, not";
        let texts: Take = |fields| ["t", "u", "t"].iter().try_for_each(|name| fields.text(name).map(drop));
        let cases: [(&str, Take, &str); 19] = [
            (r#"{"n": 3}"#, count, ""),
            (r#"{"n": 3.0}"#, count, ""),
            (r#"{"n": null}"#, count, ""),
            (r#"{"n": 0}"#, count, &format!("n: {range} 0")),
            (r#"{"n": -1}"#, count, &format!("n: {range} -1")),
            (r#"{"n": 1.5}"#, count, &format!("n: {range} 1.5")),
            (r#"{"n": 4294967297}"#, count, &format!("n: {range} 4294967297")),
            (r#"{"n": 99999999999999999999999}"#, count, &format!("n: {range} 1e+23")),
            (r#"{"n": "3"}"#, count, &format!("n: {range} \"3\"")),
            (r#"{"n": [3]}"#, count, &format!("n: {range} a list")),
            (r#"{"x": 2}"#, number, ""),
            (r#"{"x": -0.1}"#, number, "x: use a number from 0 to 2, not -0.1"),
            (r#"{"x": 1e300}"#, number, "x: use a number from 0 to 2, not 1e+300"),
            (r#"{"b": 1}"#, truth, "b: use true or false, not 1"),
            (r#"{"t": {}}"#, text, "t: use a string, not an object"),
            (r#"{"tt": 1, "t": "x"}"#, text, "tt: unknown field; did you mean t?"),
            (r#"{"zzz": 1}"#, text, "zzz: unknown field; supported fields: t"),
            (r#"{"zzz": 1}"#, texts, "zzz: unknown field; supported fields: t, u"),
            (r#"[]"#, text, "the request must be a JSON object, not a list"),
        ];
        for (json, take, expected) in cases {
            let found = Fields::read(json.as_bytes()).and_then(|mut fields| {
                take(&mut fields)?;
                fields.finish()
            });
            assert_eq!(found.err().map(|refusal| refusal.message).unwrap_or_default(), expected, "{json}");
        }
    }

    #[test]
    fn what_is_no_json_is_refused() {
        let deep = "[".repeat(100_000);
        let nested = |depth| format!("{{\"tools\": {}{}}}", "[".repeat(depth), "]".repeat(depth));
        let deep_field = nested(DEPTH + 1);
        assert!(Fields::read(nested(DEPTH).as_bytes()).is_ok());
        let cases: [(&[u8], &str); 7] = [
            (b"", "EOF while parsing"),
            (b"{\"prompt\": \"\xff\"}", "not valid UTF-8: byte 12"),
            (b"{\"model\": \"\\ud800\"}", "model: is not JSON"),
            (b"{} {}", "trailing characters"),
            (deep.as_bytes(), "the request is nested more than 127 levels deep at line 1 column 128"),
            (deep_field.as_bytes(), "tools: is nested more than 127 levels deep at line 1 column 128"),
            (b"{\"x\": 1e999}", "x: has a number that is out of range at line 1 column 5"),
        ];
        for (bytes, expected) in cases {
            let message = Fields::read(bytes).err().map(|refusal| refusal.message).unwrap_or_default();
            assert!(message.contains(expected), "{message}");
        }
    }
    #[test]
    fn what_would_take_much_memory_is_refused() {
        let many = |count: usize, field: &dyn Fn(usize) -> String| -> String {
            format!("{{{}}}", (0..count).map(field).collect::<Vec<_>>().join(","))
        };
        let list = |count: usize| format!(r#"{{"x": [{}]}}"#, vec!["0"; count].join(","));
        let cases = [
            (many(MOST, &|at| format!("\"{at}\":0")), ""),
            (many(MOST + 1, &|at| format!("\"{at}\":0")), "more than 256 fields"),
            (many(MOST + 1, &|_| "\"one\":0".to_string()), ""),
            (list(VALUES - 2), ""),
            (list(VALUES), "x: the request has more than 65536 values"),
            // Values of fields that stay unparsed are not counted.
            (list(VALUES).replace('x', "prompt"), ""),
        ];
        for (json, expected) in cases {
            let found = Fields::read(json.as_bytes()).err().map(|refusal| refusal.message);
            let found = found.unwrap_or_default();
            assert!(found.contains(expected) && found.is_empty() == expected.is_empty(), "{found}");
        }
    }

    #[test]
    fn of_two_fields_of_the_same_name_the_second_counts() {
        let mut fields =
            Fields::read(br#"{"t": "a", "prompt": "b", "t": "c", "prompt": null}"#).expect("fields");
        assert_eq!(fields.text("t"), Ok(Some("c".to_string())));
        assert!(!fields.has("prompt") && fields.raw("prompt").is_none());
        assert_eq!(fields.finish(), Ok(()));
    }
}
