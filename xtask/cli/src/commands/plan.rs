//! Command `plan`.

use std::path::PathBuf;

use anyhow::Result;
use build::builds::SetArgs;
use build::described::{read_host, read_json};
use build::ui::Ui;
use build::workspace::Workspace;
use build::{openblas, profile, tools};
use build_info::Host;
use plan::{Missing, Plan, reference_toolchain};
use serde::Serialize;

/// Options of `plan`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of a profile in profiles/build
    #[arg(short, long, default_value = "native")]
    profile: String,
    #[command(flatten)]
    set: SetArgs,
    /// Plan for the machine described in this file, the output of `cargo xtask detect`
    #[arg(long, value_name = "FILE")]
    host: Option<PathBuf>,
    /// Plan with the tools listed in this file, such as a file in fixtures/toolchains [default with --host: Debian 12
    /// with clang 22]
    #[arg(long, value_name = "FILE")]
    toolchain: Option<PathBuf>,
    #[command(flatten)]
    source: tools::SourceArgs,
}

/// Plan with its hash.
#[derive(Serialize)]
struct HashedPlan<'a> {
    hash: build_info::Sha256,
    #[serde(flatten)]
    plan: &'a Plan,
    notes: &'a [String],
    /// Tools that were not found; the plan assumes that they exist.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    missing: &'a [Missing],
}

/// Prints the plan of a build, with missing tools marked.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    let profile = profile::load_with(&workspace.build_profiles(), &args.profile, &args.set.all())?;
    let host: Host = match &args.host {
        Some(path) => read_host(path)?,
        None => tools::host(ui),
    };
    let mut toolchain = match (&args.toolchain, &args.host) {
        (Some(path), _) => read_json(path, TOOLCHAIN_FILE)?,
        (None, Some(_)) => reference_toolchain(&host.arch)?,
        (None, None) => tools::toolchain_for(&workspace, &profile, ui)?,
    };
    openblas::announce(&workspace, &profile, &host, &Default::default(), &mut toolchain)?;
    let source = tools::pinned_source(&workspace, &args.source)?;
    let (plan, missing) = plan::plan_marked(&host, &profile, &source, &toolchain)?;
    let mut text = plan.to_string();
    for Missing { tool, version, found } in &missing {
        text += &match found {
            Some(found) => format!("  unusable   {tool} {found}: the plan assumes {version}\n"),
            None => format!("  missing    {tool}: the plan assumes {version}\n"),
        };
    }
    if !missing.is_empty() {
        text += &format!("hint: `cargo xtask setup --profile {}` installs missing tools\n", args.profile);
    }
    let planned = HashedPlan { hash: plan.hash(), plan: &plan, notes: &plan.notes, missing: &missing };
    ui.result(&planned, text)
}

/// Description of the file that `--toolchain` accepts, with an example to start from.
const TOOLCHAIN_FILE: &str = "a list of tools\nhint: copy a file from fixtures/toolchains and edit the copy";
