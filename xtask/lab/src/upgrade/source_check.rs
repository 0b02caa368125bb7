//! Checks another version of llama.cpp before it is built: patches, C API and shim.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use build::process;
use build::ui;
use build::workspace::Workspace;
use build_info::words::count;
use llama_source::{PatchFit, PatchTrial, Store, Tree};
use serde::{Deserialize, Serialize};

use super::declarations::{ApiChange, Declarations};

/// Folders with the sources that use llama.cpp's C API, relative to the checkout.
const USERS: [&str; 4] =
    ["engine/llama/src", "vendor/llama-link/src", "vendor/llama-link/csrc", "vendor/llama-sys/csrc"];

/// Maximum size of a source file in bytes.
const LARGEST: u64 = 16 << 20;

/// Name of a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceName {
    /// Kind of origin: `crate`, `sdist`, `git` or `path`.
    pub origin: String,
    /// Version within the origin.
    pub version: String,
    /// Version of llama.cpp.
    pub llama_version: String,
    /// Version of ggml.
    pub ggml_version: String,
}

impl SourceName {
    /// Returns the name of `tree`. Versions with the same files share a tree, so `version` may differ from the tree's.
    pub fn of(tree: &Tree, version: &str) -> Self {
        Self {
            origin: tree.origin.name().to_string(),
            version: version.to_string(),
            llama_version: tree.llama_version.clone(),
            ggml_version: tree.ggml_version.clone(),
        }
    }
}

impl fmt::Display for SourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { origin, version, llama_version, ggml_version } = self;
        write!(f, "{origin} {version}: llama.cpp {llama_version}, ggml {ggml_version}")
    }
}

/// Error of the C++ compiler in one file of the shim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShimError {
    /// File of the shim.
    pub file: String,
    /// First error of the compiler.
    pub error: String,
}

/// Result of the check.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SourceCheck {
    /// Present version.
    pub from: SourceName,
    /// Other version.
    pub to: SourceName,
    /// True if both versions contain the same llama.cpp.
    pub same_files: bool,
    /// Patches on the other version.
    pub patches: Vec<PatchTrial>,
    /// Number of declarations of the C API that the engine uses.
    pub used: usize,
    /// Differences in these declarations.
    pub api: Vec<ApiChange>,
    /// Files of the shim that do not compile with the other version.
    pub shim: Vec<ShimError>,
}

/// Present and other version of llama.cpp, with the patches that apply.
pub struct Trees {
    /// Present version.
    pub present: Tree,
    /// Other version.
    pub other: Tree,
}

impl SourceCheck {
    /// Checks `trees.other`, which is `version`. `unpatched` is the same version without patches, `store` provides
    /// the patches, and `cxx` is the C++ compiler.
    ///
    /// # Errors
    /// If a file cannot be read, or the compiler cannot be started.
    pub fn run(
        trees: &Trees,
        version: &str,
        unpatched: &Tree,
        store: &Store,
        cxx: &Path,
        workspace: &Workspace,
    ) -> Result<Self> {
        let sources = sources(workspace)?;
        let (present, other) = (
            Declarations::of_headers(&trees.present.headers())?,
            Declarations::of_headers(&trees.other.headers())?,
        );
        let used: BTreeSet<String> = present.used_by(sources.iter().map(String::as_str));
        Ok(Self {
            from: SourceName::of(&trees.present, &trees.present.version),
            to: SourceName::of(&trees.other, version),
            same_files: trees.present.digest == trees.other.digest,
            patches: store.try_patches(unpatched)?,
            used: used.len(),
            api: present.changes(&other, &used),
            shim: compile_shim(&trees.other, cxx, workspace)?,
        })
    }

    /// Returns the reasons why the engine cannot be built with the other version.
    pub fn obstacles(&self) -> Vec<String> {
        let removed = self.api.iter().filter(|change| matches!(change, ApiChange::Removed { .. }));
        let shim = self.shim.iter().map(|error| format!("{} does not compile: {}", error.file, error.error));
        removed.map(|change| format!("{change}, which the engine uses")).chain(shim).collect()
    }

    /// Returns the patches that the other version would lose.
    pub fn lost(&self) -> impl Iterator<Item = &PatchTrial> {
        self.patches.iter().filter(|trial| trial.fit == PatchFit::Fails)
    }
}

impl SourceCheck {
    /// Writes the result with those patches that `is_shown` accepts.
    fn write(&self, f: &mut fmt::Formatter<'_>, is_shown: impl Fn(&PatchTrial) -> bool) -> fmt::Result {
        let same = if self.same_files { " (the same files)" } else { "" };
        writeln!(f, "from     {}\nto       {}{same}\n", self.from, self.to)?;
        let shown = self.patches.iter().filter(|trial| is_shown(trial));
        let row = |trial: &PatchTrial| (trial.name.trim_end_matches(".patch").to_string(), trial.to_string());
        let rows: Vec<_> = shown.map(row).collect();
        let others = self.patches.len() - rows.len();
        if !rows.is_empty() {
            f.write_str(&ui::reasons(["patch", "state"], rows, ui::page_width()))?;
            writeln!(f)?;
        }
        if others > 0 {
            writeln!(f, "patches  {others} of {} apply or are contained", self.patches.len())?;
        }
        match self.api.as_slice() {
            [] => writeln!(
                f,
                "C API    unchanged in the {} that the engine uses",
                count(self.used, "declaration")
            )?,
            changes => {
                let many = count(changes.len(), "difference");
                writeln!(
                    f,
                    "C API    {many} in the {} that the engine uses:",
                    count(self.used, "declaration")
                )?;
                changes.iter().try_for_each(|change| writeln!(f, "         - {change}"))?;
            }
        }
        match self.shim.as_slice() {
            [] => writeln!(f, "shim     compiles"),
            errors => {
                writeln!(f, "shim     does not compile:")?;
                errors.iter().try_for_each(|error| writeln!(f, "         - {}: {}", error.file, error.error))
            }
        }
    }
}

impl fmt::Display for SourceCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, |_| true)
    }
}

/// Check without the patches that need no attention, for a page with other results.
pub struct ShortCheck<'a>(pub &'a SourceCheck);

impl fmt::Display for ShortCheck<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(f, |trial| trial.fit == PatchFit::Fails)
    }
}

/// Returns the texts of all sources that use the C API.
fn sources(workspace: &Workspace) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    let mut folders: Vec<_> = USERS.iter().map(|folder| workspace.root().join(folder)).collect();
    while let Some(folder) = folders.pop() {
        let failed = || format!("cannot list {}", folder.display());
        for entry in std::fs::read_dir(&folder).with_context(failed)? {
            let path = entry.with_context(failed)?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let text =
                    base::read(&path, LARGEST).with_context(|| format!("cannot read {}", path.display()))?;
                texts.push(String::from_utf8_lossy(&text).into_owned());
            }
        }
    }
    Ok(texts)
}

/// Compiles each file of the shim with the headers of `tree`, without writing objects. The file for NVIDIA GPUs is left
/// out, because it needs CUDA's headers.
fn compile_shim(tree: &Tree, cxx: &Path, workspace: &Workspace) -> Result<Vec<ShimError>> {
    let shim = workspace.root().join("vendor/llama-link/csrc");
    let failed = || format!("cannot list {}", shim.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&shim).with_context(failed)? {
        let path = entry.with_context(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".cpp") && name != "cuda.cpp" {
            files.push((path, name));
        }
    }
    files.sort();
    let mut errors = Vec::new();
    for (path, name) in files {
        process::check_interrupted()?;
        let mut command = Command::new(cxx);
        command.args(["-std=c++17", "-fsyntax-only", "-fexceptions", "-w"]).env("LC_ALL", "C");
        for folder in [&workspace.root().join("vendor/llama-sys/csrc")].into_iter().chain(&tree.headers()) {
            command.arg("-I").arg(folder);
        }
        let output = command
            .arg(&path)
            .output()
            .with_context(|| format!("cannot run the C++ compiler {}", cxx.display()))?;
        process::check_interrupted()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            errors.push(ShimError { error: first_error(&said), file: name });
        }
    }
    Ok(errors)
}

/// Returns the first error in the output of a compiler, without the folder.
fn first_error(said: &str) -> String {
    let line = said.lines().find(|line| line.contains("error: ")).or_else(|| said.lines().last());
    let line = line.unwrap_or("the compiler failed without a message");
    let (place, error) = line.split_once(": ").unwrap_or(("", line));
    match place.rsplit_once('/') {
        Some((_, file)) => format!("{file}: {error}"),
        None => line.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(api: Vec<ApiChange>, shim: Vec<ShimError>) -> SourceCheck {
        let name = |version: &str| SourceName {
            origin: "crate".to_string(),
            version: version.to_string(),
            llama_version: "0.6.0".to_string(),
            ggml_version: "0.26.0".to_string(),
        };
        let patch = |name: &str, fit| PatchTrial {
            name: name.to_string(),
            fit,
            hunks: Vec::new(),
            after: Vec::new(),
        };
        let patches =
            vec![patch("0001-a.patch", PatchFit::Applies), patch("0002-b.patch", PatchFit::Contained)];
        SourceCheck { from: name("1"), to: name("2"), same_files: false, patches, used: 7, api, shim }
    }

    #[test]
    fn only_what_prevents_a_build_is_an_obstacle() {
        let name = String::from("llama_x");
        let changed =
            ApiChange::Changed { name: name.clone(), was: "int".to_string(), now: "long".to_string() };
        let removed = ApiChange::Removed { name };
        let broken = ShimError { file: "shim.cpp".to_string(), error: "no member".to_string() };
        let cases = [
            (vec![], vec![], 0),
            (vec![changed.clone()], vec![], 0),
            (vec![changed, removed], vec![], 1),
            (vec![], vec![broken], 1),
        ];
        for (api, shim, expected) in cases {
            let check = check(api, shim);
            assert_eq!(check.obstacles().len(), expected, "{:?}", check.obstacles());
            assert_eq!(check.to_string().contains("does not compile"), !check.shim.is_empty());
        }
        let whole = check(vec![], vec![]);
        assert_eq!(whole.lost().count(), 0);
        assert!(whole.to_string().contains("0002-b"), "{whole}");
        let short = ShortCheck(&whole).to_string();
        assert!(short.contains("2 of 2 apply") && !short.contains("0002-b"), "{short}");
    }

    #[test]
    fn the_first_error_of_a_compiler_names_file_and_line() {
        let said =
            "In file included from /x/a.cpp:1:\n/x/y/llama.h:3:5: error: unknown type name 'z'\nmore\n";
        assert_eq!(first_error(said), "llama.h:3:5: error: unknown type name 'z'");
        assert_eq!(first_error(""), "the compiler failed without a message");
    }
}
