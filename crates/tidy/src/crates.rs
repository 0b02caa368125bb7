//! Dependencies among the crates of the workspace.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Crate of the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Name of the package.
    pub name: String,
    /// Folder of the crate, relative to the workspace.
    pub folder: PathBuf,
    /// Names of the workspace's crates that this crate or its build script depends on, on any target. Dependencies of
    /// tests are left out.
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
    #[serde(flatten)]
    dependencies: Dependencies,
    /// Dependencies in `[target.'cfg(…)']` and `[target.TRIPLE]`.
    #[serde(default)]
    target: BTreeMap<String, Dependencies>,
}

#[derive(Deserialize)]
struct Dependencies {
    #[serde(default, rename = "dependencies")]
    normal: BTreeMap<String, toml::Value>,
    #[serde(default, rename = "build-dependencies")]
    build: BTreeMap<String, toml::Value>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
}

/// Reads the members of the workspace at `root`.
///
/// # Errors
/// If a manifest cannot be read; the message contains its path.
pub fn members(root: &Path) -> Result<Vec<Member>, String> {
    let Workspace { workspace } = read(&root.join("Cargo.toml"))?;
    let mut found = Vec::new();
    for folder in workspace.members {
        let manifest: Manifest = read(&root.join(&folder).join("Cargo.toml"))?;
        let tables = std::iter::once(manifest.dependencies).chain(manifest.target.into_values());
        let dependencies =
            tables.flat_map(|table| table.normal.into_iter().chain(table.build)).map(package_of);
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

/// Returns a line for each dependency that does not lead to a lower layer. `layers` names all crates, the lowest
/// layer first.
///
/// # Errors
/// If a crate has no layer, or a layer names a crate that does not exist.
pub fn upward(members: &[Member], layers: &[&[&str]]) -> Result<Vec<String>, String> {
    let layer = |name: &str| layers.iter().position(|layer| layer.contains(&name));
    for name in layers.iter().flat_map(|layer| layer.iter()) {
        if !members.iter().any(|member| member.name == **name) {
            return Err(format!(
                "the list of layers contains {name}, which is not a crate of the workspace\nhint: \
                 remove it from the list"
            ));
        }
    }
    let mut wrong = Vec::new();
    for member in members {
        let layer = |name: &str| layer(name).ok_or_else(|| no_layer(name));
        let own = layer(&member.name)?;
        for other in &member.dependencies {
            if layer(other)? >= own {
                let name = &member.name;
                wrong.push(format!(
                    "{}/Cargo.toml: {name} -> {other}. A crate may depend only on crates in lower \
                     layers. Move what {name} needs from {other} into a crate in a lower \
                     layer, or change the layers that the test lists",
                    member.folder.display()
                ));
            }
        }
    }
    Ok(wrong)
}

/// Returns the name of the package in an entry of a dependency table: the value of `package`, otherwise the key.
fn package_of((key, value): (String, toml::Value)) -> String {
    value.get("package").and_then(toml::Value::as_str).map_or(key, str::to_string)
}

fn no_layer(name: &str) -> String {
    format!("the crate {name} has no layer\nhint: add it above the crates that it depends on")
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
        let wrong = upward(&members, layers).unwrap();
        assert_eq!(wrong.len(), 1);
        assert!(
            wrong[0].starts_with("base/Cargo.toml: base -> top. A crate may depend only on"),
            "{wrong:?}"
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
    #[test]
    fn dependencies_of_all_targets_count_and_those_of_tests_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let names = ["a", "b", "c", "d", "e", "f"];
        write("Cargo.toml", &format!("[workspace]\nmembers = {names:?}\n"));
        for name in &names[1..] {
            write(&format!("{name}/Cargo.toml"), &format!("[package]\nname = {name:?}\n"));
        }
        write(
            "a/Cargo.toml",
            "[package]\nname = \"a\"\n[dependencies]\nother = { path = \"../b\", package = \"b\" }\nserde = \"1\"\n\
             [build-dependencies]\nc.workspace = true\n[dev-dependencies]\nf.workspace = true\n\
             [target.'cfg(unix)'.dependencies]\nd.workspace = true\n\
             [target.x86_64-unknown-linux-gnu.build-dependencies]\ne.workspace = true\n",
        );
        let members = members(folder.path()).unwrap();
        assert_eq!(members[0].dependencies, ["b", "c", "d", "e"]);
    }
}
