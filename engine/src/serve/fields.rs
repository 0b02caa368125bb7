//! The fields of a JSON object, taken one by one: what is wrong with one is said with its name.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::refusal::{Kind, Refusal};
use crate::sampling::whole;

/// Fields that nobody has taken yet.
#[derive(Debug)]
pub struct Fields {
    map: Map<String, Value>,
    /// Names that were asked for.
    known: Vec<&'static str>,
}

/// The greatest part of a wrong value that is repeated.
const REPEATED: usize = 60;

impl Fields {
    /// Reads `bytes`, which must be an object.
    pub fn read(bytes: &[u8]) -> Result<Self, Refusal> {
        let refused = |message: String| Err(Refusal::new(Kind::Invalid, message));
        if let Err(error) = std::str::from_utf8(bytes) {
            return refused(format!("the request is not UTF-8: byte {} is wrong", error.valid_up_to()));
        }
        match serde_json::from_slice(bytes) {
            Ok(Value::Object(map)) => Ok(Fields { map, known: Vec::new() }),
            Ok(other) => refused(format!("the request must be a JSON object, not {}", shown(&other))),
            Err(error) => refused(format!("the request is not JSON: {error}")),
        }
    }

    /// The value of `name`; null is none.
    pub fn take(&mut self, name: &'static str) -> Option<Value> {
        self.known.push(name);
        self.map.remove(name).filter(|value| !value.is_null())
    }

    /// The names that were asked for.
    #[cfg(test)]
    pub fn known(&self) -> &[&'static str] {
        &self.known
    }

    /// The value of `name`, which stays.
    pub fn peek(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// Whether there is a value of `name`.
    pub fn has(&mut self, name: &'static str) -> bool {
        self.known.push(name);
        self.map.get(name).is_some_and(|value| !value.is_null())
    }

    /// A truth value.
    pub fn bool(&mut self, name: &'static str) -> Result<Option<bool>, Refusal> {
        self.take(name)
            .map(|value| value.as_bool().ok_or_else(|| wrong(name, "use true or false", &value)))
            .transpose()
    }

    /// A text.
    pub fn text(&mut self, name: &'static str) -> Result<Option<String>, Refusal> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(value) => Err(wrong(name, "use a text", &value)),
        }
    }

    /// A whole number.
    pub fn whole(&mut self, name: &'static str, range: RangeInclusive<u32>) -> Result<Option<u32>, Refusal> {
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

    /// A number.
    pub fn number(&mut self, name: &'static str, range: RangeInclusive<f64>) -> Result<Option<f64>, Refusal> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_f64().filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                Err(wrong(name, format!("use a number from {} to {}", range.start(), range.end()), &value))
            }
        }
    }

    /// Refuses what is left: a field with a typing error would be ignored in silence.
    pub fn finish(self) -> Result<(), Refusal> {
        let Some(name) = self.map.keys().next() else { return Ok(()) };
        let shown_name: String = name.chars().take(REPEATED).collect();
        let mend = match nearest(name, self.known.iter().copied()) {
            Some(near) => format!("unknown field; did you mean {near}?"),
            None => format!("unknown field; there are {}", self.known.join(", ")),
        };
        Err(Refusal::field(&shown_name, mend))
    }
}

/// The one of `names` that `name` may be a typing error of.
pub fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // What is too long is none, and would take long to compare.
    let name: String = name.chars().take(REPEATED).collect();
    let near = names.into_iter().map(|known| (strsim::jaro_winkler(&name, known), known));
    let best = near.max_by(|(one, _), (other, _)| one.total_cmp(other))?;
    (best.0 > 0.8).then_some(best.1)
}

/// `name` should be as `what` says, and is `value`.
pub fn wrong(name: &str, what: impl Display, value: &Value) -> Refusal {
    Refusal::field(name, format!("{what}, not {}", shown(value)))
}

/// A value in an error: cut where it is long.
pub fn shown(value: &Value) -> String {
    let text = match value {
        // Long ones are not written out first.
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
        type Take = fn(&mut Fields) -> Result<(), Refusal>;
        let count: Take = |fields| fields.whole("n", 1..=9).map(drop);
        let number: Take = |fields| fields.number("x", 0.0..=2.0).map(drop);
        let truth: Take = |fields| fields.bool("b").map(drop);
        let text: Take = |fields| fields.text("t").map(drop);
        let range = "use a whole number from 1 to 9, not";
        let cases: [(&str, Take, &str); 18] = [
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
            (r#"{"t": {}}"#, text, "t: use a text, not an object"),
            (r#"{"tt": 1, "t": "x"}"#, text, "tt: unknown field; did you mean t?"),
            (r#"{"zzz": 1}"#, text, "zzz: unknown field; there are t"),
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
        let cases: [(&[u8], &str); 5] = [
            (b"", "EOF while parsing"),
            (b"{\"prompt\": \"\xff\"}", "not UTF-8: byte 12"),
            (b"{\"prompt\": \"\\ud800\"}", "not JSON"),
            (b"{} {}", "trailing characters"),
            (deep.as_bytes(), "recursion limit"),
        ];
        for (bytes, expected) in cases {
            let message = Fields::read(bytes).err().map(|refusal| refusal.message).unwrap_or_default();
            assert!(message.contains(expected), "{message}");
        }
    }
}
