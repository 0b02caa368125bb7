//! Recorded durations of units: from the last build on this machine, or else from the machine that wrote
//! `shares.txt`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::fs;

/// Durations of long units, for the first build on a machine. A test in `tests.rs` writes the file.
const SHARES: &str = include_str!("shares.txt");

/// Version of the file's format. Files of other versions are ignored.
const VERSION: u32 = 1;

/// Maximum size of the file in bytes. Anneal writes no larger files, so larger files are ignored.
const LARGEST_FILE: u64 = 4 << 20;

/// Maximum number of sections; the oldest is dropped first.
const SECTIONS: usize = 16;

/// Maximum number of units per section.
const UNITS: usize = 2000;

/// Minimum number of units in a section for its median to be used.
const ENOUGH: usize = 50;

/// Maximum length of a name in bytes.
const LONGEST_NAME: usize = 300;

/// Maximum plausible duration in seconds: one day.
const LONGEST: f64 = 86_400.0;

/// Duration of one unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Took {
    /// Seconds from its start to its end.
    pub seconds: f64,
    /// Seconds from its start until other units could begin.
    pub front: f64,
}

impl Took {
    /// Returns the duration of a unit that took `seconds` and whose dependents had to wait for its end.
    pub fn whole(seconds: f64) -> Self {
        Self { seconds, front: seconds }
    }

    /// True if both values are plausible durations.
    fn is_valid(self) -> bool {
        (0.0..=LONGEST).contains(&self.seconds) && (0.0..=self.seconds).contains(&self.front)
    }

    /// Rounds to milliseconds, because more digits would only enlarge the file.
    fn rounded(self) -> Self {
        let round = |seconds: f64| (seconds * 1000.0).round() / 1000.0;
        Self { seconds: round(self.seconds), front: round(self.front) }
    }
}

/// Durations on this machine, stored in `target/anneal/durations.json`.
#[derive(Debug)]
pub struct Records {
    path: PathBuf,
    file: RecordsFile,
}

/// Content of the file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct RecordsFile {
    version: u32,
    /// Durations per kind of build. The same unit takes a different time in a build with other compiler settings.
    sections: BTreeMap<String, Section>,
}

/// Durations of one kind of build.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Section {
    /// Time of the last change, in seconds since 1970.
    written: u64,
    units: BTreeMap<String, Took>,
}

impl Records {
    /// Reads the file in the folder `anneal`. A missing, damaged or outdated file is treated as empty.
    pub fn read(anneal: &Path) -> Self {
        let path = anneal.join("durations.json");
        let is_small =
            std::fs::metadata(&path).is_ok_and(|meta| meta.is_file() && meta.len() <= LARGEST_FILE);
        let file = is_small.then(|| std::fs::read(&path).ok()).flatten();
        let file = file.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        Self { path, file: sound(file) }
    }

    /// Returns the durations of the units of `section` by name. The first word of `section` is the tool.
    ///
    /// Units that were never built on this machine have the durations in `shares.txt`, which were measured on another
    /// machine. The durations of the first units then correct the estimate.
    pub fn of(&self, section: &str) -> BTreeMap<String, Took> {
        let mut all = shares(section).units;
        all.extend(self.file.sections.get(section).into_iter().flat_map(|known| known.units.clone()));
        all
    }

    /// Returns the durations measured on this machine in all sections whose names satisfy `is_wanted`.
    #[cfg(test)]
    pub fn measured(&self, is_wanted: impl Fn(&str) -> bool) -> BTreeMap<String, Took> {
        let wanted = self.file.sections.iter().filter(|(name, _)| is_wanted(name));
        wanted.flat_map(|(_, section)| section.units.clone()).collect()
    }

    /// Returns the expected duration of a unit of `section` without a record: the median of the recorded units.
    pub fn guess(&self, section: &str) -> Took {
        let known = self.file.sections.get(section).filter(|known| known.units.len() >= ENOUGH);
        // A small section was recorded in a rebuild of only the workspace's crates, which take longer than most units.
        let Some(known) = known else { return shares(section).median };
        median(known.units.values())
    }

    /// Merges the durations `units` of this run into `section`, and writes the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn learn(&mut self, section: &str, units: BTreeMap<String, Took>) -> Result<()> {
        if units.is_empty() {
            return Ok(());
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let known = self.file.sections.entry(section.to_string()).or_default();
        known.written = now;
        if known.units.len() + units.len() > UNITS {
            // Most of these units belong to old builds.
            known.units.clear();
        }
        known.units.extend(units.into_iter().map(|(name, took)| (name, took.rounded())));
        self.file = sound(std::mem::take(&mut self.file));
        fs::write_atomically(&self.path, &serde_json::to_vec_pretty(&self.file)?)
    }
}

/// Removes invalid entries from `file` and enforces the limits.
fn sound(mut file: RecordsFile) -> RecordsFile {
    if file.version != VERSION {
        return RecordsFile { version: VERSION, ..RecordsFile::default() };
    }
    let is_name = |name: &str| name.len() <= LONGEST_NAME && !name.chars().any(char::is_control);
    file.sections.retain(|name, _| is_name(name));
    for section in file.sections.values_mut() {
        let units = std::mem::take(&mut section.units).into_iter();
        section.units = units.filter(|(name, took)| is_name(name) && took.is_valid()).take(UNITS).collect();
    }
    while file.sections.len() > SECTIONS {
        let oldest = file.sections.iter().min_by_key(|(_, section)| section.written);
        let Some(oldest) = oldest.map(|(name, _)| name.clone()) else { break };
        file.sections.remove(&oldest);
    }
    file
}

/// Returns the median of `all` by seconds, or one second if it is empty.
pub fn median<'a>(all: impl Iterator<Item = &'a Took>) -> Took {
    let mut all: Vec<Took> = all.copied().collect();
    all.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    all.get(all.len() / 2).copied().unwrap_or(Took::whole(1.0))
}

/// Shipped durations of one tool.
pub struct Shares {
    pub units: BTreeMap<String, Took>,
    pub median: Took,
}

/// Returns the shipped durations of the tool at the start of `section`. `cargo-lto` has the durations of `cargo`
/// except for the program, whose code is generated at link time.
pub fn shares(section: &str) -> Shares {
    let tool = section.split(' ').next().unwrap_or_default();
    match tool.split_once('-') {
        Some((base, _)) => {
            let mut shares = parse_shares(SHARES, base);
            shares.units.extend(parse_shares(SHARES, tool).units);
            shares
        }
        None => parse_shares(SHARES, tool),
    }
}

/// Parses the lines of `tool` in `text`: tool, seconds, seconds of the front, name. The name `*` is the median.
fn parse_shares(text: &str, tool: &str) -> Shares {
    let mut shares = Shares { units: BTreeMap::new(), median: Took::whole(1.0) };
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((took, name)) = share(line, tool) else { continue };
        match name {
            "*" => shares.median = took,
            name => drop(shares.units.insert(name.to_string(), took)),
        }
    }
    shares
}

/// Parses one line, if it belongs to `tool`.
fn share<'a>(line: &'a str, tool: &str) -> Option<(Took, &'a str)> {
    let mut words = line.splitn(4, ' ');
    if words.next()? != tool {
        return None;
    }
    let took = Took { seconds: words.next()?.parse().ok()?, front: words.next()?.parse().ok()? };
    Some((took, words.next()?)).filter(|_| took.is_valid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_share_is_understood() {
        for line in SHARES.lines().filter(|line| !line.starts_with('#')) {
            let tool = line.split(' ').next().unwrap();
            assert!(["cargo", "cargo-lto", "ninja"].contains(&tool), "{line}");
            assert!(share(line, tool).is_some(), "{line}");
        }
        assert!(shares("cargo engine").units.contains_key("engine/server"));
        assert!(shares("cargo-lto engine").units.contains_key("engine/server"));
        let ninja = shares("ninja cuda-dense").units;
        assert!(ninja.len() > 5);
        // Each of these units takes about a minute. With the median of C++ units, an hour would be estimated as five
        // minutes.
        assert!(ninja.keys().filter(|name| name.ends_with(".cu.o")).count() > 100);
    }

    #[test]
    fn what_a_build_took_is_merged_and_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let units = |all: &[(&str, f64)]| -> BTreeMap<String, Took> {
            all.iter().map(|(name, seconds)| (name.to_string(), Took::whole(*seconds))).collect()
        };
        let mut records = Records::read(folder.path());
        records.learn("cargo engine", units(&[("a", 1.0), ("b", 2.0), ("c", 9.0)])).unwrap();
        records.learn("cargo engine", units(&[("b", 4.0004)])).unwrap();
        records.learn("ninja native", units(&[("x", 1.0)])).unwrap();
        records.learn("ninja native", BTreeMap::new()).unwrap();
        let again = Records::read(folder.path());
        let cargo = again.of("cargo engine");
        assert_eq!((cargo["a"].seconds, cargo["b"].seconds, cargo["c"].seconds), (1.0, 4.0, 9.0));
        assert_eq!(again.of("ninja native")["x"], Took::whole(1.0));
        assert_eq!(again.guess("cargo engine"), shares("cargo").median, "three units are too few");
        let many: Vec<(String, f64)> = (0..ENOUGH).map(|unit| (format!("u{unit}"), 3.0)).collect();
        let many: Vec<(&str, f64)> = many.iter().map(|(name, seconds)| (name.as_str(), *seconds)).collect();
        records.learn("cargo engine", units(&many)).unwrap();
        let again = Records::read(folder.path());
        assert_eq!(again.guess("cargo engine"), Took::whole(3.0));
        // Another profile has no records, so its guess comes from the shipped durations.
        assert_eq!(again.guess("cargo dist"), shares("cargo").median);
        assert_eq!(again.of("cargo dist"), shares("cargo").units);
    }

    #[test]
    fn a_damaged_file_is_ignored_and_written_anew() {
        let huge = format!("{{\"version\":1,\"sections\":{{\"{}\":{{}}}}}}", "x".repeat(5 << 20));
        let bad = r#"{"version":1,"sections":{"cargo engine":{"written":1,"units":{
            "good":{"seconds":2,"front":1},"negative":{"seconds":-1,"front":0},"late":{"seconds":1,"front":5},
            "endless":{"seconds":1e300,"front":1},"a\u001b[2Jb":{"seconds":1,"front":1}}}}}"#;
        let cases = [
            "",
            "{",
            "[]",
            "\u{0}",
            "{\"version\":2,\"sections\":{\"a\":{\"written\":1,\"units\":{}}}}",
            &huge,
        ];
        for text in cases {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("durations.json"), text).unwrap();
            let mut records = Records::read(folder.path());
            assert!(records.file.sections.is_empty(), "{}", &text[..text.len().min(60)]);
            records.learn("cargo engine", BTreeMap::from([("a".to_string(), Took::whole(3.0))])).unwrap();
            assert_eq!(Records::read(folder.path()).of("cargo engine")["a"], Took::whole(3.0));
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("durations.json"), bad).unwrap();
        let names: Vec<String> =
            Records::read(folder.path()).file.sections["cargo engine"].units.keys().cloned().collect();
        assert_eq!(names, ["good"]);
    }

    #[test]
    fn the_file_stays_small() {
        let folder = tempfile::tempdir().unwrap();
        let mut records = Records::read(folder.path());
        for section in 0..SECTIONS + 5 {
            let units = BTreeMap::from([(format!("u{section}"), Took::whole(1.0))]);
            records.learn(&format!("cargo p{section}"), units).unwrap();
        }
        for round in 0..3 {
            let units = (0..UNITS - 1).map(|unit| (format!("{round}-{unit}"), Took::whole(1.0)));
            records.learn("ninja native", units.collect()).unwrap();
        }
        let again = Records::read(folder.path());
        assert!(again.file.sections.len() <= SECTIONS, "{}", again.file.sections.len());
        assert!(again.file.sections["ninja native"].units.len() <= UNITS);
        assert!(std::fs::metadata(&again.path).unwrap().len() < LARGEST_FILE);
    }
}
