//! Build profiles: `profiles/build/*.toml`, with inheritance resolved.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use build_info::switches::Switches;
use build_info::{Defaults, Glibc};
use serde::Deserialize as _;

use base::exit;

mod alias;
mod choices;
mod defaults;
mod file;
mod glibc;
mod isa;
mod overrides;
mod serde_error;

pub use choices::{Blas, CompilerChoice, CudaMulMat, Gpu, Linkage, Lto, PgoScope, Target, Threading};
use file::ProfileFile;
pub use isa::Isa;
pub use overrides::Override;

/// Build profile with all keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Name of the profile's file, followed by the overrides.
    pub name: String,
    /// Name of the profile's file.
    pub file: String,
    /// Overrides of the file's keys.
    pub sets: Vec<Override>,
    /// Name that the user gave, if its file is an alias; `None` otherwise.
    pub alias: Option<String>,
    /// Description in one line.
    pub description: String,
    /// Target machines of the program.
    pub target: Target,
    /// Instruction sets.
    pub isa: Isa,
    /// Kinds of CPUs to build kernels for, with [`Isa::AllVariants`]; empty for all.
    pub variants: Vec<String>,
    /// Choice of the C++ compiler.
    pub compiler: CompilerChoice,
    /// Oldest glibc that can run the program; `None` for the glibc of the build host.
    pub glibc: Option<Glibc>,
    /// Value of `CMAKE_BUILD_TYPE`.
    pub build_type: String,
    /// Static or shared libraries.
    pub linkage: Linkage,
    /// Implementation of threads.
    pub threading: Threading,
    /// Kind of BLAS library.
    pub blas: Blas,
    /// True if the program supports RPC, as a client and as a worker.
    pub rpc: bool,
    /// GPUs that the program computes on.
    pub gpu: Gpu,
    /// Settings for NVIDIA GPUs.
    pub cuda: CudaChoice,
    /// CMake targets.
    pub targets: Vec<String>,
    /// Link-time optimisation.
    pub lto: Lto,
    /// Further switches of the build.
    pub switches: Switches,
    /// Cargo profile of the engine.
    pub cargo_profile: String,
    /// True if the build must not depend on the build host.
    pub reproducible: bool,
    /// Additional definitions for CMake.
    pub definitions: BTreeMap<String, String>,
    /// Defaults of the program at run time.
    pub defaults: Defaults,
}

/// Settings of a build for NVIDIA GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaChoice {
    /// Architectures: `native`, `all`, or compute capabilities times ten as in CMake: `89`, `90-virtual`.
    pub arch: Vec<String>,
    /// Kernels that multiply quantised weights.
    pub mul_mat: CudaMulMat,
    /// Types of K and V with flash attention kernels, such as `q8_0-q8_0`; `all`, or `none` for no flash attention.
    pub fa_quants: Vec<String>,
}

/// Source of profile files. Callers implement it, because this crate reads no files.
pub trait Files {
    /// Returns the folder of the files, for messages.
    fn folder(&self) -> &Path;

    /// Returns the names of all files, without `.toml`.
    ///
    /// # Errors
    /// If the folder cannot be listed.
    fn all(&self) -> Result<Vec<String>>;

    /// True if the file `name` exists.
    fn has(&self, name: &str) -> bool;

    /// Returns the text of the file `name`.
    ///
    /// # Errors
    /// If the file cannot be read.
    fn text(&self, name: &str) -> Result<String>;
}

/// Returns the names of the profiles in `files` that can be built.
pub fn names(files: &dyn Files) -> Result<Vec<String>> {
    let mut names = files.all()?;
    names.retain(|name| name != "base");
    names.sort();
    Ok(names)
}

/// Returns the names of the profiles in `files` whose programs compute on a GPU.
///
/// # Errors
/// If the folder cannot be read.
pub fn names_for_gpus(files: &dyn Files) -> Result<Vec<String>> {
    let for_gpus = |name: &String| load(files, name).is_ok_and(|profile| profile.gpu == Gpu::Cuda);
    Ok(names(files)?.into_iter().filter(for_gpus).collect())
}

/// Loads the profile `name`. A name may contain overrides of the file's keys, as in `native+threading=openmp`. Such a
/// profile has its own current build.
pub fn load(from: &dyn Files, name: &str) -> Result<Profile> {
    load_with(from, name, &[])
}

/// Loads the profile `name` with `overrides` of its keys.
pub fn load_with(from: &dyn Files, name: &str, overrides: &[Override]) -> Result<Profile> {
    let (name, in_name) = overrides::split(name)?;
    let given: Vec<Override> = in_name.into_iter().chain(overrides.iter().cloned()).collect();
    let mut files = read(from, name)?;
    if files[0].keys.set.is_some() {
        let other = alias::of(from, name)?;
        let all: Vec<Override> = other.sets.into_iter().chain(given.iter().cloned()).collect();
        let profile = load_with(from, &other.inherits, &all)?;
        // With further overrides, the build differs from the aliased build.
        return Ok(Profile { alias: given.is_empty().then(|| name.to_string()), ..profile });
    }
    let overrides = overrides::sorted(given.into_iter())?;
    let description = files[0]
        .keys
        .description
        .clone()
        .with_context(|| format!("build profile {name} has no `description`"))?;
    for overriding in &overrides {
        files.insert(0, overriding.file()?);
    }
    let full_name = overrides::name(name, &overrides);
    let profile = resolve(full_name, overrides::description(description, &overrides), &files)?;
    Ok(Profile { file: name.to_string(), sets: overrides, ..profile })
}

/// Reads the file of the profile `name` and the files that it inherits from, starting with the child.
fn read(from: &dyn Files, name: &str) -> Result<Vec<ProfileFile>> {
    let plain = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if !plain || !from.has(name) {
        return Err(exit::usage(format!(
            "no build profile {name:?} in {}\nhint: available profiles: {}",
            from.folder().display(),
            names(from)?.join(", ")
        )));
    }
    let mut files: Vec<ProfileFile> = Vec::new();
    let mut seen = vec![name.to_string()];
    let mut next = Some(name.to_string());
    while let Some(current) = next {
        let path = path_of(from, &current);
        let text = from
            .text(&current)
            .with_context(|| format!("cannot read the build profile {}", path.display()))?;
        let cannot = || format!("cannot parse {}", path.display());
        let table: toml::Table = toml::from_str(&text).with_context(cannot)?;
        let file = ProfileFile::from_table(table).map_err(anyhow::Error::msg).with_context(cannot)?;
        next = file.keys.inherits.clone();
        if file.keys.set.is_some() && !files.is_empty() {
            bail!("build profile {name}: cannot inherit from {current}, because it is an alias of a build");
        }
        files.push(file);
        if let Some(parent) = &next {
            if seen.contains(parent) {
                bail!("build profiles inherit in a cycle: {} -> {parent}", seen.join(" -> "));
            }
            seen.push(parent.clone());
        }
    }
    Ok(files)
}

/// Returns the path of the file `name`, for messages.
fn path_of(files: &dyn Files, name: &str) -> PathBuf {
    files.folder().join(format!("{name}.toml"))
}

fn resolve(name: String, description: String, files: &[ProfileFile]) -> Result<Profile> {
    // The child comes first, so the first file with a key decides its value.
    macro_rules! resolve {
        ($key:ident) => {
            files.iter().find_map(|file| file.keys.$key.clone()).with_context(|| {
                format!(
                    "build profile {name}: neither the profile nor its parents set `{}`",
                    stringify!($key)
                )
            })?
        };
    }
    Ok(Profile {
        description,
        isa: resolve!(isa),
        target: resolve!(target),
        variants: resolve!(variants),
        compiler: resolve!(compiler),
        glibc: resolve!(glibc).0,
        build_type: resolve!(build_type),
        linkage: resolve!(linkage),
        threading: resolve!(threading),
        blas: resolve!(blas),
        rpc: resolve!(rpc),
        gpu: resolve!(gpu),
        cuda: CudaChoice {
            arch: resolve!(cuda_arch),
            mul_mat: resolve!(cuda_mul_mat),
            fa_quants: resolve!(cuda_fa_quants),
        },
        targets: resolve!(targets),
        lto: resolve!(lto),
        switches: switches(&name, files)?,
        cargo_profile: resolve!(cargo_profile),
        reproducible: resolve!(reproducible),
        definitions: files.iter().rev().flat_map(|file| file.keys.definitions.clone()).collect(),
        defaults: files.iter().fold(Defaults::default(), |own, file| own.or(&file.keys.defaults)),
        file: name.clone(),
        sets: Vec::new(),
        alias: None,
        name,
    })
}

/// Returns the switches of the profile `name`. The first file with a switch decides its value.
fn switches(name: &str, files: &[ProfileFile]) -> Result<Switches> {
    let mut all = toml::Table::new();
    for file in files.iter().rev() {
        all.extend(file.switches.clone());
    }
    // Records may omit switches; profiles may not.
    if let Some(key) = file::switches_of(&Switches::default()).keys().find(|key| !all.contains_key(*key)) {
        bail!("build profile {name}: neither the profile nor its parents set `{key}`");
    }
    Ok(Switches::deserialize(all)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{load, names};

    const BASE: &str = r#"
        description = "base"
        target = "host"
        isa = "native"
        variants = []
        compiler = "best"
        glibc = "host"
        build_type = "Release"
        linkage = "static"
        threading = "threadpool"
        blas = "off"
        rpc = true
        gpu = "off"
        cuda_arch = ["native"]
        cuda_mul_mat = "auto"
        cuda_fa_quants = ["f16-f16"]
        targets = ["llama"]
        lto = "off"
        cargo_profile = "engine"
        reproducible = false
        [definitions]
        A = "base"
        B = "base"
    "#;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let switches = file::switches_of(&Switches::default()).to_string();
        for (name, text) in files {
            // Insert the switches before the table at the end of the base.
            let text = if *name == "base" { format!("{switches}{text}") } else { text.to_string() };
            std::fs::write(folder.path().join(format!("{name}.toml")), text).unwrap();
        }
        folder
    }

    #[test]
    fn a_child_overrides_its_parent_key_by_key() {
        let folder = folder(&[
            ("base", BASE),
            ("x", "inherits = \"base\"\ndescription = \"x\"\nisa = \"x86-64-v3\"\ndefinitions.A = \"x\""),
        ]);
        let profile = load(folder.path(), "x").unwrap();
        assert_eq!((profile.isa, profile.linkage), (Isa::X86_64V3, Linkage::Static));
        let definitions: Vec<_> = profile.definitions.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(definitions, [("A", "x"), ("B", "base")]);
        assert_eq!(names(folder.path()).unwrap(), ["x"]);
        assert!(profile.defaults.is_empty());
    }

    #[test]
    fn a_table_of_defaults_is_inherited_key_by_key() {
        let gpu =
            "inherits = \"base\"\ndescription = \"x\"\n[defaults]\ngpu_layers = \"all\"\nkv_offload = true";
        let folder = folder(&[
            ("base", BASE),
            ("gpu", gpu),
            (
                "cpu",
                "inherits = \"gpu\"\ndescription = \"x\"\n[defaults]\ngpu_layers = 0\nflash_attention = \"off\"",
            ),
        ]);
        let of = |name: &str| load(folder.path(), name).unwrap().defaults.to_string();
        assert_eq!(of("gpu"), "gpu_layers all, kv_offload on");
        assert_eq!(of("cpu"), "gpu_layers 0, kv_offload on, flash_attention off");
        assert_eq!(
            of("cpu+defaults.gpu_layers:12+defaults.flash_attention:auto"),
            "gpu_layers 12, kv_offload on, flash_attention auto"
        );
    }

    #[test]
    fn what_cannot_be_understood_is_told() {
        let folder = folder(&[
            ("base", BASE),
            ("typo", "inherits = \"base\"\ndescription = \"x\"\nissa = \"native\""),
            ("value", "inherits = \"base\"\ndescription = \"x\"\ncompiler = \"cleng\""),
            ("ring", "inherits = \"gnir\"\ndescription = \"x\""),
            ("gnir", "inherits = \"ring\"\ndescription = \"x\""),
            ("orphan", "description = \"x\""),
            ("layers", "inherits = \"base\"\ndescription = \"x\"\n[defaults]\ngpu_layers = \"most\""),
            ("mode", "inherits = \"base\"\ndescription = \"x\"\n[defaults]\nflash_attention = \"yes\""),
            ("key", "inherits = \"base\"\ndescription = \"x\"\n[defaults]\nngl = 3"),
        ]);
        let cases = [
            ("typo", "unknown key `issa`\nhint: did you mean isa?"),
            ("value", "`compiler` has no value \"cleng\"\nhint: did you mean clang?"),
            ("ring", "in a cycle: ring -> gnir -> ring"),
            ("orphan", "set `isa`"),
            (
                "layers",
                "`defaults.gpu_layers`: \"most\" is not a number of layers: use 0 or more, \"all\" or \"auto\"",
            ),
            (
                "mode",
                "`defaults.flash_attention` has no value \"yes\"\nhint: supported values: auto, on, off",
            ),
            ("key", "`defaults` has no key `ngl`\nhint: supported keys: gpu_layers, n_cpu_moe"),
            ("absent", "available profiles: gnir, key, layers, mode, orphan, ring, typo, value"),
            ("../base", "no build profile \"../base\""),
        ];
        for (name, expected) in cases {
            let error = format!("{:#}", load(folder.path(), name).unwrap_err());
            assert!(error.contains(expected), "{name}: {error}");
        }
    }
}
