//! Bill of materials in CycloneDX 1.6, <https://cyclonedx.org/docs/1.6/json/>. The document is generated here because
//! `cyclonedx-bom` depends on an XML library and writes a random number into every document.

mod described;

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::{Value, json};

pub use described::{Described, described};

use crate::crates::Crate;
use crate::order::{Pack, Part};

/// Returns the content of the document.
///
/// # Errors
/// If the document cannot be serialised.
pub fn bill(order: &Pack, crates: &[Described]) -> Result<Vec<u8>> {
    let root = format!("pkg:generic/anneal@{}?profile={}", order.version, encoded(&order.profile));
    let package = order.parts.rust.as_ref().map(|rust| rust.package.as_str());
    let is_root = |part: &Crate| Some(part.name.as_str()) == package;
    let reference = |part: &Crate| if is_root(part) { root.clone() } else { purl(part) };

    let mut components: BTreeMap<String, Value> = BTreeMap::new();
    let mut depends: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for part in crates {
        let linked = &part.linked;
        let needs = linked.needs.iter().map(|needed| reference(&crates[*needed].linked)).collect();
        depends.insert(reference(linked), needs);
        if !is_root(linked) {
            components.insert(purl(linked), component(part));
        }
    }
    for other in &order.parts.others {
        components.insert(other.purl.clone(), other_component(other));
        depends.insert(other.purl.clone(), Vec::new());
        depends.entry(root.clone()).or_default().push(other.purl.clone());
    }
    for needs in depends.values_mut() {
        needs.sort();
        needs.dedup();
    }
    let graph: Vec<Value> = depends
        .into_iter()
        .map(|(reference, needs)| json!({ "ref": reference, "dependsOn": needs }))
        .collect();
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": build_info::time::rfc3339(order.mtime),
            "tools": { "components": [{
                "type": "application", "name": "anneal-ship", "version": env!("CARGO_PKG_VERSION")
            }] },
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": "anneal",
                "version": order.version,
                "licenses": [{ "expression": "MIT" }],
                "purl": root,
                "properties": properties(&[
                    ("anneal:target".to_string(), order.target.clone()),
                    ("anneal:profile".to_string(), order.profile.clone()),
                ]),
            },
        },
        "components": components.into_values().collect::<Vec<_>>(),
        "dependencies": graph,
    });
    let mut text = serde_json::to_vec_pretty(&document)?;
    text.push(b'\n');
    Ok(text)
}

fn component(part: &Described) -> Value {
    let linked = &part.linked;
    let mut component = json!({
        "type": "library",
        "bom-ref": purl(linked),
        "name": linked.name,
        "version": linked.version,
        "scope": "required",
        "purl": purl(linked),
    });
    let mut set = |key: &str, value: Value| component[key] = value;
    if let Some(license) = &part.license {
        set("licenses", json!([{ "expression": expression(license) }]));
    }
    if let Some(checksum) = &linked.checksum {
        set("hashes", json!([{ "alg": "SHA-256", "content": checksum }]));
    }
    if let Some(description) = &part.description {
        set("description", json!(description.split_whitespace().collect::<Vec<_>>().join(" ")));
    }
    if !linked.features.is_empty() {
        set("properties", properties(&[("cargo:features".to_string(), linked.features.join(","))]));
    }
    component
}

fn other_component(part: &Part) -> Value {
    let mut component = json!({
        "type": "library",
        "bom-ref": part.purl,
        "name": part.name,
        "version": part.version,
        "description": part.description,
        "scope": "required",
        "licenses": [{ "expression": part.license }],
        "purl": part.purl,
    });
    let patches =
        part.patches.iter().map(|(name, sha256)| (format!("anneal:patch:{name}"), sha256.to_string()));
    let all: Vec<(String, String)> = part.properties.iter().cloned().chain(patches).collect();
    if !all.is_empty() {
        component["properties"] = properties(&all);
    }
    if !part.patches.is_empty() {
        let patch = |(name, _): &(String, _)| json!({ "type": "unofficial", "resolves": [{ "type": "enhancement", "name": name }] });
        component["pedigree"] = json!({ "patches": part.patches.iter().map(patch).collect::<Vec<_>>() });
    }
    component
}

fn properties(all: &[(String, String)]) -> Value {
    let property = |(name, value): &(String, String)| json!({ "name": name, "value": value });
    all.iter().map(property).collect()
}

/// Returns the package URL of a crate. Crates of this workspace are in no registry.
fn purl(part: &Crate) -> String {
    let kind = if part.is_foreign() { "cargo/" } else { "generic/anneal/" };
    format!("pkg:{kind}{}@{}", part.name, encoded(&part.version))
}

/// Percent-encodes the characters that a package URL must not contain.
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// Converts cargo's former notation `MIT/Apache-2.0` to an SPDX expression.
fn expression(license: &str) -> String {
    license.split('/').map(str::trim).collect::<Vec<_>>().join(" OR ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cargo_once_took_for_an_expression_becomes_one() {
        for (old, new) in [("MIT/Apache-2.0", "MIT OR Apache-2.0"), ("MIT OR Zlib", "MIT OR Zlib")] {
            assert_eq!(expression(old), new);
        }
        assert_eq!(encoded("0.1.0+b:c"), "0.1.0%2Bb%3Ac");
    }
}
