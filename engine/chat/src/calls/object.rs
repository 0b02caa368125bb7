//! Calls as JSON objects, read character by character, so that the arguments can be streamed.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::part::{Offered, Part};
use crate::scan::Scan;

/// Maximum number of keys before the arguments. At each key, the object so far is parsed again.
const MOST_MEMBERS: u32 = 16;

/// Keys of the name and the arguments in a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keys<'a> {
    /// Key of the name. `None` if the name is itself the key of the arguments.
    pub(super) name: Option<&'a str>,
    pub(super) arguments: &'a str,
}

impl Keys<'_> {
    fn is_arguments(self, key: &str) -> bool {
        key == self.arguments || matches!(key, "arguments" | "parameters")
    }
}

/// Reader of one object up to its arguments.
#[derive(Clone, Debug, Default)]
pub(super) struct ObjectReader {
    scan: Scan,
    members: u32,
    /// True if any character other than white space followed the opening brace.
    begun: bool,
    /// Name of the function, if the arguments follow.
    name: Option<String>,
}

/// Result of one step of an [`ObjectReader`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// More input is needed.
    More,
    /// The object is not a call.
    No,
    /// The arguments of the named function begin with this character.
    Arguments(String),
    /// The object is complete and is this call.
    Call(Vec<Part>),
}

impl ObjectReader {
    /// Advances past the character `next`, which follows `object`. If `is_bare` is true, no marker precedes the object,
    /// so its first key must be a key of calls.
    pub(super) fn step(
        &mut self,
        object: &str,
        next: char,
        is_bare: bool,
        keys: Keys<'_>,
        offered: &[Offered],
    ) -> Step {
        if let Some(name) = self.name.take() {
            if next.is_whitespace() {
                self.name = Some(name);
                return Step::More;
            }
            if next == '{' {
                return Step::Arguments(name);
            }
        }
        if self.scan.depth == 1 && !self.begun && !next.is_whitespace() {
            if !matches!(next, '"' | '}') {
                return Step::No;
            }
            self.begun = true;
        }
        let was_key = next == ':' && self.scan.depth == 1 && !self.scan.in_text;
        self.scan.follow(next);
        if was_key {
            return self.member(object, is_bare, keys, offered);
        }
        if next == '}' && self.scan.depth == 0 {
            let whole = format!("{object}{next}");
            return whole_call(&whole, keys, offered).map_or(Step::No, |call| Step::Call(call.into()));
        }
        Step::More
    }

    fn member(&mut self, object: &str, is_bare: bool, keys: Keys<'_>, offered: &[Offered]) -> Step {
        self.members += 1;
        if self.members > MOST_MEMBERS {
            return Step::No;
        }
        // With `null` as the value of the last key, the text so far is complete JSON.
        let Ok(read) = serde_json::from_str::<Map<String, Value>>(&format!("{object}:null}}")) else {
            return Step::No;
        };
        let Some(last) = read.keys().next_back() else { return Step::No };
        let is_offered = |name: &str| offered.iter().any(|function| function.name == name);
        let Some(key) = keys.name else {
            if !is_offered(last) || read.len() > 1 {
                return Step::No;
            }
            self.name = Some(last.clone());
            return Step::More;
        };
        if is_bare && self.members == 1 && last != key && !keys.is_arguments(last) && !last.ends_with("id") {
            return Step::No;
        }
        match read.get(key) {
            Some(Value::String(name)) if !is_offered(name) => Step::No,
            Some(Value::String(name)) if keys.is_arguments(last) => {
                self.name = Some(name.clone());
                Step::More
            }
            _ => Step::More,
        }
    }
}

/// Parses `text` as one call. The arguments are copied unchanged, so numbers with many digits lose no precision.
pub(super) fn whole_call(text: &str, keys: Keys<'_>, offered: &[Offered]) -> Option<[Part; 2]> {
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(text).ok()?;
    let (name, arguments) = match keys.name {
        Some(key) => {
            let name: String = serde_json::from_str(members.get(key)?.get()).ok()?;
            let mut others = [keys.arguments, "arguments", "parameters"].into_iter();
            (name, others.find_map(|key| members.get(key).copied()))
        }
        None => members.into_iter().next().map(|(name, arguments)| (name, Some(arguments)))?,
    };
    if !offered.iter().any(|known| known.name == name) {
        return None;
    }
    let arguments = match arguments {
        None => "{}".to_string(),
        Some(arguments) if is_object(arguments) => arguments.get().to_string(),
        Some(other) => {
            let text: String = serde_json::from_str(other.get()).ok()?;
            serde_json::from_str::<&RawValue>(&text).ok().filter(|arguments| is_object(arguments))?;
            text
        }
    };
    Some([Part::Call(name), Part::Arguments(arguments)])
}

fn is_object(value: &RawValue) -> bool {
    value.get().starts_with('{')
}
