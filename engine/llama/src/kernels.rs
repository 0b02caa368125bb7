//! Choice of the kernel library in a build that ships one library per kind of CPU next to the program. One of these
//! libraries is loaded before anything is computed.
//!
//! ggml scores each library by the instruction sets that the library uses. The library with the highest score is
//! loaded unless a name is given. ggml only queries CPUID, so Anneal also checks the registers that the operating
//! system saves (`XCR0`). Anneal does not load a library that needs a feature that this CPU lacks.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use build_info::record::CpuVariant;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::own_kernels::MatrixKernels;
use crate::{kernel_library, own_kernels, record};

/// Environment variable with the name of the kernels to load.
const VARIABLE: &str = "ANNEAL_CPU_VARIANT";

/// Prefix and suffix of the libraries' file names, with the variant's name between them.
const FILE: (&str, &str) = ("libggml-cpu-", ".so");

/// Kernel library and its requirements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Kernels {
    /// Name of the variant, such as `haswell`.
    pub name: String,
    /// Path of the library.
    pub path: PathBuf,
    /// CPU features that the library needs, if the build record lists them.
    pub requires: Vec<String>,
    /// Required features that this machine lacks; empty if the library can be used.
    pub missing: Vec<String>,
    /// ggml's score of the library; higher is better. The score is 0 if the library cannot run or was not scored.
    pub score: u32,
}

impl Kernels {
    /// True if the kernels can run on this machine.
    pub fn is_eligible(&self) -> bool {
        self.missing.is_empty() && self.score > 0
    }
}

/// Available kernels, best first, and the name of the loaded kernels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Loaded {
    /// Name of the loaded variant.
    pub variant: String,
    /// Reason for the choice.
    pub because: String,
    /// All libraries next to the program.
    pub all: Vec<Kernels>,
}

static LOADED: OnceLock<Option<Loaded>> = OnceLock::new();

/// Kernels that were requested by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Name of the variant, such as `haswell`.
    pub name: String,
    /// Origin of the request.
    pub by: WantedBy,
}

/// Origin of a request for kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedBy {
    /// A flag, or a configuration file.
    Flag,
    /// An environment variable.
    Environment,
    /// The tuning record, which may come from another machine.
    TuningRecord,
}

/// Returns the name that the environment requests.
pub fn of_environment() -> Option<String> {
    std::env::var(VARIABLE).ok().filter(|name| !name.is_empty())
}

/// Returns alternatives to the loaded kernels that `tune` tries: the next best by ggml's score, and the best without
/// 512-bit registers.
pub fn alternatives() -> Vec<String> {
    let _ = load();
    let Some(loaded) = loaded() else { return Vec::new() };
    let others: Vec<&Kernels> =
        loaded.all.iter().filter(|kernels| kernels.is_eligible() && kernels.name != loaded.variant).collect();
    let narrow = others.iter().find(|kernels| !kernels.requires.iter().any(|feature| feature == "avx512f"));
    let mut names: Vec<String> =
        others.first().into_iter().chain(narrow).map(|kernels| kernels.name.clone()).collect();
    names.dedup();
    names
}

/// Returns the loaded kernels; `None` if the kernels are part of the program.
pub fn loaded() -> Option<&'static Loaded> {
    LOADED.get().and_then(Option::as_ref)
}

/// Unless kernels are already loaded, loads the best kernels that run on this CPU, or the kernels that the
/// environment requests.
///
/// # Errors
/// Errors of [`load_wanted`].
pub fn load() -> Result<Option<&'static Loaded>> {
    load_wanted(None, None)
}

/// Loads kernels for the rest of the process, in a build that has kernel libraries. Only the first call has an effect.
/// Without `wanted`, the environment variable decides, or ggml's score if the variable is unset. Also chooses between
/// Anneal's and llama.cpp's kernels for products, according to `matrix` or the environment.
///
/// # Errors
/// [`Error::Kernels`] if no kernels run on this machine, [`Error::Usage`] if the wanted kernels do not run.
pub fn load_wanted(
    wanted: Option<Wanted>,
    matrix: Option<(MatrixKernels, WantedBy)>,
) -> Result<Option<&'static Loaded>> {
    static LOADING: Mutex<()> = Mutex::new(());
    let _one = LOADING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(done) = LOADED.get() {
        return Ok(done.as_ref());
    }
    let choice = own_kernels::decide(matrix)?;
    let loaded = if kernel_library::has_cpu() { None } else { Some(load_from(&folder()?, wanted)?) };
    own_kernels::apply(choice);
    Ok(LOADED.get_or_init(|| loaded).as_ref())
}

/// Returns the folder of the libraries, which is relative to the program. The folder does not depend on the current
/// folder, because other users may be able to write to the current folder.
fn folder() -> Result<PathBuf> {
    let program = std::env::current_exe().map_err(|error| Error::Kernels {
        path: PathBuf::from("lib"),
        why: format!("cannot find the path of this program: {error}"),
    })?;
    Ok(record::kernels_of(&program))
}

fn load_from(folder: &Path, wanted: Option<Wanted>) -> Result<Loaded> {
    let features = host::detect(&host::Root::live().without_gpus()).host.cpu.features;
    let record = record::path().and_then(|path| build_info::BuildInfo::read(&path).ok());
    let variants = record.map(|record| record.cpu_variants).unwrap_or_default();
    let all = survey(folder, &variants, &features)?;
    let wanted = wanted.or_else(|| Some(Wanted { name: of_environment()?, by: WantedBy::Environment }));
    let (best, because) = choose(&all, wanted.as_ref(), folder)?;
    kernel_library::load(&best.path)?;
    let variant = best.name.clone();
    Ok(Loaded { variant, because, all })
}

/// Lists the kernels in `folder`, best first. `variants` lists the features that each library needs. For a library that
/// is not in `variants`, only ggml's score counts.
fn survey(folder: &Path, variants: &[CpuVariant], features: &BTreeSet<String>) -> Result<Vec<Kernels>> {
    let failed = |error: std::io::Error| Error::Kernels {
        path: folder.to_path_buf(),
        why: format!("cannot list the folder: {error}"),
    };
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let file = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(name) = file.strip_prefix(FILE.0).and_then(|rest| rest.strip_suffix(FILE.1)) else {
            continue;
        };
        let requires = variants.iter().find(|variant| variant.name == name).map(|variant| &variant.requires);
        let requires = requires.cloned().unwrap_or_default();
        let missing: Vec<String> =
            requires.iter().filter(|feature| !features.contains(*feature)).cloned().collect();
        let score = if missing.is_empty() { kernel_library::score(&path)? } else { 0 };
        all.push(Kernels { name: name.to_string(), path, requires, missing, score });
    }
    all.sort_by(|one, other| (other.score, &one.name).cmp(&(one.score, &other.name)));
    Ok(all)
}

/// Chooses the kernels to load from `all`: `wanted` if given, otherwise the kernels with ggml's best score. Returns
/// the kernels and the reason. A variant from a tuning record is only a preference, because the record may come from
/// another machine.
fn choose<'a>(all: &'a [Kernels], wanted: Option<&Wanted>, folder: &Path) -> Result<(&'a Kernels, String)> {
    let eligible = || all.iter().filter(|kernels| kernels.is_eligible());
    if let Some(Wanted { name, by }) = wanted {
        let found = all.iter().find(|kernels| kernels.name == *name);
        let asks = match by {
            WantedBy::Environment => format!("{VARIABLE}={name}"),
            WantedBy::TuningRecord => "the tuning record".to_string(),
            WantedBy::Flag => format!("--cpu-variant {name}"),
        };
        let why = match found {
            Some(kernels) if kernels.is_eligible() => return Ok((kernels, format!("requested by {asks}"))),
            Some(kernels) if !kernels.missing.is_empty() => {
                format!("this machine lacks {}", kernels.missing.join(", "))
            }
            Some(_) => "these kernels cannot run on this machine".to_string(),
            None => "the build has no kernels of this name".to_string(),
        };
        if *by != WantedBy::TuningRecord {
            let names: Vec<&str> = eligible().map(|kernels| kernels.name.as_str()).collect();
            return Err(Error::Usage(format!("{asks}: {why}\nhint: use one of {}", names.join(", "))));
        }
    }
    let best = eligible().next().ok_or_else(|| Error::Kernels {
        path: folder.to_path_buf(),
        why: "no kernel library in this folder can run on this machine\nhint: install the archive again, or build one \
              for this machine with `cargo xtask build-native`"
            .to_string(),
    })?;
    let better: Vec<String> = all
        .iter()
        .filter(|kernels| !kernels.missing.is_empty())
        .map(|kernels| format!("{} lacks {}", kernels.name, kernels.missing.join(" ")))
        .collect();
    let because = match better.is_empty() {
        true => "ranked first by llama.cpp; all can run on this machine".to_string(),
        false => "ranked first by llama.cpp among the kernels that can run on this machine".to_string(),
    };
    Ok((best, because))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernels(name: &str, missing: &[&str], score: u32) -> Kernels {
        let missing = missing.iter().map(|feature| feature.to_string()).collect();
        Kernels { name: name.to_string(), path: PathBuf::from(name), requires: Vec::new(), missing, score }
    }

    #[test]
    fn the_users_word_is_obeyed_and_the_records_where_it_can_be() {
        let all = [
            kernels("haswell", &[], 64),
            kernels("x64", &[], 1),
            kernels("zen4", &["avx512f", "avx512cd"], 0),
        ];
        let (record, variable) = (WantedBy::TuningRecord, WantedBy::Environment);
        let cases = [
            (None, Ok("haswell")),
            (Some(("x64", record)), Ok("x64")),
            // The record was tuned on another machine.
            (Some(("zen4", record)), Ok("haswell")),
            (Some(("gone", record)), Ok("haswell")),
            (Some(("x64", WantedBy::Flag)), Ok("x64")),
            (Some(("zen4", variable)), Err("lacks avx512f, avx512cd\nhint: use one of haswell, x64")),
            (
                Some(("pentium", WantedBy::Flag)),
                Err("--cpu-variant pentium: the build has no kernels of this name\nhint: use one of"),
            ),
        ];
        for (wanted, expected) in cases {
            let wanted = wanted.map(|(name, by): (&str, _)| Wanted { name: name.to_string(), by });
            match (choose(&all, wanted.as_ref(), Path::new("lib")), expected) {
                (Ok((found, _)), Ok(name)) => assert_eq!(found.name, name, "{wanted:?}"),
                (Err(why), Err(part)) => assert!(why.to_string().contains(part), "{why}"),
                (found, _) => panic!("{wanted:?}: {found:?}"),
            }
        }
        assert!(choose(&all[2..], None, Path::new("lib")).is_err());
    }
}
