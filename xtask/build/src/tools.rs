//! Prerequisites of commands: the host, the tools and the llama.cpp sources.

mod cache;
mod npm;
mod pinned;
mod pip;

use std::path::PathBuf;

use anyhow::Result;
use base::exit;
use build_info::Host;
use build_info::record::{self, Source};
use host::Detected;
use llama_source::{Origin, Store, Tree};
use plan::profile::Profile;
use toolchain::{SearchPath, Toolchain};

use crate::named_cpu;
use crate::ui::Ui;
use crate::workspace::Workspace;
pub use cache::{Cache, Counts, Launcher};
pub use npm::npm_tool;
pub use pip::pip_tool;

/// Options for the llama.cpp sources.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SourceArgs {
    /// Origin of the llama.cpp sources: crate, sdist, git or path:DIR
    #[arg(long, default_value = "crate", conflicts_with = "path")]
    origin: Origin,
    /// Use the sources in this folder; short for --origin path:DIR
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,
    /// Commit to use instead of the pinned one, all 40 digits; needs --origin git
    #[arg(long, value_name = "SHA1")]
    commit: Option<String>,
    /// Repository to use instead of llama.cpp's own, such as a mirror or a clone; needs --origin git
    #[arg(long, value_name = "URL")]
    git_url: Option<String>,
}

impl SourceArgs {
    /// Returns the store of sources with the requested pins.
    ///
    /// # Errors
    /// A usage error if options contradict each other.
    pub fn store(&self, workspace: &Workspace) -> Result<Store> {
        let mut store = Store::of_workspace(&workspace.anneal())?;
        if (self.commit.is_some() || self.git_url.is_some()) && self.origin != Origin::Git {
            return Err(exit::usage("--commit and --git-url need --origin git"));
        }
        if let Some(commit) = &self.commit {
            store.pins = store.pins.with_commit(commit).map_err(|error| exit::usage(format!("{error:#}")))?;
        }
        if let Some(url) = &self.git_url {
            store.pins = store.pins.with_git_url(url);
        }
        Ok(store)
    }

    /// Returns the origin, from either option.
    pub fn origin(&self) -> Origin {
        match &self.path {
            Some(path) => Origin::Path(path.clone()),
            None => self.origin.clone(),
        }
    }
}

/// Returns the description of this machine, after printing warnings.
pub fn host(ui: &Ui) -> Host {
    detected(ui).host
}

/// Returns the description of this machine and the problems found while detecting it, after printing the problems as
/// warnings.
pub fn detected(ui: &Ui) -> Detected {
    let detected = host::detect(&host::Root::live());
    for warning in &detected.warnings {
        ui.warn(warning);
    }
    detected
}

/// Returns the tools of this machine. Warns about tools that did not report their version in time, because a missing
/// tool, such as clang, would change the build.
pub fn toolchain(workspace: &Workspace, ui: &Ui) -> Toolchain {
    let search = search(workspace);
    let toolchain = toolchain::discover(&search, Some(&workspace.tool_cache()));
    for program in &toolchain.silent {
        ui.warn(format!(
            "{} did not print its version within {} s and is ignored\nhint: the disk may be slow; run the \
             command again",
            program.display(),
            search.patience.as_secs()
        ));
    }
    toolchain
}

/// Returns the tools of this machine, with the CPU that `profile` names, as its compilers describe it.
///
/// # Errors
/// If a compiler does not know the CPU.
pub fn toolchain_for(workspace: &Workspace, profile: &Profile, ui: &Ui) -> Result<Toolchain> {
    named_cpu::with(profile, toolchain(workspace, ui))
}

/// Returns the folders to search for tools: PATH, well-known folders, and the folder of tools that `setup`
/// installed with pip.
pub fn search(workspace: &Workspace) -> SearchPath {
    SearchPath::live(&workspace.anneal().join("tools"))
}

/// Returns the sources, after downloading them if they are missing.
///
/// # Errors
/// If the sources cannot be downloaded or verified.
pub fn fetch(workspace: &Workspace, args: &SourceArgs, ui: &Ui) -> Result<Tree> {
    let progress = ui.progress("fetch");
    let tree = args.store(workspace)?.ensure(&args.origin(), &mut |line| progress.message(line));
    progress.finish();
    tree
}

/// Returns the description of the sources for a plan: the pins, or the digest of a local folder's current content.
/// Downloads and copies nothing.
///
/// # Errors
/// If a pin or the folder cannot be read.
pub fn pinned_source(workspace: &Workspace, args: &SourceArgs) -> Result<Source> {
    let origin = args.origin();
    let (version, digest) = args.store(workspace)?.expected(&origin)?;
    Ok(Source { origin: origin.name().to_string(), version, digest, patches: patches()? })
}

/// Returns this workspace's patches as plans and records describe them.
///
/// # Errors
/// If a patch is invalid.
pub fn patches() -> Result<Vec<record::Patch>> {
    let named = |patch: llama_source::Patch| record::Patch { name: patch.name, sha256: patch.digest };
    Ok(llama_source::patches()?.into_iter().map(named).collect())
}

/// Returns the description of `tree` for a plan.
///
/// # Errors
/// If a patch is invalid.
pub fn source_of(tree: &Tree) -> Result<Source> {
    Ok(Source {
        origin: tree.origin.name().to_string(),
        version: tree.version.clone(),
        digest: tree.digest.clone(),
        patches: patches()?.into_iter().filter(|patch| tree.tried().contains(&patch.name.as_str())).collect(),
    })
}
