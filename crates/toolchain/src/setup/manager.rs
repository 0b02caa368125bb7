//! Package managers: their detection, their package names, and their commands.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::requirement::Requirement;
use crate::search::SearchPath;
use crate::tools::{BOLT_AT_LEAST, CLANG_AT_LEAST, GCC_AT_LEAST, LIBCLANG_AT_LEAST, Version};

/// Package manager of a system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Manager {
    /// apt, on Debian and Ubuntu.
    Apt,
    /// dnf, on Fedora and Red Hat.
    Dnf,
    /// pacman, on Arch.
    Pacman,
    /// zypper, on SUSE.
    Zypper,
    /// apk, on Alpine.
    Apk,
    /// Homebrew.
    Brew,
}

impl fmt::Display for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Manager::Apt => "apt",
            Manager::Dnf => "dnf",
            Manager::Pacman => "pacman",
            Manager::Zypper => "zypper",
            Manager::Apk => "apk",
            Manager::Brew => "brew",
        })
    }
}

impl Manager {
    const ALL: [Manager; 6] =
        [Manager::Apt, Manager::Dnf, Manager::Pacman, Manager::Zypper, Manager::Apk, Manager::Brew];

    /// Returns the package manager of this machine: the distribution's package manager if it is installed (a Fedora
    /// system may also have `apt-get`), else the first package manager that is installed.
    pub fn detect(search: &SearchPath) -> Option<Self> {
        let release = std::fs::read_to_string(search.root.join("etc/os-release")).unwrap_or_default();
        let ids: Vec<&str> = release
            .lines()
            .filter_map(|line| line.strip_prefix("ID=").or_else(|| line.strip_prefix("ID_LIKE=")))
            .flat_map(|ids| ids.trim_matches(['"', '\'']).split_whitespace())
            .collect();
        let native = ids.iter().find_map(|id| match *id {
            "debian" | "ubuntu" => Some(Manager::Apt),
            "fedora" | "rhel" | "centos" | "amzn" => Some(Manager::Dnf),
            "arch" => Some(Manager::Pacman),
            "suse" | "opensuse" | "opensuse-leap" | "opensuse-tumbleweed" => Some(Manager::Zypper),
            "alpine" => Some(Manager::Apk),
            _ => None,
        });
        native.into_iter().chain(Self::ALL).find(|manager| search.which(manager.program()).is_some())
    }

    fn program(self) -> &'static str {
        match self {
            Manager::Apt => "apt-get",
            Manager::Dnf => "dnf",
            Manager::Pacman => "pacman",
            Manager::Zypper => "zypper",
            Manager::Apk => "apk",
            Manager::Brew => "brew",
        }
    }

    /// True if only root may install packages. Homebrew refuses to run as root.
    pub(crate) fn needs_root(self) -> bool {
        self != Manager::Brew
    }

    /// Returns the command that updates the package lists, if there is a separate command. pacman's command is only
    /// used on a machine without any lists, because lists newer than the installed packages break an Arch system.
    pub(crate) fn refresh(self, no_lists: bool) -> Option<Vec<String>> {
        match self {
            Manager::Apt => Some(words("apt-get update")),
            Manager::Apk => Some(words("apk update")),
            Manager::Pacman if no_lists => Some(words("pacman -Sy --noconfirm")),
            _ => None,
        }
    }

    /// Returns the command that installs `packages` without prompting.
    pub(crate) fn install(self, packages: &[String]) -> Vec<String> {
        let mut command = words(match self {
            // apt waits for another apt, such as unattended upgrades on a fresh machine.
            Manager::Apt => {
                "env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=120"
            }
            Manager::Dnf => "dnf install -y",
            Manager::Pacman => "pacman -S --needed --noconfirm",
            Manager::Zypper => "zypper --non-interactive install",
            Manager::Apk => "apk add",
            Manager::Brew => "brew install",
        });
        command.extend(packages.iter().cloned());
        command
    }

    /// Returns the command that a user can type to install `packages`.
    pub(crate) fn install_by_hand(self, packages: &[String]) -> String {
        let install = match self {
            Manager::Pacman => "-S",
            Manager::Apk => "add",
            _ => "install",
        };
        let sudo = if self.needs_root() { "sudo " } else { "" };
        format!("{sudo}{} {install} {}", self.program(), packages.join(" "))
    }

    /// Returns the packages that provide `requirement`, or `None` if this manager offers none. `versions` are the
    /// versions of apt's versioned packages.
    pub(crate) fn packages(self, requirement: Requirement, versions: &AptVersions) -> Option<Vec<String>> {
        use Requirement::*;
        if self == Manager::Apt {
            return versions.packages(requirement);
        }
        let packages = match (requirement, self) {
            (Cmake, _) => "cmake",
            (Git, _) => "git",
            (Ninja, Manager::Dnf) => "ninja-build",
            (Ninja, Manager::Apk) => "samurai",
            (Ninja, _) => "ninja",
            (Compiler | Clang | Libclang, Manager::Brew) => "llvm",
            (Compiler, Manager::Pacman) => "gcc",
            // On Alpine, g++ alone comes without the C library's headers.
            (Compiler, Manager::Apk) => "build-base",
            (Compiler, _) => "gcc-c++",
            (Clang, _) => "clang",
            (Libclang, Manager::Pacman) => "clang",
            (Libclang, Manager::Apk) => "clang-dev",
            (Libclang, _) => "clang-devel",
            (Lld, _) => "lld",
            (LlvmTools, Manager::Brew) => "llvm",
            (LlvmTools, Manager::Zypper) => "llvm",
            (LlvmTools, _) => "llvm compiler-rt",
            (Bolt, Manager::Dnf) => "llvm-bolt",
            // No package of the other managers is known to contain BOLT. BOLT only rewrites ELF files.
            (Bolt, _) => return None,
            (Openblas, Manager::Dnf) => "openblas-devel pkgconf-pkg-config",
            (Openblas, Manager::Pacman | Manager::Brew) => "openblas pkgconf",
            // SUSE's package names contain the threading; each of the packages provides this name.
            (Openblas, Manager::Zypper) => "pkgconfig(openblas) pkg-config",
            (Openblas, _) => "openblas-dev pkgconf",
            (Blis, Manager::Dnf) => "blis-devel pkgconf-pkg-config",
            // Arch has BLIS only in its user repository; Alpine and SUSE have none.
            (Blis, Manager::Brew) => "blis pkgconf",
            (Blis, _) => return None,
            // Packages for these requirements come from pip on every system.
            (Mkl | Zig | Cuda | NewCuda, _) => return None,
            // The standard library comes from rustup, which is not a system package manager.
            (RustAarch64, _) => return None,
            (EmulatorAarch64, Manager::Pacman) => "qemu-user aarch64-linux-gnu-glibc",
            // The other distributions have the emulator but no package with an aarch64 C library.
            (EmulatorAarch64, _) => return None,
            (Make, _) => "make",
            (Openmp, Manager::Dnf | Manager::Zypper) => "libomp-devel",
            (Openmp, Manager::Apk) => "openmp-dev",
            (Openmp, Manager::Brew) => "libomp",
            (Openmp, _) => "openmp",
            (Pip, Manager::Pacman) => "python-pip",
            (Pip, Manager::Apk) => "py3-pip",
            (Pip, Manager::Brew) => "python",
            (Pip, _) => "python3-pip",
            // The emulator only works for Linux processes on Linux.
            (QemuUser, Manager::Brew) => return None,
            (QemuUser, Manager::Zypper) => "qemu-linux-user",
            (QemuUser, Manager::Apk) => "qemu-x86_64 qemu-aarch64",
            (QemuUser, _) => "qemu-user",
            (SystemCompiler, Manager::Apk) => "build-base",
            (SystemCompiler, Manager::Pacman) => "gcc",
            // Apple's developer tools include both compilers.
            (SystemCompiler, Manager::Brew) => return None,
            (SystemCompiler, _) => "gcc gcc-c++",
            (Curl, _) => "curl",
            (Wget, _) => "wget",
            (Zstd, _) => "zstd",
            (Minisign, _) => "minisign",
            (Dpkg, _) => "dpkg",
            // These programs exist only on Linux.
            (Procps | UtilLinux | Iproute, Manager::Brew) => return None,
            (Procps, Manager::Apk) => "procps",
            // On these systems, `kill` is part of util-linux.
            (Procps | UtilLinux, _) => "util-linux",
            (Iproute, Manager::Dnf) => "iproute",
            (Iproute, _) => "iproute2",
        };
        Some(words(packages))
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_string).collect()
}

/// Packages in apt's index that have a version in their name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AptIndex {
    /// Names such as `clang-22`, `libclang1-22`, `g++-12`.
    pub packages: BTreeSet<String>,
    /// Version of cmake that apt would install.
    pub cmake: Option<Version>,
}

impl AptIndex {
    /// Pattern for `apt-cache search --names-only`.
    pub(crate) const PATTERN: &'static str =
        r"^(clang|lld|libclang1|libclang-common|libclang-rt|llvm|bolt|libomp|g\+\+)-[0-9]+(-dev)?$";

    /// Parses the output of `apt-cache search` and of `apt-cache policy cmake`.
    pub(crate) fn parse(search: &str, policy: &str) -> Self {
        let name = |line: &str| line.split_whitespace().next().map(str::to_string);
        let candidate = policy.lines().find_map(|line| line.trim().strip_prefix("Candidate:"));
        // An epoch, as in `1:3.25`, is not part of the version.
        let version = candidate.map(|text| text.trim().rsplit(':').next().unwrap_or_default());
        Self {
            packages: search.lines().filter_map(name).collect(),
            cmake: version.and_then(|version| version.parse().ok()),
        }
    }

    /// True if apt has no package lists, as in a fresh image.
    pub(crate) fn is_empty(&self) -> bool {
        self.packages.is_empty()
    }

    /// Returns the versions of a package in ascending order.
    fn versions<'a>(&'a self, stem: &'a str) -> impl DoubleEndedIterator<Item = u32> + 'a {
        let versions: BTreeSet<u32> = self
            .packages
            .iter()
            .filter_map(|name| {
                name.strip_prefix(stem)?.strip_prefix('-')?.trim_end_matches("-dev").parse().ok()
            })
            .collect();
        versions.into_iter()
    }

    fn has(&self, name: &str) -> bool {
        self.packages.contains(name)
    }

    /// Returns the versions to install. An installed clang determines the versions of the other LLVM packages.
    /// Otherwise the choice is the LLVM of `rustc`, so that C++ and Rust can share link-time optimisation and
    /// profiles, else the newest version.
    pub(crate) fn choose(&self, installed_clang: Option<u32>, rustc: Option<u32>) -> AptVersions {
        let newest = |stem: &str, at_least: u32| self.versions(stem).rfind(|&version| version >= at_least);
        let preferred = |stem: &str, at_least: u32| {
            rustc
                .filter(|llvm| *llvm >= at_least && self.has(&format!("{stem}-{llvm}")))
                .or_else(|| newest(stem, at_least))
        };
        let clang = installed_clang.or_else(|| preferred("clang", CLANG_AT_LEAST));
        AptVersions {
            clang,
            libclang: clang
                .filter(|version| self.has(&format!("libclang1-{version}")))
                .or_else(|| newest("libclang1", LIBCLANG_AT_LEAST)),
            llvm: preferred("llvm", clang.unwrap_or(0)),
            bolt: clang
                .filter(|version| *version >= BOLT_AT_LEAST && self.has(&format!("bolt-{version}")))
                .or_else(|| newest("bolt", BOLT_AT_LEAST))
                // The version is a guess until the index is read. The package `bolt` without a version is a daemon
                // for Thunderbolt.
                .or_else(|| rustc.filter(|_| self.is_empty())),
            gcc: newest("g++", GCC_AT_LEAST),
            runtime: self.has(&format!("libclang-rt-{}-dev", clang.unwrap_or(0))),
            unknown: self.is_empty(),
        }
    }
}

/// Versions of apt's versioned packages to install.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AptVersions {
    clang: Option<u32>,
    libclang: Option<u32>,
    llvm: Option<u32>,
    bolt: Option<u32>,
    gcc: Option<u32>,
    /// True if clang's profile runtime is a separate package.
    runtime: bool,
    /// True if the index is empty; the plan then shows unversioned names.
    unknown: bool,
}

impl AptVersions {
    /// Returns a guess for an unread index: all packages of one LLVM.
    pub(crate) fn of_llvm(major: u32) -> Self {
        let all = Some(major);
        Self { clang: all, libclang: all, llvm: all, bolt: all, gcc: None, runtime: true, unknown: false }
    }

    fn packages(&self, requirement: Requirement) -> Option<Vec<String>> {
        use Requirement::*;
        let of = |stem: &str, version: Option<u32>| match version {
            Some(version) => Some(vec![format!("{stem}-{version}")]),
            None => self.unknown.then(|| vec![stem.to_string()]),
        };
        match requirement {
            Cmake => Some(words("cmake")),
            Ninja => Some(words("ninja-build")),
            Git => Some(words("git")),
            Openblas => Some(words("libopenblas-dev pkg-config")),
            // This flavour loads no OpenMP runtime, because ggml's own pool runs the other threads.
            Blis => Some(words("libblis-pthread-dev")),
            // MKL in Debian's non-free section is years old, so MKL comes from pip, like zig and CUDA.
            Mkl | Zig | Cuda | NewCuda => None,
            RustAarch64 => None,
            EmulatorAarch64 => Some(words("qemu-user libc6-arm64-cross")),
            Make => Some(words("make")),
            Openmp if self.unknown => Some(words("libomp-dev")),
            Openmp => self.clang.map(|version| vec![format!("libomp-{version}-dev")]),
            Pip => Some(words("python3-pip")),
            QemuUser => Some(words("qemu-user")),
            SystemCompiler => Some(words("gcc g++")),
            Curl => Some(words("curl")),
            Wget => Some(words("wget")),
            Zstd => Some(words("zstd")),
            Minisign => Some(words("minisign")),
            Dpkg => Some(words("dpkg")),
            Procps => Some(words("procps")),
            UtilLinux => Some(words("util-linux bsdutils mount")),
            Iproute => Some(words("iproute2")),
            Compiler if self.unknown => Some(words("g++")),
            // If the distribution's gcc is too old, clang compiles with gcc's C++ library.
            Compiler => {
                of("g++", self.gcc).or_else(|| Some([of("clang", self.clang)?, words("g++")].concat()))
            }
            Clang => of("clang", self.clang),
            Lld => of("lld", self.clang),
            Libclang if self.unknown => Some(words("libclang-dev")),
            // The library alone lacks the compiler's headers.
            Libclang => self.libclang.map(|version| {
                vec![format!("libclang1-{version}"), format!("libclang-common-{version}-dev")]
            }),
            Bolt => self.bolt.map(|version| vec![format!("bolt-{version}")]),
            LlvmTools => {
                let runtime =
                    self.clang.filter(|_| self.runtime).map(|version| format!("libclang-rt-{version}-dev"));
                of("llvm", self.llvm).map(|packages| packages.into_iter().chain(runtime).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Machine;

    #[test]
    fn the_distribution_names_its_manager() {
        // Content of os-release, programs on the path, and the manager.
        let cases: [(&str, &[&str], Option<Manager>); 10] = [
            ("ID=debian\n", &["apt-get"], Some(Manager::Apt)),
            ("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", &["apt-get", "dnf"], Some(Manager::Apt)),
            ("ID=fedora\n", &["apt-get", "dnf"], Some(Manager::Dnf)),
            ("ID=\"almalinux\"\nID_LIKE=\"rhel centos fedora\"\n", &["dnf"], Some(Manager::Dnf)),
            ("ID=endeavouros\nID_LIKE=arch\n", &["pacman"], Some(Manager::Pacman)),
            ("ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n", &["zypper"], Some(Manager::Zypper)),
            ("ID=alpine\n", &["apk"], Some(Manager::Apk)),
            ("", &["brew"], Some(Manager::Brew)),
            ("ID=debian\n", &["brew"], Some(Manager::Brew)),
            ("ID=nixos\n", &[], None),
        ];
        for (release, programs, expected) in cases {
            let machine = Machine::new();
            machine.file("etc/os-release", release);
            for program in programs {
                machine.tool(&format!("usr/bin/{program}"), "");
            }
            assert_eq!(Manager::detect(&machine.search()), expected, "{release:?} {programs:?}");
        }
    }

    #[test]
    fn apts_answers_are_read() {
        let index = AptIndex::parse(
            "clang-14 - C, C++ and Objective-C compiler\nlibclang-common-14-dev - headers\n\n",
            "cmake:\n  Installed: (none)\n  Candidate: 3.25.1-1\n  Version table:\n",
        );
        assert!(index.has("clang-14") && index.has("libclang-common-14-dev") && index.packages.len() == 2);
        assert_eq!(index.cmake, Some(Version::new(3, 25, 1)));
        assert_eq!(
            AptIndex::parse("", "cmake:\n  Candidate: 1:3.31.2-1\n").cmake,
            Some(Version::new(3, 31, 2))
        );
        assert_eq!(AptIndex::parse("", "cmake:\n  Candidate: (none)\n"), AptIndex::default());
    }

    #[test]
    fn clang_is_rustcs_llvm_or_the_newest() {
        // Offered versions, installed clang, rustc's LLVM, and the chosen clang and libclang.
        type Case<'a> = (&'a [u32], Option<u32>, Option<u32>, Option<u32>, Option<u32>);
        let cases: [Case; 7] = [
            (&[13, 14, 19, 22], None, Some(22), Some(22), Some(22)),
            (&[14, 18, 20], None, Some(22), Some(20), Some(20)),
            (&[14, 18, 20, 23], None, Some(20), Some(20), Some(20)),
            (&[14, 15], None, Some(22), None, Some(15)),
            (&[14, 19, 22], Some(19), Some(22), Some(19), Some(19)),
            (&[14, 22], Some(20), Some(22), Some(20), Some(22)),
            (&[], None, Some(22), None, None),
        ];
        for (offered, installed, rustc, clang, libclang) in cases {
            let names =
                offered.iter().flat_map(|v| ["clang", "libclang1", "lld"].map(|stem| format!("{stem}-{v}")));
            let index = AptIndex { packages: names.collect(), cmake: None };
            let chosen = index.choose(installed, rustc);
            assert_eq!(
                (chosen.clang, chosen.libclang),
                (clang, libclang),
                "{offered:?} {installed:?} {rustc:?}"
            );
        }
    }
}
