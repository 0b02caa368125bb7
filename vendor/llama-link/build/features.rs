//! Instruction sets that the CPU guard can check, and detection of the instruction sets that a compilation needs.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Instruction set: its feature bit, and the macro that a compiler predefines if it may emit the instructions.
pub struct Feature {
    /// Name, spelled as in `build_info::host::Cpu::features`.
    pub name: &'static str,
    /// Other spellings, used by `/proc/cpuinfo` and rustc.
    aliases: &'static [&'static str],
    predefined: &'static str,
    /// Location of the feature bit.
    pub place: FeatureBit,
}

/// Location where the guard reads a feature bit.
#[derive(Clone, Copy)]
pub enum FeatureBit {
    /// x86: a bit of CPUID, and the registers that the operating system must save.
    Cpuid {
        leaf: u32,
        subleaf: u32,
        /// Register of the bit: `EAX`, `EBX`, `ECX` or `EDX`.
        register: &'static str,
        bit: u32,
        /// Register state that the system must save: `NONE`, `YMM`, `ZMM` or `TILE`, as in `guard.c`.
        state: &'static str,
    },
    /// aarch64: a bit of the auxiliary vector, which the kernel passes to every program.
    Hwcap {
        /// Word of the auxiliary vector: `AT_HWCAP` or `AT_HWCAP2`.
        word: &'static str,
        bit: u32,
    },
}

macro_rules! cpuid {
    ($($name:literal $([$($alias:literal),*])? $cpp:literal $leaf:literal $sub:literal $reg:ident $bit:literal $state:ident;)*) => {
        /// Features of x86. CPUID positions: Intel SDM volume 2A, CPUID; AMD APM volume 3, appendix E.
        const X86_64: &[Feature] = &[$(Feature {
            name: $name,
            aliases: &[$($($alias),*)?],
            predefined: $cpp,
            place: FeatureBit::Cpuid {
                leaf: $leaf,
                subleaf: $sub,
                register: stringify!($reg),
                bit: $bit,
                state: stringify!($state),
            },
        }),*];
    };
}

macro_rules! hwcap {
    ($($name:literal $([$($alias:literal),*])? $cpp:literal $word:ident $bit:literal;)*) => {
        /// Features of aarch64. Bits: Linux, `arch/arm64/include/uapi/asm/hwcap.h`; macros: Arm C Language
        /// Extensions.
        const AARCH64: &[Feature] = &[$(Feature {
            name: $name,
            aliases: &[$($($alias),*)?],
            predefined: $cpp,
            place: FeatureBit::Hwcap { word: stringify!($word), bit: $bit },
        }),*];
    };
}

cpuid! {
    "sse3" ["pni"] "__SSE3__" 1 0 ECX 0 NONE;
    "pclmulqdq" ["pclmul"] "__PCLMUL__" 1 0 ECX 1 NONE;
    "ssse3" "__SSSE3__" 1 0 ECX 9 NONE;
    "fma" "__FMA__" 1 0 ECX 12 YMM;
    "cx16" ["cmpxchg16b"] "__GCC_HAVE_SYNC_COMPARE_AND_SWAP_16" 1 0 ECX 13 NONE;
    "sse4_1" "__SSE4_1__" 1 0 ECX 19 NONE;
    "sse4_2" "__SSE4_2__" 1 0 ECX 20 NONE;
    "movbe" "__MOVBE__" 1 0 ECX 22 NONE;
    "popcnt" "__POPCNT__" 1 0 ECX 23 NONE;
    "aes" "__AES__" 1 0 ECX 25 NONE;
    "xsave" "__XSAVE__" 1 0 ECX 26 NONE;
    "osxsave" "__XSAVE__" 1 0 ECX 27 NONE;
    "avx" "__AVX__" 1 0 ECX 28 YMM;
    "f16c" "__F16C__" 1 0 ECX 29 YMM;
    "rdrand" ["rdrnd"] "__RDRND__" 1 0 ECX 30 NONE;
    "fsgsbase" "__FSGSBASE__" 7 0 EBX 0 NONE;
    "bmi1" ["bmi"] "__BMI__" 7 0 EBX 3 NONE;
    "avx2" "__AVX2__" 7 0 EBX 5 YMM;
    "bmi2" "__BMI2__" 7 0 EBX 8 NONE;
    "avx512f" "__AVX512F__" 7 0 EBX 16 ZMM;
    "avx512dq" "__AVX512DQ__" 7 0 EBX 17 ZMM;
    "rdseed" "__RDSEED__" 7 0 EBX 18 NONE;
    "adx" "__ADX__" 7 0 EBX 19 NONE;
    "avx512ifma" "__AVX512IFMA__" 7 0 EBX 21 ZMM;
    "clflushopt" "__CLFLUSHOPT__" 7 0 EBX 23 NONE;
    "clwb" "__CLWB__" 7 0 EBX 24 NONE;
    "avx512cd" "__AVX512CD__" 7 0 EBX 28 ZMM;
    "sha_ni" ["sha"] "__SHA__" 7 0 EBX 29 NONE;
    "avx512bw" "__AVX512BW__" 7 0 EBX 30 ZMM;
    "avx512vl" "__AVX512VL__" 7 0 EBX 31 ZMM;
    "avx512_vbmi" "__AVX512VBMI__" 7 0 ECX 1 ZMM;
    "avx512_vbmi2" "__AVX512VBMI2__" 7 0 ECX 6 ZMM;
    "gfni" "__GFNI__" 7 0 ECX 8 NONE;
    "vaes" "__VAES__" 7 0 ECX 9 YMM;
    "vpclmulqdq" "__VPCLMULQDQ__" 7 0 ECX 10 YMM;
    "avx512_vnni" "__AVX512VNNI__" 7 0 ECX 11 ZMM;
    "avx512_bitalg" "__AVX512BITALG__" 7 0 ECX 12 ZMM;
    "avx512_vpopcntdq" "__AVX512VPOPCNTDQ__" 7 0 ECX 14 ZMM;
    "waitpkg" "__WAITPKG__" 7 0 ECX 5 NONE;
    "rdpid" "__RDPID__" 7 0 ECX 22 NONE;
    "cldemote" "__CLDEMOTE__" 7 0 ECX 25 NONE;
    "movdiri" "__MOVDIRI__" 7 0 ECX 27 NONE;
    "movdir64b" "__MOVDIR64B__" 7 0 ECX 28 NONE;
    "avx512_vp2intersect" "__AVX512VP2INTERSECT__" 7 0 EDX 8 ZMM;
    "serialize" "__SERIALIZE__" 7 0 EDX 14 NONE;
    "amx_bf16" "__AMX_BF16__" 7 0 EDX 22 TILE;
    "avx512_fp16" "__AVX512FP16__" 7 0 EDX 23 ZMM;
    "amx_tile" "__AMX_TILE__" 7 0 EDX 24 TILE;
    "amx_int8" "__AMX_INT8__" 7 0 EDX 25 TILE;
    "sha512" "__SHA512__" 7 1 EAX 0 YMM;
    "sm3" "__SM3__" 7 1 EAX 1 YMM;
    "sm4" "__SM4__" 7 1 EAX 2 YMM;
    "avx_vnni" "__AVXVNNI__" 7 1 EAX 4 YMM;
    "avx512_bf16" "__AVX512BF16__" 7 1 EAX 5 ZMM;
    "cmpccxadd" "__CMPCCXADD__" 7 1 EAX 7 NONE;
    "amx_fp16" "__AMX_FP16__" 7 1 EAX 21 TILE;
    "avx_ifma" "__AVXIFMA__" 7 1 EAX 23 YMM;
    "avx_vnni_int8" "__AVXVNNIINT8__" 7 1 EDX 4 YMM;
    "avx_ne_convert" "__AVXNECONVERT__" 7 1 EDX 5 YMM;
    "amx_complex" "__AMX_COMPLEX__" 7 1 EDX 8 TILE;
    "avx_vnni_int16" "__AVXVNNIINT16__" 7 1 EDX 10 YMM;
    "prefetchi" "__PREFETCHI__" 7 1 EDX 14 NONE;
    "xsaveopt" "__XSAVEOPT__" 0xd 1 EAX 0 NONE;
    "xsavec" "__XSAVEC__" 0xd 1 EAX 1 NONE;
    "xsaves" "__XSAVES__" 0xd 1 EAX 3 NONE;
    "lahf_lm" ["lahf", "lahfsahf"] "__LAHF_SAHF__" 0x80000001 0 ECX 0 NONE;
    "lzcnt" ["abm"] "__LZCNT__" 0x80000001 0 ECX 5 NONE;
    "sse4a" "__SSE4A__" 0x80000001 0 ECX 6 NONE;
    "3dnowprefetch" ["prfchw"] "__PRFCHW__" 0x80000001 0 ECX 8 NONE;
    "xop" "__XOP__" 0x80000001 0 ECX 11 YMM;
    "lwp" "__LWP__" 0x80000001 0 ECX 15 NONE;
    "fma4" "__FMA4__" 0x80000001 0 ECX 16 YMM;
    "tbm" "__TBM__" 0x80000001 0 ECX 21 NONE;
    "mwaitx" "__MWAITX__" 0x80000001 0 ECX 29 NONE;
    "clzero" "__CLZERO__" 0x80000008 0 EBX 0 NONE;
    "wbnoinvd" "__WBNOINVD__" 0x80000008 0 EBX 9 NONE;
}

hwcap! {
    "aes" "__ARM_FEATURE_AES" AT_HWCAP 3;
    "pmull" "__ARM_FEATURE_AES" AT_HWCAP 4;
    "sha1" "__ARM_FEATURE_SHA2" AT_HWCAP 5;
    "sha2" "__ARM_FEATURE_SHA2" AT_HWCAP 6;
    "crc32" ["crc"] "__ARM_FEATURE_CRC32" AT_HWCAP 7;
    "atomics" ["lse"] "__ARM_FEATURE_ATOMICS" AT_HWCAP 8;
    "fphp" "__ARM_FEATURE_FP16_SCALAR_ARITHMETIC" AT_HWCAP 9;
    "asimdhp" ["fp16"] "__ARM_FEATURE_FP16_VECTOR_ARITHMETIC" AT_HWCAP 10;
    "asimdrdm" ["rdm"] "__ARM_FEATURE_QRDMX" AT_HWCAP 12;
    "jscvt" ["jsconv"] "__ARM_FEATURE_JCVT" AT_HWCAP 13;
    "fcma" "__ARM_FEATURE_COMPLEX" AT_HWCAP 14;
    "lrcpc" ["rcpc"] "__ARM_FEATURE_RCPC" AT_HWCAP 15;
    "sha3" "__ARM_FEATURE_SHA3" AT_HWCAP 17;
    "sm3" "__ARM_FEATURE_SM3" AT_HWCAP 18;
    "sm4" "__ARM_FEATURE_SM4" AT_HWCAP 19;
    "asimddp" ["dotprod"] "__ARM_FEATURE_DOTPROD" AT_HWCAP 20;
    "sha512" "__ARM_FEATURE_SHA512" AT_HWCAP 21;
    "sve" "__ARM_FEATURE_SVE" AT_HWCAP 22;
    "asimdfhm" ["fhm"] "__ARM_FEATURE_FP16_FML" AT_HWCAP 23;
    "uscat" ["lse2"] "__ARM_FEATURE_LSE2" AT_HWCAP 25;
    "ilrcpc" ["rcpc2"] "__ARM_FEATURE_RCPC2" AT_HWCAP 26;
    "sve2" "__ARM_FEATURE_SVE2" AT_HWCAP2 1;
    "frint" ["frintts"] "__ARM_FEATURE_FRINT" AT_HWCAP2 8;
    "svei8mm" "__ARM_FEATURE_SVE_MATMUL_INT8" AT_HWCAP2 9;
    "svebf16" "__ARM_FEATURE_SVE_BF16" AT_HWCAP2 12;
    "i8mm" "__ARM_FEATURE_MATMUL_INT8" AT_HWCAP2 13;
    "bf16" "__ARM_FEATURE_BF16" AT_HWCAP2 14;
}

/// Returns the features that every CPU of an architecture has. The names of these features are valid but need not be
/// checked.
fn baseline(arch: &str) -> &'static [&'static str] {
    match arch {
        "x86_64" => &["cmov", "cx8", "fpu", "fxsr", "lm", "mmx", "sse", "sse2", "syscall", "x87"],
        "aarch64" => &["asimd", "fp", "neon"],
        _ => &[],
    }
}

/// Returns the features that the guard can check on `arch`, spelled as in `CARGO_CFG_TARGET_ARCH`.
pub fn table(arch: &str) -> &'static [Feature] {
    match arch {
        "x86_64" => X86_64,
        "aarch64" => AARCH64,
        _ => &[],
    }
}

impl Feature {
    /// Returns the feature's row of the table in `guard.c`.
    pub fn c_row(&self) -> String {
        let name = self.name;
        match self.place {
            FeatureBit::Cpuid { leaf, subleaf, register, bit, state } => {
                format!("{{ \"{name}\", {leaf:#x}, {subleaf}, {register}, {bit}, {state} }},")
            }
            FeatureBit::Hwcap { word, bit } => format!("{{ \"{name}\", {word}, {bit} }},"),
        }
    }
}

/// Normalises a feature name: `avx512_vnni` and `avx512vnni` are the same feature, as are `sse4.1` and `sse4_1`.
fn canonical(name: &str) -> String {
    name.to_ascii_lowercase().replace(['_', '.', '-'], "")
}

fn find(arch: &str, name: &str) -> Option<&'static Feature> {
    let wanted = canonical(name);
    table(arch).iter().find(|feature| {
        std::iter::once(&feature.name).chain(feature.aliases).any(|name| canonical(name) == wanted)
    })
}

/// Resolves `names` to the features of `arch`, in the order of the table.
///
/// # Errors
/// If the guard cannot check a feature. A program could otherwise crash with an illegal instruction.
pub fn resolve<'a>(arch: &str, names: impl IntoIterator<Item = &'a str>) -> Result<Vec<&'static Feature>> {
    let mut wanted = BTreeSet::new();
    for name in names {
        match find(arch, name) {
            Some(feature) => {
                wanted.insert(feature.name);
            }
            None if baseline(arch).iter().any(|base| canonical(base) == canonical(name)) => {}
            None => bail!(
                "the CPU guard does not know the instruction set {name:?}\nhint: correct the name in isa_required, \
                 or add it to vendor/llama-link/build/features.rs with its bit"
            ),
        }
    }
    Ok(table(arch).iter().filter(|feature| wanted.contains(feature.name)).collect())
}

/// Returns the names in `CARGO_CFG_TARGET_FEATURE` that the guard can check on `arch`. rustc may emit these
/// instructions.
pub fn of_rustc(arch: &str) -> Vec<&'static str> {
    let list = std::env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    list.split(',').filter_map(|name| find(arch, name).map(|feature| feature.name)).collect()
}

/// Returns the instruction sets of `arch` that `compiler` may emit with `flags`, from its predefined macros.
///
/// # Errors
/// If the compiler cannot be run.
pub fn of_compiler(arch: &str, compiler: &OsStr, flags: &[String]) -> Result<Vec<&'static str>> {
    let output = Command::new(compiler)
        .args(flags)
        .args(["-dM", "-E", "-x", "c", "/dev/null"])
        .output()
        .with_context(|| format!("cannot run {}", compiler.display()))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("{} {} failed: {why}", compiler.display(), flags.join(" "));
    }
    let macros = String::from_utf8_lossy(&output.stdout);
    let defined: BTreeSet<&str> = macros.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    Ok(table(arch)
        .iter()
        .filter(|feature| defined.contains(feature.predefined))
        .map(|feature| feature.name)
        .collect())
}
