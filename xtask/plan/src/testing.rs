//! Hosts, profiles and plans for tests, from the files of this repository.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use build_info::Host;
use build_info::record::Source;
use toolchain::Toolchain;

use crate::plan::Plan;
use crate::planner::plan;
use crate::profile::{self, Files, Override, Profile};
use crate::reference::reference_toolchain;

/// Source of profile files in a folder, for tests.
struct ProfileFixture<'a>(&'a Path);

impl Files for ProfileFixture<'_> {
    fn folder(&self) -> &Path {
        self.0
    }

    fn all(&self) -> Result<Vec<String>> {
        let paths = std::fs::read_dir(self.0)?.map(|entry| entry.map(|entry| entry.path()));
        let paths = paths.collect::<Result<Vec<_>, _>>()?;
        let files = paths.iter().filter(|path| path.extension().is_some_and(|extension| extension == "toml"));
        Ok(files.filter_map(|path| path.file_stem()?.to_str().map(str::to_string)).collect())
    }

    fn has(&self, name: &str) -> bool {
        self.0.join(format!("{name}.toml")).is_file()
    }

    fn text(&self, name: &str) -> Result<String> {
        std::fs::read_to_string(self.0.join(format!("{name}.toml"))).context("cannot read the file")
    }
}

/// Returns the names of the profiles in `folder` that can be built.
pub fn names(folder: &Path) -> Result<Vec<String>> {
    profile::names(&ProfileFixture(folder))
}

/// Loads the profile `name` from `folder`.
pub fn load(folder: &Path, name: &str) -> Result<Profile> {
    profile::load(&ProfileFixture(folder), name)
}

/// Loads the profile `name` from `folder`, with `overrides` of its keys.
pub fn load_with(folder: &Path, name: &str, overrides: &[Override]) -> Result<Profile> {
    profile::load_with(&ProfileFixture(folder), name, overrides)
}

/// Returns the root folder of the checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the machines in fixtures/hosts, with their names.
pub fn hosts() -> Vec<(String, Host)> {
    let mut hosts: Vec<(String, Host)> = std::fs::read_dir(root().join("fixtures/hosts"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap())
        })
        .collect();
    hosts.sort_by(|a, b| a.0.cmp(&b.0));
    hosts
}

/// Returns the machine in fixtures/hosts/NAME.json.
pub fn host(name: &str) -> Host {
    hosts().into_iter().find(|(found, _)| found == name).unwrap().1
}

/// Returns fictional sources.
pub fn source() -> Source {
    Source {
        origin: "crate".to_string(),
        version: "1.2.3".to_string(),
        digest: "0123456789abcdef".repeat(4).try_into().unwrap(),
        patches: vec![],
    }
}

/// Returns the folder of the build profiles.
pub fn profiles() -> PathBuf {
    root().join("profiles/build")
}

/// Loads the build profile `name`.
pub fn profile(name: &str) -> Profile {
    load(&profiles(), name).unwrap()
}

/// Plans `profile` with the test's sources.
pub fn plan_of(profile: &Profile, host: &Host, toolchain: &Toolchain) -> anyhow::Result<Plan> {
    plan(host, profile, &source(), toolchain)
}

/// Plans the profile `name` with the test's sources.
pub fn plan_with(name: &str, host: &Host, toolchain: &Toolchain) -> anyhow::Result<Plan> {
    plan_of(&load(&profiles(), name)?, host, toolchain)
}

/// Plans `profile` for `host` with the reference toolchain.
pub fn plan_for(profile: &str, host: &Host) -> anyhow::Result<Plan> {
    plan_with(profile, host, &reference_toolchain(&host.arch)?)
}

/// Plans `profile` for a Ryzen 7950X with the reference toolchain.
pub fn reference_plan(profile: &str) -> Plan {
    plan_for(profile, &host("ryzen-7950x")).unwrap()
}
