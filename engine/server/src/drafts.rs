//! Speculative decoding: configuration of the server, and field of a request.

use engine_core::speculative::{Lookup, MOST, reach_after};
use llama::Token;
use sampling::whole;
use serde_json::{Map, Value, json};

use super::api_error::ApiError;
use super::fields::{Fields, wrong};
use crate::done::Drafted;

/// Requests that use speculative decoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Who {
    /// Off for all requests.
    #[default]
    Off,
    /// Only requests that ask for speculative decoding.
    Asked,
    /// All requests that do not opt out. Contains the source of drafts.
    All(DraftSource),
}

/// Source of drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DraftSource {
    /// The text so far.
    Lookup,
    /// A smaller model.
    Model,
}

impl std::str::FromStr for Who {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Who::Off),
            "asked" => Ok(Who::Asked),
            "lookup" => Ok(Who::All(DraftSource::Lookup)),
            "model" => Ok(Who::All(DraftSource::Model)),
            _ => Err(format!("{text:?}: use off, asked, lookup or model")),
        }
    }
}

/// Configuration of speculative decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drafting {
    /// Requests that use speculative decoding.
    pub who: Who,
    /// Maximum number of tokens in a draft, 1 to [`MOST`].
    pub most: u32,
    /// True if drafts are used even if evaluating several tokens together rounds logits differently from evaluating one
    /// token at a time.
    pub near: bool,
    /// True if a draft model is configured.
    pub has_model: bool,
}

impl Default for Drafting {
    fn default() -> Self {
        Drafting { who: Who::Off, most: 7, near: false, has_model: false }
    }
}

impl Drafting {
    /// Returns the maximum number of rows of logits in a batch of `slots` slots.
    pub fn rows(self, slots: u32) -> u32 {
        match self.who {
            Who::Off => slots,
            Who::Asked | Who::All(_) => slots.saturating_mul(self.most + 1),
        }
    }
}

/// Speculative decoding that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Maximum number of tokens in a draft.
    pub most: u32,
    /// Source of the drafts.
    pub from: DraftSource,
}

/// Drafting state of a running request.
#[derive(Debug, Default)]
pub struct Draft {
    /// Requested speculative decoding. `None` if the request does not use it.
    pub wish: Option<Wish>,
    /// Drafted tokens in the batch that is being evaluated.
    pub tokens: Vec<Token>,
    /// Results of drafting so far.
    pub drafted: Drafted,
    /// Index of the largest width that the next draft may have.
    pub reach: usize,
    /// Lookup of drafts in the text so far.
    pub lookup: Lookup,
}

impl Draft {
    /// Creates the state of a request that has not drafted yet.
    pub fn new(wish: Option<Wish>) -> Self {
        Draft { wish, reach: 1, ..Draft::default() }
    }

    /// Records a draft of `drafted` tokens, of which `accepted` were accepted.
    pub fn learn(&mut self, drafted: usize, accepted: usize) {
        self.drafted.drafted += drafted as u32;
        self.drafted.accepted += accepted as u32;
        self.reach = reach_after(self.reach, drafted, accepted);
    }
}

const USE: &str = "use an object: {\"drafts\": \"lookup\", \"model\" or \"off\", \"max\": a whole number}";

/// Takes the field `speculative`.
///
/// # Errors
/// If the field is invalid, or asks for a feature that the server does not offer.
pub fn take(fields: &mut Fields, drafting: Drafting) -> Result<Option<Wish>, ApiError> {
    const NAME: &str = "speculative";
    let everyone = match drafting.who {
        Who::All(from) => Some(Wish { most: drafting.most, from }),
        Who::Off | Who::Asked => None,
    };
    let map: Map<String, Value> = match fields.take("speculative") {
        None => return Ok(everyone),
        Some(Value::Object(map)) => map,
        Some(other) => return Err(wrong(NAME, USE, &other)),
    };
    if let Some(name) = map.keys().find(|name| !["drafts", "max"].contains(&name.as_str())) {
        return Err(ApiError::field(NAME, format!("unknown key {name}; {USE}")));
    }
    let most = match map.get("max") {
        None | Some(Value::Null) => drafting.most,
        Some(value) => match whole(value).and_then(|number| u32::try_from(number).ok()) {
            Some(number) if (1..=MOST).contains(&number) => number.min(drafting.most),
            _ => return Err(wrong(NAME, format!("max: use 1 to {MOST}"), value)),
        },
    };
    let from = match map.get("drafts").unwrap_or(&Value::Null) {
        Value::Null => return Ok(everyone.map(|wish| Wish { most, ..wish })),
        Value::String(text) if text == "off" => return Ok(None),
        Value::String(text) if text == "lookup" => DraftSource::Lookup,
        Value::String(text) if text == "model" => DraftSource::Model,
        other => return Err(wrong(NAME, USE, other)),
    };
    match (drafting.who, from, drafting.has_model) {
        (Who::Off, ..) => {
            let why = "speculative decoding is off for this model: start the server with --speculative asked or \
                      lookup, or with --draft-model FILE (speculative and draft_model in its configuration)";
            Err(ApiError::field(NAME, why))
        }
        (_, DraftSource::Model, false) => {
            let why = "this model has no draft model: start the server with --draft-model FILE (draft_model in its \
                      configuration), or use \"lookup\"";
            Err(ApiError::field(NAME, why))
        }
        _ => Ok(Some(Wish { most, from })),
    }
}

/// Returns the JSON schema of the field `speculative`.
pub fn schema(drafting: Drafting) -> Value {
    let drafts = match (drafting.who, drafting.has_model) {
        (Who::Off, _) => json!({ "enum": ["off", null] }),
        (_, false) => json!({ "enum": ["lookup", "off", null] }),
        (_, true) => json!({ "enum": ["lookup", "model", "off", null] }),
    };
    json!({
        "type": ["object", "null"],
        "description": "Speculative decoding: drafted tokens are evaluated together.",
        "properties": {
            "drafts": drafts,
            "max": { "type": ["integer", "null"], "minimum": 1, "maximum": MOST, "default": drafting.most },
        },
        "additionalProperties": false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Who = Who::All(DraftSource::Lookup);

    fn read(json: &str, who: Who, has_model: bool) -> Result<Option<(u32, DraftSource)>, String> {
        let mut fields = Fields::read(json.as_bytes()).map_err(|refusal| refusal.message)?;
        let drafting = Drafting { who, has_model, ..Drafting::default() };
        let wish = take(&mut fields, drafting).map_err(|refusal| refusal.message)?;
        Ok(wish.map(|wish| (wish.most, wish.from)))
    }

    #[test]
    fn a_request_has_what_it_may_ask_for() {
        use Who::{Asked, Off};
        let of_model = Who::All(DraftSource::Model);
        let cases = [
            ("{}", Off, None),
            ("{}", Asked, None),
            ("{}", ALL, Some((7, DraftSource::Lookup))),
            (r#"{"speculative": null}"#, ALL, Some((7, DraftSource::Lookup))),
            (r#"{"speculative": {}}"#, ALL, Some((7, DraftSource::Lookup))),
            (r#"{"speculative": {}}"#, Asked, None),
            (r#"{"speculative": {"drafts": "off"}}"#, ALL, None),
            (r#"{"speculative": {"drafts": "off"}}"#, Off, None),
            (r#"{"speculative": {"drafts": "lookup"}}"#, Asked, Some((7, DraftSource::Lookup))),
            (r#"{"speculative": {"drafts": "lookup", "max": 2.0}}"#, Asked, Some((2, DraftSource::Lookup))),
            // The number of logits rows limits the draft.
            (r#"{"speculative": {"drafts": "lookup", "max": 15}}"#, Asked, Some((7, DraftSource::Lookup))),
            (r#"{"speculative": {"max": 1}}"#, ALL, Some((1, DraftSource::Lookup))),
            ("{}", of_model, Some((7, DraftSource::Model))),
            (r#"{"speculative": {"max": 3}}"#, of_model, Some((3, DraftSource::Model))),
            (r#"{"speculative": {"drafts": "lookup"}}"#, of_model, Some((7, DraftSource::Lookup))),
            (r#"{"speculative": {"drafts": "model"}}"#, Asked, Some((7, DraftSource::Model))),
        ];
        for (json, who, expected) in cases {
            assert_eq!(read(json, who, true), Ok(expected), "{json} of {who:?}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_named() {
        let cases = [
            (r#"{"speculative": true}"#, ALL, "speculative: use an object"),
            (r#"{"speculative": {"draft": "lookup"}}"#, ALL, "speculative: unknown key draft"),
            (r#"{"speculative": {"drafts": "model"}}"#, ALL, "speculative: this model has no draft model"),
            (r#"{"speculative": {"max": 0}}"#, ALL, "speculative: max: use 1 to 15"),
            (r#"{"speculative": {"max": 1e9}}"#, ALL, "speculative: max: use 1 to 15"),
            (
                r#"{"speculative": {"drafts": "lookup"}}"#,
                Who::Off,
                "speculative: speculative decoding is off",
            ),
        ];
        for (json, who, expected) in cases {
            let why = read(json, who, false).err().unwrap_or_default();
            assert!(why.starts_with(expected), "{json}: {why}");
        }
    }
}
