//! Command `setup`.

use anyhow::{Result, bail};
use build::profile;
use build::setup::{describe, describe_optional, ensure, needs, needs_of_tests, optional};
use build::tools;
use build::ui::Ui;
use build::workspace::Workspace;
use serde::Serialize;
use toolchain::Toolchain;
use toolchain::setup::{Requirement, SetupOutcome, SetupPlan, examine, list};

/// Options of `setup`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Install the tools for this build profile
    #[arg(short, long, default_value = "native")]
    profile: String,
    /// Also install the CUDA toolkit into this checkout (nvcc, the runtime and cuBLAS; 1.1 GB)
    #[arg(long)]
    cuda: bool,
    /// Also install the tools for `cargo xtask test`
    #[arg(long)]
    tests: bool,
    /// Install without asking
    #[arg(short, long)]
    yes: bool,
    /// Print the commands without running them
    #[arg(long)]
    dry_run: bool,
}

/// Output of `setup --json`.
#[derive(Serialize)]
struct SetupJson<'a> {
    ready: bool,
    toolchain: &'a Toolchain,
}

/// Output of `setup --dry-run --json`.
#[derive(Serialize)]
struct DryRun {
    #[serde(flatten)]
    plan: SetupPlan,
    /// Missing tools for `pgo` and `bolt`. `setup` does not install these tools; `pgo` and `bolt` offer to install
    /// them.
    optional: SetupPlan,
}

/// Installs the tools that a profile needs.
///
/// # Errors
/// If a tool that could be installed is still missing.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    let mut needs = needs(&profile::load(&workspace.build_profiles(), &args.profile)?);
    if args.cuda {
        needs.required.push(Requirement::NewCuda);
    }
    if args.tests {
        let tests = needs_of_tests();
        needs.required.extend(tests.required);
        needs.recommended.extend(tests.recommended);
    }
    if args.dry_run {
        let toolchain = tools::toolchain(&workspace, ui);
        let plan = examine(&needs, &toolchain, &tools::search(&workspace));
        let optional = optional(&workspace, &toolchain, &plan);
        let text = [describe(&plan), describe_optional(&optional)].join("\n");
        return ui.result(&DryRun { plan, optional }, text);
    }
    let (toolchain, outcome) = ensure(&workspace, &needs, args.yes, ui)?;
    if let SetupOutcome::WithoutRecommended { plan, declined: Some(why) } = &outcome {
        bail!("recommended tools are missing: {}; {}", list(&plan.recommended), why.advice(plan));
    }
    let text = match outcome {
        SetupOutcome::Ready => "all tools are installed",
        SetupOutcome::Installed => "all tools are installed now",
        SetupOutcome::WithoutRecommended { .. } => "all required tools are installed",
    };
    ui.result(&SetupJson { ready: true, toolchain: &toolchain }, text)
}
