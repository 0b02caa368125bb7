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
mod overrides;

pub use choices::{Blas, CompilerChoice, CudaMulMat, Gpu, Isa, Linkage, Lto, PgoScope, Target, Threading};
use file::ProfileFile;
pub use overrides::Override;

/// One profile, complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Name: that of its file, and what overrides it.
    pub name: String,
    /// Name of its file.
    pub file: String,
    /// The keys that override those of the file.
    pub sets: Vec<Override>,
    /// The name that it was asked for by, where a file is no more than another name for it.
    pub alias: Option<String>,
    /// One line for people.
    pub description: String,
    /// What the program is for.
    pub target: Target,
    /// Instruction sets.
    pub isa: Isa,
    /// Kinds of CPUs that kernels are made for, with [`Isa::AllVariants`]; all if none is named.
    pub variants: Vec<String>,
    /// How the C++ compiler is chosen.
    pub compiler: CompilerChoice,
    /// The oldest glibc that the program is to start with; that of the build host if none.
    pub glibc: Option<Glibc>,
    /// `CMAKE_BUILD_TYPE`.
    pub build_type: String,
    /// Static or shared libraries.
    pub linkage: Linkage,
    /// Who runs the threads.
    pub threading: Threading,
    /// BLAS.
    pub blas: Blas,
    /// Whether it can compute on other machines, and for them.
    pub rpc: bool,
    /// Which GPUs the program computes on.
    pub gpu: Gpu,
    /// Of these, where they are NVIDIA's.
    pub cuda: CudaChoice,
    /// CMake targets.
    pub targets: Vec<String>,
    /// Link-time optimisation.
    pub lto: Lto,
    /// What else is turned on and off.
    pub switches: Switches,
    /// Cargo profile of the engine.
    pub cargo_profile: String,
    /// Whether the build must look at nothing of the build host.
    pub reproducible: bool,
    /// Further definitions for CMake.
    pub definitions: BTreeMap<String, String>,
    /// What the program does by default when it runs.
    pub defaults: Defaults,
}

/// What a build for NVIDIA's GPUs chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaChoice {
    /// Architectures: `native`, `all`, or compute capabilities times ten as CMake spells them, `89`, `90-virtual`.
    pub arch: Vec<String>,
    /// Who multiplies quantised weights.
    pub mul_mat: CudaMulMat,
    /// Types of K and V, as in `q8_0-q8_0`, that flash attention has kernels for; `all`, or `none` for no flash
    /// attention.
    pub fa_quants: Vec<String>,
}

/// Files of profiles. This crate reads none: who uses it does.
pub trait Files {
    /// The folder that messages name.
    fn folder(&self) -> &Path;

    /// Names of all files, without `.toml`.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    fn all(&self) -> Result<Vec<String>>;

    /// True if there is a file `name`.
    fn has(&self, name: &str) -> bool;

    /// Text of the file `name`.
    ///
    /// # Errors
    /// When it cannot be read.
    fn text(&self, name: &str) -> Result<String>;
}

/// Names of the profiles in `files` that can be built.
pub fn names(files: &dyn Files) -> Result<Vec<String>> {
    let mut names = files.all()?;
    names.retain(|name| name != "base");
    names.sort();
    Ok(names)
}

/// Names of those in `files` whose programs compute on a GPU.
///
/// # Errors
/// When the folder cannot be read.
pub fn names_for_gpus(files: &dyn Files) -> Result<Vec<String>> {
    let for_gpus = |name: &String| load(files, name).is_ok_and(|profile| profile.gpu == Gpu::Cuda);
    Ok(names(files)?.into_iter().filter(for_gpus).collect())
}

/// Reads the profile `name` of `from`. A name may carry keys that override the file's, as
/// `native+threading=openmp` does: a profile of its own, with a current build of its own.
pub fn load(from: &dyn Files, name: &str) -> Result<Profile> {
    load_with(from, name, &[])
}

/// Reads the profile `name` with the keys of `overrides` in place of its own.
pub fn load_with(from: &dyn Files, name: &str, overrides: &[Override]) -> Result<Profile> {
    let (name, in_name) = overrides::split(name)?;
    let given: Vec<Override> = in_name.into_iter().chain(overrides.iter().cloned()).collect();
    let mut files = read(from, name)?;
    if files[0].keys.set.is_some() {
        let other = alias::of(from, name)?;
        let all: Vec<Override> = other.sets.into_iter().chain(given.iter().cloned()).collect();
        let profile = load_with(from, &other.inherits, &all)?;
        // With further keys it is another build than the one that the file stands for.
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

/// The file of the profile `name`, and those that it inherits from, the child first.
fn read(from: &dyn Files, name: &str) -> Result<Vec<ProfileFile>> {
    let plain = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if !plain || !from.has(name) {
        return Err(exit::usage(format!(
            "no build profile {name:?} in {}: there are {}",
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
        let cannot = || format!("cannot understand {}", path.display());
        let table: toml::Table = toml::from_str(&text).with_context(cannot)?;
        let file = ProfileFile::from_table(table).map_err(anyhow::Error::msg).with_context(cannot)?;
        next = file.keys.inherits.clone();
        if file.keys.set.is_some() && !files.is_empty() {
            bail!(
                "build profile {name}: {current} is another name for a build, and nothing can inherit from it"
            );
        }
        files.push(file);
        if let Some(parent) = &next {
            if seen.contains(parent) {
                bail!("build profiles inherit in a circle: {} -> {parent}", seen.join(" -> "));
            }
            seen.push(parent.clone());
        }
    }
    Ok(files)
}

/// Path of the file `name`, for messages.
fn path_of(files: &dyn Files, name: &str) -> PathBuf {
    files.folder().join(format!("{name}.toml"))
}

fn resolve(name: String, description: String, files: &[ProfileFile]) -> Result<Profile> {
    // The child stands first, so the first that has a key decides.
    macro_rules! resolve {
        ($key:ident) => {
            files.iter().find_map(|file| file.keys.$key.clone()).with_context(|| {
                format!("build profile {name}: neither it nor its parents set `{}`", stringify!($key))
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

/// The switches of the profile `name`: of each, the first file that has it decides.
fn switches(name: &str, files: &[ProfileFile]) -> Result<Switches> {
    let mut all = toml::Table::new();
    for file in files.iter().rev() {
        all.extend(file.switches.clone());
    }
    // Some may be absent in records; in profiles none is.
    if let Some(key) = file::switches_of(&Switches::default()).keys().find(|key| !all.contains_key(*key)) {
        bail!("build profile {name}: neither it nor its parents set `{key}`");
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
            // Above the table at the end of the base.
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
            ("value", "inherits = \"base\"\ndescription = \"x\"\nisa = \"navite\""),
            ("ring", "inherits = \"gnir\"\ndescription = \"x\""),
            ("gnir", "inherits = \"ring\"\ndescription = \"x\""),
            ("orphan", "description = \"x\""),
            ("layers", "inherits = \"base\"\ndescription = \"x\"\n[defaults]\ngpu_layers = \"most\""),
            ("mode", "inherits = \"base\"\ndescription = \"x\"\n[defaults]\nflash_attention = \"yes\""),
            ("key", "inherits = \"base\"\ndescription = \"x\"\n[defaults]\nngl = 3"),
        ]);
        let cases = [
            ("typo", "unknown field `issa`"),
            ("value", "unknown variant `navite`"),
            ("ring", "in a circle: ring -> gnir -> ring"),
            ("orphan", "set `isa`"),
            (
                "layers",
                "`defaults.gpu_layers`: \"most\" is no number of layers: use 0 or more, \"all\" or \"auto\"",
            ),
            (
                "mode",
                "`defaults.flash_attention`: unknown variant `yes`, expected one of `auto`, `on`, `off`",
            ),
            ("key", "`defaults` has no key `ngl`: there are gpu_layers, n_cpu_moe"),
            ("absent", "there are gnir, key, layers, mode, orphan, ring, typo, value"),
            ("../base", "no build profile \"../base\""),
        ];
        for (name, expected) in cases {
            let error = format!("{:#}", load(folder.path(), name).unwrap_err());
            assert!(error.contains(expected), "{name}: {error}");
        }
    }
}
