//! Dependencies among the crates of the workspace.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// A crate of the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Name of the package.
    pub name: String,
    /// Its folder, relative to the workspace.
    pub folder: PathBuf,
    /// Names of the workspace's crates that it is built with, those of its build script included.
    pub dependencies: Vec<String>,
}

#[derive(Deserialize)]
struct Workspace {
    workspace: WorkspaceTable,
}

#[derive(Deserialize)]
struct WorkspaceTable {
    members: Vec<PathBuf>,
}

#[derive(Deserialize)]
struct Manifest {
    package: Package,
    #[serde(default)]
    dependencies: BTreeMap<String, toml::Value>,
    #[serde(default, rename = "build-dependencies")]
    build_dependencies: BTreeMap<String, toml::Value>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
}

/// Reads the members of the workspace at `root`.
///
/// # Errors
/// A text that names the manifest that cannot be read.
pub fn members(root: &Path) -> Result<Vec<Member>, String> {
    let Workspace { workspace } = read(&root.join("Cargo.toml"))?;
    let mut found = Vec::new();
    for folder in workspace.members {
        let manifest: Manifest = read(&root.join(&folder).join("Cargo.toml"))?;
        let dependencies = manifest.dependencies.into_keys().chain(manifest.build_dependencies.into_keys());
        found.push(Member { name: manifest.package.name, folder, dependencies: dependencies.collect() });
    }
    let names: Vec<String> = found.iter().map(|member| member.name.clone()).collect();
    for member in &mut found {
        member.dependencies.retain(|name| names.contains(name));
        member.dependencies.sort();
        member.dependencies.dedup();
    }
    Ok(found)
}

/// Returns a line for each dependency that does not lead from a layer to a lower one. `layers` names all crates, the lowest
/// layer first.
///
/// # Errors
/// A text if a crate has no layer, or a layer names a crate that does not exist.
pub fn upward(members: &[Member], layers: &[&[&str]]) -> Result<Vec<String>, String> {
    let layer = |name: &str| layers.iter().position(|layer| layer.contains(&name));
    for name in layers.iter().flat_map(|layer| layer.iter()) {
        if !members.iter().any(|member| member.name == **name) {
            return Err(format!("the layers name {name}, which is no crate of the workspace"));
        }
    }
    let mut wrong = Vec::new();
    for member in members {
        let own = layer(&member.name).ok_or_else(|| format!("the crate {} has no layer", member.name))?;
        for other in &member.dependencies {
            let below = layer(other).ok_or_else(|| format!("the crate {other} has no layer"))?;
            if below >= own {
                wrong.push(format!("{} -> {other}: {other} is not in a lower layer", member.name));
            }
        }
    }
    Ok(wrong)
}

fn read<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T, String> {
    let text = fs::read_to_string(path).map_err(|why| format!("cannot read {}: {why}", path.display()))?;
    toml::from_str(&text).map_err(|why| format!("cannot read {}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, dependencies: &[&str]) -> Member {
        let dependencies = dependencies.iter().map(ToString::to_string).collect();
        Member { name: name.to_string(), folder: PathBuf::from(name), dependencies }
    }

    #[test]
    fn an_edge_that_leads_upward_is_named() {
        let members = [member("base", &["top"]), member("middle", &["base"]), member("top", &["middle"])];
        let layers: &[&[&str]] = &[&["base"], &["middle"], &["top"]];
        assert_eq!(
            upward(&members, layers),
            Ok(vec!["base -> top: top is not in a lower layer".to_string()])
        );
        assert_eq!(
            upward(&members[1..], &[&["middle"], &["top"]]).map_err(|why| why.contains("base")),
            Err(true)
        );
        let unknown = upward(&members, &[&["base"], &["middle"], &["top"], &["gone"]]);
        assert!(unknown.is_err_and(|why| why.contains("gone")));
        let same = [member("a", &["b"]), member("b", &[])];
        assert_eq!(upward(&same, &[&["a", "b"]]).map(|wrong| wrong.len()), Ok(1));
    }
}
