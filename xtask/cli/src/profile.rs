//! Build profiles: `profiles/build/*.toml`, with inheritance resolved.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use build_info::switches::{Allocator, Switches};
use build_info::{Defaults, Glibc};
use serde::{Deserialize, Serialize};

use crate::exit;

mod alias;
mod defaults;
mod glibc;
mod overrides;

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

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $spelling:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $spelling)] $variant),+
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self { $($name::$variant => $spelling),+ })
            }
        }
    };
}

choice!(
    /// Instruction sets that the compilers may use.
    Isa {
        /// All of the build host's.
        Native = "native",
        /// The psABI level of CPUs with SSE4.2 (Nehalem, 2008), for tests with kernels of older CPUs.
        X86_64V2 = "x86-64-v2",
        /// The psABI level that CPUs since Haswell have; its counterpart on other architectures.
        X86_64V3 = "x86-64-v3",
        /// That counterpart on aarch64.
        Aarch64Dotprod = "armv8.2-a+dotprod",
        /// The baseline for the program, and kernels for every kind of CPU beside it, of which one is loaded.
        AllVariants = "all-variants",
        /// None beyond the psABI's baseline, and no kernel that is written for one.
        Scalar = "scalar",
        /// What llama.cpp chooses.
        Upstream = "upstream",
    }
);
choice!(
    /// Which machines the program is for.
    Target {
        /// Those of the architecture that builds it.
        Host = "host",
        /// aarch64 with Linux, whatever builds it.
        Aarch64 = "aarch64-unknown-linux-gnu",
    }
);
choice!(
    /// How the C++ compiler is chosen.
    CompilerChoice {
        /// clang 18 or later with lld, else gcc 11 or later.
        Best = "best",
        /// What CMake finds.
        System = "system",
        /// The newest clang, 18 or later.
        Clang = "clang",
        /// The newest gcc, 11 or later.
        Gcc = "gcc",
        /// The pinned zig: clang, for a glibc that is not here.
        Zig = "zig",
    }
);
choice!(
    /// How the engine links libllama.
    Linkage {
        /// Into the program.
        Static = "static",
        /// Beside the program.
        Shared = "shared",
    }
);
choice!(
    /// Who runs the threads.
    Threading {
        /// ggml's own pool.
        Threadpool = "threadpool",
        /// The compiler's own OpenMP runtime.
        Openmp = "openmp",
        /// What llama.cpp chooses: OpenMP where it is found.
        Upstream = "upstream",
    }
);
choice!(
    /// BLAS.
    Blas {
        /// None.
        Off = "off",
        /// OpenBLAS, as pkg-config finds it.
        Openblas = "openblas",
        /// OpenBLAS, built here for this CPU from pinned sources.
        OpenblasSource = "openblas-source",
        /// BLIS.
        Blis = "blis",
        /// Intel's MKL.
        Mkl = "mkl",
        /// What llama.cpp chooses: none on Linux.
        Upstream = "upstream",
    }
);
choice!(
    /// Which GPUs the program computes on, beside the CPU.
    Gpu {
        /// None.
        Off = "off",
        /// NVIDIA's.
        Cuda = "cuda",
    }
);
choice!(
    /// How quantised weights are multiplied with many tokens on NVIDIA's GPUs. Single tokens have kernels of their own
    /// (MMVQ).
    CudaMulMat {
        /// As llama.cpp chooses by the card: its own kernels (MMQ) on Turing and later, cuBLAS for large batches on Volta.
        Auto = "auto",
        /// Always MMQ.
        Mmq = "mmq",
        /// Always cuBLAS, on weights that are unpacked first.
        Cublas = "cublas",
    }
);
choice!(
    /// Link-time optimisation of ggml, libllama and the engine.
    Lto {
        /// None across files.
        Off = "off",
        /// Functions are imported from other files by their summaries; parallel.
        Thin = "thin",
        /// The whole program as one file; slow, and one core does it.
        Full = "full",
    }
);

choice!(
    /// Which code a profile is gathered for and applied to.
    PgoScope {
        /// llama.cpp and the engine.
        All = "all",
        /// llama.cpp and the engine's C++ shim.
        Cpp = "cpp",
        /// The engine's Rust.
        Rust = "rust",
    }
);

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

impl PgoScope {
    /// Whether C++ is in it.
    pub fn cpp(self) -> bool {
        self != PgoScope::Rust
    }

    /// Whether Rust is in it.
    pub fn rust(self) -> bool {
        self != PgoScope::Cpp
    }
}

/// A file as it is written; every key may be left to the parent.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    inherits: Option<String>,
    description: Option<String>,
    set: Option<Vec<String>>,
    target: Option<Target>,
    isa: Option<Isa>,
    variants: Option<Vec<String>>,
    compiler: Option<CompilerChoice>,
    glibc: Option<glibc::Choice>,
    build_type: Option<String>,
    linkage: Option<Linkage>,
    threading: Option<Threading>,
    blas: Option<Blas>,
    rpc: Option<bool>,
    gpu: Option<Gpu>,
    cuda_arch: Option<Vec<String>>,
    cuda_mul_mat: Option<CudaMulMat>,
    cuda_fa_quants: Option<Vec<String>>,
    targets: Option<Vec<String>>,
    lto: Option<Lto>,
    repack: Option<bool>,
    llamafile: Option<bool>,
    prefetch: Option<bool>,
    patched_kernels: Option<bool>,
    allocator: Option<Allocator>,
    huge_pages: Option<bool>,
    extra_flags: Option<Vec<String>>,
    fast_math: Option<bool>,
    cargo_profile: Option<String>,
    reproducible: Option<bool>,
    #[serde(default)]
    definitions: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "defaults::read")]
    defaults: Defaults,
}

/// Names of the profiles in `folder` that can be built.
pub fn names(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("cannot list profiles in {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "toml")
            && let Some(stem) = path.file_stem().and_then(|stem| stem.to_str())
            && stem != "base"
        {
            names.push(stem.to_string());
        }
    }
    names.sort();
    Ok(names)
}

/// Names of those in `folder` whose programs compute on a GPU.
///
/// # Errors
/// When the folder cannot be read.
pub fn names_for_gpus(folder: &Path) -> Result<Vec<String>> {
    let for_gpus = |name: &String| load(folder, name).is_ok_and(|profile| profile.gpu == Gpu::Cuda);
    Ok(names(folder)?.into_iter().filter(for_gpus).collect())
}

/// Reads the profile `name` from `folder`. A name may carry keys that override the file's, as
/// `native+threading=openmp` does: a profile of its own, with a current build of its own.
pub fn load(folder: &Path, name: &str) -> Result<Profile> {
    load_with(folder, name, &[])
}

/// Reads the profile `name` with the keys of `overrides` in place of its own.
pub fn load_with(folder: &Path, name: &str, overrides: &[Override]) -> Result<Profile> {
    let (name, in_name) = overrides::split(name)?;
    let given: Vec<Override> = in_name.into_iter().chain(overrides.iter().cloned()).collect();
    let mut files = read(folder, name)?;
    if files[0].set.is_some() {
        let other = alias::of(folder, name)?;
        let all: Vec<Override> = other.sets.into_iter().chain(given.iter().cloned()).collect();
        let profile = load_with(folder, &other.inherits, &all)?;
        // With further keys it is another build than the one that the file stands for.
        return Ok(Profile { alias: given.is_empty().then(|| name.to_string()), ..profile });
    }
    let overrides = overrides::sorted(given.into_iter())?;
    let description =
        files[0].description.clone().with_context(|| format!("build profile {name} has no `description`"))?;
    for overriding in &overrides {
        files.insert(0, overriding.file()?);
    }
    let full_name = overrides::name(name, &overrides);
    let profile = resolve(full_name, overrides::description(description, &overrides), &files)?;
    Ok(Profile { file: name.to_string(), sets: overrides, ..profile })
}

/// The file of the profile `name`, and those that it inherits from, the child first.
fn read(folder: &Path, name: &str) -> Result<Vec<File>> {
    let plain = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if !plain || !folder.join(format!("{name}.toml")).is_file() {
        return Err(exit::usage(format!(
            "no build profile {name:?} in {}: there are {}",
            folder.display(),
            names(folder)?.join(", ")
        )));
    }
    let mut files: Vec<File> = Vec::new();
    let mut seen = vec![name.to_string()];
    let mut next = Some(name.to_string());
    while let Some(current) = next {
        let path = folder.join(format!("{current}.toml"));
        let text = crate::fs::text(&path)
            .with_context(|| format!("cannot read the build profile {}", path.display()))?;
        let file: File =
            toml::from_str(&text).with_context(|| format!("cannot understand {}", path.display()))?;
        next = file.inherits.clone();
        if file.set.is_some() && !files.is_empty() {
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

fn resolve(name: String, description: String, files: &[File]) -> Result<Profile> {
    // The child stands first, so the first that has a key decides.
    macro_rules! resolve {
        ($key:ident) => {
            files.iter().find_map(|file| file.$key.clone()).with_context(|| {
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
        switches: Switches {
            repack: resolve!(repack),
            llamafile: resolve!(llamafile),
            prefetch: resolve!(prefetch),
            patched_kernels: resolve!(patched_kernels),
            allocator: resolve!(allocator),
            huge_pages: resolve!(huge_pages),
            extra_flags: resolve!(extra_flags),
            fast_math: resolve!(fast_math),
        },
        cargo_profile: resolve!(cargo_profile),
        reproducible: resolve!(reproducible),
        definitions: files.iter().rev().flat_map(|file| file.definitions.clone()).collect(),
        defaults: files.iter().fold(Defaults::default(), |own, file| own.or(&file.defaults)),
        file: name.clone(),
        sets: Vec::new(),
        alias: None,
        name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        repack = true
        llamafile = true
        prefetch = true
        patched_kernels = true
        allocator = "system"
        huge_pages = false
        extra_flags = []
        fast_math = false
        cargo_profile = "engine"
        reproducible = false
        [definitions]
        A = "base"
        B = "base"
    "#;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
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
