//! Derives the format of calls from a chat template.
//!
//! The template renders an answer without calls and an answer with a call whose name, keys and values are unique words.
//! The text around these words shows the markers and the structure of calls. A format is accepted only if
//! [`CallReader`] reads the rendered calls with it.

use std::ops::Range;

use serde_json::{Value, json};

use super::format::{CallForm, CallFormat};
use super::reader::CallReader;
use super::tags::{self, TagNotation};
use crate::message::{Json, Message};
use crate::part::{Offered, Part};

const NAMES: [&str; 2] = ["probe_tool_qa", "check_item_wz"];
const KEYS: [&str; 3] = ["arg_first", "arg_other", "arg_third"];
const VALUES: [&str; 2] = ["Qvalue", "Wresult"];
const NUMBER: u32 = 70_417;
const ID: &str = "Xq7fP2mZa";
const TEXT: &str = "Zhello";

/// Maximum size of a rendered conversation, in bytes. Real templates render the probe in less than 20 KB.
const MAX_RENDERED: usize = 256 << 10;

/// Conversations that the derivation renders.
pub(crate) struct Probe {
    /// List of tools, in OpenAI's format.
    pub(crate) tools: Json,
    /// An answer without calls.
    pub(crate) text: Vec<Message>,
    /// An answer with one call.
    pub(crate) one: Vec<Message>,
}

impl Probe {
    pub(crate) fn new() -> Self {
        let tool = |name: &&str| {
            json!({ "type": "function", "function": {
                "name": name, "description": "d",
                "parameters": { "type": "object", "properties": properties(), "required": [KEYS[0]] },
            }})
        };
        let call = json!({
            "id": ID, "type": "function", "function": { "name": NAMES[0], "arguments": arguments().to_string() },
        });
        let with = |answer: Value| {
            let answer = serde_json::from_value(answer).unwrap_or_else(|_| Message::new("assistant", ""));
            vec![Message::new("user", "hello"), answer]
        };
        Probe {
            tools: Json::from(&Value::from_iter(NAMES.iter().map(tool))),
            text: with(json!({ "role": "assistant", "content": TEXT })),
            one: with(json!({ "role": "assistant", "content": null, "tool_calls": [call] })),
        }
    }
}

fn properties() -> Value {
    json!({ KEYS[0]: { "type": "string" }, KEYS[1]: { "type": "string" }, KEYS[2]: { "type": "integer" } })
}

fn arguments() -> Value {
    json!({ KEYS[0]: VALUES[0], KEYS[1]: VALUES[1], KEYS[2]: NUMBER })
}

/// True if `rendered`, an answer with the call of a [`Probe`], shows the call.
pub(crate) fn shows_call(rendered: &str) -> bool {
    rendered.contains(VALUES[0])
}

/// Derives the format from the rendered answers of a [`Probe`]: `text` without calls and `one` with a call. `source` is
/// the template. `None` if the format is not known, or if the reader does not find the calls in `one`.
pub(crate) fn derive(source: &str, text: &str, one: &str) -> Option<CallFormat> {
    if text.len().max(one.len()) > MAX_RENDERED {
        return None;
    }
    let answer = answer(text, one);
    let format = notation(text, one, answer.clone())?.with_python_tag(source);
    let rendered = one[answer].replace(ID, "1");
    let offered = |name: &&str| Offered {
        name: name.to_string(),
        parameters: json!({ "properties": properties() }).as_object().cloned(),
    };
    let mut reader = CallReader::new(format.clone(), NAMES.iter().map(offered).collect());
    let mut parts = reader.push(&rendered);
    parts.extend(reader.finish());
    let (mut names, mut read) = (Vec::new(), String::new());
    for part in parts {
        match part {
            Part::Call(name) => names.push(name),
            Part::Arguments(json) => read.push_str(&json),
            Part::Text(_) | Part::Thought(_) => {}
        }
    }
    let read: Value = serde_json::from_str(&read).ok()?;
    (names == [NAMES[0]] && read == arguments()).then_some(format)
}

/// Returns the part of `one` that `text` does not share: the answer without the markers of the message.
fn answer(text: &str, one: &str) -> Range<usize> {
    let pairs = text.char_indices().zip(one.char_indices());
    let differs = pairs.clone().find(|((_, left), (_, right))| left != right).map(|(_, (at, _))| at);
    let mut begin = differs.unwrap_or(one.len().min(text.len()));
    let rest = &one[begin..];
    let limit = rest.len().min(text.len().saturating_sub(begin));
    let common = text.chars().rev().zip(rest.chars().rev()).take_while(|(left, right)| left == right);
    let mut common: usize = common.map(|(character, _)| character.len_utf8()).sum();
    common = common.min(limit);
    let mut end = one.len() - common;
    while !one.is_char_boundary(end) {
        end += 1;
    }
    // A marker that is partly shared belongs to the answer.
    for tag in tags::ranges(one) {
        if tag.start < begin && begin < tag.end {
            begin = tag.start;
        }
        if tag.start < end && end < tag.end {
            end = tag.end;
        }
    }
    begin..end.max(begin)
}

/// Derives the format from the position of the call's words within `answer`.
fn notation(text: &str, one: &str, answer: Range<usize>) -> Option<CallFormat> {
    // Markers that also precede a text do not belong to calls.
    let begin = answer.start.min(text.len());
    let of_text = &text[begin..text.rfind(TEXT).unwrap_or(begin).max(begin)];
    let part = &one[answer.clone()];
    let first_key = part.find(KEYS[0])?;
    let name = part[..first_key].rfind(NAMES[0])?;
    let after_name = name + NAMES[0].len();
    let format = |before: &str, after: &str, form: CallForm| {
        let (openers, before_id) = marks(before, of_text);
        CallFormat { before_id, ..CallFormat::new(openers, marks(after, "").0, form) }
    };
    if let Some((begin, end, form)) = json_form(part, name) {
        return Some(format(&part[..begin], &part[end..], form));
    }
    let between = &part[after_name..first_key];
    let is_python = between.trim() == "(" && part[first_key + KEYS[0].len()..].trim_start().starts_with('=');
    if is_python {
        let begin = part[..name].rfind('[')?;
        let close = part[first_key..].rfind(')')? + first_key + 1;
        let after = part[close..].trim_start();
        return Some(format(&part[..begin], after.strip_prefix(']').unwrap_or(after), CallForm::Python));
    }
    let open_at = mark_before(part, name);
    let mut open = part[open_at..name].trim().to_string();
    let is_prompted = open.is_empty();
    if is_prompted {
        // The prompt ends with the marker before the name.
        let prompt = &one[..answer.start];
        let tag = tags::ranges(prompt).pop().map_or(0, |tag| tag.end);
        open = prompt[tag..].trim().to_string();
    }
    if open.is_empty() {
        return None;
    }
    if let Some((quote, brace, end)) = object_after(part, after_name, first_key) {
        let form =
            CallForm::Named { open, after_name: part[after_name..brace].trim_start().chars().next(), quote };
        let before_text = is_prompted.then(|| of_text.trim_start().to_string());
        return Some(CallFormat { before_text, ..format(&part[..open_at], &part[end..], form) });
    }
    let (tags, end) = tag_form(part, open, after_name)?;
    Some(format(&part[..open_at], &part[end..], CallForm::Tags(tags)))
}

/// Returns the form of a call that is a JSON object with the name at `name`, and the position of the object or list.
fn json_form(part: &str, name: usize) -> Option<(usize, usize, CallForm)> {
    for (begin, _) in part[..name].match_indices(['{', '[']) {
        let mut values = serde_json::Deserializer::from_str(&part[begin..]).into_iter::<Value>();
        let Some(Ok(value)) = values.next() else { continue };
        let end = begin + values.byte_offset();
        let call = if value.is_array() { &value[0] } else { &value };
        let Some(call) = call.as_object().filter(|_| end > name) else { continue };
        let is_arguments = |value: &Value| {
            let text = value.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
            text.as_ref().unwrap_or(value).get(KEYS[0]).is_some()
        };
        let arguments = call.iter().find(|(_, value)| is_arguments(value))?.0.clone();
        let key = call.iter().find(|(_, value)| *value == NAMES[0]).map(|(key, _)| key.clone());
        if key.is_none() && arguments != NAMES[0] {
            return None;
        }
        return Some((begin, end, CallForm::Json { name: key, arguments }));
    }
    None
}

/// Finds an object with the arguments after the name. Returns the marker around its strings if it is not JSON, and its
/// position.
fn object_after(part: &str, after_name: usize, first_key: usize) -> Option<(Option<String>, usize, usize)> {
    let brace = part[after_name..first_key].find('{')? + after_name;
    let mut values = serde_json::Deserializer::from_str(&part[brace..]).into_iter::<Value>();
    if let Some(Ok(value)) = values.next() {
        return value.get(KEYS[0]).map(|_| (None, brace, brace + values.byte_offset()));
    }
    let rest = part[first_key + KEYS[0].len()..].trim_start().strip_prefix(':')?;
    let quote = rest[..rest.find(VALUES[0])?].trim();
    let last = part.rfind(&NUMBER.to_string())?;
    let end = last + part[last..].find('}')? + 1;
    (!quote.is_empty()).then(|| (Some(quote.to_string()), brace, end))
}

/// Returns the form of a call between tags, and its end.
fn tag_form(part: &str, open: String, after_name: usize) -> Option<(TagNotation, usize)> {
    let number = NUMBER.to_string();
    let words = [KEYS[0], VALUES[0], KEYS[1], VALUES[1], KEYS[2], &number];
    let mut at = after_name;
    let mut between = Vec::new();
    for word in words {
        let found = part[at..].find(word)? + at;
        between.push(at..found);
        at = found + word.len();
    }
    let key_at = mark_before(part, between[0].end).max(after_name);
    let key = part[key_at..between[0].end].trim().to_string();
    let value = |index: usize| part[between[index].clone()].trim().to_string();
    let after_first = &part[between[2].clone()];
    let after_value = after_first.trim_end().strip_suffix(&*key)?.trim();
    let rest = part[at..].trim_start();
    let rest = rest.strip_prefix(after_value)?;
    let close = tags::ranges(rest).into_iter().next().map(|tag| rest[tag].to_string())?;
    let end = part.len() - rest.len() + rest.find(&*close)? + close.len();
    let after = part[after_name..key_at].trim().to_string();
    let marks = [open, after, key, value(5), after_value.to_string(), close];
    if marks.iter().enumerate().any(|(index, mark)| index != 1 && mark.is_empty()) {
        return None;
    }
    let mut tags = TagNotation::new(marks);
    tags.text_value = Some(value(1)).filter(|value| *value != tags.value);
    Some((tags, end))
}

/// Returns the position of the marker directly before `at`: a tag that contains the position, or the last tag before it
/// with the text after the tag. Without a tag, the text before `at` on the same line.
fn mark_before(part: &str, at: usize) -> usize {
    let last = tags::ranges(&part[..at]).into_iter().next_back();
    last.map(|tag| tag.start).unwrap_or_else(|| part[..at].rfind('\n').map_or(0, |line| line + 1))
}

/// Returns the markers in `text`: each tag with the text that follows it, and any text before the first tag. Tags in
/// `except` are not markers. The second result is the marker before an ID.
fn marks(text: &str, except: &str) -> (Vec<String>, Option<String>) {
    let ranges = tags::ranges(text);
    let first = ranges.first().map_or(text.len(), |tag| tag.start);
    let starts = std::iter::once(0..first).chain(
        ranges
            .iter()
            .enumerate()
            .map(|(index, tag)| tag.start..ranges.get(index + 1).map_or(text.len(), |next| next.start)),
    );
    let (mut marks, mut before_id) = (Vec::new(), None);
    for (range, tag) in starts.zip(std::iter::once(&(0..0)).chain(&ranges)) {
        let mark = text[range].trim();
        let (mark, has_id) = mark.split_once(ID).map_or((mark, false), |(mark, _)| (mark, true));
        let is_known = !tag.is_empty() && except.contains(&text[tag.clone()]);
        let is_unusable =
            mark.is_empty() || mark.len() > MAX_MARK || mark.contains(NAMES[0]) || NOTHING.contains(&mark);
        if is_unusable || is_known || marks.len() == MOST_MARKS {
            continue;
        }
        if has_id {
            before_id = Some(mark.to_string());
        }
        if !marks.iter().any(|known| known == mark) {
            marks.push(mark.to_string());
        }
    }
    (marks, before_id)
}

/// Content of a message without content, as some templates show it.
const NOTHING: [&str; 2] = ["None", "null"];

/// Maximum length of a marker, in bytes.
const MAX_MARK: usize = 200;

/// Maximum number of markers before or after a call.
const MOST_MARKS: usize = 12;

#[cfg(test)]
mod tests;
