//! `plan`

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use build_info::Host;
use plan::{Plan, reference_toolchain};
use serde::Serialize;
use serde::de::DeserializeOwned;
use toolchain::Toolchain;

use super::build::SetArgs;
use crate::ui::Ui;
use crate::workspace::Workspace;
use crate::{openblas, profile, tools};

/// Options of `plan`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of a file in profiles/build
    #[arg(short, long, default_value = "native")]
    profile: String,
    #[command(flatten)]
    set: SetArgs,
    /// Plan for the machine in this file, as `cargo xtask detect` prints it
    #[arg(long, value_name = "FILE")]
    host: Option<PathBuf>,
    /// Plan with the tools in this file (as in fixtures/toolchains); with --host, by default, a Debian 12 with clang 22
    #[arg(long, value_name = "FILE")]
    toolchain: Option<PathBuf>,
    #[command(flatten)]
    source: tools::SourceArgs,
}

/// A plan and its hash.
#[derive(Serialize)]
struct Planned<'a> {
    hash: build_info::Sha256,
    #[serde(flatten)]
    plan: &'a Plan,
    notes: &'a [String],
}

/// Prints what a build would do.
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
        (None, None) => tools::toolchain(&workspace, ui),
    };
    openblas::announce(&workspace, &profile, &host, &Default::default(), &mut toolchain)?;
    let source = tools::pinned_source(&workspace, &args.source)?;
    let plan = plan::plan(&host, &profile, &source, &toolchain)?;
    let planned = Planned { hash: plan.hash(), plan: &plan, notes: &plan.notes };
    ui.result(&planned, &plan)
}

/// What `--host` takes, and how to make one.
const HOST_FILE: &str = "a description of a machine: run `cargo xtask detect > host.json` on that machine and \
                         give host.json, or take one of fixtures/hosts";

/// What `--toolchain` takes, and where there is one to begin with.
const TOOLCHAIN_FILE: &str = "a list of tools: copy one of fixtures/toolchains and change it";

/// Reads a description of a machine, which somebody may have written by hand.
pub fn read_host(path: &Path) -> Result<Host> {
    let host: Host = read_json(path, HOST_FILE)?;
    host.checked().with_context(|| format!("{} is not {HOST_FILE}", path.display()))
}

/// Reads `path`, which should be `what`.
pub fn read_json<T: DeserializeOwned>(path: &Path, what: &str) -> Result<T> {
    let text = crate::fs::content(path)
        .with_context(|| format!("cannot read {}, which should be {what}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is not {what}", path.display()))
}
