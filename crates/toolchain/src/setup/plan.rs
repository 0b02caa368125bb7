//! Plan of an installation, derived from facts. The plan is data, so it can be printed, tested and run.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::manager::{AptIndex, AptVersions, Manager};
use super::requirement::{self, Needs, Requirement};
use crate::tools::{AARCH64, CMAKE_AT_LEAST, Toolchain, ZIG};

mod cuda;
mod wheels;

/// SHA-256 of zig's wheels for x86-64 and aarch64; pip accepts no others.
const ZIG_WHEELS: [&str; 2] = [
    "ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54",
    "b7c5f02fccd40f89b999ee16a1f5ddced56e6182370f8affe494bcf8a28cf07e",
];

/// Rights of this process on the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rights {
    /// The process runs as root.
    Root,
    /// `sudo` gives root's rights, with or without a password.
    Sudo,
    /// The process is not root, and sudo is missing.
    #[default]
    None,
}

/// Ability of Python to install packages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Python {
    /// Path of the interpreter.
    pub path: PathBuf,
    /// True if `python -m pip` works.
    pub pip: bool,
    /// True if `python -m venv` works; Debian packages the required `ensurepip` separately.
    pub venv: bool,
}

/// Facts about the machine that a plan depends on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub manager: Option<Manager>,
    pub rights: Rights,
    /// Index of apt; empty on machines without apt.
    pub apt: AptIndex,
    /// True if the package lists are missing (pacman).
    pub no_lists: bool,
    /// True if this run has updated the package lists.
    pub refreshed: bool,
    pub python: Option<Python>,
    /// True if rustup is installed.
    pub rustup: bool,
    /// Folder for packages that only this checkout uses.
    pub own_tools: PathBuf,
}

impl Facts {
    pub(crate) fn pip(&self) -> bool {
        self.python.as_ref().is_some_and(|python| python.pip)
    }
}

/// Kind of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepKind {
    /// Updates package lists; the following steps are planned again afterwards.
    Refresh,
    /// Installs packages of the system.
    Install,
    /// Installs only into this checkout.
    Own,
}

/// Command of an installation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstallStep {
    /// Kind of the step.
    pub kind: StepKind,
    /// Words of the command, with `sudo` in front if it is needed.
    pub command: Vec<String>,
    /// Purpose of the step.
    pub why: String,
    /// True if only root may run the step.
    pub needs_root: bool,
    /// True if the build is possible without the step.
    pub optional: bool,
}

impl fmt::Display for InstallStep {
    /// Formats the command for a shell.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted: Vec<String> = self.command.iter().map(|word| base::shell_quote(word)).collect();
        f.write_str(&quoted.join(" "))
    }
}

/// Missing tools and the commands that install them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetupPlan {
    /// Missing tools that are required.
    pub missing: Vec<Requirement>,
    /// Missing tools that are recommended.
    pub recommended: Vec<Requirement>,
    /// Commands in the order in which they run.
    pub steps: Vec<InstallStep>,
    /// Requirements that no command can install, each with the reason.
    pub unavailable: Vec<(Requirement, String)>,
}

impl SetupPlan {
    /// True if nothing is missing.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.recommended.is_empty()
    }

    /// True if a step needs more than `rights`.
    pub(crate) fn lacks_rights(&self, rights: Rights) -> bool {
        rights == Rights::None && self.steps.iter().any(|step| step.needs_root)
    }

    /// Returns all commands as one line for a shell.
    pub fn command_line(&self) -> String {
        let commands: Vec<String> = self.steps.iter().map(InstallStep::to_string).collect();
        commands.join(" && ")
    }
}

/// Plans the installation of everything in `needs` that `toolchain` lacks.
pub(crate) fn plan(needs: &Needs, toolchain: &Toolchain, facts: &Facts) -> SetupPlan {
    let lacks = |requirement: &Requirement| requirement.is_missing(toolchain, facts.pip());
    let missing: Vec<Requirement> = needs.required.iter().copied().filter(lacks).collect();
    let recommended: Vec<Requirement> = needs.recommended.iter().copied().filter(lacks).collect();
    let mut plan = SetupPlan { missing, recommended, ..SetupPlan::default() };
    let mut planner = Planner::new(toolchain, facts);
    for requirement in plan.missing.clone() {
        planner.take(requirement, false);
    }
    for requirement in plan.recommended.clone() {
        // Only clang uses lld.
        let useless = requirement == Requirement::Lld
            && requirement::clang(toolchain).is_none()
            && planner.unavailable.iter().any(|(other, _)| *other == Requirement::Clang);
        if !useless {
            planner.take(requirement, true);
        }
    }
    plan.steps = planner.steps();
    plan.unavailable = planner.unavailable;
    plan
}

struct Planner<'a> {
    facts: &'a Facts,
    versions: AptVersions,
    old_cmake: bool,
    required: Vec<String>,
    optional: Vec<String>,
    /// pip requirements to install as wheels.
    wheels: Vec<String>,
    /// True if pip must install MKL.
    mkl: bool,
    /// True if pip must install zig.
    zig: bool,
    /// True if pip must install the CUDA toolkit.
    cuda: bool,
    /// True if rustup must install a standard library for aarch64.
    rust_aarch64: bool,
    /// True if the machine's CPUs are x86-64.
    x86_64: bool,
    unavailable: Vec<(Requirement, String)>,
}

impl<'a> Planner<'a> {
    fn new(toolchain: &Toolchain, facts: &'a Facts) -> Self {
        let clang = requirement::clang(toolchain).map(|clang| clang.version.major);
        let rustc = toolchain.rustc.as_ref().map(|rustc| rustc.llvm.major);
        // If the manager's own version is too old, pip installs cmake.
        let old_cmake = match (facts.manager, facts.apt.cmake) {
            (Some(Manager::Apt), Some(candidate)) => candidate < CMAKE_AT_LEAST,
            _ => toolchain.cmake.is_some(),
        };
        Self {
            facts,
            versions: facts.apt.choose(clang, rustc),
            old_cmake,
            required: Vec::new(),
            optional: Vec::new(),
            wheels: Vec::new(),
            mkl: false,
            zig: false,
            cuda: false,
            rust_aarch64: false,
            x86_64: toolchain.rustc.as_ref().is_none_or(|rustc| rustc.host.starts_with("x86_64")),
            unavailable: Vec::new(),
        }
    }

    fn take(&mut self, requirement: Requirement, optional: bool) {
        if requirement == Requirement::Mkl {
            let ready = if self.x86_64 { self.pip_is_at_hand() } else { Err("it is only for x86-64".into()) };
            match ready {
                Ok(()) => self.mkl = true,
                Err(why) => self.unavailable.push((requirement, why)),
            }
            return;
        }
        if matches!(requirement, Requirement::Zig | Requirement::Cuda | Requirement::NewCuda) {
            match self.pip_is_at_hand() {
                Ok(()) if requirement == Requirement::Zig => self.zig = true,
                Ok(()) => self.cuda = true,
                Err(why) => self.unavailable.push((requirement, why)),
            }
            return;
        }
        if requirement == Requirement::RustAarch64 {
            match self.facts.rustup {
                true => self.rust_aarch64 = true,
                false => self.unavailable.push((
                    requirement,
                    format!(
                        "it is installed with rustup, which is missing: install rust-std for {AARCH64}, in \
                         the same version as rustc"
                    ),
                )),
            }
            return;
        }
        let wheel = match requirement {
            Requirement::Cmake if self.old_cmake || self.facts.manager.is_none() => Some(wheels::cmake()),
            Requirement::Ninja if self.facts.manager.is_none() => Some(wheels::ninja()),
            _ => None,
        };
        if let Some(wheel) = wheel {
            match self.pip_is_at_hand() {
                Ok(()) => self.wheels.push(wheel),
                Err(why) => self.unavailable.push((requirement, why)),
            }
            return;
        }
        let Some(manager) = self.facts.manager else {
            let why = "no package manager (apt, dnf, pacman, zypper, apk, brew) is on the PATH: install \
                       the tool manually";
            return self.unavailable.push((requirement, why.to_string()));
        };
        match manager.packages(requirement, &self.versions) {
            Some(packages) => self.add(packages, optional),
            None => self.unavailable.push((requirement, format!("{manager} has no package for it"))),
        }
    }

    fn add(&mut self, packages: Vec<String>, optional: bool) {
        for package in packages {
            if !self.required.contains(&package) && !self.optional.contains(&package) {
                if optional { &mut self.optional } else { &mut self.required }.push(package);
            }
        }
    }

    /// Adds the steps that make pip available, or returns the reason why pip is unavailable.
    fn pip_is_at_hand(&mut self) -> Result<(), String> {
        if self.facts.python.as_ref().is_some_and(|python| python.pip || python.venv) {
            return Ok(());
        }
        let packages =
            self.facts.manager.and_then(|manager| manager.packages(Requirement::Pip, &self.versions));
        match packages {
            Some(packages) => {
                self.add(packages, false);
                Ok(())
            }
            None => {
                Err("it is installed with pip, but pip is missing and no package manager provides it".into())
            }
        }
    }

    fn steps(&self) -> Vec<InstallStep> {
        let mut steps = Vec::new();
        if let Some(manager) = self.facts.manager {
            let any = !self.required.is_empty() || !self.optional.is_empty();
            if any
                && !self.facts.refreshed
                && let Some(command) = manager.refresh(self.facts.no_lists)
            {
                steps.push(self.as_root(
                    StepKind::Refresh,
                    command,
                    "update the package lists",
                    self.required.is_empty(),
                ));
            }
            let why = "required for the build";
            steps.extend(self.install(manager, &self.required, why, false));
            steps.extend(self.install(manager, &self.optional, "recommended for speed", true));
        }
        steps.extend(self.pip());
        steps.extend(self.rust_aarch64.then(|| InstallStep {
            kind: StepKind::Install,
            command: ["rustup", "target", "add", AARCH64].map(str::to_string).to_vec(),
            why: "standard library for Rust programs on aarch64".to_string(),
            needs_root: false,
            optional: false,
        }));
        steps
    }

    fn install(
        &self,
        manager: Manager,
        packages: &[String],
        why: &str,
        optional: bool,
    ) -> Option<InstallStep> {
        (!packages.is_empty())
            .then(|| self.as_root(StepKind::Install, manager.install(packages), why, optional))
    }

    fn as_root(&self, kind: StepKind, mut command: Vec<String>, why: &str, optional: bool) -> InstallStep {
        let needs_root = self.facts.manager.is_some_and(Manager::needs_root);
        if needs_root && self.facts.rights == Rights::Sudo {
            command.insert(0, "sudo".to_string());
        }
        InstallStep { kind, command, why: why.to_string(), needs_root, optional }
    }

    /// Returns the steps that install cmake, ninja, zig, CUDA and MKL as wheels into folders of the checkout. The
    /// user's Python is not changed. The steps need no virtual environment, because Debian's Python could only create
    /// one with another package.
    fn pip(&self) -> Vec<InstallStep> {
        if self.wheels.is_empty() && !self.mkl && !self.zig && !self.cuda {
            return Vec::new();
        }
        let own = |command: Vec<String>, why: &str| InstallStep {
            kind: StepKind::Own,
            command,
            why: why.to_string(),
            needs_root: false,
            optional: false,
        };
        let python = self.facts.python.as_ref();
        let mut steps = Vec::new();
        let interpreter = match python {
            Some(python) if !python.pip && python.venv => {
                let venv = self.facts.own_tools.join("venv");
                let make = [text(&python.path), "-m".into(), "venv".into(), text(&venv)].to_vec();
                steps.push(own(make, "pip, only for this checkout"));
                text(&venv.join("bin/python"))
            }
            Some(python) => text(&python.path),
            None => "python3".to_string(),
        };
        // pip reads hashes only from a requirements file. With --no-deps, pip installs no package without a hash as a
        // dependency.
        let pinned = |requirements: &[String], options: &str, folder: &str, why: &str| {
            let mut command = vec![interpreter.clone()];
            let common = "-m pip install --disable-pip-version-check --only-binary=:all: --require-hashes --no-deps \
                          -r /dev/stdin";
            command.extend(common.split(' ').chain(options.split(' ')).map(str::to_string));
            command.push(text(&self.facts.own_tools.join(folder)));
            let install: Vec<String> = command.iter().map(|word| base::shell_quote(word)).collect();
            let lines: Vec<String> = requirements.iter().map(|line| base::shell_quote(line)).collect();
            let command = format!("printf '%s\\n' {} | {}", lines.join(" "), install.join(" "));
            own(["sh", "-c", &command].map(str::to_string).to_vec(), why)
        };
        let target = "--upgrade --target";
        if !self.wheels.is_empty() {
            let why = "newer than the system's, only for this checkout";
            steps.push(pinned(&self.wheels, target, "packages", why));
        }
        if self.zig {
            let requirement = wheels::pin("ziglang", &ZIG.to_string(), &ZIG_WHEELS);
            steps.push(pinned(
                &[requirement],
                target,
                "packages",
                "compiles for other machines, only for this checkout",
            ));
        }
        if self.cuda {
            steps.push(pinned(
                &cuda::requirements(),
                target,
                "cuda",
                "NVIDIA's CUDA toolkit under its own licence, only for this checkout",
            ));
        }
        if self.mkl {
            // --prefix is needed because with --target, pip omits the libraries, which these wheels contain as data
            // files.
            let options = "--ignore-installed --no-warn-script-location --prefix";
            steps.push(pinned(&wheels::mkl(), options, "mkl", "Intel's MKL, only for this checkout"));
        }
        steps
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests;
