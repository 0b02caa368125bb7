//! Speculative decoding as a server is configured for it, and as a request asks for it.

use engine_core::speculative::{Lookup, MOST, reach_after};
use llama::Token;
use sampling::whole;
use serde_json::{Map, Value, json};

use super::api_error::ApiError;
use super::fields::{Fields, wrong};
use crate::done::Drafted;

/// Who has drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Who {
    /// Nobody.
    #[default]
    Off,
    /// Requests that ask for it.
    Asked,
    /// Requests that do not say otherwise, from there.
    All(DraftSource),
}

/// Where drafts come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DraftSource {
    /// The text itself.
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

/// Drafts of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drafting {
    /// Who has them.
    pub who: Who,
    /// Most tokens of one, 1 to [`MOST`].
    pub most: u32,
    /// Whether also where a batch rounds otherwise than single tokens do.
    pub near: bool,
    /// Whether there is a smaller model.
    pub has_model: bool,
}

impl Default for Drafting {
    fn default() -> Self {
        Drafting { who: Who::Off, most: 7, near: false, has_model: false }
    }
}

impl Drafting {
    /// Rows of logits that a batch of `slots` slots may ask for.
    pub fn rows(self, slots: u32) -> u32 {
        match self.who {
            Who::Off => slots,
            Who::Asked | Who::All(_) => slots.saturating_mul(self.most + 1),
        }
    }
}

/// What a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Most tokens of a draft.
    pub most: u32,
    /// Where it comes from.
    pub from: DraftSource,
}

/// The drafts of a request that runs.
#[derive(Debug, Default)]
pub struct Draft {
    /// What is wanted, if anything is.
    pub wish: Option<Wish>,
    /// Of the batch that is being evaluated.
    pub tokens: Vec<Token>,
    /// What became of them.
    pub drafted: Drafted,
    /// Which of the widths the next one may have.
    pub reach: usize,
    /// Where they come from.
    pub lookup: Lookup,
}

impl Draft {
    /// Nothing yet.
    pub fn new(wish: Option<Wish>) -> Self {
        Draft { wish, reach: 1, ..Draft::default() }
    }

    /// Notes a draft of `drafted` tokens, of which `accepted` were chosen.
    pub fn learn(&mut self, drafted: usize, accepted: usize) {
        self.drafted.drafted += drafted as u32;
        self.drafted.accepted += accepted as u32;
        self.reach = reach_after(self.reach, drafted, accepted);
    }
}

const USE: &str = "use an object: {\"drafts\": \"lookup\", \"model\" or \"off\", \"max\": a whole number}";

/// The field `speculative`.
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
        return Err(ApiError::field(NAME, format!("{name} is none of its fields; {USE}")));
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
            let why = "this model has no drafts here: start the server with --speculative asked or lookup, or with --draft-model \
                       FILE (speculative and draft_model in its configuration)";
            Err(ApiError::field(NAME, why))
        }
        (_, DraftSource::Model, false) => {
            let why = "there is no smaller model for this one: start the server with --draft-model FILE (draft_model in its \
                 configuration), or ask for \"lookup\"";
            Err(ApiError::field(NAME, why))
        }
        _ => Ok(Some(Wish { most, from })),
    }
}

/// What the field may be.
pub fn schema(drafting: Drafting) -> Value {
    let drafts = match (drafting.who, drafting.has_model) {
        (Who::Off, _) => json!({ "enum": ["off", null] }),
        (_, false) => json!({ "enum": ["lookup", "off", null] }),
        (_, true) => json!({ "enum": ["lookup", "model", "off", null] }),
    };
    json!({
        "type": ["object", "null"],
        "description": "Speculative decoding: tokens that may follow are evaluated together.",
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
            // No more than there are rows for.
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
            (r#"{"speculative": {"draft": "lookup"}}"#, ALL, "speculative: draft is none"),
            (r#"{"speculative": {"drafts": "model"}}"#, ALL, "speculative: there is no smaller model"),
            (r#"{"speculative": {"max": 0}}"#, ALL, "speculative: max: use 1 to 15"),
            (r#"{"speculative": {"max": 1e9}}"#, ALL, "speculative: max: use 1 to 15"),
            (r#"{"speculative": {"drafts": "lookup"}}"#, Who::Off, "speculative: this model has no drafts"),
        ];
        for (json, who, expected) in cases {
            let why = read(json, who, false).err().unwrap_or_default();
            assert!(why.starts_with(expected), "{json}: {why}");
        }
    }
}
