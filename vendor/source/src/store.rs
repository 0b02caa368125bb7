//! Store of source trees: one folder per tree, either complete or absent.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use sha256::Sha256;

use crate::digest::Listing;
use crate::fetch::{self, Fetched};
use crate::origin::Origin;
use crate::patch::{self, Patch};
use crate::pins::Pins;
use crate::progress::FetchProgress;
use crate::staging::StoreLock;
use crate::tools::{SourceTool, Tools};
use crate::tree::{self, TREE, Tree};

/// Location of the trees, and everything that determines their contents.
#[derive(Clone, Debug)]
pub struct Store {
    /// Folder whose subfolder `sources` contains the trees.
    pub root: PathBuf,
    /// Pinned sources of the origins.
    pub pins: Pins,
    /// Folder that contains the patches.
    pub patches: PathBuf,
    /// Manifest with which cargo fetches the crate. The matching Cargo.lock is in the same folder.
    pub crate_manifest: PathBuf,
    /// Programs that the fetchers run.
    pub tools: Tools,
}

/// Identity of a tree, which determines its folder in the store.
struct WantedTree {
    home: PathBuf,
    /// Required digest of the tree; `None` if the digest is unknown before the fetch.
    digest: Option<Sha256>,
    patches: Vec<Patch>,
}

impl Store {
    /// Returns the store under `root`, with the pins and patches of this workspace.
    ///
    /// # Errors
    /// If the pins cannot be read.
    pub fn of_workspace(root: &Path) -> Result<Self> {
        Ok(Self {
            root: root.to_path_buf(),
            pins: crate::workspace::workspace_pins()?,
            patches: crate::workspace::patches_dir(),
            crate_manifest: crate::workspace::crate_manifest(),
            tools: Tools::default(),
        })
    }

    /// Returns the tree of `origin` from the store. A missing tree is fetched, verified and patched first. See
    /// [`crate::workspace::ensure`].
    ///
    /// # Errors
    /// If the tree cannot be fetched, does not match its pin, or a patch does not apply.
    pub fn ensure(&self, origin: &Origin, progress: FetchProgress<'_>) -> Result<Tree> {
        let wanted = self.wanted(origin, progress)?;
        let sources = self.sources()?;
        if let Some(tree) = find(&wanted, origin) {
            StoreLock::sweep_if_idle(&sources);
            return Ok(tree);
        }
        let lock = StoreLock::acquire(&sources, progress)?;
        // Another process may have created the tree during the wait.
        if let Some(tree) = find(&wanted, origin) {
            return Ok(tree);
        }
        self.make(origin, &wanted, &lock, progress)
    }

    /// Returns the programs besides cargo that [`ensure`](Self::ensure) would run now. The list is empty if the tree
    /// exists.
    ///
    /// # Errors
    /// If the store or its patches cannot be read.
    pub fn programs(&self, origin: &Origin) -> Result<Vec<SourceTool>> {
        let patched = !patch::load(&self.patches)?.is_empty();
        // The origins `crate` and `path` need no program, and looking for an existing tree would hash the whole
        // folder.
        if matches!(origin, Origin::Crate | Origin::Path(_)) && !patched {
            return Ok(Vec::new());
        }
        if find(&self.wanted(origin, &mut |_| {})?, origin).is_some() {
            return Ok(Vec::new());
        }
        let mut programs = Vec::new();
        if *origin == Origin::Sdist && !fetch::sdist::kept(&self.pins.sdist, &self.sources()?).exists() {
            programs.push(SourceTool::Pip);
        }
        if *origin == Origin::Git || patched {
            programs.push(SourceTool::Git);
        }
        Ok(programs)
    }

    /// Returns the version and the tree digest, before the patches, that [`ensure`](Self::ensure) would return.
    /// Nothing is fetched or copied.
    ///
    /// # Errors
    /// If the digest of a commit is unknown before the fetch, or a folder is not a llama.cpp tree.
    pub fn expected(&self, origin: &Origin) -> Result<(String, Sha256)> {
        let pins = &self.pins;
        Ok(match origin {
            Origin::Crate => (pins.krate.version.clone(), pins.krate.digest.clone()),
            Origin::Sdist => (pins.sdist.version.clone(), pins.sdist.digest.clone()),
            Origin::Path(dir) => {
                let digest = fetch::path::digest(dir, &self.root, &mut |_| {})?;
                (tree_version(&digest), digest)
            }
            Origin::Git => match &pins.git.digest {
                Some(digest) => (pins.git.commit.clone(), digest.clone()),
                None => match find(&self.wanted(origin, &mut |_| {})?, origin) {
                    Some(tree) => (tree.version, tree.digest),
                    None => bail!(
                        "the tree digest of commit {} is unknown until the commit is fetched\nhint: run `cargo xtask vendor` with the \
                         same options first",
                        pins.git.commit
                    ),
                },
            },
        })
    }

    /// Returns an absolute path, because tools run in other folders.
    fn sources(&self) -> Result<PathBuf> {
        let sources = self.root.join("sources");
        std::path::absolute(&sources).with_context(|| format!("cannot make {} absolute", sources.display()))
    }

    fn wanted(&self, origin: &Origin, progress: FetchProgress<'_>) -> Result<WantedTree> {
        let digest = match origin {
            Origin::Crate => Some(self.pins.krate.digest.clone()),
            Origin::Sdist => Some(self.pins.sdist.digest.clone()),
            Origin::Git => self.pins.git.digest.clone(),
            Origin::Path(dir) => Some(fetch::path::digest(dir, &self.root, progress)?),
        };
        let patches = patch::load(&self.patches)?;
        let mut identity = match &digest {
            Some(digest) => format!("tree {digest}\n"),
            None => format!("commit {}\n", self.pins.git.commit),
        };
        // A new version with the digest of another version must not find the other version's tree.
        match origin {
            Origin::Crate => identity += &format!("version {}\n", self.pins.krate.version),
            Origin::Sdist => identity += &format!("version {}\n", self.pins.sdist.version),
            Origin::Git | Origin::Path(_) => {}
        }
        for patch in &patches {
            identity += &format!("patch {} {}\n", patch.digest, patch.name);
        }
        let key = Sha256::of(identity);
        let home = self.sources()?.join(format!("{}-{}", origin.name(), key.short()));
        Ok(WantedTree { home, digest, patches })
    }

    /// Fetches, verifies, patches and publishes a tree.
    fn make(
        &self,
        origin: &Origin,
        wanted: &WantedTree,
        lock: &StoreLock,
        progress: FetchProgress<'_>,
    ) -> Result<Tree> {
        let staging = lock.staging()?;
        let prepared = staging.path().join("prepared");
        let path = prepared.join(TREE);
        let fetched = match origin {
            Origin::Crate => {
                fetch::krate::fetch(&self.pins.krate, &self.crate_manifest, &self.tools, &path, progress)
            }
            Origin::Sdist => fetch::sdist::fetch(
                &self.pins.sdist,
                &self.tools,
                &self.sources()?,
                &staging,
                &path,
                progress,
            ),
            Origin::Git => {
                fetch::git::fetch(&self.pins.git, &self.tools, &self.sources()?, &staging, &path, progress)
            }
            Origin::Path(dir) => fetch::path::fetch(dir, &path, progress),
        }?;

        progress("verifying the sources");
        let (llama_version, ggml_version) = tree::versions(&path)?;
        let mut listing = Listing::of(&path)?;
        let digest = listing.digest();
        if let Some(expected) = &wanted.digest {
            verify(&digest, expected, &fetched)?;
        }
        let (mut patches, mut left_out) = (Vec::new(), Vec::new());
        for patch in &wanted.patches {
            progress(&format!("applying {}", patch.name));
            match patch::apply(patch, &path, &listing, &self.tools, progress)? {
                Some(after) => {
                    listing = after;
                    patches.push(patch.name.clone());
                }
                None => left_out.push(patch.name.clone()),
            }
        }
        let mut tree = Tree {
            path,
            origin: origin.clone(),
            version: fetched.version.unwrap_or_else(|| tree_version(&digest)),
            build_commit: fetched.build_commit.unwrap_or_else(|| tree_version(&digest)),
            digest,
            patched_digest: listing.digest(),
            patches,
            left_out,
            llama_version,
            ggml_version,
        };
        tree.write(&prepared, &listing)?;
        staging.publish(&prepared, &wanted.home)?;
        tree.path = wanted.home.join(TREE);
        progress(&format!("llama.cpp {} is in {}", tree.llama_version, tree.path.display()));
        Ok(tree)
    }
}

/// Returns the version of a tree whose origin has no version.
fn tree_version(digest: &Sha256) -> String {
    format!("tree-{}", digest.short())
}

/// Returns the tree in the store if it exists.
fn find(wanted: &WantedTree, origin: &Origin) -> Option<Tree> {
    let tree = Tree::read(&wanted.home)?;
    let is_wanted = wanted.digest.as_ref().is_none_or(|digest| *digest == tree.digest)
        && tree.tried().into_iter().eq(wanted.patches.iter().map(|patch| patch.name.as_str()));
    // Two folders with the same files share a tree, so the origin may differ.
    is_wanted.then(|| Tree { origin: origin.clone(), ..tree })
}

fn verify(found: &Sha256, expected: &Sha256, fetched: &Fetched) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    bail!(
        "the sources from {} do not match their pin:\n    expected tree digest {expected}\n    found                {found}\n{}",
        fetched.from,
        fetched.mend
    )
}
