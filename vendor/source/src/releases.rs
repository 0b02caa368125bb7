//! Published versions of the crate that contains llama.cpp, from cargo's index.
//!
//! `cargo info` updates cargo's copy of the index entry. The copy lists every version with its date. Its layout is not
//! documented, so everything that is not a version in JSON is skipped.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::store::Store;
use crate::tools::run;

/// Maximum size of an index entry in bytes. The entry of the pinned crate has about 120 KiB.
const LARGEST: u64 = 64 << 20;

/// Published version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// Version, such as `0.1.161`.
    #[serde(rename(deserialize = "vers"))]
    pub version: String,
    /// Time of publication, an RFC 3339 timestamp; `None` if the index does not contain it.
    #[serde(rename(deserialize = "pubtime"), default)]
    pub published: Option<String>,
    /// True if the publisher withdrew the version.
    #[serde(default)]
    pub yanked: bool,
}

/// Published versions, oldest first.
#[derive(Clone, Debug, Serialize)]
pub struct ReleaseList {
    /// Versions in ascending order.
    pub releases: Vec<Release>,
    /// Reason why the list may be out of date; `None` if the registry has just been queried.
    pub stale: Option<String>,
}

impl ReleaseList {
    /// Returns the newest version that was not yanked.
    pub fn newest(&self) -> Option<&Release> {
        self.releases.iter().rev().find(|release| !release.yanked)
    }

    /// Returns the entry of `version`.
    pub fn find(&self, version: &str) -> Option<&Release> {
        self.releases.iter().find(|release| release.version == version)
    }

    /// Returns the versions after `version` that were not yanked.
    pub fn after<'a>(&'a self, version: &str) -> impl Iterator<Item = &'a Release> {
        let than = key(version);
        self.releases.iter().filter(move |release| !release.yanked && key(&release.version) > than)
    }

    /// Returns the versions from `first` to `last` that were not yanked, in ascending order. Both ends are included.
    pub fn between<'a>(&'a self, first: &str, last: &str) -> impl Iterator<Item = &'a Release> {
        let (first, last) = (key(first), key(last));
        let within = move |release: &&Release| {
            let own = key(&release.version);
            !release.yanked && first <= own && own <= last
        };
        self.releases.iter().filter(within)
    }
}

impl Store {
    /// Returns the published versions of the crate of the origin `crate`. Queries the registry through cargo, unless
    /// `offline` is set. If the registry cannot be reached, the list comes from cargo's copy of the index. Without an
    /// index, the list is empty.
    pub fn releases(&self, offline: bool) -> ReleaseList {
        let package = &self.pins.krate.package;
        // cargo then answers from its copy without an error.
        let offline = offline || std::env::var_os("CARGO_NET_OFFLINE").is_some_and(|value| value == "true");
        let stale = if offline { Some("offline".to_string()) } else { self.update(package).err() };
        let mut newest: Option<(SystemTime, PathBuf)> = None;
        for entry in index_entries(package) {
            let changed = std::fs::metadata(&entry).and_then(|file| file.modified());
            if let Ok(changed) = changed
                && newest.as_ref().is_none_or(|(other, _)| changed > *other)
            {
                newest = Some((changed, entry));
            }
        }
        let bytes = newest.and_then(|(_, entry)| base::read(&entry, LARGEST).ok()).unwrap_or_default();
        ReleaseList { releases: parse(&bytes, package), stale }
    }

    /// Lets cargo update its copy of the index entry. Returns the reason if the registry cannot be reached.
    fn update(&self, package: &str) -> Result<(), String> {
        let mut cargo = self.tools.cargo();
        // Outside of a package, cargo queries the newest version instead of the locked version.
        let outside = base::scratch("anneal-info")
            .map_err(|error| format!("cannot create a temporary folder: {error}"))?;
        cargo.current_dir(outside.path());
        // Without this variable, cargo would wait 30 seconds three times.
        if std::env::var_os("CARGO_NET_RETRY").is_none() {
            cargo.env("CARGO_NET_RETRY", "0");
        }
        let asked =
            run(cargo.args(["info", "--quiet", "--color=never", package]), "install Rust with rustup");
        asked.map(|_| ()).map_err(|error| reason(&format!("{error:#}")))
    }
}

/// Returns the cause in the output of a failed cargo on one line.
fn reason(error: &str) -> String {
    let lines = || error.lines().map(str::trim).filter(|line| !line.is_empty());
    let cause = lines().skip_while(|line| *line != "Caused by:").nth(1);
    let found = cause.or_else(|| lines().find(|line| line.starts_with("error:")));
    let line = found.or_else(|| lines().next_back()).unwrap_or("cargo failed");
    line.trim_start_matches("error: ").to_string()
}

/// Returns the files in which cargo keeps the index entry of `package`, one per registry.
fn index_entries(package: &str) -> Vec<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let Some(registries) = home.and_then(|home| std::fs::read_dir(home.join("registry/index")).ok()) else {
        return Vec::new();
    };
    let inside = place_in_index(package);
    registries.flatten().map(|registry| registry.path().join(".cache").join(&inside)).collect()
}

/// Returns the path of a package in an index, as cargo's documentation of registries defines it.
fn place_in_index(package: &str) -> PathBuf {
    let name = package.to_ascii_lowercase();
    let part = |from: usize, to: usize| name.get(from..to).unwrap_or_default().to_string();
    match name.len() {
        0..=2 => Path::new(&name.len().to_string()).join(&name),
        3 => Path::new("3").join(part(0, 1)).join(&name),
        _ => Path::new(&part(0, 2)).join(part(2, 4)).join(&name),
    }
}

/// Parses the versions of `package` in cargo's copy of the index.
fn parse(bytes: &[u8], package: &str) -> Vec<Release> {
    #[derive(Deserialize)]
    struct Entry {
        name: String,
        #[serde(flatten)]
        release: Release,
    }
    let entries = bytes.split(|byte| *byte == 0 || *byte == b'\n');
    let entries = entries.filter_map(|text| serde_json::from_slice::<Entry>(text).ok());
    let mut releases: Vec<Release> = entries
        .filter(|entry| entry.name == package && key(&entry.release.version).is_some())
        .map(|entry| entry.release)
        .collect();
    releases.sort_by_key(|release| key(&release.version));
    releases.dedup_by(|one, other| one.version == other.version);
    releases
}

/// Returns the numbers of a version, which order versions; `None` for a pre-release version.
fn key(version: &str) -> Option<[u64; 3]> {
    let numbers: Option<Vec<u64>> = version.split('.').map(|part| part.parse().ok()).collect();
    numbers?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_cargos_copy_and_sorted() {
        let entry = |version: &str, rest: &str| format!("{{\"name\":\"x\",\"vers\":\"{version}\"{rest}}}");
        let text = format!(
            "\u{3}\u{2}\0\0\0etag\00.1.10\0{}\00.1.9\0{}\0{}\0{{\"name\":\"y\",\"vers\":\"9.9.9\"}}\0{}\0{{\"name",
            entry("0.1.10", ",\"pubtime\":\"2026-11-03T16:26:56Z\",\"yanked\":false"),
            entry("0.1.9", ",\"yanked\":false,\"deps\":[]"),
            entry("0.2.0", ",\"yanked\":true"),
            entry("1.0.0-rc.1", ""),
        );
        let list = ReleaseList { releases: parse(text.as_bytes(), "x"), stale: None };
        let versions: Vec<&str> = list.releases.iter().map(|release| release.version.as_str()).collect();
        assert_eq!(versions, ["0.1.9", "0.1.10", "0.2.0"]);
        assert_eq!(list.newest().map(|release| release.version.as_str()), Some("0.1.10"));
        assert_eq!(list.find("0.1.10").unwrap().published.as_deref(), Some("2026-11-03T16:26:56Z"));
        assert_eq!(list.after("0.1.9").count(), 1);
        assert_eq!(list.between("0.1.2", "0.1.9").count(), 1);
        assert_eq!(parse(b"", "x"), []);
    }

    #[test]
    fn a_package_has_its_place_in_the_index() {
        for (package, expected) in
            [("a", "1/a"), ("ab", "2/ab"), ("abc", "3/a/abc"), ("Llama-cpp", "ll/am/llama-cpp")]
        {
            assert_eq!(place_in_index(package), Path::new(expected));
        }
    }

    #[test]
    fn the_reason_of_a_failure_is_one_line() {
        let text =
            "`cargo info` failed (status: 101):\n  error: failed to query\n\n    Caused by:\n      no host";
        assert_eq!(reason(text), "no host");
        assert_eq!(reason("`cargo info` failed:\n    error: could not find `x`"), "could not find `x`");
        assert_eq!(reason(""), "cargo failed");
    }
}
