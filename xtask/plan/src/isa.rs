//! Instruction sets: the compiler flags, the features that the CPU guard checks, and the features that the audit
//! expects.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use base::exit;
use build_info::Host;
use serde::{Deserialize, Serialize};
use toolchain::CompilerKind;

use crate::codegen::CodeGen;
use crate::other_cpu::OtherCpu;
use crate::profile::{Isa, Linkage, Profile};
use crate::switches::WRAPPED;
use crate::tools::Tools;
use crate::{aarch64, march};

/// Target CPUs of a build.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IsaPlan {
    /// Value of `isa`, as the profile spells it.
    pub isa: String,
    /// Tests of the program if the CPU of the build host lacks an instruction set that the program requires; `None`
    /// otherwise. Not part of the plan's hash, because the program is the same on every build host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_cpu: Option<OtherCpu>,
    /// CPU of the build host for `native`, as vendor/family/model, so that a different CPU gives a different plan.
    pub cpu: Option<String>,
    /// Flags for the kernels of ggml-cpu and for the engine's C++.
    pub flags: Vec<String>,
    /// Definitions for CMake.
    pub definitions: BTreeMap<String, String>,
    /// Flags for all of llama.cpp and for rustc.
    #[serde(skip)]
    pub codegen: CodeGen,
    /// Instruction sets that the program requires to start.
    pub required: Vec<String>,
    /// Flags that every file of ggml-cpu must be compiled with.
    pub expected_flags: Vec<String>,
    /// Flags that no file may be compiled with.
    pub forbidden_flags: Vec<String>,
}

impl IsaPlan {
    /// True if kernels for several kinds of CPUs are installed next to the program.
    pub fn has_variants(&self) -> bool {
        self.isa == Isa::AllVariants.to_string()
    }

    /// True if the program is for a CPU that the profile names.
    pub fn names_cpu(&self) -> bool {
        matches!(Isa::from(self.isa.clone()), Isa::Cpu(_))
    }

    /// Returns the flag that targets `cpu`, for clang and gcc or for zig. zig treats a hyphen as the end of the CPU's
    /// name.
    fn march(cpu: &str, zig: bool) -> String {
        format!("-march={}", if zig { cpu.replace('-', "_") } else { cpu.to_string() })
    }

    /// Returns the flags for all instruction sets of `cpu` except [`SHA`], for clang and gcc or for zig.
    pub fn cpu_flags(cpu: &str, zig: bool) -> Vec<String> {
        vec![Self::march(cpu, zig), format!("-mno-{SHA}")]
    }

    /// Makes this a plan for `cpu`, which has `features`.
    ///
    /// GGML_NATIVE=OFF alone does not give x86-64-v3 (no LZCNT, MOVBE, BMI1), and if SOURCE_DATE_EPOCH is set, all
    /// defaults are silently OFF. The plan therefore sets each switch and -march.
    fn for_cpu(&mut self, cpu: &str, features: Vec<String>, tools: &Tools) {
        let has = |name: &&str| features.iter().any(|feature| feature == name);
        let switches = SWITCHES.iter().map(|(name, needs)| (*name, needs.iter().all(has)));
        for (name, on) in switches.chain([("NATIVE", false)]) {
            self.definitions.insert(format!("GGML_{name}"), if on { "ON" } else { "OFF" }.to_string());
        }
        self.flags = vec![Self::march(cpu, tools.zig.is_some())];
        self.codegen.cxx = self.flags.clone();
        self.codegen.own_rust = vec![format!("-Ctarget-cpu={cpu}")];
        self.expected_flags = self.flags.clone();
        self.forbidden_flags = strings(&["-march=native", "-mtune=native"]);
        self.required = features;
    }

    /// Disables AMX if the compiler is gcc and the CPU has AMX.
    fn without_amx_of_gcc(&mut self, tools: &Tools, notes: &mut Vec<String>) {
        if tools.compiler.kind != CompilerKind::Gcc || !self.required.iter().any(|name| name == "amx_tile") {
            return;
        }
        self.codegen.cxx.extend(WITHOUT_AMX.map(str::to_string));
        self.required.retain(|feature| !feature.starts_with("amx_"));
        notes.push(
            "this build does not use the CPU's AMX, because gcc's AMX header is wrong (it loses the tile \
             sizes); builds with clang use AMX"
                .to_string(),
        );
    }
}

/// Instruction set that a build for a named CPU does not use, spelled as in the compilers' flags. No kernel uses SHA,
/// the crates that use it check the CPU first, and qemu 7.2 does not emulate it.
const SHA: &str = "sha";

/// Features of x86-64-v2 (x86-64 psABI 1.0, table 3.1), named as in the CPU guard.
const V2: &[&str] = &["cx16", "lahf_lm", "popcnt", "sse3", "sse4_1", "sse4_2", "ssse3"];

/// ggml's switches for the instruction sets of x86-64, each with the features that its kernels need.
const SWITCHES: [(&str, &[&str]); 14] = [
    ("SSE42", &["sse4_2"]),
    ("AVX", &["avx"]),
    ("AVX2", &["avx2"]),
    ("BMI2", &["bmi2"]),
    ("FMA", &["fma"]),
    ("F16C", &["f16c"]),
    ("AVX_VNNI", &["avx_vnni"]),
    ("AVX512", &["avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"]),
    ("AVX512_VBMI", &["avx512_vbmi"]),
    ("AVX512_VNNI", &["avx512_vnni"]),
    ("AVX512_BF16", &["avx512_bf16"]),
    ("AMX_TILE", &["amx_tile"]),
    ("AMX_INT8", &["amx_int8"]),
    ("AMX_BF16", &["amx_bf16"]),
];

/// Features of x86-64-v3, including those of v2, named as in the CPU guard.
const V3: &[&str] = &[
    "cx16", "lahf_lm", "popcnt", "sse3", "sse4_1", "sse4_2", "ssse3", "avx", "avx2", "bmi1", "bmi2", "f16c",
    "fma", "lzcnt", "movbe", "osxsave",
];

/// Features beyond x86-64-v3 that a native build may use, because compilers use them automatically or because ggml
/// has kernels for them.
const BEYOND_V3: &[&str] = &[
    "aes",
    "pclmulqdq",
    "sha_ni",
    "adx",
    "gfni",
    "vaes",
    "vpclmulqdq",
    "avx512f",
    "avx512cd",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512ifma",
    "avx512_vbmi",
    "avx512_vbmi2",
    "avx512_vnni",
    "avx512_bitalg",
    "avx512_vpopcntdq",
    "avx512_bf16",
    "avx512_fp16",
    "avx512_vp2intersect",
    "avx_vnni",
    "avx_ifma",
    "avx_vnni_int8",
    "avx_ne_convert",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "fma4",
    "xop",
    "sse4a",
    "tbm",
];

/// Flags that disable AMX in gcc. `_tile_loadconfig` in gcc's amxtileintrin.h (gcc 12) tells the optimiser that it
/// reads 8 bytes, but the instruction reads 64. The optimiser therefore removes the stores of the tiles' sizes as
/// dead. The first use of a tile then raises an illegal-instruction fault, and the gate fails. clang's header is
/// correct.
const WITHOUT_AMX: [&str; 3] = ["-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16"];

/// Plans the instruction sets.
pub fn plan(profile: &Profile, host: &Host, tools: &Tools, notes: &mut Vec<String>) -> Result<IsaPlan> {
    let (isa, compiler) = (&profile.isa, &tools.compiler);
    if *isa != Isa::AllVariants && !profile.variants.is_empty() {
        return Err(exit::usage(format!(
            "profile {}: `variants` requires `isa = \"all-variants\"`, because other builds have only one set \
             of kernels",
            profile.name
        )));
    }
    let mut plan = IsaPlan { isa: isa.to_string(), ..IsaPlan::default() };
    let arch = tools.aim.arch.as_str();
    match isa {
        Isa::Native | Isa::Upstream => {
            plan.definitions.insert("GGML_NATIVE".to_string(), "ON".to_string());
            let flag = if arch == "x86_64" { "-march=native" } else { "-mcpu=native" };
            plan.flags = vec![flag.to_string()];
            // On ARM, ggml replaces `native` with an explicit -mcpu or -march. Only x86 keeps the flag.
            if arch == "x86_64" {
                plan.expected_flags = plan.flags.clone();
            }
            plan.required = host_features(host);
            if *isa == Isa::Native {
                // GGML_NATIVE only affects the kernels of ggml-cpu. Quantising (ggml-base), tokenising and sampling
                // (libllama) also have loops: with the flag everywhere, quantising to Q4_K_M took 13 % less CPU time
                // on a Zen 4.
                plan.codegen.cxx = plan.flags.clone();
            }
            plan.codegen.own_rust = vec!["-Ctarget-cpu=native".to_string()];
            plan.without_amx_of_gcc(tools, notes);
            plan.cpu = Some(format!(
                "{}/{}/{}",
                host.cpu.vendor,
                host.cpu.family.map_or("?".to_string(), |family| family.to_string()),
                host.cpu.model.map_or("?".to_string(), |model| model.to_string())
            ));
            if let Some(note) = march::shortfall(&host.cpu, compiler) {
                notes.push(note);
            }
            if arch == "x86_64" && host.cpu.x86_64_level.is_some_and(|level| level < 3) {
                notes.push(format!(
                    "this CPU is x86-64-v{} and cannot use AVX2 kernels, so it is much slower than CPUs \
                     with AVX2",
                    host.cpu.x86_64_level.unwrap_or(1)
                ));
            }
        }
        Isa::X86_64V2 if arch == "x86_64" => {
            plan.for_cpu("x86-64-v2", strings(V2), tools);
            plan.expected_flags.push("-msse4.2".to_string());
            plan.forbidden_flags.extend(strings(&["-mavx512f", "-mavx", "-mavx2", "-mfma"]));
        }
        Isa::X86_64V3 if arch == "x86_64" => {
            plan.for_cpu("x86-64-v3", strings(V3), tools);
            plan.forbidden_flags.push("-mavx512f".to_string());
            plan.definitions.extend(tuned(tools));
            plan.expected_flags.extend(strings(&["-mavx2", "-mfma", "-mf16c", "-mbmi2"]));
        }
        Isa::Cpu(name) if arch == "x86_64" => {
            let Some(cpu) = tools.named_cpu.as_ref().filter(|cpu| cpu.name == *name) else {
                return Err(exit::usage(format!(
                    "profile {}: the instruction sets of {name} are unknown, because no compiler was queried\nhint: \
                     omit --host and --toolchain",
                    profile.name
                )));
            };
            let may_use = |feature: &&String| V3.iter().chain(BEYOND_V3).any(|name| name == feature);
            let features = cpu.features.iter().filter(may_use).cloned().collect();
            plan.for_cpu(name, features, tools);
            plan.codegen.cxx = IsaPlan::cpu_flags(name, tools.zig.is_some());
            plan.codegen.own_rust.push(format!("-Ctarget-feature=-{SHA}"));
            plan.without_amx_of_gcc(tools, notes);
            plan.other_cpu = OtherCpu::plan(name, &plan.required, host, tools, notes);
        }
        Isa::X86_64V3 | Isa::Aarch64Dotprod if arch == "aarch64" => {
            plan.isa = Isa::Aarch64Dotprod.to_string();
            let portable = aarch64::portable(tools.zig.is_some());
            plan.definitions.insert("GGML_NATIVE".to_string(), "OFF".to_string());
            plan.definitions.insert("GGML_CPU_ARM_ARCH".to_string(), portable.to_string());
            plan.flags = vec![format!("-march={portable}")];
            plan.codegen.cxx = plan.flags.clone();
            plan.codegen.own_rust = vec!["-Ctarget-feature=+dotprod".to_string()];
            plan.required = aarch64::PORTABLE.map(str::to_string).to_vec();
            plan.expected_flags = plan.flags.clone();
            plan.forbidden_flags = ["-march=native", "-mcpu=native"].map(str::to_string).to_vec();
            if *isa == Isa::X86_64V3 {
                notes.push(format!("on aarch64, a portable build uses {}", plan.isa));
            }
        }
        Isa::AllVariants => {
            if arch != "x86_64" {
                return Err(exit::usage(format!(
                    "profile {}: `isa = \"all-variants\"` only supports x86-64, but this build is for \
                     {arch}\nhint: use a profile with `isa = \"armv8.2-a+dotprod\"`, or native",
                    profile.name
                )));
            }
            if profile.linkage != Linkage::Static {
                return Err(exit::usage(format!(
                    "profile {}: `isa = \"all-variants\"` requires `linkage = \"static\"`, because such a \
                     build loads only the kernels at run time",
                    profile.name
                )));
            }
            for (name, value) in [
                ("GGML_NATIVE", "OFF"),
                ("GGML_BACKEND_DL", "ON"),
                ("GGML_BACKEND_DL_STATIC", "ON"),
                ("GGML_CPU_ALL_VARIANTS", "ON"),
            ] {
                plan.definitions.insert(name.to_string(), value.to_string());
            }
            // Strip the modules. The names of the kernels remain; most of the removed names belong to the C++
            // runtime.
            let mut module_flags = "-s".to_string();
            if profile.switches.huge_pages {
                // The kernels allocate weights for AMX, but the program's own --wrap does not cover calls in modules.
                // With this flag, the modules call the wrapper.
                module_flags = format!("{module_flags} {WRAPPED}");
            }
            plan.definitions.insert("CMAKE_MODULE_LINKER_FLAGS".to_string(), module_flags);
            plan.definitions.extend(tuned(tools));
            if let Some(wrong) = profile.variants.iter().find(|name| !is_variant(name)) {
                return Err(exit::usage(format!(
                    "profile {}: {wrong:?} is not a valid variant name\nhint: to list the names, run the \
                     `anneal info` command of a build that contains all variants",
                    profile.name
                )));
            }
            if !profile.variants.is_empty() {
                plan.definitions.insert("GGML_CPU_VARIANTS".to_string(), profile.variants.join(";"));
            }
            // The kernels resolve symbols of ggml-base in the program.
            plan.codegen.link = vec!["-rdynamic".to_string()];
            plan.forbidden_flags =
                ["-march=native", "-mcpu=native", "-mtune=native"].map(str::to_string).to_vec();
        }
        // Only x86-64 has a baseline without vector kernels: no switch disables ggml's kernels for ARM.
        Isa::Scalar if arch == "x86_64" => {
            let off = ["NATIVE", "SSE42", "AVX", "AVX2", "BMI2", "FMA", "F16C", "CPU_REPACK", "LLAMAFILE"];
            for name in off {
                plan.definitions.insert(format!("GGML_{name}"), "OFF".to_string());
            }
            plan.flags = vec!["-march=x86-64".to_string()];
            plan.codegen.cxx = plan.flags.clone();
            plan.expected_flags = plan.flags.clone();
            plan.forbidden_flags =
                ["-march=native", "-msse4.2", "-mavx", "-mavx2", "-mfma"].map(str::to_string).to_vec();
        }
        Isa::Scalar => bail!("scalar builds are not supported on {arch}\nhint: use an x86-64 machine"),
        Isa::X86_64V2 | Isa::X86_64V3 => bail!(
            "builds for {isa} are not supported on {arch}\nhint: use `cargo xtask build-native` on this machine"
        ),
        Isa::Cpu(name) => {
            let words: Vec<&str> = Isa::words().collect();
            return Err(exit::usage(format!(
                "profile {}: `isa` has no value {name:?} on {arch}: only builds for x86-64 can name a CPU\nhint: \
                 supported values: {}",
                profile.name,
                words.join(", ")
            )));
        }
        Isa::Aarch64Dotprod => {
            return Err(exit::usage(format!(
                "profile {}: `isa = \"{isa}\"` is for aarch64, but this build is for {arch}\nhint: use the \
                 profile portable-aarch64, or `isa = \"x86-64-v3\"`",
                profile.name
            )));
        }
    }
    Ok(plan)
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| word.to_string()).collect()
}

/// Returns the CPU model that clang uses to schedule instructions, in builds for any CPU, for kernels with AVX2 and
/// without AVX-512. The model is Zen 2: clang's default model (Sandy Bridge) and the models of Haswell and Skylake use
/// more operands at once than fit into 16 registers. The innermost loop of F16 products then keeps sums in memory (see
/// the figures in docs/src/build/universal.md). The model does not change the plan's instruction sets.
fn tuned(tools: &Tools) -> Option<(String, String)> {
    // zig treats -mtune as -mcpu.
    let flags = match (&tools.zig, tools.compiler.kind) {
        (Some(_), _) => "SHELL:-Xclang -tune-cpu -Xclang znver2",
        (None, CompilerKind::Clang) => "-mtune=znver2",
        (None, CompilerKind::Gcc) => return None,
    };
    Some(("GGML_CPU_AVX2_FLAGS".to_string(), flags.to_string()))
}

/// True if `name` can be the name of a ggml variant, and CMake does not split it into a list.
fn is_variant(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._".contains(&b))
}

/// Returns the host's instruction sets that a native build may use.
fn host_features(host: &Host) -> Vec<String> {
    let all: Vec<&str> = match host.arch.as_str() {
        "x86_64" => V3.iter().chain(BEYOND_V3).copied().collect(),
        "aarch64" => aarch64::NATIVE.to_vec(),
        _ => Vec::new(),
    };
    all.into_iter().filter(|name| host.cpu.has(name)).map(str::to_string).collect()
}
