//! Search for tools. The environment is a value, so that tests can replace it with a folder.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Everything outside this process that determines which tools are found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchPath {
    /// Folders of `PATH`, in order.
    pub dirs: Vec<PathBuf>,
    /// Root of the file system, `/`; well-known folders are relative to it.
    pub root: PathBuf,
    /// Home folder of the user.
    pub home: Option<PathBuf>,
    /// Toolkit that the user specifies: `CUDA_HOME` or `CUDA_PATH`, and its value.
    pub cuda_home: Option<(&'static str, PathBuf)>,
    /// Value of `LIBCLANG_PATH`: a folder, or the library itself.
    pub libclang_path: Option<PathBuf>,
    /// Folders of `PKG_CONFIG_PATH`, in order.
    pub pkg_config_path: Vec<PathBuf>,
    /// Value of `RUSTUP_HOME`, or `~/.rustup`.
    pub rustup_home: Option<PathBuf>,
    /// Value of `RUSTUP_TOOLCHAIN`, which cargo's rustup proxy sets for the programs that it runs.
    pub rustup_toolchain: Option<OsString>,
    /// Folder into which `setup` installs its own cmake and ninja.
    pub own_tools: Option<PathBuf>,
    /// Time limit for a program to print its version. From a cold disk, clang 22 took 0.4 s. On a machine that had
    /// just resumed from a snapshot, it once took more than 3 s.
    pub patience: Duration,
}

impl SearchPath {
    /// Returns the search path of this process. `own_tools` is the folder into which `setup` installs cmake and
    /// ninja.
    pub fn live(own_tools: &Path) -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let folder = |name: &str| variable(name).map(PathBuf::from);
        let list = |name: &str| {
            variable(name).map_or_else(Vec::new, |value| std::env::split_paths(&value).collect())
        };
        let home = folder("HOME");
        Self {
            dirs: list("PATH"),
            root: PathBuf::from("/"),
            cuda_home: ["CUDA_HOME", "CUDA_PATH"].into_iter().find_map(|name| Some((name, folder(name)?))),
            libclang_path: folder("LIBCLANG_PATH"),
            pkg_config_path: list("PKG_CONFIG_PATH"),
            rustup_home: folder("RUSTUP_HOME").or_else(|| home.as_ref().map(|home| home.join(".rustup"))),
            rustup_toolchain: variable("RUSTUP_TOOLCHAIN"),
            own_tools: Some(own_tools.to_path_buf()),
            patience: Duration::from_secs(20),
            home,
        }
    }

    /// Returns the folder of the packages that `setup` installs with pip.
    pub(crate) fn own_packages(&self) -> Option<PathBuf> {
        self.own_tools.as_ref().map(|tools| tools.join("packages"))
    }

    /// Returns the folder of the MKL that `setup` installs with pip: a separate prefix with `lib` and `include`.
    pub(crate) fn own_mkl(&self) -> Option<PathBuf> {
        self.own_tools.as_ref().map(|tools| tools.join("mkl"))
    }

    /// Returns the folder of the CUDA toolkit that `setup` installs with pip.
    pub(crate) fn own_cuda(&self) -> Option<PathBuf> {
        self.own_tools.as_ref().map(|tools| tools.join("cuda"))
    }

    /// Returns the first program called `name` on the path.
    pub(crate) fn which(&self, name: &str) -> Option<PathBuf> {
        self.dirs
            .iter()
            .filter(|dir| dir.is_absolute())
            .map(|dir| dir.join(name))
            .find(|path| is_program(path))
    }

    /// Returns the folders of LLVM installations (`/usr/lib/llvm-22`, `/usr/lib64/llvm18`, Homebrew's), which
    /// distributions do not put on the path.
    pub(crate) fn llvm_prefixes(&self) -> Vec<PathBuf> {
        let mut prefixes: Vec<PathBuf> = ["usr/lib", "usr/lib64"]
            .iter()
            .flat_map(|lib| entries(&self.root.join(lib)))
            .filter(|path| file_name(path).starts_with("llvm"))
            .collect();
        prefixes.extend(
            ["opt/homebrew/opt/llvm", "opt/homebrew/opt/lld", "usr/local/opt/llvm", "usr/local/opt/lld"]
                .map(|prefix| self.root.join(prefix)),
        );
        prefixes
    }

    /// Returns all programs whose name is one of `stems`, with or without a version suffix. Programs on the path
    /// come first, in the path's order, then programs in well-known folders. Within a folder the versioned name
    /// comes first, because `gcc-12` remains the same compiler when the distribution's `gcc` changes.
    pub(crate) fn programs(&self, stems: &[&str]) -> Vec<ToolProgram> {
        let mut seen = BTreeSet::new();
        let mut found = Vec::new();
        let on_path = self.dirs.iter().map(|dir| (dir.clone(), true));
        let well_known = self.well_known().into_iter().map(|dir| (dir, false));
        for (dir, on_path) in on_path.chain(well_known) {
            // A relative folder on the path depends on the current folder; `/bin` is often `/usr/bin`.
            let Ok(real) = fs::canonicalize(&dir) else { continue };
            if !dir.is_absolute() || !seen.insert(real) {
                continue;
            }
            let mut here: Vec<ToolProgram> =
                entries(&dir).into_iter().filter_map(|path| ToolProgram::of(path, stems, on_path)).collect();
            here.sort_by(|a, b| (a.suffix.is_empty(), &a.path).cmp(&(b.suffix.is_empty(), &b.path)));
            found.append(&mut here);
        }
        found
    }

    fn well_known(&self) -> Vec<PathBuf> {
        let mut dirs = Vec::new();
        if let Some(packages) = self.own_packages() {
            // These folders of the wheels contain the real programs; scripts in `bin` would start Python first.
            dirs.extend(["cmake/data/bin", "ninja/data/bin", "ziglang", "bin"].map(|dir| packages.join(dir)));
        }
        dirs.extend(self.cuda_home.iter().map(|(_, cuda)| cuda.join("bin")));
        // The folder of the wheels is named after the wheels' major version.
        let own_cuda = self.own_cuda().map(|cuda| entries(&cuda.join("nvidia"))).unwrap_or_default();
        dirs.extend(
            own_cuda.iter().filter(|dir| file_name(dir).starts_with("cu")).map(|dir| dir.join("bin")),
        );
        dirs.extend(
            ["usr/local/cuda/bin", "opt/cuda/bin", "opt/homebrew/bin"].map(|dir| self.root.join(dir)),
        );
        dirs.extend(self.home.iter().map(|home| home.join(".cargo/bin")));
        dirs.extend(self.llvm_prefixes().into_iter().map(|prefix| prefix.join("bin")));
        dirs
    }
}

/// Program that may be a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ToolProgram {
    /// Path under which the program was found.
    pub path: PathBuf,
    /// Path with links resolved.
    pub canonical: PathBuf,
    /// Name without the version.
    pub stem: String,
    /// Version suffix of the name, such as `-22`, or empty.
    pub suffix: String,
    /// True if the program's folder is on the path.
    pub on_path: bool,
}

impl ToolProgram {
    fn of(path: PathBuf, stems: &[&str], on_path: bool) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let (stem, suffix) = split(name);
        if !stems.contains(&stem) || !is_program(&path) {
            return None;
        }
        let (stem, suffix) = (stem.to_string(), suffix.to_string());
        let canonical = fs::canonicalize(&path).ok()?;
        // Compiler-cache wrappers are skipped. The compiler itself comes later on the path, and the plan decides if
        // the compiler is run through a cache.
        let poses = ["ccache", "sccache", "distcc", "icecc"].contains(&file_name(&canonical))
            && file_name(&canonical) != stem;
        (!poses).then_some(Self { path, canonical, stem, suffix, on_path })
    }

    /// Returns the program `stem` of the same version in the same folder, such as `clang++-22` next to `clang-22`.
    pub(crate) fn sibling(&self, stem: &str) -> Option<PathBuf> {
        let path = self.path.with_file_name(format!("{stem}{}", self.suffix));
        is_program(&path).then_some(path)
    }
}

/// Splits a name into stem and version suffix: `clang-22` becomes `clang` and `-22`; `ninja-build` has no suffix.
fn split(name: &str) -> (&str, &str) {
    match name.rfind('-') {
        Some(at) if is_version(&name[at + 1..]) => name.split_at(at),
        _ => (name, ""),
    }
}

fn is_version(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit()) && text.chars().all(|c| c.is_ascii_digit() || c == '.')
}

pub(crate) fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Returns the entries of `dir` sorted by name; empty if `dir` is missing or cannot be read.
pub(crate) fn entries(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Returns the last component of `path`; empty if the component is not UTF-8, because every tool's name is UTF-8.
pub(crate) fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn a_version_is_split_from_a_name() {
        let cases = [
            ("clang-22", ("clang", "-22")),
            ("clang++-22", ("clang++", "-22")),
            ("ld.lld", ("ld.lld", "")),
            ("ninja-build", ("ninja-build", "")),
            ("llvm-profdata-14", ("llvm-profdata", "-14")),
            ("gcc-ar-12", ("gcc-ar", "-12")),
            ("gcc-4.8", ("gcc", "-4.8")),
            ("gcc-", ("gcc-", "")),
        ];
        for (name, expected) in cases {
            assert_eq!(split(name), expected, "{name}");
        }
    }
}
