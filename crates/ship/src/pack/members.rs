//! Members of an archive.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use build_info::Sha256;

use crate::order::Item;
use install::{files, name};

/// Folder of documents in an archive.
pub(crate) const DOCUMENTS: &str = "share/doc/anneal";

/// Name of the bill of materials in an archive.
pub(crate) const SBOM: &str = "sbom.cdx.json";

/// Members of an archive, sorted by name.
pub(crate) type Members = BTreeMap<String, Member>;

/// Content of a member.
pub(crate) enum Content {
    /// Content of the file at this path.
    Of(PathBuf),
    /// Generated content.
    Made(Vec<u8>),
}

/// File in an archive.
pub(crate) struct Member {
    pub(crate) content: Content,
    pub(crate) size: u64,
    pub(crate) sha256: Sha256,
    pub(crate) executable: bool,
}

impl Member {
    pub(crate) fn made(content: Vec<u8>) -> Result<Self> {
        let (size, sha256) = files::digest_of(content.as_slice())?;
        Ok(Self { content: Content::Made(content), size, sha256, executable: false })
    }

    pub(crate) fn of(path: &Path, executable: bool) -> Result<Self> {
        let kind = std::fs::symlink_metadata(path)
            .with_context(|| format!("cannot pack {}", path.display()))?
            .file_type();
        if !kind.is_file() {
            bail!("cannot pack {}: it is not a regular file", path.display());
        }
        let (size, sha256) = files::digest(path)?;
        Ok(Self { content: Content::Of(path.to_path_buf()), size, sha256, executable })
    }
}

/// Returns the members for the files to pack.
///
/// # Errors
/// If a file cannot be read or a name is invalid.
pub(crate) fn given(items: &[Item]) -> Result<Members> {
    let mut members = Members::new();
    for item in items {
        add(&mut members, &item.to, Member::of(&item.from, item.executable)?)?;
    }
    for needed in ["bin/anneal", "build_info.json"] {
        ensure!(
            members.contains_key(needed),
            "cannot make the archive: the list of files to pack lacks {needed}"
        );
    }
    Ok(members)
}

pub(crate) fn add(members: &mut Members, name: &str, member: Member) -> Result<()> {
    name::check_member(name)?;
    ensure!(
        members.insert(name.to_string(), member).is_none(),
        "cannot make the archive: it would contain {name} twice"
    );
    Ok(())
}

/// Returns the path of the checksum file of the archive `path`.
pub(crate) fn sum_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(".sha256");
    PathBuf::from(name)
}
