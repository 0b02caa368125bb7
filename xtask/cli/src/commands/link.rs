//! `link`

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use build::stages::{Build, CheckoutLock};
use build::ui::Ui;
use build::workspace::Workspace;
use build::{profile, tools};

/// Options of `link`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder of headers, libraries and link.json, as `prefix` of a build folder is
    prefix: PathBuf,
    /// Where the program shall be
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Name of the profile whose flags the Rust part is compiled with
    #[arg(short, long, default_value = "native")]
    profile: String,
    #[command(flatten)]
    source: tools::SourceArgs,
}

/// Links the engine with libraries that were made by hand. Nothing is tested, and no build changes.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    let profile = profile::load_with(&workspace.build_profiles(), &args.profile, &[])?;
    let prefix = std::fs::canonicalize(&args.prefix)
        .with_context(|| format!("there is no prefix at {}", args.prefix.display()))?;
    ensure!(
        prefix.join("link.json").is_file(),
        "{} holds no link.json: give a copy of a build folder's prefix, with other libraries in it",
        args.prefix.display()
    );
    let host = tools::host(ui);
    let _lock = CheckoutLock::take(&workspace)?;
    let toolchain = tools::toolchain(&workspace, ui);
    let tree = tools::fetch(&workspace, &args.source, ui)?;
    let plan = plan::plan(&host, &profile, &tools::source_of(&tree)?, &toolchain)?;
    let folder = workspace.anneal().join("link");
    Build::open(&folder, &workspace, ui, &host, &plan, &tree)?.link_with(&prefix, &args.out)?;
    ui.result(&serde_json::json!({ "program": args.out }), args.out.display())
}
