//! Reader of measurement files that recognises their kind by content.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use build_info::BuildInfo;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::inputs::{Inputs, Other};
use super::rows::TestRow;
use super::validate_results;

/// Kinds of files that can be read.
const KINDS: &str = "a comparison (bench compare --raw), bench serve --out, bench build, bench overhead, bench first-minutes, rows \
                     of anneal bench -o json or jsonl, a roofline, a tuning record, build_info.json, optimize, validate, or a machine (detect)";

/// Reads the files that the user specified, in order. Stops at the first unreadable file.
pub fn read_all(files: &[PathBuf]) -> Result<Inputs> {
    let mut inputs = Inputs::default();
    for file in files {
        inputs.read(file)?;
    }
    Ok(inputs)
}

impl Inputs {
    /// Adds the content of `path`. If any part of the file is invalid, adds nothing.
    pub fn read(&mut self, path: &Path) -> Result<()> {
        let mut read = Inputs::default();
        let text = build::fs::text(path).with_context(|| format!("cannot read {}", path.display()))?;
        read.take_text(path, &text)
            .with_context(|| format!("cannot include {} in the report", path.display()))?;
        self.hosts.append(&mut read.hosts);
        self.builds.append(&mut read.builds);
        self.comparisons.append(&mut read.comparisons);
        self.servers.append(&mut read.servers);
        self.rows.append(&mut read.rows);
        self.operations.append(&mut read.operations);
        self.rooflines.append(&mut read.rooflines);
        self.tunings.append(&mut read.tunings);
        self.others.append(&mut read.others);
        self.files.push(path.to_path_buf());
        Ok(())
    }

    fn take_text(&mut self, path: &Path, text: &str) -> Result<()> {
        match serde_json::from_str::<Value>(text) {
            Ok(Value::Array(values)) if values.is_empty() => bail!("the file contains an empty list"),
            Ok(Value::Array(values)) => {
                for (number, value) in values.into_iter().enumerate() {
                    self.take(path, value).with_context(|| format!("entry {} of the list", number + 1))?;
                }
                Ok(())
            }
            Ok(value) => self.take(path, value),
            Err(whole) => self.take_lines(path, text, whole),
        }
    }

    /// Reads a file with one JSON object per line.
    fn take_lines(&mut self, path: &Path, text: &str, whole: serde_json::Error) -> Result<()> {
        let lines = || text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let Some((_, first)) = lines().next() else { bail!("the file is empty") };
        // A file with a single line, or with a first line that is not valid JSON, does not contain JSON lines.
        if lines().count() < 2 || serde_json::from_str::<Value>(first).is_err() {
            return Err(whole).context("the file is damaged or not JSON");
        }
        for (number, line) in lines() {
            let at = || format!("line {}", number + 1);
            let value = serde_json::from_str(line).with_context(at)?;
            self.take(path, value).with_context(at)?;
        }
        Ok(())
    }

    fn take(&mut self, path: &Path, value: Value) -> Result<()> {
        let has = |names: &[&str]| names.iter().all(|name| value.get(name).is_some());
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if has(&["avg_ts", "n_threads"]) {
            self.rows.push(TestRow::take(value)?);
        } else if has(&["op", "sample_ns"]) {
            self.operations.push(parse(value, "a row of anneal bench --ops")?);
        } else if has(&["figures", "builds", "threads"]) {
            let mut comparison = parse(value, "a comparison")?;
            validate_results::judge(&mut comparison)?;
            self.comparisons.push((name, comparison));
        } else if has(&["figures", "programs", "warm_prefix"]) {
            let mut served = parse(value, "a comparison of servers")?;
            validate_results::judge_servers(&mut served)?;
            self.servers.push((name, served));
        } else if has(&["plan_hash", "toolchain", "schema_version"]) {
            let text = serde_json::to_vec(&value)?;
            self.builds.push(BuildInfo::parse(&text, path)?);
        } else if has(&["rates", "affinity", "cpu"]) {
            self.rooflines.push(parse(value, "a roofline")?);
        } else if has(&["entries", "schema_version"]) {
            self.take_tunings(value)?;
        } else if has(&["key", "chosen"]) {
            self.take_tuning(value)?;
        } else if has(&["cpu", "topology", "limits"]) {
            let host: build_info::Host = parse(value, "a machine")?;
            self.hosts.push(host.checked()?);
        } else {
            let kind = if has(&["xtask_seconds", "plain_seconds"]) {
                Other::BuildTimes
            } else if value.get("commands").is_some_and(Value::is_array) {
                Other::Overhead
            } else if value.get("first_minutes").is_some_and(Value::is_array) {
                Other::FirstMinutes
            } else if value.get("ranking").is_some_and(Value::is_array) {
                Other::Optimisation
            } else if has(&["checks", "subjects"]) {
                Other::Validation
            } else if has(&["base", "steps", "result"]) {
                Other::Steps
            } else {
                bail!("unknown kind of file\nhint: supported kinds: {KINDS}");
            };
            let ranking = value["ranking"].as_array().into_iter().flatten();
            validate_results::check_all(ranking.map(|row| &row["against_base"]).chain([&value["ratio"]]))?;
            self.others.push((name, kind(value)));
        }
        Ok(())
    }

    fn take_tunings(&mut self, value: Value) -> Result<()> {
        let version = value["schema_version"].as_str().unwrap_or_default();
        if version.split('.').next() != Some("1") {
            bail!("the tuning record has version {version:?}, but this program reads version 1");
        }
        match value["entries"].as_array() {
            Some(entries) => entries.iter().try_for_each(|entry| self.take_tuning(entry.clone())),
            None => bail!("the tuning record is damaged: its entries are not a list"),
        }
    }

    fn take_tuning(&mut self, entry: Value) -> Result<()> {
        let confirmed = entry["confirmation"].as_object().into_iter().flat_map(|parts| parts.values());
        let stages = entry["stages"].as_array().into_iter().flatten();
        let candidates = stages.filter_map(|stage| stage["candidates"].as_array()).flatten();
        validate_results::check_all(confirmed.chain(candidates.map(|candidate| &candidate["ratio"])))?;
        self.tunings.push(entry);
        Ok(())
    }
}

fn parse<T: DeserializeOwned>(value: Value, what: &str) -> Result<T> {
    serde_json::from_value(value).with_context(|| format!("the file looks like {what}, but is damaged"))
}
