//! Compilation units of cargo: their list, and the lines of cargo's output that mark their start and end.
//!
//! With `-v`, cargo prints the command of each program at its start. With JSON messages, cargo reports the end of
//! each unit. The time between start and end is the unit's duration. `--timings=json` would report both but is not
//! stable. The time since the last dependency ended is not used, because it includes the time that a unit waits for a
//! free core.
//!
//! A library's dependents can start once its metadata is written. The modification time of the metadata file gives
//! that moment.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

use super::{After, Forecast, Took, Unit};

/// Packages of the workspace and their names.
#[derive(Clone, Debug, Default)]
pub struct Packages {
    /// Folder of the workspace as a prefix of paths.
    root: String,
    /// Target triple as cargo names it.
    target: String,
    /// Folders of the workspace's packages by package name.
    folders: BTreeMap<String, String>,
}

/// Event of a unit, parsed from a line of cargo's output.
#[derive(Clone, Debug, PartialEq)]
pub enum CargoEvent {
    /// Start of a unit: its name and its label.
    Start(String, String),
    /// End of a unit: its name and the files that it wrote.
    End(String, Vec<String>),
    /// Unit that an earlier build made.
    Keep(String),
}

/// Line of cargo's JSON messages.
#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
pub struct CargoMessage {
    /// Kind of message.
    pub reason: String,
    /// Path of the linked program; `None` if the message has none.
    pub executable: Option<String>,
    package_id: String,
    target: Target,
    filenames: Vec<String>,
    fresh: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Target {
    kind: Vec<String>,
}

/// Suffix of a library that is compiled for the host because build scripts or macros need it.
const HOST: &str = ":host";
/// Suffix of the compilation of a build script.
const SCRIPT: &str = ":script";
/// Suffix of the run of a build script.
const RUN: &str = ":run";

impl Packages {
    /// Parses the output of `cargo tree --edges normal,build --charset ascii` in the workspace `root` for `target`.
    /// Returns the packages and the units with their dependencies. `records` maps names of units to their recorded
    /// durations.
    pub fn read(
        tree: &str,
        root: &Path,
        target: &str,
        records: &BTreeMap<String, Took>,
    ) -> (Self, Vec<Unit>) {
        let root = root.display().to_string();
        let mut packages = Self { root, target: target.to_string(), folders: BTreeMap::new() };
        let mut nodes: BTreeMap<Id, Node> = BTreeMap::new();
        // Packages from the root to the current line, each with a flag that is true once its build dependencies have
        // begun.
        let mut above: Vec<(Id, bool)> = Vec::new();
        let mut first = None;
        for line in tree.lines() {
            let (depth, text) = indented(line);
            if text == "[build-dependencies]" {
                above.truncate(depth + 1);
                above.iter_mut().skip(depth).for_each(|(_, for_script)| *for_script = true);
                continue;
            }
            let Some((id, node)) = packages.node(text) else { continue };
            above.truncate(depth);
            if let Some((parent, for_script)) = above.last()
                && let Some(parent) = nodes.get_mut(parent)
            {
                let needs = if *for_script { &mut parent.needs_of_script } else { &mut parent.needs };
                needs.insert(id);
            }
            // cargo lists a package's dependencies only once; `(*)` marks a repeated package.
            nodes.entry(id).or_insert(node);
            first.get_or_insert(id);
            above.push((id, false));
        }
        let mut graph = Graph { records, nodes: &nodes, units: Vec::new(), known: BTreeMap::new() };
        if let Some(first) = first {
            let program = graph.library(first, false, 0);
            // The program is linked from complete libraries; their metadata is not enough.
            graph.units[program].after.iter_mut().for_each(|after| after.whole = true);
        }
        (packages, graph.units)
    }

    /// Parses a line of `cargo tree`: `name v1.2.3 (proc-macro) (/folder) (*)`.
    fn node<'a>(&mut self, text: &'a str) -> Option<(Id<'a>, Node<'a>)> {
        let mut words = text.split(' ');
        let (name, version) = (words.next()?, words.next()?);
        if !version.starts_with('v') {
            return None;
        }
        let folder = text.split(" (").skip(1).find_map(|part| {
            let path = part.split(')').next()?;
            self.below_root(path)
        });
        if let Some(folder) = folder {
            self.folders.insert(name.to_string(), folder.to_string());
        }
        let is_macro = text.contains("(proc-macro)");
        Some(((name, version), Node { name: self.name(name), is_macro, ..Node::default() }))
    }

    /// Returns `path` relative to the workspace, or `None` if the path is not in the workspace.
    fn below_root<'a>(&self, path: &'a str) -> Option<&'a str> {
        path.strip_prefix(&self.root)?.strip_prefix('/')
    }

    /// Returns the name of the package that cargo calls `package`. Packages of the workspace are named after
    /// their folders.
    fn name(&self, package: &str) -> String {
        self.folders.get(package).cloned().unwrap_or_else(|| package.to_string())
    }

    /// Parses a line that cargo printed to standard error.
    pub fn start(&self, line: &str) -> Option<CargoEvent> {
        let command = line.trim_start().strip_prefix("Running `")?.trim_end_matches('`');
        // Cargo quotes paths that contain spaces.
        let words = shlex::split(command)?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        // A build script runs from a folder that is named after the package and a digest.
        let program = words.last()?;
        if program.ends_with("/build-script-build") {
            let folder = program.rsplit('/').nth(1)?;
            let package = self.name(folder.rsplit_once('-')?.0);
            return Some(CargoEvent::Start(format!("{package}{RUN}"), format!("{package} (build script)")));
        }
        let after = |flag: &str| words.iter().position(|word| *word == flag).and_then(|at| words.get(at + 1));
        let crate_name = *after("--crate-name")?;
        let source = words.iter().find(|word| word.ends_with(".rs")).copied()?;
        let package = self.package_of(source, crate_name);
        let (suffix, label) = if crate_name.starts_with("build_script_") {
            (SCRIPT, format!("{package} (build script)"))
        } else if after("--target").is_some() {
            ("", package.clone())
        } else {
            (HOST, package.clone())
        };
        Some(CargoEvent::Start(format!("{package}{suffix}"), label))
    }

    /// Returns the name of the package that contains the file `source`. For files of the workspace, rustc is given a
    /// path relative to the workspace. For files of a registry, the folder is named after the package and its version.
    fn package_of(&self, source: &str, crate_name: &str) -> String {
        let inside = self.below_root(source).or_else(|| (!source.starts_with('/')).then_some(source));
        if let Some(inside) = inside {
            let folder = self.folders.values().filter(|folder| {
                inside.strip_prefix(folder.as_str()).is_some_and(|rest| rest.starts_with('/'))
            });
            if let Some(folder) = folder.max_by_key(|folder| folder.len()) {
                return folder.clone();
            }
        }
        source.split('/').find_map(without_version).unwrap_or(crate_name).to_string()
    }

    /// Parses a JSON message of cargo.
    pub fn end(&self, message: CargoMessage) -> Option<CargoEvent> {
        let package = self.name(package_name(&message.package_id)?);
        if message.reason == "build-script-executed" {
            return Some(CargoEvent::End(format!("{package}{RUN}"), Vec::new()));
        }
        if message.reason != "compiler-artifact" {
            return None;
        }
        let is = |kind: &str| message.target.kind.iter().any(|own| own == kind);
        let for_target = |file: &String| file.split('/').any(|part| part == self.target);
        let suffix = match () {
            () if is("custom-build") => SCRIPT,
            () if message.filenames.iter().any(for_target) => "",
            () => HOST,
        };
        let name = format!("{package}{suffix}");
        Some(if message.fresh { CargoEvent::Keep(name) } else { CargoEvent::End(name, message.filenames) })
    }
}

impl CargoEvent {
    /// Updates `forecast` with this event, `now` seconds after the stage began at `began`.
    pub fn tell(self, forecast: &mut Forecast, now: f64, began: std::time::SystemTime) {
        match self {
            Self::Start(name, label) => forecast.start(&name, &label, now),
            Self::Keep(name) => forecast.keep(&name),
            Self::End(name, files) => match forecast.since(&name) {
                Some(since) => {
                    let front = written(&files, began).map(|at| at - since);
                    forecast.end(&name, now, front);
                }
                None => forecast.end_early(&name),
            },
        }
    }
}

/// Returns the number of seconds from `began` until the metadata file among `files` was written.
fn written(files: &[String], began: std::time::SystemTime) -> Option<f64> {
    let metadata = files.iter().find(|file| file.ends_with(".rmeta"))?;
    let written = std::fs::metadata(metadata).and_then(|meta| meta.modified()).ok()?;
    Some(written.duration_since(began).ok()?.as_secs_f64())
}

/// Name and version of a package.
type Id<'a> = (&'a str, &'a str);

/// Package in the output of `cargo tree`.
#[derive(Default)]
struct Node<'a> {
    name: String,
    is_macro: bool,
    needs: BTreeSet<Id<'a>>,
    needs_of_script: BTreeSet<Id<'a>>,
}

/// Maximum depth of the dependency tree. No real chain of dependencies is longer, so a deeper tree did not come
/// from cargo.
const DEEPEST: usize = 500;

/// Graph of units under construction.
struct Graph<'a> {
    records: &'a BTreeMap<String, Took>,
    nodes: &'a BTreeMap<Id<'a>, Node<'a>>,
    units: Vec<Unit>,
    /// Indices of the library units, by package and by a flag that is true for units compiled for the host.
    known: BTreeMap<(Id<'a>, bool), usize>,
}

impl<'a> Graph<'a> {
    /// Returns the index of the unit that compiles a package's library for the host or the target. Adds the unit and
    /// its dependencies if they are missing, including the build script if the records contain one.
    fn library(&mut self, id: Id<'a>, on_host: bool, depth: usize) -> usize {
        if let Some(known) = self.known.get(&(id, on_host)) {
            return *known;
        }
        let nodes = self.nodes;
        let node = &nodes[&id];
        let name = if on_host { format!("{}{HOST}", node.name) } else { node.name.clone() };
        let unit = self.add(name, node.name.clone(), true);
        self.known.insert((id, on_host), unit);
        if depth > DEEPEST {
            return unit;
        }
        let (script, run) = (format!("{}{SCRIPT}", node.name), format!("{}{RUN}", node.name));
        let mut script_unit = unit;
        if self.records.contains_key(&run) || self.records.contains_key(&script) {
            let label = format!("{} (build script)", node.name);
            let run = self.add(run, label.clone(), false);
            script_unit = self.add(script, label, false);
            self.wait(run, After { unit: script_unit, whole: true });
            self.wait(unit, After { unit: run, whole: true });
        }
        for need in &node.needs {
            let is_macro = nodes[need].is_macro;
            let need = self.library(*need, on_host || is_macro, depth + 1);
            self.wait(unit, After { unit: need, whole: is_macro });
        }
        for need in &node.needs_of_script {
            let need = self.library(*need, true, depth + 1);
            self.wait(script_unit, After { unit: need, whole: true });
        }
        unit
    }

    fn add(&mut self, name: String, label: String, counted: bool) -> usize {
        // A build script has one unit, shared by host and target.
        if let Some(known) = self.units.iter().position(|unit| !counted && unit.name == name) {
            return known;
        }
        let took = self.records.get(&name).copied();
        self.units.push(Unit { name, label, took, counted, after: Vec::new() });
        self.units.len() - 1
    }

    fn wait(&mut self, unit: usize, after: After) {
        let waits = &mut self.units[unit].after;
        if !waits.iter().any(|known| known.unit == after.unit) {
            waits.push(after);
        }
    }
}

/// Returns the depth of a line of `cargo tree --charset ascii`, and its text.
fn indented(line: &str) -> (usize, &str) {
    let mut depth = 0;
    let mut rest = line;
    while let Some(more) = ["|   ", "    ", "|-- ", "`-- "].iter().find_map(|part| rest.strip_prefix(part)) {
        depth += 1;
        rest = more;
    }
    (depth, rest)
}

/// Returns the name of the package with the id `id`: `registry+https://…#name@1.2.3` or `path+file:///a/name#1.2.3`.
fn package_name(id: &str) -> Option<&str> {
    let (source, package) = id.rsplit_once('#')?;
    match package.rsplit_once('@') {
        Some((name, _)) => Some(name),
        None => source.rsplit('/').next(),
    }
}

/// Returns `name` for a folder `name-1.2.3`.
fn without_version(folder: &str) -> Option<&str> {
    let is_version = |text: &str| {
        let mut numbers = text.splitn(3, '.');
        let is_number = |part: Option<&str>| part.is_some_and(|part| part.parse::<u64>().is_ok());
        is_number(numbers.next()) && is_number(numbers.next()) && numbers.next().is_some()
    };
    folder.match_indices('-').find(|(at, _)| is_version(&folder[at + 1..])).map(|(at, _)| &folder[..at])
}
