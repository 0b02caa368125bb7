//! Installation of missing tools, for every command that needs tools.

use std::io::IsTerminal;

use anyhow::Result;
use base::exit;
use build_info::switches::Allocator;
use llama_source::SourceTool;
use plan::profile::{Blas, CompilerChoice, Gpu, Lto, Profile, Target, Threading};
use toolchain::Toolchain;
use toolchain::setup::{
    Consent, Console, Declined, InstallStep, Needs, Requirement, SetupError, SetupOutcome, SetupPlan,
    examine, list,
};

use crate::named_cpu;
use crate::process;
use crate::tools::{self, SourceArgs};
use crate::ui::{Progress, Ui, confirm};
use crate::workspace::Workspace;

/// Returns the tools that a build of `profile` needs.
pub fn needs(profile: &Profile) -> Needs {
    let mut needs = Needs::native();
    if matches!(profile.compiler, CompilerChoice::System | CompilerChoice::Gcc) {
        needs.recommended.clear();
    }
    if profile.compiler == CompilerChoice::Zig {
        needs.recommended.clear();
        needs.required.retain(|requirement| *requirement != Requirement::Compiler);
        needs.required.push(Requirement::Zig);
    }
    if profile.target == Target::Aarch64 && !cfg!(all(target_arch = "aarch64", target_os = "linux")) {
        // llvm-strip is one of the LLVM tools.
        let cross = [Requirement::EmulatorAarch64, Requirement::RustAarch64, Requirement::LlvmTools];
        needs.required.extend(cross);
    }
    if profile.threading == Threading::Openmp && profile.compiler == CompilerChoice::Best {
        needs.required.push(Requirement::Openmp);
    }
    if profile.lto != Lto::Off && profile.compiler == CompilerChoice::Best {
        needs.recommended.push(Requirement::LlvmTools);
    }
    if profile.switches.allocator == Allocator::Jemalloc {
        needs.required.push(Requirement::Make);
    }
    if profile.gpu == Gpu::Cuda {
        needs.required.push(Requirement::Cuda);
    }
    needs.required.extend(match profile.blas {
        Blas::Openblas => Some(Requirement::Openblas),
        Blas::OpenblasSource => Some(Requirement::Make),
        Blas::Blis => Some(Requirement::Blis),
        Blas::Mkl => Some(Requirement::Mkl),
        Blas::Off | Blas::Upstream => None,
    });
    needs
}

/// Returns a plan to install the tools that `pgo` and `bolt` need in addition to a build's tools, except the tools in
/// `plan`. Both commands offer to install these tools.
pub fn optional(workspace: &Workspace, toolchain: &Toolchain, plan: &SetupPlan) -> SetupPlan {
    examine(&optional_needs(plan), toolchain, &tools::search(workspace))
}

fn optional_needs(plan: &SetupPlan) -> Needs {
    let known = |requirement: &Requirement| {
        plan.missing.contains(requirement) || plan.recommended.contains(requirement)
    };
    let all = [Requirement::LlvmTools, Requirement::Bolt];
    let recommended = all.into_iter().filter(|requirement| !known(requirement)).collect();
    Needs { required: Vec::new(), recommended }
}

/// Returns the tools that the tests need. A test that needs a recommended tool is skipped, with a message, if the tool
/// is missing. [`needs_of_ci`] returns the tools for tests of other profiles and CPUs.
pub fn needs_of_tests() -> Needs {
    let mut needs = needs_of_program_tests();
    // The tests of the sources download with git and pip. Other tests build with make and with the system's
    // compilers.
    needs.required.extend([
        Requirement::Git,
        Requirement::Pip,
        Requirement::Make,
        Requirement::SystemCompiler,
    ]);
    // These tools are for the tests of PGO, of install.sh and of packages.
    needs.recommended.extend([
        Requirement::LlvmTools,
        Requirement::Wget,
        Requirement::Minisign,
        Requirement::Dpkg,
    ]);
    if cfg!(target_os = "linux") {
        needs.required.extend([Requirement::Curl, Requirement::Zstd]);
    }
    needs
}

/// Returns the tools that continuous integration needs: zig builds portable and universal, and an emulator of other
/// CPUs tests their CPU guards.
pub fn needs_of_ci() -> Needs {
    let mut needs = needs_of_tests();
    needs.required.push(Requirement::Zig);
    if cfg!(target_os = "linux") {
        needs.recommended.push(Requirement::Bolt);
    }
    if cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        needs.required.push(Requirement::QemuUser);
    }
    needs
}

/// Returns the tools that the tests of the engine and of the program need: the tools of a native build, and small
/// system programs that minimal installations lack.
pub fn needs_of_program_tests() -> Needs {
    let mut needs = Needs::native();
    if cfg!(target_os = "linux") {
        needs.required.extend([Requirement::Procps, Requirement::UtilLinux]);
        needs.recommended.push(Requirement::Iproute);
    }
    needs
}

/// Installs the missing tools of `needs`. Asks first on a terminal, unless `yes` is true.
///
/// # Errors
/// If a required tool is still missing, or the installation fails.
pub fn ensure(workspace: &Workspace, needs: &Needs, yes: bool, ui: &Ui) -> Result<(Toolchain, SetupOutcome)> {
    let mut toolchain = tools::toolchain(workspace, ui);
    let cuda = needs.required.iter().any(|needed| matches!(needed, Requirement::Cuda | Requirement::NewCuda));
    // A user who specifies a toolkit expects it to be used. If another toolkit is used, the plan says so.
    if let Some(home) = &toolchain.cuda_home
        && let Some(fault) = &home.fault
        && cuda
        && !toolchain.cuda.iter().any(toolchain::Cuda::is_whole)
    {
        ui.warn(format_args!(
            "{home} contains no CUDA toolkit: {fault}\nhint: set {0} to the folder that contains bin/nvcc, or \
             unset {0}",
            home.variable
        ));
    }
    let terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    let consent = match (yes, terminal) {
        (true, _) => Consent::Given,
        (false, true) => Consent::Ask,
        (false, false) => Consent::Withheld,
    };
    let mut talk = Talk { ui, progress: None };
    let cache = workspace.tool_cache();
    let outcome = toolchain::setup::ensure(
        needs,
        &mut toolchain,
        &tools::search(workspace),
        Some(&cache),
        consent,
        &mut talk,
    );
    talk.quiet();
    match outcome {
        Ok(outcome) => Ok((toolchain, outcome)),
        Err(error @ SetupError::Stopped { .. }) => Err(exit::interrupted(error.to_string())),
        Err(error) => Err(error.into()),
    }
}

/// Installs the missing tools for a build of `profile` from `source`, and returns all tools. On a terminal, also offers
/// to install recommended tools, which a build can do without.
///
/// # Errors
/// If a required tool is still missing.
pub fn ready(
    workspace: &Workspace,
    profile: &Profile,
    source: &SourceArgs,
    yes: bool,
    ui: &Ui,
) -> Result<Toolchain> {
    named_cpu::with(profile, ready_with(workspace, needs(profile), source, yes, ui)?)
}

/// Works like [`ready`], for a build that BOLT rewrites.
///
/// # Errors
/// The errors of [`ready`].
pub fn ready_for_bolt(
    workspace: &Workspace,
    profile: &Profile,
    source: &SourceArgs,
    yes: bool,
    ui: &Ui,
) -> Result<Toolchain> {
    let mut needs = needs(profile);
    needs.required.push(Requirement::Bolt);
    named_cpu::with(profile, ready_with(workspace, needs, source, yes, ui)?)
}

/// Works like [`ready`], for a build that collects or uses profiles.
///
/// # Errors
/// The errors of [`ready`].
pub fn ready_for_pgo(
    workspace: &Workspace,
    profile: &Profile,
    source: &SourceArgs,
    bolt: bool,
    yes: bool,
    ui: &Ui,
) -> Result<Toolchain> {
    let mut needs = needs(profile);
    needs.recommended.push(Requirement::LlvmTools);
    if bolt {
        needs.required.push(Requirement::Bolt);
    }
    named_cpu::with(profile, ready_with(workspace, needs, source, yes, ui)?)
}

fn ready_with(
    workspace: &Workspace,
    mut needs: Needs,
    source: &SourceArgs,
    yes: bool,
    ui: &Ui,
) -> Result<Toolchain> {
    needs.required.extend(needs_of(source, workspace)?);
    let (toolchain, outcome) = ensure(workspace, &needs, yes, ui)?;
    if let SetupOutcome::WithoutRecommended {
        plan,
        declined: Some(Declined::NobodyToAsk | Declined::NoRights),
    } = outcome
    {
        ui.warn(format_args!(
            "recommended, but missing: {}\nhint: to install what is missing, run\n  {}",
            list(&plan.recommended),
            plan.command_line()
        ));
    }
    Ok(toolchain)
}

/// Installs the missing programs that download `source`, as [`ready`] does for a build.
///
/// # Errors
/// If a required program is still missing.
pub fn ready_to_fetch(workspace: &Workspace, source: &SourceArgs, yes: bool, ui: &Ui) -> Result<()> {
    let required = needs_of(source, workspace)?;
    // Detecting tools takes time, so it is skipped if nothing is needed.
    if required.is_empty() {
        return Ok(());
    }
    ensure(workspace, &Needs { required, recommended: Vec::new() }, yes, ui).map(drop)
}

/// Returns the programs that download `source`.
fn needs_of(source: &SourceArgs, workspace: &Workspace) -> Result<Vec<Requirement>> {
    let programs = source.store(workspace)?.programs(&source.origin())?;
    let requirement = |program| match program {
        SourceTool::Git => Requirement::Git,
        SourceTool::Pip => Requirement::Pip,
    };
    Ok(programs.into_iter().map(requirement).collect())
}

/// Describes the missing tools and the commands that install them.
pub fn describe(plan: &SetupPlan) -> String {
    let mut lines = Vec::new();
    if !plan.missing.is_empty() {
        lines.push(format!("missing: {}", list(&plan.missing)));
    }
    if !plan.recommended.is_empty() {
        lines.push(format!("recommended: {}", list(&plan.recommended)));
    }
    lines.extend(plan.unavailable.iter().map(|(what, why)| format!("  {what}: {why}")));
    lines.extend(plan.steps.iter().map(|step| format!("  {step}")));
    if lines.is_empty() {
        lines.push("nothing is missing".to_string());
    }
    lines.join("\n")
}

/// Describes the missing tools for `pgo` and `bolt`, with their purposes and the commands that install them. Returns
/// an empty text if no tool is missing.
pub fn describe_optional(plan: &SetupPlan) -> String {
    let mut lines: Vec<String> = Vec::new();
    for requirement in &plan.recommended {
        let what_for = match requirement {
            Requirement::Bolt => "`cargo xtask bolt` and `pgo --bolt`",
            _ => "`cargo xtask pgo`",
        };
        lines.push(format!("optional, for {what_for}: {requirement}"));
    }
    lines.extend(plan.unavailable.iter().map(|(what, why)| format!("  {what}: {why}")));
    lines.extend(plan.steps.iter().map(|step| format!("  {step}")));
    lines.join("\n")
}

/// Terminal output of the installer.
struct Talk<'a> {
    ui: &'a Ui,
    progress: Option<Progress>,
}

impl Talk<'_> {
    fn quiet(&mut self) {
        if let Some(progress) = self.progress.take() {
            progress.finish();
        }
    }
}

impl Console for Talk<'_> {
    fn note(&mut self, text: &str) {
        self.quiet();
        self.ui.warn(text);
    }

    fn command(&mut self, step: &InstallStep) {
        self.quiet();
        self.ui.say(format_args!("$ {step}"));
        self.progress = Some(self.ui.progress("setup"));
    }

    fn output(&mut self, line: &str) {
        if self.ui.verbose() {
            self.ui.say(line);
        } else if let Some(progress) = &self.progress {
            progress.message(line);
        }
    }

    fn confirm(&mut self, plan: &SetupPlan) -> bool {
        confirm(&format!("{}\nInstall?", describe(plan)))
    }

    fn stopped(&self) -> bool {
        process::interrupted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pgo_and_bolt_lack_is_named_once_and_with_its_purpose() {
        let bare = SetupPlan::default();
        assert_eq!(optional_needs(&bare).recommended, [Requirement::LlvmTools, Requirement::Bolt]);
        assert!(optional_needs(&bare).required.is_empty());
        let of_lto = SetupPlan { recommended: vec![Requirement::LlvmTools], ..SetupPlan::default() };
        assert_eq!(optional_needs(&of_lto).recommended, [Requirement::Bolt]);

        assert_eq!(describe_optional(&bare), "");
        let lacking = SetupPlan {
            recommended: vec![Requirement::LlvmTools, Requirement::Bolt],
            unavailable: vec![(Requirement::Bolt, "dnf has no package for it".to_string())],
            ..SetupPlan::default()
        };
        let text = describe_optional(&lacking);
        assert!(text.starts_with("optional, for `cargo xtask pgo`: llvm-profdata"), "{text}");
        assert!(text.contains("optional, for `cargo xtask bolt` and `pgo --bolt`: llvm-bolt 20"), "{text}");
        assert!(text.ends_with("dnf has no package for it"), "{text}");
    }
}
