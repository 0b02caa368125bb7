//! Speculative decoding as a server is configured for it, and as a request asks for it.

use serde_json::{Map, Value, json};

use super::fields::{Fields, wrong};
use super::refusal::Refusal;
use crate::ffi::Token;
use crate::sampling::whole;
use crate::speculative::{Lookup, MOST, reach_after};

/// Who has drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Who {
    /// Nobody.
    #[default]
    Off,
    /// Requests that ask for it.
    Asked,
    /// Requests that do not say otherwise.
    All,
}

impl std::str::FromStr for Who {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Who::Off),
            "asked" => Ok(Who::Asked),
            "lookup" => Ok(Who::All),
            "model" => {
                Err("drafts of a smaller model are for anneal run and anneal chat: use off, asked or lookup"
                    .to_string())
            }
            _ => Err(format!("{text:?}: use off, asked or lookup")),
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
}

impl Default for Drafting {
    fn default() -> Self {
        Drafting { who: Who::Off, most: 7, near: false }
    }
}

impl Drafting {
    /// Rows of logits that a batch of `slots` slots may ask for.
    pub fn rows(self, slots: u32) -> u32 {
        match self.who {
            Who::Off => slots,
            Who::Asked | Who::All => slots.saturating_mul(self.most + 1),
        }
    }
}

/// What a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Most tokens of a draft.
    pub most: u32,
}

/// What became of the drafts of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drafted {
    /// Tokens.
    pub drafted: u32,
    /// Of these, those that were chosen.
    pub accepted: u32,
    /// Whether they lost against steps without at some time, and were left out from then on.
    pub turned_off: bool,
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

const USE: &str = "use an object: {\"drafts\": \"lookup\" or \"off\", \"max\": a whole number}";

/// The field `speculative`.
pub fn take(fields: &mut Fields, drafting: Drafting) -> Result<Option<Wish>, Refusal> {
    const NAME: &str = "speculative";
    let everyone = (drafting.who == Who::All).then_some(Wish { most: drafting.most });
    let map: Map<String, Value> = match fields.take("speculative") {
        None => return Ok(everyone),
        Some(Value::Object(map)) => map,
        Some(other) => return Err(wrong(NAME, USE, &other)),
    };
    if let Some(name) = map.keys().find(|name| !["drafts", "max"].contains(&name.as_str())) {
        return Err(Refusal::field(NAME, format!("{name} is none of its fields; {USE}")));
    }
    let most = match map.get("max") {
        None | Some(Value::Null) => drafting.most,
        Some(value) => match whole(value).and_then(|number| u32::try_from(number).ok()) {
            Some(number) if (1..=MOST).contains(&number) => number.min(drafting.most),
            _ => return Err(wrong(NAME, format!("max: use 1 to {MOST}"), value)),
        },
    };
    match map.get("drafts").unwrap_or(&Value::Null) {
        Value::Null => Ok(everyone.map(|_| Wish { most })),
        Value::String(text) if text == "off" => Ok(None),
        Value::String(text) if text == "lookup" && drafting.who != Who::Off => Ok(Some(Wish { most })),
        Value::String(text) if text == "lookup" => {
            let why = "this server drafts nothing: start it with --speculative asked or --speculative lookup";
            Err(Refusal::field(NAME, why))
        }
        other => Err(wrong(NAME, USE, other)),
    }
}

/// What the field may be.
pub fn schema(drafting: Drafting) -> Value {
    let drafts = match drafting.who {
        Who::Off => json!({ "enum": ["off", null] }),
        Who::Asked | Who::All => json!({ "enum": ["lookup", "off", null] }),
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

    fn read(json: &str, who: Who) -> Result<Option<u32>, String> {
        let mut fields = Fields::read(json.as_bytes()).map_err(|refusal| refusal.message)?;
        let drafting = Drafting { who, ..Drafting::default() };
        let wish = take(&mut fields, drafting).map_err(|refusal| refusal.message)?;
        Ok(wish.map(|wish| wish.most))
    }

    #[test]
    fn a_request_has_what_it_may_ask_for() {
        use Who::{All, Asked, Off};
        let cases = [
            ("{}", Off, None),
            ("{}", Asked, None),
            ("{}", All, Some(7)),
            (r#"{"speculative": null}"#, All, Some(7)),
            (r#"{"speculative": {}}"#, All, Some(7)),
            (r#"{"speculative": {}}"#, Asked, None),
            (r#"{"speculative": {"drafts": "off"}}"#, All, None),
            (r#"{"speculative": {"drafts": "off"}}"#, Off, None),
            (r#"{"speculative": {"drafts": "lookup"}}"#, Asked, Some(7)),
            (r#"{"speculative": {"drafts": "lookup", "max": 2.0}}"#, Asked, Some(2)),
            // No more than there are rows for.
            (r#"{"speculative": {"drafts": "lookup", "max": 15}}"#, Asked, Some(7)),
            (r#"{"speculative": {"max": 1}}"#, All, Some(1)),
        ];
        for (json, who, expected) in cases {
            assert_eq!(read(json, who), Ok(expected), "{json} of {who:?}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_named() {
        let cases = [
            (r#"{"speculative": true}"#, Who::All, "speculative: use an object"),
            (r#"{"speculative": {"draft": "lookup"}}"#, Who::All, "speculative: draft is none"),
            (r#"{"speculative": {"drafts": "model"}}"#, Who::All, "speculative: use an object"),
            (r#"{"speculative": {"max": 0}}"#, Who::All, "speculative: max: use 1 to 15"),
            (r#"{"speculative": {"max": 1e9}}"#, Who::All, "speculative: max: use 1 to 15"),
            (r#"{"speculative": {"drafts": "lookup"}}"#, Who::Off, "speculative: this server drafts nothing"),
        ];
        for (json, who, expected) in cases {
            let why = read(json, who).err().unwrap_or_default();
            assert!(why.starts_with(expected), "{json}: {why}");
        }
    }
}
