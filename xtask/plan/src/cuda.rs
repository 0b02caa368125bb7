//! NVIDIA GPUs: the CUDA toolkit, the architectures and the kernels.
//!
//! The program starts on any machine. It loads the driver and cuBLAS when it first needs them
//! (`vendor/llama-link/csrc/cuda.cpp`), so neither library is linked, and building needs no GPU.

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

/// First compute capability with an instruction for dot products of bytes, which MMQ uses on GPUs older than
/// [`TURING`]. Source: `GGML_CUDA_CC_DP4A` in ggml-cuda/common.cuh.
const DP4A: u32 = 61;
/// First compute capability with tensor cores for F16, which cuBLAS uses.
const VOLTA: u32 = 70;
/// First compute capability with tensor cores for integers, which MMQ uses.
const TURING: u32 = 75;

/// Plausible compute capabilities, times ten. The first was 1.0. The range rejects typos.
const PLAUSIBLE: Range<u32> = 10..300;

/// Architectures of `all`, if the toolkit supports them: one for each generation of GPUs. A binary also runs on later
/// GPUs with the same major number, but is fastest on its own architecture.
const ALL: [u32; 11] = [61, 70, 75, 80, 86, 89, 90, 100, 103, 120, 121];

/// Types of K and V for which llama.cpp has flash attention kernels, in any pair. Source:
/// `ggml_cuda_fattn_vec_instances` in ggml/CMakeLists.txt.
const KV_TYPES: [&str; 7] = ["f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"];

/// Part of a plan for NVIDIA GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaPlan {
    /// Device compiler.
    pub nvcc: Tool,
    /// Folder of the toolkit.
    pub root: PathBuf,
    /// Compiler of the host code in files that nvcc compiles.
    pub host_compiler: Compiler,
    /// Architectures, as CMake spells them: `89-real` is a binary, `90-virtual` is PTX, `90` is both.
    pub architectures: Vec<String>,
    /// Kernels that multiply quantised weights with many tokens.
    pub mul_mat: CudaMulMat,
    /// Types of K and V that flash attention has kernels for; empty for no flash attention.
    pub fa_quants: Vec<String>,
    /// Header folders of the runtime and of cuBLAS.
    pub include: Vec<PathBuf>,
    /// Path of the CUDA runtime, which is linked into the program.
    pub runtime: PathBuf,
    /// Path of the toolkit's cuBLAS, which the program tries first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cublas: Option<PathBuf>,
}

impl CudaPlan {
    /// Returns the definitions for CMake. The definitions give the paths of the libraries, because CMake's own search
    /// requires a driver, and expects file names that the wheels do not have.
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
            // NCCL is on by default if CMake finds it.
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

    /// Returns the words that must occur in every command that nvcc runs: a binary or PTX for each architecture, and
    /// the definitions that select kernels.
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

    /// Returns the generated code, as NVIDIA's tools spell it: `sm_89` is a binary, `compute_90` is PTX.
    pub fn codes(&self) -> Vec<String> {
        device::codes(&self.architectures)
    }

    /// Returns the arguments for the linker: the runtime, and the system libraries that it needs.
    pub fn link_args(&self) -> Vec<String> {
        vec![self.runtime.to_string_lossy().into_owned(), "-lrt".to_string()]
    }

    /// Returns the folders in which the program looks for cuBLAS before the system's folders: `lib` next to the
    /// program's folder, and the toolkit's folder. A program for other machines does not search the toolkit's folder:
    /// another user of such a machine could create that folder, and could then choose the code that the program runs.
    pub fn rpath(&self, for_others: bool) -> Vec<String> {
        let toolkit = self.cublas.iter().filter(|_| !for_others);
        let toolkit = toolkit.filter_map(|path| Some(path.parent()?.to_string_lossy().into_owned()));
        ["$ORIGIN/../lib".to_string()].into_iter().chain(toolkit).collect()
    }
}

/// Plans CUDA; returns `None` for a profile without GPUs.
///
/// # Errors
/// Returns a usage error if keys of the profile contradict each other, or if the profile sets no architecture and
/// the machine has no GPU. Returns another error if no toolkit suits the architectures, the compilers and the driver.
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
                Err(wrong(format!("`{set}` requires `gpu = \"cuda\"`, as in the profile cuda-dense")))
            }
            None => Ok(None),
        };
    }
    if profile.linkage != Linkage::Static || profile.target != Target::Host {
        return Err(wrong("`gpu = \"cuda\"` requires `linkage = \"static\"` and `target = \"host\"`".into()));
    }
    if profile.compiler == CompilerChoice::Zig {
        return Err(wrong(
            "`gpu = \"cuda\"` requires clang or gcc, because nvcc does not support zig as its host compiler"
                .into(),
        ));
    }
    let fa_quants = fa_quants(&profile.cuda.fa_quants).map_err(&wrong)?;
    let wanted = wanted(&profile.cuda.arch, host).map_err(&wrong)?;
    let (cuda, host_compiler) = toolkit::choose(&wanted, host, tools, toolchain, notes)?;
    let (Some(include), Some(cublas_include), Some(runtime)) =
        (&cuda.include, &cuda.cublas_include, &cuda.runtime)
    else {
        bail!("the CUDA toolkit in {} is incomplete", cuda.root.display());
    };
    let architectures = wanted.spelled(cuda);
    notes.extend(mistaken(&architectures));
    let mul_mat = match profile.cuda.mul_mat {
        CudaMulMat::Mmq if !architectures.iter().any(|name| heeds_forced_mmq(name)) => {
            notes.push(
                "`cuda_mul_mat = \"mmq\"` is ignored, because it only changes the kernels for Volta (7.0 \
                 and 7.2)"
                    .to_string(),
            );
            CudaMulMat::Auto
        }
        other => other,
    };
    if host_compiler != tools.compiler {
        notes.push(format!(
            "{} {} is the host compiler of nvcc, because CUDA {} does not support {} {}",
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

/// Warns about code for 12.0 but not 12.1, together with PTX for an earlier architecture. A GB10 (12.1) then uses the
/// PTX. ggml chooses its kernels for 12.0, the highest architecture that it was compiled for, and these FP4 kernels
/// are missing from the PTX. Source: `blackwell_mma_available` in ggml/src/ggml-cuda/common.cuh.
fn mistaken(architectures: &[String]) -> Option<String> {
    let has = |number: u32| architectures.iter().any(|name| capability(name) == Some(number));
    let has_ptx = architectures.iter().any(|name| {
        !name.ends_with("-real") && capability(name).is_some_and(|number| !is_made_particular(number))
    });
    (has(120) && !has(121) && has_ptx).then(|| {
        "on a GB10 (12.1), this build gives wrong results for MXFP4 and NVFP4, because it contains PTX and \
         code for 12.0 but not for 12.1: add 121 to `cuda_arch`, or remove the PTX"
            .to_string()
    })
}

/// True if `GGML_CUDA_FORCE_MMQ` changes the kernels in code for `architecture`. The definition only matters for GPUs
/// with `dp4a` and without tensor cores for integers. Without the definition, these GPUs use cuBLAS instead of MMQ
/// only if they have tensor cores for F16. This applies to binaries for Volta, and to PTX for Pascal, which a Volta
/// can also use. Source: `ggml_cuda_should_use_mmq` in ggml/src/ggml-cuda/mmq.cu.
fn heeds_forced_mmq(architecture: &str) -> bool {
    let has_ptx = !architecture.ends_with("-real");
    let first = if has_ptx { DP4A } else { VOLTA };
    capability(architecture).is_some_and(|number| (first..TURING).contains(&number))
}

/// Architectures that a profile requests.
enum Wanted {
    /// All architectures of current GPUs that the toolkit supports.
    All,
    /// These architectures, in CMake's spelling, each with the name of the GPU of this machine that needs it, if any.
    These(Vec<(String, Option<String>)>),
}

impl Wanted {
    /// Returns the numbers of the architectures.
    fn numbers(&self) -> impl Iterator<Item = (u32, Option<&str>)> {
        let these = match self {
            Wanted::All => &[][..],
            Wanted::These(these) => these,
        };
        these.iter().filter_map(|(name, gpu)| Some((capability(name)?, gpu.as_deref())))
    }

    /// Returns the architectures for CMake. For `all`, adds PTX for the newest architecture whose PTX other GPUs
    /// can use: later GPUs translate this PTX when the program starts.
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

/// True if ggml compiles for `architecture` alone, as `120a` instead of `120`. Other GPUs cannot use that code,
/// neither as a binary nor as PTX. Source: ggml/src/ggml-cuda/CMakeLists.txt, "Replace any plain 12X".
fn is_made_particular(architecture: u32) -> bool {
    architecture / 10 == 12
}

/// Returns CMake's spelling of a binary for `architecture`, after ggml's changes.
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
                "`cuda_arch`: {:?} must be the only value",
                if alone("all") { "all" } else { "native" }
            ));
        }
        return if alone("all") { Ok(Wanted::All) } else { natives(host) };
    }
    if asked.is_empty() {
        return Err("`cuda_arch` is empty".into());
    }
    let mut these = BTreeSet::new();
    for name in asked {
        let kind = name.split_once('-').map(|(_, kind)| kind);
        let number = capability(name).filter(|number| PLAUSIBLE.contains(number));
        let Some(number) = number.filter(|_| matches!(kind, None | Some("real" | "virtual"))) else {
            return Err(format!(
                "`cuda_arch`: {name:?} is not an architecture\nhint: use \"native\", \"all\", or numbers as \
                 CMake spells them, such as \"89\" or \"90-virtual\""
            ));
        };
        let is_plain =
            name.split('-').next().is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
        // Generate only a binary unless the user requests PTX, which doubles the compile time.
        let full = match kind {
            Some("virtual") if is_plain && is_made_particular(number) => {
                return Err(format!(
                    "`cuda_arch`: {name:?} would generate PTX that only {number} can use, because ggml \
                     compiles for {number}a\nhint: use \"{number}\" for a binary, or \"100-virtual\" for \
                     PTX that later GPUs can use too"
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

/// Returns the architectures of this machine's GPUs.
fn natives(host: &Host) -> Result<Wanted, String> {
    let mut these: Vec<(u32, String)> = Vec::new();
    for gpu in &host.gpus {
        let number = gpu.compute_capability.replace('.', "").parse();
        let Ok(number) = number else {
            return Err(format!(
                "{} does not report its compute capability\nhint: specify the architecture, as in --cuda-arch \
                 89",
                gpu.name
            ));
        };
        these.push((number, gpu.name.clone()));
    }
    these.sort();
    these.dedup_by_key(|(number, _)| *number);
    if these.is_empty() {
        return Err(
            "`cuda_arch = [\"native\"]` requires an NVIDIA GPU, but none was found (`cargo xtask doctor` \
             shows the reason)\nhint: specify an architecture, as in --cuda-arch 89 (GeForce RTX 40; 86 is \
             RTX 30, 75 RTX 20, 80 A100, 90 H100 and H200, 120 RTX 50), or use --cuda-arch all"
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
                "`cuda_fa_quants`: {pair:?} is not a pair of K and V types\nhint: combine two of {}, as in \
                 \"q8_0-q8_0\", or use only \"all\" or \"none\"",
                KV_TYPES.join(", ")
            ));
        }
    }
    if asked.is_empty() {
        return Err("`cuda_fa_quants` is empty\nhint: use \"none\" for no flash attention".into());
    }
    Ok(asked.to_vec())
}

/// Formats a compute capability: `8.9` for 89.
fn dotted(number: u32) -> String {
    format!("{}.{}", number / 10, number % 10)
}

#[cfg(test)]
mod tests;
