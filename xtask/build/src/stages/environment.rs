//! Environment of a build's commands.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use plan::zig::{AR, CC, CXX};

use super::places;
use super::state::Build;
use super::zig::{bindgen_arguments, linker_variable, scripts};

impl Build<'_> {
    /// Returns the environment of every command of this build.
    pub(super) fn environment(&self) -> Result<BTreeMap<String, Option<String>>> {
        self.environment_with(None)
    }

    /// Returns the environment with the folder `first` at the front of PATH.
    fn environment_with(&self, first: Option<&Path>) -> Result<BTreeMap<String, Option<String>>> {
        let mut all = self.plan.environment.clone();
        all.extend(self.of_caches()?);
        let ours: Vec<PathBuf> =
            first.map(Path::to_path_buf).into_iter().chain(scripts(self.plan, self.workspace)?).collect();
        if !ours.is_empty() {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let folders = ours.into_iter().chain(std::env::split_paths(&path));
            let path = std::env::join_paths(folders).context("a folder in PATH has a colon in its name")?;
            all.insert("PATH".to_string(), Some(path.to_string_lossy().into_owned()));
        }
        Ok(all)
    }

    /// Returns the environment of cargo. `wrapper` is the script through which cargo runs rustc on the workspace's
    /// crates. The script is passed without its folder, because cargo includes the value in the hash of every symbol.
    /// The other variables set the linker and the compilers of the `cc` crate for the plan's target.
    pub(super) fn cargo_environment(
        &self,
        wrapper: Option<&Path>,
    ) -> Result<BTreeMap<String, Option<String>>> {
        let mut all = self.environment_with(wrapper.and_then(Path::parent))?;
        if let Some(name) = wrapper.and_then(Path::file_name) {
            let name = name.to_string_lossy().into_owned();
            all.insert("RUSTC_WORKSPACE_WRAPPER".to_string(), Some(name));
        }
        all.extend(self.rustc_cache());
        let target = self.plan.target.replace(['-', '.'], "_");
        if self.plan.zig.is_some() {
            let linker = linker_variable(self.plan);
            for (name, value) in [
                (linker, CC),
                (format!("CC_{target}"), CC),
                (format!("CXX_{target}"), CXX),
                (format!("AR_{target}"), AR),
            ] {
                all.insert(name, Some(value.to_string()));
            }
            let arguments = bindgen_arguments(self.plan, self.workspace)?;
            all.extend(arguments.map(|words| (format!("BINDGEN_EXTRA_CLANG_ARGS_{target}"), Some(words))));
        }
        // These flags are for C and C++ code that the crate `cc` compiles.
        let maps = places::prefix_maps(self);
        if !maps.is_empty() {
            let flags = shlex::try_join(maps.iter().map(String::as_str))
                .context("the path of a folder contains a zero byte")?;
            all.extend(["CFLAGS", "CXXFLAGS"].map(|name| (format!("{name}_{target}"), Some(flags.clone()))));
            // Otherwise `cc` splits the flags at spaces, which a folder's name may contain.
            all.insert("CC_SHELL_ESCAPED_FLAGS".to_string(), Some("1".to_string()));
        }
        Ok(all)
    }

    /// Returns the path of a compiler in the plan. `named` may be only the name of a script.
    pub(super) fn compiler(&self, named: &Path) -> Result<PathBuf> {
        let folder = scripts(self.plan, self.workspace)?;
        Ok(folder.map_or_else(|| named.to_path_buf(), |folder| folder.join(named)))
    }
}
