//! What commands start from: the host, the tools, the llama.cpp sources.

use std::path::PathBuf;

use anyhow::Result;
use build_info::Host;
use build_info::record::Source;
use llama_source::{Origin, Store, Tree};
use toolchain::{SearchPath, Toolchain};

use crate::profile::Profile;
use crate::ui::Ui;
use crate::workspace::Workspace;

/// Where llama.cpp comes from.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SourceArgs {
    /// Origin of the llama.cpp sources: crate, sdist, git or path:DIR
    #[arg(long, default_value = "crate", conflicts_with = "path")]
    origin: Origin,
    /// Take the sources from this folder: short for --origin path:DIR
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,
}

impl SourceArgs {
    fn origin(&self) -> Origin {
        match &self.path {
            Some(path) => Origin::Path(path.clone()),
            None => self.origin.clone(),
        }
    }
}

/// This machine.
pub fn host(ui: &Ui) -> Host {
    let detected = host::detect(&host::Root::live());
    for warning in &detected.warnings {
        ui.warn(warning);
    }
    detected.host
}

/// The tools of this machine.
pub fn toolchain(workspace: &Workspace) -> Toolchain {
    let own = workspace.anneal().join("tools");
    toolchain::discover(&SearchPath::live(&own), Some(&workspace.tool_cache()))
}

/// The tools of this machine, with those installed that `profile` needs.
pub fn ready(workspace: &Workspace, _profile: &Profile, _yes: bool, _ui: &Ui) -> Result<Toolchain> {
    Ok(toolchain(workspace))
}

/// The sources, fetched if they are not there.
pub fn fetch(workspace: &Workspace, args: &SourceArgs, ui: &Ui) -> Result<Tree> {
    let progress = ui.progress("fetch");
    let tree = llama_source::ensure(&args.origin(), &workspace.anneal(), &mut |line| progress.message(line));
    progress.finish();
    tree
}

/// What a plan is told of sources that need not be there: what is pinned, so that a plan needs no network. A
/// folder, and a commit without a digest, have to be looked at.
pub fn pinned_source(workspace: &Workspace, args: &SourceArgs) -> Result<Source> {
    let store = Store::of_workspace(&workspace.anneal())?;
    let origin = args.origin();
    let (version, digest) = match &origin {
        Origin::Crate => (store.pins.krate.version, Some(store.pins.krate.digest)),
        Origin::Sdist => (store.pins.sdist.version, Some(store.pins.sdist.digest)),
        Origin::Git => (store.pins.git.commit, store.pins.git.digest),
        Origin::Path(_) => (String::new(), None),
    };
    match digest {
        Some(digest) => {
            Ok(Source { origin: origin.name().to_string(), version, digest, patches: llama_source::patch_names()? })
        }
        None => {
            let tree = llama_source::ensure(&origin, &workspace.anneal(), &mut |_| {})?;
            Ok(source_of(&tree))
        }
    }
}

/// What a plan is told of `tree`.
pub fn source_of(tree: &Tree) -> Source {
    Source {
        origin: tree.origin.name().to_string(),
        version: tree.version.clone(),
        digest: tree.digest.clone(),
        patches: tree.patches.clone(),
    }
}
