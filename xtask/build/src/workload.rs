//! Workloads: files in `profiles/workloads/*.toml` that describe the runs for gathering a profile.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use base::exit;
use gguf::synth::Preset;
use serde::{Deserialize, Serialize};

/// Workload for gathering a profile.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Workload {
    /// Name of the workload, from its file name.
    pub name: String,
    /// One-line description.
    pub description: String,
    /// Models to run if the user specifies none.
    pub models: Vec<Synthetic>,
    /// Arguments of `anneal` for each run, without the model and the number of threads.
    pub runs: Vec<Vec<String>>,
}

/// Synthetic model, written as `small-llama/Q4_K_M`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Synthetic {
    /// Name of the shape.
    preset: String,
    /// Quantisation in upper case.
    quant: String,
}

impl Synthetic {
    /// Returns the shape.
    pub fn preset(&self) -> Preset {
        // The name was validated when the file was read.
        self.preset.parse().unwrap_or(Preset::Tiny)
    }

    /// Returns the quantisation.
    pub fn quant(&self) -> &str {
        &self.quant
    }

    /// Returns the name of the model's file.
    pub fn file_name(&self) -> PathBuf {
        PathBuf::from(format!("{}-{}.gguf", self.preset, self.quant))
    }
}

impl fmt::Display for Synthetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.preset, self.quant))
    }
}

impl FromStr for Synthetic {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((preset, quant)) = text.split_once('/') else {
            return Err(format!(
                "{text:?} is not a synthetic model\nhint: use the form SHAPE/TYPE, such as small-llama/Q4_K_M"
            ));
        };
        preset.parse::<Preset>()?;
        if !(0..64).filter_map(gguf::file_type_name).any(|known| known == quant) {
            return Err(format!("{text:?}: unknown quantisation {quant:?}"));
        }
        Ok(Self { preset: preset.to_string(), quant: quant.to_string() })
    }
}

impl TryFrom<String> for Synthetic {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Synthetic> for String {
    fn from(model: Synthetic) -> Self {
        model.to_string()
    }
}

/// Content of a workload file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkloadFile {
    description: String,
    models: Vec<Synthetic>,
    runs: Vec<Vec<String>>,
}

/// Returns the names of the workloads in `folder`.
///
/// # Errors
/// If the folder cannot be read.
pub fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(folder)
        .with_context(|| format!("cannot list workloads in {}", folder.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "toml")
            && let Some(stem) = path.file_stem().and_then(|stem| stem.to_str())
        {
            names.push(stem.to_string());
        }
    }
    names.sort();
    Ok(names)
}

/// Returns the workloads `wanted` from `folder`, sorted by name; all workloads if `wanted` is empty.
///
/// # Errors
/// If a workload does not exist or its file is invalid.
pub fn load(folder: &Path, wanted: &[String]) -> Result<Vec<Workload>> {
    let all = names(folder)?;
    if let Some(unknown) = wanted.iter().find(|name| !all.contains(name)) {
        return Err(exit::usage(format!(
            "unknown workload {unknown:?} in {}\nhint: available workloads: {}",
            folder.display(),
            all.join(", ")
        )));
    }
    let chosen = if wanted.is_empty() { &all[..] } else { wanted };
    chosen.iter().map(|name| read(folder, name)).collect()
}

fn read(folder: &Path, name: &str) -> Result<Workload> {
    let path = folder.join(format!("{name}.toml"));
    let text =
        crate::fs::text(&path).with_context(|| format!("cannot read the workload {}", path.display()))?;
    let WorkloadFile { description, models, runs } =
        toml::from_str(&text).with_context(|| format!("cannot parse {}", path.display()))?;
    if models.is_empty() || runs.is_empty() || runs.iter().any(Vec::is_empty) {
        bail!(
            "{} describes no runs\nhint: set `models`, and `runs` with arguments of anneal",
            path.display()
        );
    }
    Ok(Workload { name: name.to_string(), description, models, runs })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workloads_of_the_house_are_understood() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles/workloads");
        let all = load(&folder, &[]).unwrap();
        let names: Vec<&str> = all.iter().map(|workload| workload.name.as_str()).collect();
        assert_eq!(names, ["decode", "long-context", "mixed", "prefill", "server"]);
        let mut models: Vec<&Synthetic> = all.iter().flat_map(|workload| &workload.models).collect();
        models.sort();
        models.dedup();
        for quant in ["Q4_K_M", "Q8_0", "F16"] {
            assert!(models.iter().any(|model| model.quant() == quant), "nothing trains on {quant}");
        }
        let mut presets: Vec<&str> = models.iter().map(|model| model.preset().name()).collect();
        presets.dedup();
        assert!(presets.len() > 1, "one architecture only: {presets:?}");
        assert_eq!(load(&folder, &["mixed".to_string()]).unwrap().len(), 1);
    }

    #[test]
    fn what_cannot_be_run_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let cases = [
            (
                "quant",
                "description = \"\"\nmodels = [\"tiny/Q4_X\"]\nruns = [[\"info\"]]",
                "unknown quantisation",
            ),
            ("shape", "description = \"\"\nmodels = [\"huge/F16\"]\nruns = [[\"info\"]]", "unknown preset"),
            ("slash", "description = \"\"\nmodels = [\"tiny\"]\nruns = [[\"info\"]]", "SHAPE/TYPE"),
            ("empty", "description = \"\"\nmodels = []\nruns = [[\"info\"]]", "describes no runs"),
            ("typo", "description = \"\"\nmodels = [\"tiny/F16\"]\nrun = []", "unknown field `run`"),
        ];
        for (name, text, expected) in cases {
            std::fs::write(folder.path().join(format!("{name}.toml")), text).unwrap();
            let error = load(folder.path(), &[name.to_string()]).unwrap_err();
            assert!(format!("{error:#}").contains(expected), "{name}: {error:#}");
        }
        let error = load(folder.path(), &["absent".to_string()]).unwrap_err();
        assert_eq!(exit::code_of(&error), 2);
        assert!(error.to_string().contains("available workloads: empty, quant"), "{error}");
    }
}
