//! Rules of the audit, read from `profiles/audit.toml`.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;

use crate::error::Error;
use crate::packed::Width;
use crate::program::Function;

/// Rules that programs are checked against.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// Minimum number of kernels that must be found. If fewer are found, the names in the rules are out of date.
    pub least_kernels: usize,
    /// Functions of a portable program that may use more than x86-64-v3.
    #[serde(default)]
    pub allow: Vec<Allow>,
    /// Instruction sets that a native program must use.
    #[serde(default, rename = "instruction_set")]
    pub instruction_sets: Vec<InstructionSet>,
    /// Kernels that must be vectorised.
    #[serde(default, rename = "kernel")]
    pub kernels: Vec<Kernel>,
    /// Kernels whose inner loops should keep their vectors in registers.
    #[serde(default, rename = "inner_loop")]
    pub inner_loops: Vec<InnerLoopRule>,
    /// Families of GPU kernels to count.
    #[serde(default, rename = "device_kernel")]
    pub device_kernels: Vec<DeviceKernels>,
}

/// Kernels whose inner loops should keep their vectors in registers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InnerLoopRule {
    /// Names of the functions.
    pub symbols: Vec<Pattern>,
    /// Maximum number of loads and stores of spilt registers per 100 packed arithmetic instructions.
    pub most_percent: u32,
}

/// Family of GPU kernels with one purpose.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceKernels {
    /// Name of the family.
    pub family: String,
    /// Names of the functions that launch the kernels.
    pub symbols: Vec<Pattern>,
}

/// Functions that run only on CPUs with the instruction sets that they use.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allow {
    /// Names of the functions.
    pub symbols: Vec<Pattern>,
    /// Instruction sets that the functions may use.
    pub features: Vec<String>,
    /// Reason why the functions are safe on other CPUs.
    pub reason: String,
}

/// Instruction set for which ggml has kernels.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstructionSet {
    /// Name of the instruction set.
    pub name: String,
    /// Purpose of the kernels.
    pub kernels: String,
    /// Other instruction sets that ggml also requires for these kernels.
    #[serde(default)]
    pub needs: Vec<String>,
    /// Other instruction sets that ggml prefers to this one.
    #[serde(default)]
    pub unless: Vec<String>,
}

/// Kernel that is written with intrinsics.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// Names of the kernel's functions.
    pub symbols: Vec<Pattern>,
    /// True if each matching name is a separate kernel.
    #[serde(default)]
    pub each: bool,
    /// Instruction sets that give the kernel 512-bit arithmetic.
    zmm: Option<Vec<String>>,
    /// Instruction sets that give the kernel 256-bit arithmetic.
    ymm: Option<Vec<String>>,
    /// Instruction sets that give the kernel 128-bit arithmetic.
    xmm: Option<Vec<String>>,
}

impl Kernel {
    /// Returns the expected width for a compiler that may use the instruction sets `isa`.
    pub fn expected(&self, isa: &BTreeSet<String>) -> Option<Width> {
        [(&self.zmm, Width::Zmm), (&self.ymm, Width::Ymm), (&self.xmm, Width::Xmm)]
            .into_iter()
            .find(|(needed, _)| needed.as_ref().is_some_and(|all| all.iter().all(|name| isa.contains(name))))
            .map(|(_, width)| width)
    }
}

/// Name pattern, in which `*` matches any text.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub struct Pattern(String);

impl Pattern {
    /// Returns the pattern as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True if the function has a matching name. Suffixes that compilers append after a dot (`.cold`, `.part.0`,
    /// `.llvm.123`) are ignored.
    pub fn matches(&self, function: &Function) -> bool {
        function.names.iter().any(|name| self.matches_symbol(name))
    }

    /// True if the pattern matches the name of a symbol, without its suffixes.
    pub(crate) fn matches_symbol(&self, name: &str) -> bool {
        self.matches_name(stem(name))
    }

    fn matches_name(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
        let mut parts = parts.peekable();
        if parts.peek().is_none() {
            return rest.is_empty();
        }
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                return rest.ends_with(part);
            }
            // Matching the first occurrence is sufficient.
            let Some(at) = rest.find(part) else { return false };
            rest = &rest[at + part.len()..];
        }
        true
    }
}

/// Returns a function's name without suffixes. Two dots are Rust's `::` between angle brackets, as in
/// `_ZN36_$LT$a..B$u20$as$u20$c..D$GT$1e17h…E`.
fn stem(name: &str) -> &str {
    // A name may start with a dot, so the first byte is skipped.
    let mut at = 1;
    while let Some(found) = name.get(at..).and_then(|rest| rest.find(['.', '@'])) {
        let end = at + found;
        match name[end..].starts_with("..") {
            true => at = end + 2,
            false => return &name[..end],
        }
    }
    name
}

impl Rules {
    /// Returns the family of the kernel that the function `name` launches. Function parts that compilers split off
    /// are not kernels.
    pub fn device_family(&self, name: &str) -> Option<&str> {
        let whole = !name.contains('.');
        let of = |kernels: &&DeviceKernels| kernels.symbols.iter().any(|pattern| pattern.matches_name(name));
        let family = self.device_kernels.iter().filter(|_| whole).find(of)?;
        Some(&family.family)
    }

    /// Returns the entry that allows `function` to use `feature` on a CPU that may lack this instruction set.
    pub fn allows(&self, function: &Function, feature: &str) -> Option<&Allow> {
        self.allow.iter().find(|allow| {
            allow.features.iter().any(|allowed| allowed == feature)
                && allow.symbols.iter().any(|pattern| pattern.matches(function))
        })
    }

    /// Reads the rules at `path`.
    ///
    /// # Errors
    /// If the file cannot be read or parsed, or an entry is empty or too broad.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text =
            std::fs::read_to_string(path).map_err(|source| Error::Io { path: path.to_path_buf(), source })?;
        Self::parse(&text, path)
    }

    /// Parses the rules in `text`; `path` is only used in errors.
    ///
    /// # Errors
    /// If the text cannot be parsed, or an entry is empty or too broad.
    pub fn parse(text: &str, path: &Path) -> Result<Self, Error> {
        let wrong = |what: String| Error::Rules { path: path.to_path_buf(), what };
        let rules: Rules = toml::from_str(text).map_err(|error| wrong(error.to_string()))?;
        for allow in &rules.allow {
            let named = allow.symbols.iter().map(Pattern::as_str).collect::<Vec<_>>().join(", ");
            if allow.reason.trim().is_empty() {
                return Err(wrong(format!("the entry for {named} has no reason")));
            }
            // `*` alone would allow everything.
            if allow.symbols.iter().any(|pattern| pattern.0.bytes().filter(|byte| *byte != b'*').count() < 4)
            {
                return Err(wrong(format!(
                    "the entry for {named:?} is too broad\nhint: list the functions by name"
                )));
            }
        }
        for kernel in &rules.kernels {
            if kernel.zmm.is_none() && kernel.ymm.is_none() && kernel.xmm.is_none() {
                let name = kernel.symbols.first().map_or("", Pattern::as_str);
                return Err(wrong(format!("the kernel {name} needs at least one of `zmm`, `ymm` and `xmm`")));
            }
        }
        Ok(rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_names_without_what_compilers_append() {
        let cases = [
            ("ggml_vec_dot_f32", "ggml_vec_dot_f32", true),
            ("ggml_vec_dot_f32", "ggml_vec_dot_f32.llvm.123", true),
            ("ggml_vec_dot_f32", "ggml_vec_dot_f32.cold", true),
            ("ggml_vec_dot_f32", "ggml_vec_dot_f32_generic", false),
            ("ggml_vec_dot_f32", "my_ggml_vec_dot_f32", false),
            ("_Unwind_*", "_Unwind_Resume@@GCC_3.0", true),
            ("*simd_gemm*", "_ZL9simd_gemmPf.part.0", true),
            ("a*b*c", "a--b--c", true),
            ("a*b*c", "a--c--b", false),
            ("a*aa", "aa", false),
            (".L*", ".Lanon", true),
            ("*a..B*", "_ZN36_$LT$a..B$u20$as$u20$c..D$GT$1e17h0E", true),
            ("*a..B*1e17h0E", "_ZN36_$LT$a..B$u20$as$u20$c..D$GT$1e17h0E.llvm.7", true),
            ("*a..B*", "_ZN1c17h0E.a..B", false),
        ];
        for (pattern, name, expected) in cases {
            let function = Function { names: vec![name.to_string()], ..Function::default() };
            assert_eq!(Pattern(pattern.to_string()).matches(&function), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn the_widest_kernel_that_the_instruction_sets_give_is_expected() {
        let kernel: Kernel =
            toml::from_str("symbols = [\"k\"]\nzmm = [\"avx512f\", \"avx512bw\"]\nymm = [\"avx2\"]").unwrap();
        let isa = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
        assert_eq!(kernel.expected(&isa(&["avx2", "avx512f", "avx512bw"])), Some(Width::Zmm));
        assert_eq!(kernel.expected(&isa(&["avx2", "avx512f"])), Some(Width::Ymm));
        assert_eq!(kernel.expected(&isa(&["avx"])), None);
    }

    #[test]
    fn rules_that_say_nothing_are_refused() {
        let cases = [
            ("", "missing field `least_kernels`"),
            ("least_kernels = 1\nalow = []", "unknown field `alow`"),
            (
                "least_kernels = 1\n[[allow]]\nsymbols = [\"memchr_avx512\"]\nfeatures = [\"avx512f\"]\nreason = \" \"",
                "has no reason",
            ),
            (
                "least_kernels = 1\n[[allow]]\nsymbols = [\"**\"]\nfeatures = [\"avx512f\"]\nreason = \"so\"",
                "too broad",
            ),
            ("least_kernels = 1\n[[kernel]]\nsymbols = [\"k\"]", "needs at least one of `zmm`"),
        ];
        for (text, expected) in cases {
            let error = Rules::parse(text, Path::new("audit.toml")).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn the_rules_of_this_checkout_are_understood() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles/audit.toml");
        let rules = Rules::read(&path).unwrap();
        assert!(rules.kernels.len() > 5 && rules.instruction_sets.len() > 5);
    }
}
