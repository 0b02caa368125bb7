//! The `bench build` command.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use build::compare::{Provenance, Ratio, median};
use build::process::{self, Log, Run};
use build::stages::{Build, CheckoutLock};
use build::ui::Ui;
use build::workspace::Workspace;
use build::{profile, tools};
use plan::Plan;
use serde::{Deserialize, Serialize};

/// Options of `bench build`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of a file in profiles/build
    #[arg(short, long, default_value = "native")]
    profile: String,
    /// Number of pairs of clean builds
    #[arg(long, default_value_t = 3)]
    pairs: usize,
    #[command(flatten)]
    source: tools::SourceArgs,
}

/// Result of `bench build`, with all samples.
#[derive(Debug, Serialize, Deserialize)]
pub struct BuildTimes {
    /// Date, command and machine of the measurement.
    #[serde(flatten)]
    pub provenance: Provenance,
    /// Name of the profile that was built.
    pub profile: String,
    /// Seconds of each build with xtask's stages.
    pub xtask_seconds: Vec<f64>,
    /// Seconds of each build with plain cmake and ninja.
    pub plain_seconds: Vec<f64>,
    /// Build time with xtask's stages divided by build time with plain cmake and ninja.
    pub ratio: Ratio,
}

/// Builds llama.cpp from scratch, alternately with xtask's stages and with plain cmake and ninja. Both kinds of
/// builds use the same definitions.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    process::begins_anew();
    let workspace = Workspace::find()?;
    let profile = profile::load(&workspace.build_profiles(), &args.profile)?;
    args.source.store(&workspace)?;
    let _lock = CheckoutLock::take(&workspace)?;
    let host = tools::host(ui);
    let toolchain = tools::toolchain_for(&workspace, &profile, ui)?;
    let tree = tools::fetch(&workspace, &args.source, ui)?;
    let plan = plan::plan(&host, &profile, &tools::source_of(&tree)?, &toolchain)?;

    // A separate folder keeps the real build folders unchanged.
    let scratch = workspace.anneal().join("bench-build");
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for pair in 0..args.pairs.max(1) {
        let mut order = [true, false];
        if pair % 2 == 1 {
            order.reverse();
        }
        for by_stages in order {
            let _ = std::fs::remove_dir_all(&scratch);
            std::fs::create_dir_all(&scratch)
                .with_context(|| format!("cannot create {}", scratch.display()))?;
            let started = Instant::now();
            if by_stages {
                Build::open(&scratch, &workspace, ui, &host, &plan, &tree)?.compile_only()?;
                ours.push(started.elapsed().as_secs_f64());
            } else {
                plain(&plan, &tree.path, &scratch)?;
                theirs.push(started.elapsed().as_secs_f64());
            }
        }
    }
    let _ = std::fs::remove_dir_all(&scratch);
    let command = format!("cargo xtask bench build --profile {} --pairs {}", args.profile, args.pairs);
    let times = BuildTimes {
        provenance: Provenance::now(&host, command),
        profile: plan.profile,
        ratio: measure::ratio(&ours, &theirs),
        xtask_seconds: ours,
        plain_seconds: theirs,
    };
    let text = format!(
        "xtask {:.1} s, plain cmake and ninja {:.1} s, ratio {}",
        median(&times.xtask_seconds),
        median(&times.plain_seconds),
        times.ratio.with_pairs()
    );
    ui.result(&times, text)
}

/// Builds with the cmake and ninja commands that a user would type.
fn plain(plan: &Plan, source: &Path, scratch: &Path) -> Result<()> {
    let tree = scratch.join("plain");
    let log = Log::new(scratch.join("plain.log"), false);
    Run::new(&plan.cmake.path, &log)
        .args(["-G", "Ninja", "-S"])
        .args([source])
        .args(["-B"])
        .args([&tree])
        .args(plan.cmake_flags())
        .envs(&plan.environment)
        .watch(|_, _| {})?;
    Run::new(&plan.ninja.path, &log)
        .args(["-C"])
        .args([&tree])
        .args(&plan.targets)
        .envs(&plan.environment)
        .watch(|_, _| {})
}
