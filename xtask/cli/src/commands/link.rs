//! Command `link`.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use build::stages::{Build, CheckoutLock};
use build::ui::Ui;
use build::workspace::Workspace;
use build::{profile, tools};

/// Options of `link`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder with headers, libraries and link.json, laid out like `prefix` in a build folder
    prefix: PathBuf,
    /// Path of the program to write
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Profile that sets the compiler flags of the Rust part
    #[arg(short, long, default_value = "native")]
    profile: String,
    #[command(flatten)]
    source: tools::SourceArgs,
}

/// Links the engine with libraries that the user built. Runs no tests and changes no build.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    let profile = profile::load_with(&workspace.build_profiles(), &args.profile, &[])?;
    let prefix = std::fs::canonicalize(&args.prefix)
        .with_context(|| format!("cannot find the prefix {}", args.prefix.display()))?;
    ensure!(
        prefix.join("link.json").is_file(),
        "{} is not a prefix: it contains no link.json\nhint: copy the folder `prefix` of a build, put your \
         libraries into the copy, and pass its path",
        args.prefix.display()
    );
    build::overwrite_guard::check(&args.out, "not a program", |text| text.starts_with("\u{7f}ELF"))?;
    let host = tools::host(ui);
    let _lock = CheckoutLock::take(&workspace)?;
    let toolchain = tools::toolchain_for(&workspace, &profile, ui)?;
    let tree = tools::fetch(&workspace, &args.source, ui)?;
    let plan = plan::plan(&host, &profile, &tools::source_of(&tree)?, &toolchain)?;
    let folder = workspace.anneal().join("link");
    Build::open(&folder, &workspace, ui, &host, &plan, &tree)?.link_with(&prefix, &args.out)?;
    ui.result(&serde_json::json!({ "program": args.out }), args.out.display())
}
