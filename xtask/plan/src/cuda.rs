//! NVIDIA's GPUs: which toolkit compiles, for which architectures, and which kernels.
//!
//! The program starts on any machine: it loads the driver and cuBLAS when it first needs them
//! (`vendor/llama-link/csrc/cuda.cpp`), so none of them is linked, and no GPU is needed to build it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;

use anyhow::{Result, bail};
use base::exit;
use build_info::Host;
use build_info::device::{self, capability};
use build_info::record::Tool;
use serde::{Deserialize, Serialize};
use toolchain::{Compiler, Cuda, Toolchain};

use crate::profile::{CompilerChoice, CudaMulMat, Gpu, Linkage, Profile, Target};
use crate::tools::Tools;

mod toolkit;

pub use toolkit::check_before_setup;

/// The first with an instruction for products of bytes, by which MMQ multiplies before [`TURING`]; ggml-cuda/common.cuh,
/// `GGML_CUDA_CC_DP4A`.
const DP4A: u32 = 61;
/// The first with tensor cores for F16, which cuBLAS multiplies by.
const VOLTA: u32 = 70;
/// The first with tensor cores for integers, by which MMQ multiplies.
const TURING: u32 = 75;

/// Compute capabilities, times ten, that a card may have: 1.0 was the first, and a typing error is no card that a later toolkit
/// knows.
const PLAUSIBLE: Range<u32> = 10..300;

/// What `all` stands for, as far as the toolkit compiles for it: the cards of each generation, since a binary runs on later
/// ones of the same major number and is only the fastest on its own.
const ALL: [u32; 11] = [61, 70, 75, 80, 86, 89, 90, 100, 103, 120, 121];

/// The pairs of types of K and V that llama.cpp has kernels of flash attention for.
/// ggml/CMakeLists.txt, `ggml_cuda_fattn_vec_instances`.
const KV_TYPES: [&str; 7] = ["f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"];

/// The part of a plan that is for NVIDIA's GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaPlan {
    /// The device compiler.
    pub nvcc: Tool,
    /// The toolkit's folder.
    pub root: PathBuf,
    /// Who compiles what runs on the CPU of the files that nvcc compiles.
    pub host_compiler: Compiler,
    /// Architectures, as CMake spells them: `89-real` is a binary, `90-virtual` PTX, `90` both.
    pub architectures: Vec<String>,
    /// Who multiplies quantised weights with many tokens.
    pub mul_mat: CudaMulMat,
    /// Types of K and V that flash attention has kernels for; none for no flash attention.
    pub fa_quants: Vec<String>,
    /// Folders of headers of the runtime and of cuBLAS.
    pub include: Vec<PathBuf>,
    /// The runtime, which becomes part of the program.
    pub runtime: PathBuf,
    /// cuBLAS of the toolkit, which the program tries first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cublas: Option<PathBuf>,
}

impl CudaPlan {
    /// Definitions for CMake. The libraries are named since nothing is linked by CMake: its own search wants names that
    /// the wheels do not have, and a driver.
    pub fn definitions(&self) -> Vec<(&'static str, String)> {
        let text = |path: &PathBuf| path.to_string_lossy().into_owned();
        let on = |on: bool| if on { "ON" } else { "OFF" }.to_string();
        let mut all = vec![
            ("GGML_CUDA", on(true)),
            ("CMAKE_CUDA_COMPILER", text(&self.nvcc.path)),
            ("CMAKE_CUDA_HOST_COMPILER", text(&self.host_compiler.cxx)),
            ("CMAKE_CUDA_ARCHITECTURES", self.architectures.join(";")),
            ("CUDAToolkit_ROOT", text(&self.root)),
            ("CUDA_CUDART", text(&self.runtime)),
            ("CUDA_cudart_LIBRARY", text(&self.runtime)),
            ("CUDA_cublas_LIBRARY", text(&self.runtime)),
            ("CUDA_cuda_driver_LIBRARY", text(&self.runtime)),
            // On where CMake comes across it.
            ("GGML_CUDA_NCCL", on(false)),
            ("GGML_CUDA_GRAPHS", on(true)),
            ("GGML_CUDA_FA", on(!self.fa_quants.is_empty())),
        ];
        if !self.fa_quants.is_empty() {
            all.push(("GGML_CUDA_FA_QUANTS", self.fa_quants.join(";")));
        }
        match self.mul_mat {
            CudaMulMat::Auto => {}
            CudaMulMat::Mmq => all.push(("GGML_CUDA_FORCE_MMQ", on(true))),
            CudaMulMat::Cublas => all.push(("GGML_CUDA_FORCE_CUBLAS", on(true))),
        }
        all
    }

    /// What the command of every file that nvcc compiles must hold, as parts of words: a binary or PTX for each
    /// architecture, and what decides on the kernels.
    pub fn expected_words(&self) -> Vec<String> {
        let define = match self.mul_mat {
            CudaMulMat::Auto => None,
            CudaMulMat::Mmq => Some("-DGGML_CUDA_FORCE_MMQ"),
            CudaMulMat::Cublas => Some("-DGGML_CUDA_FORCE_CUBLAS"),
        };
        let attention = self.fa_quants.is_empty().then_some("-DGGML_CUDA_NO_FA");
        let defines = define.into_iter().chain(attention).chain(["-DGGML_CUDA_USE_GRAPHS"]);
        self.codes().into_iter().chain(defines.map(str::to_string)).collect()
    }

    /// The code that comes of it, as NVIDIA's tools spell it: `sm_89` is a binary, `compute_90` PTX.
    pub fn codes(&self) -> Vec<String> {
        device::codes(&self.architectures)
    }

    /// What the linker is given: the runtime, and what it takes of the system.
    pub fn link_args(&self) -> Vec<String> {
        vec![self.runtime.to_string_lossy().into_owned(), "-lrt".to_string()]
    }

    /// Where the program looks for cuBLAS before the system's own places: beside it, and in the toolkit. That folder is not
    /// looked into by a program for others: whoever may make it there would say what is run.
    pub fn rpath(&self, for_others: bool) -> Vec<String> {
        let toolkit = self.cublas.iter().filter(|_| !for_others);
        let toolkit = toolkit.filter_map(|path| Some(path.parent()?.to_string_lossy().into_owned()));
        ["$ORIGIN/../lib".to_string()].into_iter().chain(toolkit).collect()
    }
}

/// Plans it; nothing for a profile without GPUs.
///
/// # Errors
/// Wrong usage where keys of the profile do not go together, or an architecture is not named and there is no GPU to ask; else
/// when no toolkit is there that compiles for the architectures, takes one of the compilers, and suits the driver.
pub fn plan(
    profile: &Profile,
    host: &Host,
    tools: &Tools,
    toolchain: &Toolchain,
    notes: &mut Vec<String>,
) -> Result<Option<CudaPlan>> {
    let wrong = |what: String| exit::usage(format!("profile {}: {what}", profile.name));
    if profile.gpu == Gpu::Off {
        return match profile.sets.iter().map(ToString::to_string).find(|set| set.starts_with("cuda_")) {
            Some(set) => {
                Err(wrong(format!("`{set}` takes `gpu = \"cuda\"`, as the profile cuda-dense has it")))
            }
            None => Ok(None),
        };
    }
    if profile.linkage != Linkage::Static || profile.target != Target::Host {
        return Err(wrong(
            "`gpu = \"cuda\"` goes with `linkage = \"static\"` and `target = \"host\"`".into(),
        ));
    }
    if profile.compiler == CompilerChoice::Zig {
        return Err(wrong(
            "`gpu = \"cuda\"` takes clang or gcc: nvcc does not know zig as its host compiler".into(),
        ));
    }
    let fa_quants = fa_quants(&profile.cuda.fa_quants).map_err(&wrong)?;
    let wanted = wanted(&profile.cuda.arch, host).map_err(&wrong)?;
    let (cuda, host_compiler) = toolkit::choose(&wanted, host, tools, toolchain, notes)?;
    let (Some(include), Some(cublas_include), Some(runtime)) =
        (&cuda.include, &cuda.cublas_include, &cuda.runtime)
    else {
        bail!("the CUDA toolkit in {} is not whole", cuda.root.display());
    };
    let architectures = wanted.spelled(cuda);
    notes.extend(mistaken(&architectures));
    let mul_mat = match profile.cuda.mul_mat {
        CudaMulMat::Mmq if !architectures.iter().any(|name| heeds_forced_mmq(name)) => {
            notes.push(
                "`cuda_mul_mat = \"mmq\"` changes nothing but on Volta (7.0 and 7.2), and is left out: these architectures have the \
                 same kernels as with \"auto\""
                    .to_string(),
            );
            CudaMulMat::Auto
        }
        other => other,
    };
    if host_compiler != tools.compiler {
        notes.push(format!(
            "{} {} compiles the CPU's side of what nvcc compiles, since CUDA {} takes no {} {}",
            host_compiler.kind,
            host_compiler.version,
            cuda.nvcc.version,
            tools.compiler.kind,
            tools.compiler.version
        ));
    }
    let mut include = vec![include.clone(), cublas_include.clone()];
    include.dedup();
    Ok(Some(CudaPlan {
        nvcc: cuda.nvcc.clone(),
        root: cuda.root.clone(),
        host_compiler,
        architectures,
        mul_mat,
        fa_quants,
        include,
        runtime: runtime.clone(),
        cublas: cuda.cublas.clone(),
    }))
}

/// Of 12.0 without 12.1, beside PTX of an earlier one: a GB10 (12.1) takes the PTX, and ggml chooses by 12.0, the highest it was
/// compiled for, kernels for FP4 that the PTX does not have. ggml/src/ggml-cuda/common.cuh, `blackwell_mma_available`.
fn mistaken(architectures: &[String]) -> Option<String> {
    let has = |number: u32| architectures.iter().any(|name| capability(name) == Some(number));
    let has_ptx = architectures.iter().any(|name| {
        !name.ends_with("-real") && capability(name).is_some_and(|number| !is_made_particular(number))
    });
    (has(120) && !has(121) && has_ptx).then(|| {
        "beside PTX, code for 12.0 without 12.1 makes a GB10 (12.1) compute MXFP4 and NVFP4 wrongly: add 121, or leave the PTX out"
            .to_string()
    })
}

/// Whether code for `architecture` takes other kernels with `GGML_CUDA_FORCE_MMQ`: the word is asked where a card has no tensor
/// cores for integers and has `dp4a`, and without it MMQ is left for cuBLAS only where there are tensor cores for F16. By the
/// code that is Volta's; PTX of Pascal is taken by a Volta as well. ggml/src/ggml-cuda/mmq.cu, `ggml_cuda_should_use_mmq`.
fn heeds_forced_mmq(architecture: &str) -> bool {
    let has_ptx = !architecture.ends_with("-real");
    let first = if has_ptx { DP4A } else { VOLTA };
    capability(architecture).is_some_and(|number| (first..TURING).contains(&number))
}

/// The architectures that a profile wants.
enum Wanted {
    /// Those of cards of today, as far as the toolkit knows them.
    All,
    /// These, in CMake's spelling, with the GPU that each one is for where it is one of this machine.
    These(Vec<(String, Option<String>)>),
}

impl Wanted {
    /// Their numbers.
    fn numbers(&self) -> impl Iterator<Item = (u32, Option<&str>)> {
        let these = match self {
            Wanted::All => &[][..],
            Wanted::These(these) => these,
        };
        these.iter().filter_map(|(name, gpu)| Some((capability(name)?, gpu.as_deref())))
    }

    /// As CMake is told of them. Of all, the newest whose PTX others can take has it beside its binary: later cards translate
    /// it when the program starts.
    fn spelled(&self, cuda: &Cuda) -> Vec<String> {
        match self {
            Wanted::These(these) => these.iter().map(|(name, _)| name.clone()).collect(),
            Wanted::All => {
                let known: Vec<u32> = ALL.into_iter().filter(|arch| cuda.compiles_for(*arch)).collect();
                let newest = known.iter().copied().rfind(|arch| !is_made_particular(*arch));
                let spell = |arch: &u32| match Some(*arch) == newest {
                    true => arch.to_string(),
                    false => binary(*arch),
                };
                known.iter().map(spell).collect()
            }
        }
    }
}

/// Whether ggml compiles for `architecture` alone, as `120a` in place of `120`: no other card takes that, neither as a binary
/// nor as PTX. ggml/src/ggml-cuda/CMakeLists.txt, "Replace any plain 12X".
fn is_made_particular(architecture: u32) -> bool {
    architecture / 10 == 12
}

/// A binary for `architecture`, as CMake spells what ggml makes of it.
fn binary(architecture: u32) -> String {
    match is_made_particular(architecture) {
        true => format!("{architecture}a-real"),
        false => format!("{architecture}-real"),
    }
}

fn wanted(asked: &[String], host: &Host) -> Result<Wanted, String> {
    let alone = |word: &str| asked.iter().any(|arch| arch == word);
    if alone("all") || alone("native") {
        if asked.len() > 1 {
            return Err(format!(
                "`cuda_arch`: {:?} stands alone",
                if alone("all") { "all" } else { "native" }
            ));
        }
        return if alone("all") { Ok(Wanted::All) } else { natives(host) };
    }
    if asked.is_empty() {
        return Err("`cuda_arch` names no architecture".into());
    }
    let mut these = BTreeSet::new();
    for name in asked {
        let kind = name.split_once('-').map(|(_, kind)| kind);
        let number = capability(name).filter(|number| PLAUSIBLE.contains(number));
        let Some(number) = number.filter(|_| matches!(kind, None | Some("real" | "virtual"))) else {
            return Err(format!(
                "`cuda_arch`: {name:?} is no architecture: use \"native\", \"all\", or numbers as CMake spells them, \"89\" or \
                 \"90-virtual\""
            ));
        };
        let is_plain =
            name.split('-').next().is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
        // A binary alone, unless PTX is asked for: it doubles what is compiled.
        let full = match kind {
            Some("virtual") if is_plain && is_made_particular(number) => {
                return Err(format!(
                    "`cuda_arch`: {name:?} would be PTX for {number} alone, since ggml compiles for {number}a: \"{number}\" is \
                     its binary, and \"100-virtual\" PTX that it and later cards translate"
                ));
            }
            None | Some("real") if is_plain => binary(number),
            None => format!("{name}-real"),
            Some(_) => name.clone(),
        };
        these.insert((number, full));
    }
    Ok(Wanted::These(these.into_iter().map(|(_, name)| (name, None)).collect()))
}

/// Those of this machine's GPUs.
fn natives(host: &Host) -> Result<Wanted, String> {
    let mut these: Vec<(u32, String)> = Vec::new();
    for gpu in &host.gpus {
        let number = gpu.compute_capability.replace('.', "").parse();
        let Ok(number) = number else {
            return Err(format!(
                "{} does not tell its compute capability: name it, as in --cuda-arch 89",
                gpu.name
            ));
        };
        these.push((number, gpu.name.clone()));
    }
    these.sort();
    these.dedup_by_key(|(number, _)| *number);
    if these.is_empty() {
        return Err(
            "the machine shows no NVIDIA GPU (`cargo xtask doctor` on it says why), and `cuda_arch = [\"native\"]` asks it for \
             its architecture: name one, as in --cuda-arch 89 (GeForce RTX 40; 86 is RTX 30, 75 RTX 20, 80 A100, 90 H100 and \
             H200, 120 RTX 50), or --cuda-arch all"
                .into(),
        );
    }
    Ok(Wanted::These(these.into_iter().map(|(number, name)| (binary(number), Some(name))).collect()))
}

fn fa_quants(asked: &[String]) -> Result<Vec<String>, String> {
    match asked {
        [only] if only == "all" => return Ok(vec!["all".to_string()]),
        [only] if only == "none" => return Ok(Vec::new()),
        _ => {}
    }
    for pair in asked {
        let good = pair.split_once('-').is_some_and(|(k, v)| KV_TYPES.contains(&k) && KV_TYPES.contains(&v));
        if !good {
            return Err(format!(
                "`cuda_fa_quants`: {pair:?} is no pair of types of K and V: use two of {}, as in \"q8_0-q8_0\", or \"all\" or \
                 \"none\" alone",
                KV_TYPES.join(", ")
            ));
        }
    }
    if asked.is_empty() {
        return Err("`cuda_fa_quants` is empty: say \"none\" for no flash attention".into());
    }
    Ok(asked.to_vec())
}

/// `8.9` of 89.
fn dotted(number: u32) -> String {
    format!("{}.{}", number / 10, number % 10)
}

#[cfg(test)]
mod tests;
