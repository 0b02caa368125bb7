//! References in JSON schemas. llguidance finds only references of the form `#/a/b` without escapes, and an answer
//! never ends if a reference leads back to itself.

use std::borrow::Cow;
use std::collections::HashMap;

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

use crate::parts::{SubSchema, escaped, parts, visit};

/// Character that replaces `/` in the names of definitions, because llguidance cannot refer to such names.
const SLASH: &str = "\u{2215}";

/// Maximum number of parts with the same anchor or identifier. References to further parts are not resolved.
const MAX_SAME_NAMES: usize = 100;

/// Keywords whose value is an object with definitions.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// Rewrites the references in `schema` to parts of `schema` in the form that llguidance knows. Other references, which
/// llguidance refuses if they are used, remain.
pub(super) fn resolve(schema: &mut Value) {
    let all = parts(schema);
    if !all.iter().any(|part| reference(part.schema).is_some()) {
        return;
    }
    let names = names(&all);
    let mut found = HashMap::new();
    let mut has_slash = false;
    for part in &all {
        let target = reference(part.schema).and_then(|text| target(text, part, &names, schema));
        if let Some(text) = target.as_deref().and_then(as_known) {
            has_slash |= text.contains(SLASH);
            found.insert(part.path.clone(), text);
        }
    }
    visit(schema, "", &mut |fields, path| {
        if let Some(text) = found.remove(path) {
            fields.insert("$ref".to_string(), Value::String(text));
        }
        for definitions in DEFINITIONS {
            if let Some(Value::Object(map)) = fields.get_mut(definitions).filter(|_| has_slash) {
                let renamed = |(name, value): (String, Value)| (name.replace('/', SLASH), value);
                *map = std::mem::take(map).into_iter().map(renamed).collect();
            }
        }
    });
}

fn reference(schema: &Value) -> Option<&str> {
    schema.get("$ref")?.as_str()
}

/// Returns the pointers of the parts with an anchor (`#name`) or an identifier.
fn names(all: &[SubSchema]) -> HashMap<String, Vec<String>> {
    let mut names = HashMap::<String, Vec<String>>::new();
    for part in all {
        let name = |key: &str| part.schema.get(key).and_then(Value::as_str);
        let anchors = [name("$anchor"), name("$dynamicAnchor")].into_iter().flatten();
        let identifiers = [name("$id"), name("id")].into_iter().flatten();
        let identifiers = identifiers.map(|name| name.strip_suffix('#').unwrap_or(name).to_string());
        for name in anchors.map(|name| format!("#{name}")).chain(identifiers) {
            let pointers = names.entry(name).or_default();
            if pointers.len() < MAX_SAME_NAMES {
                pointers.push(part.pointer.clone());
            }
        }
    }
    names
}

/// Returns the pointer of the target of `reference`, which is in `part`.
fn target(
    reference: &str,
    part: &SubSchema,
    names: &HashMap<String, Vec<String>>,
    schema: &Value,
) -> Option<String> {
    // The tools of a request have one schema, but each tool has its own names.
    let named = |name: &str| {
        let shared = |pointer: &&String| {
            pointer.bytes().zip(part.pointer.bytes()).take_while(|(one, other)| one == other).count()
        };
        names.get(name)?.iter().max_by_key(shared).cloned()
    };
    let (base, fragment) = reference.split_once('#').unwrap_or((reference, ""));
    let base = if base.is_empty() { String::new() } else { named(base)? };
    if fragment.is_empty() {
        return Some(base);
    }
    let decoded = percent_decode_str(fragment).decode_utf8().unwrap_or(Cow::Borrowed(fragment));
    if !fragment.starts_with('/') {
        return named(&format!("#{decoded}"));
    }
    // Some programs do not escape the names of definitions.
    let known = [decoded, Cow::Owned(unescaped_pointer(fragment))]
        .into_iter()
        .map(|fragment| format!("{base}{fragment}"));
    known.into_iter().find(|pointer| schema.pointer(pointer).is_some())
}

/// Returns the JSON pointer for `text`, whose names are not escaped and contain no `/`.
fn unescaped_pointer(text: &str) -> String {
    text.replace('~', "~0")
}

/// Returns the pointer of the target of `reference`, which has llguidance's form.
pub(super) fn known_pointer(reference: &str) -> Option<String> {
    reference.strip_prefix('#').map(unescaped_pointer)
}

/// Returns the reference to `pointer` in llguidance's form, after `resolve` has renamed definitions. `None` if a name
/// other than that of a definition contains `/`.
fn as_known(pointer: &str) -> Option<String> {
    let mut text = "#".to_string();
    let mut before = "";
    for segment in pointer.split('/').skip(1) {
        if segment.contains("~1") && !DEFINITIONS.contains(&before) {
            return None;
        }
        text.push('/');
        text.push_str(&segment.replace("~1", SLASH).replace("~0", "~"));
        before = segment;
    }
    Some(text)
}

/// Replaces the parts of `schema` that no finite text matches, because their references never end, by `false`. If this
/// is true of the whole schema, returns the path of a reference.
pub(super) fn remove_endless(schema: &mut Value) -> Option<String> {
    let all = parts(schema);
    if !all.iter().any(|part| reference(part.schema).is_some()) {
        return None;
    }
    let needs = PartNeeds::of(&all);
    let mut part = all.len() - 1;
    if needs.is_endless(part) {
        // Only a reference can lead back, so each step leads to an inner part until there is a reference.
        while reference(all[part].schema).is_none() {
            part = *needs.of_part[part].iter().find(|needed| needs.is_endless(**needed))?;
        }
        return Some(all[part].path.clone());
    }
    let pointers: Vec<String> =
        (0..all.len()).filter(|part| needs.is_endless(*part)).map(|part| all[part].pointer.clone()).collect();
    for pointer in pointers {
        if let Some(part) = schema.pointer_mut(&pointer) {
            *part = Value::Bool(false);
        }
    }
    None
}

/// Dependencies between the parts of a schema. A part has a finite text if all parts that it needs have one.
struct PartNeeds {
    /// For each part: the parts that it needs, or of which it needs one.
    of_part: Vec<Vec<usize>>,
    /// For each part: number of needs that are not met.
    open: Vec<usize>,
    /// For each part: the parts that need it.
    users: Vec<Vec<usize>>,
}

impl PartNeeds {
    fn of(all: &[SubSchema]) -> Self {
        let index_of: HashMap<&str, usize> =
            all.iter().enumerate().map(|(index, part)| (part.pointer.as_str(), index)).collect();
        let empty = vec![Vec::new(); all.len()];
        let mut needs = PartNeeds { of_part: empty.clone(), open: vec![0; all.len()], users: empty };
        for (index, part) in all.iter().enumerate() {
            let Value::Object(fields) = part.schema else { continue };
            needed(fields, &part.pointer, &index_of).into_iter().for_each(|other| needs.add(index, other));
            for key in ["anyOf", "oneOf"] {
                let options = listed(fields, key, &part.pointer, &index_of);
                if !options.is_empty() {
                    needs.add_any(index, options);
                }
            }
        }
        let mut met: Vec<usize> = (0..needs.open.len()).filter(|index| needs.open[*index] == 0).collect();
        while let Some(index) = met.pop() {
            for user in std::mem::take(&mut needs.users[index]) {
                if needs.open[user] == 1 {
                    met.push(user);
                }
                needs.open[user] = needs.open[user].saturating_sub(1);
            }
        }
        needs
    }

    fn add(&mut self, user: usize, needed: usize) {
        self.of_part[user].push(needed);
        self.open[user] += 1;
        self.users[needed].push(user);
    }

    /// Adds the need of one of several parts. The need is an entry of its own, which the first of the parts meets.
    fn add_any(&mut self, user: usize, needed: Vec<usize>) {
        let any = self.open.len();
        self.open[user] += 1;
        self.open.push(1);
        self.users.push(vec![user]);
        needed.iter().for_each(|part| self.users[*part].push(any));
        self.of_part[user].extend(needed);
    }

    /// True if no finite text matches the part.
    fn is_endless(&self, part: usize) -> bool {
        self.open[part] > 0
    }
}

/// Returns the parts that must have a finite text so that the schema with these fields, at `pointer`, has one.
fn needed(fields: &Map<String, Value>, pointer: &str, index_of: &HashMap<&str, usize>) -> Vec<usize> {
    let at = |pointer: String| index_of.get(pointer.as_str()).copied();
    let listed = |key: &str| listed(fields, key, pointer, index_of);
    let referred = fields.get("$ref").and_then(Value::as_str).and_then(|text| at(known_pointer(text)?));
    let mut needed: Vec<usize> = referred.into_iter().chain(listed("allOf")).collect();
    if is_only(fields, "object") {
        let required = fields.get("required").and_then(Value::as_array).into_iter().flatten();
        let names = required.filter_map(Value::as_str).map(escaped);
        needed.extend(names.filter_map(|name| at(format!("{pointer}/properties/{name}"))));
    }
    let least = fields.get("minItems").and_then(Value::as_u64).filter(|_| is_only(fields, "array"));
    if let Some(least) = least.and_then(|least| usize::try_from(least).ok()) {
        let first = [listed("prefixItems"), listed("items")].concat();
        needed.extend(first.iter().take(least));
        needed.extend(at(format!("{pointer}/items")).filter(|_| least > first.len()));
    }
    needed
}

/// Returns the schemas in the list `key` of the schema with these fields, at `pointer`.
fn listed(
    fields: &Map<String, Value>,
    key: &str,
    pointer: &str,
    index_of: &HashMap<&str, usize>,
) -> Vec<usize> {
    let len = fields.get(key).and_then(Value::as_array).map_or(0, Vec::len);
    (0..len).filter_map(|at| index_of.get(format!("{pointer}/{key}/{at}").as_str()).copied()).collect()
}

/// True if only values of the type `kind` match a schema with these fields.
fn is_only(fields: &Map<String, Value>, kind: &str) -> bool {
    match fields.get("type") {
        Some(Value::String(only)) => only == kind,
        Some(Value::Array(kinds)) => kinds.len() == 1 && kinds[0] == kind,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_to_parts_of_the_schema_are_rewritten() {
        let definitions = || {
            json!({
                "a/b~c": { "type": "null" }, "List[int]": { "$anchor": "list" }, "d": { "$id": "d.json", "items": {} },
                "e": { "id": "#e" }, "%41": true,
            })
        };
        for (reference, expected) in [
            ("#/$defs/a~1b~0c", "#/$defs/a\u{2215}b~c"),
            ("#/$defs/List%5Bint%5D", "#/$defs/List[int]"),
            ("#/$defs/List[int]", "#/$defs/List[int]"),
            ("#/$defs/%41", "#/$defs/%41"),
            ("#list", "#/$defs/List[int]"),
            ("#e", "#/$defs/e"),
            ("d.json", "#/$defs/d"),
            ("d.json#/items", "#/$defs/d/items"),
            ("https://x/y#/$defs/d", "#/$defs/d"),
            ("https://x/y", "#"),
            ("#", "#"),
            ("#/$defs/none", "#/$defs/none"),
            ("other.json", "other.json"),
        ] {
            let mut schema = json!({
                "$id": "https://x/y", "items": { "$ref": reference }, "const": { "$ref": "#list" }, "$defs": definitions(),
            });
            resolve(&mut schema);
            assert_eq!(schema["items"]["$ref"], expected, "{reference}");
            assert_eq!(schema["const"]["$ref"], "#list");
            let renamed = schema["$defs"].get("a\u{2215}b~c").is_some();
            assert_eq!(renamed, reference.contains("~1"), "{reference}");
        }
    }

    #[test]
    fn a_reference_means_the_nearest_anchor() {
        let tool = |kind: &str| json!({ "items": { "$ref": "#x" }, "$defs": { "a": { "$anchor": "x", "type": kind } } });
        let mut schema = json!({ "anyOf": [tool("null"), tool("string")] });
        resolve(&mut schema);
        for at in 0..2 {
            assert_eq!(schema["anyOf"][at]["items"]["$ref"], format!("#/anyOf/{at}/$defs/a"));
        }
    }

    #[test]
    fn references_that_never_end_match_nothing() {
        let object = |name: &str, reference: &str, required: Value| json!({ "type": "object", "properties": { name: { "$ref": reference } }, "required": required });
        let with = |mut schema: Value, definitions: Value| {
            schema["$defs"] = definitions;
            schema
        };
        let circle = || json!({ "A": { "$ref": "#/$defs/B" }, "B": { "$ref": "#/$defs/A" } });
        for (schema, expected) in [
            (with(object("x", "#/$defs/A", json!(["x"])), circle()), Some("properties.x")),
            (json!({ "$ref": "#" }), Some("")),
            (json!({ "allOf": [{ "$ref": "#" }] }), Some("allOf[0]")),
            (object("a/b", "#", json!(["a/b"])), Some("properties.a/b")),
            (json!({ "type": "array", "items": { "$ref": "#" }, "minItems": 1 }), Some("items")),
            (json!({ "anyOf": [{ "$ref": "#" }, object("x", "#", json!(["x"]))] }), Some("anyOf[0]")),
            // The cause is named, and not another reference that never ends.
            (
                json!({ "$defs": { "A": { "$ref": "#/$defs/A" } }, "allOf": [true, { "$ref": "#" }] }),
                Some("allOf[1]"),
            ),
            // These have finite texts.
            (object("x", "#", json!([])), None),
            (json!({ "type": "array", "items": { "$ref": "#" } }), None),
            (json!({ "anyOf": [object("x", "#", json!(["x"])), { "type": "null" }] }), None),
            (
                json!({ "type": ["object", "null"], "properties": { "x": { "$ref": "#" } }, "required": ["x"] }),
                None,
            ),
            (json!({ "properties": { "x": { "$ref": "#" } }, "required": ["x"] }), None),
        ] {
            let mut found = schema.clone();
            assert_eq!(remove_endless(&mut found).as_deref(), expected, "{schema}");
            assert_eq!(found, schema);
        }
        let mut optional = with(object("x", "#/$defs/A", json!([])), circle());
        assert_eq!(remove_endless(&mut optional), None);
        let expected = json!({
            "type": "object", "properties": { "x": false }, "required": [], "$defs": { "A": false, "B": false },
        });
        assert_eq!(optional, expected);
    }
}
