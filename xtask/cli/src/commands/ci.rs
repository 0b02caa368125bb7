//! Command `ci`.

use anyhow::{Context, Result, bail};
use build::models::Maker;
use build::ui::Ui;
use build::workspace::Workspace;
use build_info::BuildInfo;
use xshell::{Shell, cmd};

use super::{docs, pgo, test};

/// Options of `ci`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Checks the formatting, builds `native`, lints, makes a build with PGO and BOLT, and runs all tests. Tests that
/// depend on kernels also run with llama.cpp's kernels.
pub fn run(_args: Args, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    let shell = Shell::new()?;
    shell.change_dir(workspace.root());
    cmd!(shell, "cargo fmt --all --check").run().context(
        "the code is not formatted, or rustfmt is missing (see above)\nhint: run `cargo fmt` or `rustup \
         component add rustfmt`",
    )?;

    build::make("native", true, ui)?;
    // Clippy compiles the engine, which needs the headers of libllama.
    let prefix = std::fs::canonicalize(workspace.current("native").join("prefix"))?;
    {
        let _prefix = shell.push_env("ANNEAL_LLAMA_PREFIX", prefix);
        let long = test::LONG;
        cmd!(shell, "cargo clippy --workspace --all-targets --features {long} --locked -- -D warnings")
            .run()
            .context(
                "clippy found a problem, or is missing (see above)\nhint: if it is missing, run `rustup \
                 component add clippy`",
            )?;
    }
    // Runs the whole chain: instrument, train, merge, rebuild, BOLT, gate and audit. A few pairs are enough, because
    // the speed of this build does not matter.
    let engine = workspace.current("native").join("bin/anneal");
    let maker = Maker { workspace: &workspace, engine: Some(&engine), ui };
    let tiny = maker.find_or_make(&"tiny/Q4_K_M".parse().map_err(anyhow::Error::msg)?)?;
    pgo::run(pgo::Args::whole_chain(tiny), ui)?;
    let made = BuildInfo::read(&workspace.current("native").join("build_info.json"))?;
    let whole = made.pgo.is_some() && made.bolt.is_some() && made.audit.is_some();
    if !whole || !made.gate.is_some_and(|gate| gate.passed) {
        bail!(
            "build_info.json of the PGO and BOLT build must record PGO, BOLT, a passed gate and an audit, but at \
             least one is missing"
        );
    }

    docs::run(docs::Args::unattended(), ui)?;
    test::run(test::Args::unattended(), ui)
}
