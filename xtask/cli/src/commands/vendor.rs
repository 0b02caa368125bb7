//! Command `vendor`.

mod status;

use anyhow::Result;
use build::stages::CheckoutLock;
use build::tools;
use build::ui::Ui;
use build::workspace::Workspace;

use build::setup;

/// Options of `vendor`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    source: tools::SourceArgs,
    /// Compare every unpacked file with the original
    #[arg(long)]
    check: bool,
    /// Install the tools for downloading (git, pip) without asking
    #[arg(short, long)]
    yes: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List the pinned version, newer versions, and the reason for each patch
    Status(status::Args),
}

/// Downloads the sources, or verifies them.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    if let Some(Command::Status(args)) = args.command {
        return status::run(args, ui);
    }
    let workspace = Workspace::find()?;
    args.source.store(&workspace)?;
    let _lock = CheckoutLock::take(&workspace)?;
    setup::ready_to_fetch(&workspace, &args.source, args.yes, ui)?;
    let tree = tools::fetch(&workspace, &args.source, ui)?;
    if args.check {
        llama_source::check(&tree)?;
        ui.done(
            "verified",
            format_args!(
                "{} files are unchanged since they were unpacked, digest {}",
                tree.origin, tree.patched_digest
            ),
        );
    }
    ui.result(
        &serde_json::json!({
            "path": tree.path,
            "origin": tree.origin.to_string(),
            "version": tree.version,
            "digest": tree.digest,
            "patched_digest": tree.patched_digest,
            "patches": tree.patches,
            "llama_version": tree.llama_version,
            "ggml_version": tree.ggml_version,
        }),
        format_args!(
            "{}\nllama.cpp {} (ggml {}), {} {}, digest {}, {} patches",
            tree.path.display(),
            tree.llama_version,
            tree.ggml_version,
            tree.origin,
            tree.version,
            tree.digest,
            tree.patches.len()
        ),
    )
}
