//! Fetches and verifies llama.cpp's sources.
//!
//! A source tree is fetched from an [`Origin`], verified against a SHA-256 digest of the whole tree
//! ([`digest`](mod@digest)), patched with `patches/*.patch`, and only then renamed into the store:
//!
//! ```text
//! <root>/sources/crate-3f2a…/        first 12 digits of the digest over the origin's identity and the patches
//!     llama.cpp/                     the tree
//!     SHA256SUMS                     one line per file, after the patches
//!     source.json                    the fields of `Tree`
//! <root>/sources/downloads/          archives and git objects, so that a new patch needs no network
//! ```
//!
//! A reader sees either a complete tree or no tree, because each tree is prepared in a separate staging folder. If a
//! process is killed, the next process removes its staging folder.

pub mod digest;
mod fetch;
mod folder;
mod need;
mod origin;
mod other;
mod patch;
mod pins;
mod progress;
mod releases;
mod staging;
mod store;
mod tools;
mod tree;
mod trial;
mod workspace;

pub use need::{Need, PatchNeed};
pub use origin::Origin;
pub use other::OtherSource;
pub use patch::Patch;
pub use pins::{CratePin, GitPin, Pins, SdistPin};
pub use progress::FetchProgress;
pub use releases::{Release, ReleaseList};
pub use store::Store;
pub use tools::{SourceTool, Tools};
pub use tree::Tree;
pub use trial::{PatchFit, PatchTrial};
pub use workspace::{
    check, crate_manifest, ensure, patches, patches_dir, pins_file, root_for_build_script, workspace_pins,
};
