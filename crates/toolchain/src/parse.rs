//! Parsers of tools' output.

use crate::tools::{CompilerKind, NvccHosts, Rustc, Version};

/// Parses the kind and the version of a compiler from the output of `--version`.
pub(crate) fn compiler(text: &str) -> Option<(CompilerKind, Version)> {
    if let Some(version) = after(text, "clang version ") {
        return Some((CompilerKind::Clang, version));
    }
    if !text.contains("Free Software Foundation") {
        return None;
    }
    // `gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0`: the name and the parentheses may contain versions, too.
    let line = text.lines().next()?;
    let behind = line.rfind(") ").map_or(line, |at| &line[at + 2..]);
    Some((CompilerKind::Gcc, words(behind).next()?))
}

/// Parses the version of an LLVM tool: `Debian LLVM version 22.1.8`.
pub(crate) fn llvm(text: &str) -> Option<Version> {
    after(text, "LLVM version ")
}

/// Parses the version of LLVM's linker: `Debian LLD 22.1.8 (compatible with GNU linkers)`.
pub(crate) fn lld(text: &str) -> Option<Version> {
    after(text, "LLD ")
}

/// Parses the version of nvcc: `Cuda compilation tools, release 12.4, V12.4.131`.
pub(crate) fn nvcc(text: &str) -> Option<Version> {
    after(text, ", V").or_else(|| after(text, "release "))
}

/// Parses the version of a tool that prints its version alone or as a word of its first lines: `cmake version
/// 3.25.1`, `1.11.1`.
pub(crate) fn plain(text: &str) -> Option<Version> {
    text.lines().take(2).flat_map(words).next()
}

/// Parses the version of GNU make. BSD make is another program with the same name.
pub(crate) fn make(text: &str) -> Option<Version> {
    after(text, "GNU Make ")
}

/// Parses the output of `rustc -vV`; the path of the program is `path`.
pub(crate) fn rustc(text: &str, path: std::path::PathBuf) -> Option<Rustc> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    Some(Rustc {
        path,
        version: field("release")?.parse().ok()?,
        host: field("host")?.to_string(),
        llvm: field("LLVM version")?.parse().ok()?,
    })
}

/// Parses the newest host compilers that CUDA accepts, from the conditions of the `#error` lines in its
/// `crt/host_config.h`: `#if __GNUC__ > 13`, and `#if (__clang_major__ >= 18) || …` under `defined(__clang__)`.
pub(crate) fn nvcc_hosts(header: &str) -> NvccHosts {
    let number = |line: &str, before: &str| -> Option<u32> {
        let rest = line.split_once(before)?.1.trim_start();
        rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())].parse().ok()
    };
    let conditions = || header.lines().filter(|line| line.starts_with("#if "));
    NvccHosts {
        gcc: conditions().find_map(|line| number(line, "__GNUC__ >")),
        // Only the last condition applies, because the conditions before it limit clang-based compilers for embedded
        // systems.
        clang: conditions()
            .filter_map(|line| number(line, "__clang_major__ >="))
            .max()
            .and_then(|n| n.checked_sub(1)),
    }
}

/// Parses the output of `nvcc --list-gpu-code`: one code such as `sm_90` per line, in any order. Returns compute
/// capabilities times ten.
pub(crate) fn gpu_codes(text: &str) -> Vec<u32> {
    let mut codes: Vec<u32> =
        text.lines().filter_map(|line| line.trim().strip_prefix("sm_")?.parse().ok()).collect();
    codes.sort_unstable();
    codes.dedup();
    codes
}

fn after(text: &str, marker: &str) -> Option<Version> {
    text.split_once(marker)?.1.parse().ok()
}

/// Returns the words of a line that are versions with at least one dot.
fn words(line: &str) -> impl Iterator<Item = Version> + '_ {
    line.split_whitespace().filter(|word| word.contains('.')).filter_map(|word| word.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FSF: &str = "Copyright (C) 2022 Free Software Foundation, Inc.";

    #[test]
    fn compilers_are_told_apart() {
        let gcc = |line: &str| format!("{line}\n{FSF}\n");
        let cases = [
            (gcc("gcc (Debian 12.2.0-14+deb12u1) 12.2.0"), Some((CompilerKind::Gcc, Version::new(12, 2, 0)))),
            (
                gcc("gcc-12 (Ubuntu 12.3.0-1ubuntu1~22.04) 12.3.0"),
                Some((CompilerKind::Gcc, Version::new(12, 3, 0))),
            ),
            (
                gcc("gcc (GCC) 13.2.1 20240316 (Red Hat 13.2.1-7)"),
                Some((CompilerKind::Gcc, Version::new(13, 2, 1))),
            ),
            (gcc("gcc-14 (Homebrew GCC 14.2.0_1) 14.2.0"), Some((CompilerKind::Gcc, Version::new(14, 2, 0)))),
            (gcc("g++ (SUSE Linux) 7.5.0"), Some((CompilerKind::Gcc, Version::new(7, 5, 0)))),
            (
                "Debian clang version 22.1.8 (1~deb12u1)\nTarget: x86_64".into(),
                Some((CompilerKind::Clang, Version::new(22, 1, 8))),
            ),
            (
                "Ubuntu clang version 18.1.3 (1ubuntu1)".into(),
                Some((CompilerKind::Clang, Version::new(18, 1, 3))),
            ),
            ("clang version 19.1.0-rc2".into(), Some((CompilerKind::Clang, Version::new(19, 1, 0)))),
            ("pcc 1.2.0".into(), None),
            (gcc("gcc (broken)"), None),
            ("clang version unknown".into(), None),
            (String::new(), None),
        ];
        for (text, expected) in cases {
            assert_eq!(compiler(&text), expected, "{text}");
        }
    }

    #[test]
    fn tools_tell_their_versions() {
        type Reader = fn(&str) -> Option<Version>;
        let cases: [(Reader, &str, Option<Version>); 13] = [
            (plain, "cmake version 3.25.1\n\nCMake suite maintained", Some(Version::new(3, 25, 1))),
            (plain, "cmake3 version 3.20.2", Some(Version::new(3, 20, 2))),
            (plain, "1.11.1\n", Some(Version::new(1, 11, 1))),
            (plain, "1.13.0.git.kitware.jobserver-pipe-1", Some(Version::new(1, 13, 0))),
            (plain, "mold 2.30.0 (compatible with GNU ld)", Some(Version::new(2, 30, 0))),
            (plain, "ccache version 4.8+git.1", Some(Version::new(4, 8, 0))),
            (plain, "git version 2.39.5 (Apple Git-154)", Some(Version::new(2, 39, 5))),
            (plain, "no version here", None),
            (lld, "Debian LLD 22.1.8 (compatible with GNU linkers)", Some(Version::new(22, 1, 8))),
            (lld, "GNU ld 2.40", None),
            (llvm, "Debian LLVM version 14.0.6\n  Optimized build.", Some(Version::new(14, 0, 6))),
            (llvm, "LLVM (http://llvm.org/):\n  LLVM version 18.1.8", Some(Version::new(18, 1, 8))),
            (
                nvcc,
                "Cuda compilation tools, release 12.4, V12.4.131\nBuild cuda_12.4",
                Some(Version::new(12, 4, 131)),
            ),
        ];
        for (reader, text, expected) in cases {
            assert_eq!(reader(text), expected, "{text}");
        }
    }

    #[test]
    fn rustc_tells_its_llvm() {
        let text = "rustc 1.95.0 (59807616e 2026-04-14)\nbinary: rustc\nhost: x86_64-unknown-linux-gnu\nrelease: \
                    1.95.0-nightly\nLLVM version: 22.1.2\n";
        let found = rustc(text, "rustc".into()).unwrap();
        assert_eq!((found.version, found.llvm), (Version::new(1, 95, 0), Version::new(22, 1, 2)));
        assert_eq!(found.host, "x86_64-unknown-linux-gnu");
        assert_eq!(rustc("error: no default toolchain is configured", "rustc".into()), None);
    }

    #[test]
    fn cuda_names_the_newest_host_compilers() {
        let header = "#if defined(__GRCO_CLANG_COMPILER__)\n\
            #if (__GRCO_CLANG_COMPILER__ == 1) && ((__clang_major__ < 16) || (__clang_major__ > 22))\n#endif\n\
            #if __GNUC__ > 16\n#error -- unsupported GNU version!\n#endif /* __GNUC__ > 16 */\n\
            #if (__clang_major__ >= 22) || (__clang_major__ < 3)\n#error HOS\n#endif\n\
            #if (__clang_major__ >= 23) || (__clang_major__ < 3)\n#error\n#endif\n";
        assert_eq!(nvcc_hosts(header), NvccHosts { gcc: Some(16), clang: Some(22) });
        assert_eq!(nvcc_hosts("nothing of the kind"), NvccHosts::default());
    }

    #[test]
    fn architectures_are_read_from_nvccs_list() {
        // CUDA 13.5 prints the codes in this order. A code for a single GPU family (`sm_90a`) is listed in addition
        // to the plain code.
        assert_eq!(gpu_codes("sm_75\nsm_80\nsm_110\nsm_103\nsm_90a\nsm_90\n"), [75, 80, 90, 103, 110]);
        assert_eq!(gpu_codes("nvcc fatal   : Unknown option '--list-gpu-code'"), [0u32; 0]);
    }
}
