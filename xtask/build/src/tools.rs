//! What commands start from: the host, the tools, the llama.cpp sources.

mod cache;

use std::path::PathBuf;

use anyhow::Result;
use base::exit;
use build_info::Host;
use build_info::record::{self, Source};
use host::Detected;
use llama_source::{Origin, Store, Tree};
use toolchain::{SearchPath, Toolchain};

use crate::ui::Ui;
use crate::workspace::Workspace;
pub use cache::{Cache, Counts, Launcher};

/// Where llama.cpp comes from.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SourceArgs {
    /// Origin of the llama.cpp sources: crate, sdist, git or path:DIR
    #[arg(long, default_value = "crate", conflicts_with = "path")]
    origin: Origin,
    /// Take the sources from this folder: short for --origin path:DIR
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,
    /// Another commit than the pinned one, all 40 digits; with --origin git
    #[arg(long, value_name = "SHA1")]
    commit: Option<String>,
    /// Another repository than llama.cpp's own: a mirror or a clone; with --origin git
    #[arg(long, value_name = "URL")]
    git_url: Option<String>,
}

impl SourceArgs {
    /// The store, with the pins that were asked for.
    pub fn store(&self, workspace: &Workspace) -> Result<Store> {
        let mut store = Store::of_workspace(&workspace.anneal())?;
        if (self.commit.is_some() || self.git_url.is_some()) && self.origin != Origin::Git {
            return Err(exit::usage("--commit and --git-url go with --origin git"));
        }
        if let Some(commit) = &self.commit {
            store.pins = store.pins.with_commit(commit).map_err(|error| exit::usage(format!("{error:#}")))?;
        }
        if let Some(url) = &self.git_url {
            store.pins = store.pins.with_git_url(url);
        }
        Ok(store)
    }

    /// The origin, whichever way it was named.
    pub fn origin(&self) -> Origin {
        match &self.path {
            Some(path) => Origin::Path(path.clone()),
            None => self.origin.clone(),
        }
    }
}

/// This machine.
pub fn host(ui: &Ui) -> Host {
    detected(ui).host
}

/// The same with what was wrong with it, which is told.
pub fn detected(ui: &Ui) -> Detected {
    let detected = host::detect(&host::Root::live());
    for warning in &detected.warnings {
        ui.warn(warning);
    }
    detected
}

/// The tools of this machine. Those that were too slow to tell their version are told: without clang a build is
/// another one.
pub fn toolchain(workspace: &Workspace, ui: &Ui) -> Toolchain {
    let search = search(workspace);
    let toolchain = toolchain::discover(&search, Some(&workspace.tool_cache()));
    for program in &toolchain.silent {
        ui.warn(format!(
            "{} did not tell its version in {} s and is left out; the disk may be slow: run this again",
            program.display(),
            search.patience.as_secs()
        ));
    }
    toolchain
}

/// Where tools are looked for: the path, well-known places, and those that `setup` got from pip.
pub fn search(workspace: &Workspace) -> SearchPath {
    SearchPath::live(&workspace.anneal().join("tools"))
}

/// The sources, fetched if they are not there.
pub fn fetch(workspace: &Workspace, args: &SourceArgs, ui: &Ui) -> Result<Tree> {
    let progress = ui.progress("fetch");
    let tree = args.store(workspace)?.ensure(&args.origin(), &mut |line| progress.message(line));
    progress.finish();
    tree
}

/// What a plan is told of sources that need not be there: what is pinned, or the digest of a folder as it is now.
/// Nothing is fetched or copied.
pub fn pinned_source(workspace: &Workspace, args: &SourceArgs) -> Result<Source> {
    let origin = args.origin();
    let (version, digest) = args.store(workspace)?.expected(&origin)?;
    Ok(Source { origin: origin.name().to_string(), version, digest, patches: patches()? })
}

/// This workspace's patches, as a plan and a record name them.
pub fn patches() -> Result<Vec<record::Patch>> {
    let named = |patch: llama_source::Patch| record::Patch { name: patch.name, sha256: patch.digest };
    Ok(llama_source::patches()?.into_iter().map(named).collect())
}

/// What a plan is told of `tree`.
pub fn source_of(tree: &Tree) -> Result<Source> {
    Ok(Source {
        origin: tree.origin.name().to_string(),
        version: tree.version.clone(),
        digest: tree.digest.clone(),
        patches: patches()?,
    })
}
