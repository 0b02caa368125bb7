//! Crates linked into one program, as `cargo tree` resolves them for that program alone.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use build_info::Sha256;
use serde::Deserialize;

use crate::order::Rust;

/// Crate that is linked into a program.
#[derive(Clone, Debug)]
pub struct Crate {
    /// Name of the crate.
    pub name: String,
    /// Version of the crate.
    pub version: String,
    /// Enabled features.
    pub features: Vec<String>,
    /// Digest of the crate's package; `None` if the crate does not come from a registry.
    pub checksum: Option<Sha256>,
    /// Source in cargo's notation; `None` for a crate of this workspace.
    pub source: Option<String>,
    /// Indices of the crate's dependencies in the list of crates.
    pub needs: BTreeSet<usize>,
}

impl Crate {
    /// True if the crate is not part of this workspace.
    pub fn is_foreign(&self) -> bool {
        self.source.is_some()
    }
}

/// Content of a Cargo.lock.
#[derive(Deserialize)]
pub struct CargoLock {
    /// All packages.
    pub package: Vec<Locked>,
}

/// Package in a Cargo.lock.
#[derive(Deserialize)]
pub struct Locked {
    /// Name of the package.
    pub name: String,
    /// Version of the package.
    pub version: String,
    /// Registry or repository of the package; `None` for a package of the workspace.
    pub source: Option<String>,
    /// Digest of the package; `None` if the package does not come from a registry.
    pub checksum: Option<Sha256>,
}

/// Line of `cargo tree`.
struct TreeLine {
    depth: usize,
    name: String,
    version: String,
    features: Vec<String>,
}

/// Name and version.
type Id = (String, String);

/// Returns the crates linked into a program for `target`, sorted by name and version. Crates that only build scripts
/// and macros use are left out.
///
/// # Errors
/// If cargo fails or prints unexpected output.
pub fn linked(rust: &Rust, target: &str) -> Result<Vec<Crate>> {
    let features = match rust.features.is_empty() {
        true => Vec::new(),
        false => vec![format!("--features={}", rust.features.join(","))],
    };
    let tree = ["tree", "--locked", "--package", &rust.package, "--edges", "normal,no-proc-macro"];
    let form = ["--prefix", "depth", "--format", "{p}|{f}", "--color", "never", "--target", target];
    let tree = cargo(rust, tree.into_iter().chain(form).chain(features.iter().map(String::as_str)))?;
    let lock = rust.workspace.join("Cargo.lock");
    let text = std::fs::read_to_string(&lock).with_context(|| format!("cannot read {}", lock.display()))?;
    let lock: CargoLock =
        toml::from_str(&text).with_context(|| format!("cannot parse {}", lock.display()))?;
    let lines = String::from_utf8(tree).context("cannot parse the output of `cargo tree`")?;
    let lines = lines.lines().filter(|line| !line.is_empty()).map(line).collect::<Result<Vec<_>>>()?;
    join(&lines, lock.package)
}

/// Returns the output of cargo with `arguments`.
pub(crate) fn cargo<'a>(rust: &Rust, arguments: impl IntoIterator<Item = &'a str>) -> Result<Vec<u8>> {
    let arguments: Vec<&str> = arguments.into_iter().collect();
    let shown = arguments.join(" ");
    let output = Command::new(&rust.cargo)
        .args(&arguments)
        .current_dir(&rust.workspace)
        .output()
        .with_context(|| format!("cannot run {} {shown}", rust.cargo.display()))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        bail!("cargo {shown} failed ({}): {}", output.status, words.trim());
    }
    Ok(output.stdout)
}

/// Parses a line such as `2anyhow v1.0.104|default,std (*)`.
fn line(text: &str) -> Result<TreeLine> {
    let cannot = || format!("cannot parse the line {text:?} of `cargo tree`");
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (depth, rest) = text.split_at(digits);
    let (package, features) = rest.split_once('|').with_context(cannot)?;
    let mut words = package.split(' ');
    let name = words.next().with_context(cannot)?;
    let version = words.next().and_then(|version| version.strip_prefix('v')).with_context(cannot)?;
    let features = features.trim_end_matches("(*)").trim();
    Ok(TreeLine {
        depth: depth.parse().with_context(cannot)?,
        name: name.to_string(),
        version: version.to_string(),
        features: features.split(',').filter(|feature| !feature.is_empty()).map(str::to_string).collect(),
    })
}

fn join(lines: &[TreeLine], locked: Vec<Locked>) -> Result<Vec<Crate>> {
    let id = |line: &TreeLine| (line.name.clone(), line.version.clone());
    let names: BTreeSet<Id> = lines.iter().map(id).collect();
    let places: BTreeMap<&Id, usize> = names.iter().enumerate().map(|(place, id)| (id, place)).collect();
    let mut known: BTreeMap<Id, Locked> =
        locked.into_iter().map(|locked| ((locked.name.clone(), locked.version.clone()), locked)).collect();

    let mut crates = Vec::new();
    for id in &names {
        let locked =
            known.remove(id).with_context(|| format!("Cargo.lock has no package {} {}", id.0, id.1))?;
        crates.push(Crate {
            name: locked.name,
            version: locked.version,
            features: Vec::new(),
            checksum: locked.checksum,
            source: locked.source,
            needs: BTreeSet::new(),
        });
    }
    // Indices of the crates on the path from the root to the previous line.
    let mut above: Vec<usize> = Vec::new();
    for line in lines {
        let place = places[&id(line)];
        ensure!(line.depth <= above.len(), "`cargo tree` has a line without a parent: {}", line.name);
        above.truncate(line.depth);
        if let Some(needing) = above.last() {
            crates[*needing].needs.insert(place);
        }
        above.push(place);
        let features: BTreeSet<String> =
            crates[place].features.iter().chain(&line.features).cloned().collect();
        crates[place].features = features.into_iter().collect();
    }
    Ok(crates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_becomes_a_graph() {
        let locked = |name: &str, source: Option<&str>| Locked {
            name: name.to_string(),
            version: "1.0.0".to_string(),
            source: source.map(str::to_string),
            checksum: None,
        };
        let text = ["0a v1.0.0 (/x/a)|", "1b v1.0.0|default,std", "2c v1.0.0|", "1c v1.0.0|alloc (*)"];
        let lines = text.map(|text| line(text).unwrap());
        let locked = vec![locked("a", None), locked("b", Some("r")), locked("c", Some("r"))];
        let crates = join(&lines, locked).unwrap();
        let told: Vec<_> = crates
            .iter()
            .map(|part| {
                (part.name.as_str(), part.features.join(","), part.needs.iter().copied().collect::<Vec<_>>())
            })
            .collect();
        assert_eq!(
            told,
            [
                ("a", String::new(), vec![1, 2]),
                ("b", "default,std".into(), vec![2]),
                ("c", "alloc".into(), vec![])
            ]
        );
        assert_eq!(crates.iter().map(Crate::is_foreign).collect::<Vec<_>>(), [false, true, true]);
        assert!(join(&lines, Vec::new()).is_err());
        assert!(line("what?").is_err());
    }
}
