//! A build becomes archives: the same files give the same bytes, on any machine.

mod ar;
mod deb;
mod index;
mod licences;
mod place;
mod plain;
mod readme;
mod tarball;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use build_info::{Bytes, Sha256};

use crate::order::{Archive, Item, Pack, Packed};
use crate::{files, interrupt, name, sbom, sums};
use tarball::Packing;

pub use place::place;
pub use plain::plain;

/// The bill of materials in an archive.
const SBOM: &str = "sbom.cdx.json";

/// Where documents lie in an archive.
const DOCUMENTS: &str = "share/doc/anneal";

/// What an archive holds: contents by name, so sorted.
type Members = BTreeMap<String, Member>;

/// One file of an archive.
struct Member {
    content: Content,
    size: u64,
    sha256: Sha256,
    executable: bool,
}

/// Where the bytes of a member are.
enum Content {
    /// In a file.
    Of(PathBuf),
    /// Made here.
    Made(Vec<u8>),
}

impl Member {
    fn made(content: Vec<u8>) -> Result<Self> {
        let (size, sha256) = files::digest_of(content.as_slice())?;
        Ok(Self { content: Content::Made(content), size, sha256, executable: false })
    }

    fn of(path: &Path, executable: bool) -> Result<Self> {
        let kind = std::fs::symlink_metadata(path)
            .with_context(|| format!("cannot pack {}", path.display()))?
            .file_type();
        if !kind.is_file() {
            bail!("cannot pack {}: it is no regular file, and an archive holds nothing else", path.display());
        }
        let (size, sha256) = files::digest(path)?;
        Ok(Self { content: Content::Of(path.to_path_buf()), size, sha256, executable })
    }
}

/// Makes the archives of a build.
pub fn pack(order: &Pack) -> Result<Packed> {
    name::check_version(&order.name)?;
    std::fs::create_dir_all(&order.out).with_context(|| format!("cannot make {}", order.out.display()))?;
    let mut members = given(&order.files)?;
    let readme = Member::made(readme::text(order).into_bytes())?;
    add(&mut members, &format!("{DOCUMENTS}/README.md"), readme)?;
    let crates = order.parts.rust.as_ref().map(|rust| sbom::described(rust, &order.target)).transpose()?;
    let crates = crates.unwrap_or_default();
    let bill = sbom::bill(order, &crates)?;
    add(&mut members, SBOM, Member::made(bill)?)?;
    let without_licence_file = licences::collect(&order.parts, &crates, &mut members)?;
    let list: BTreeMap<String, Sha256> =
        members.iter().map(|(name, member)| (name.clone(), member.sha256.clone())).collect();
    add(&mut members, sums::LIST, Member::made(sums::text(&list).into_bytes())?)?;

    let mut archives = Vec::new();
    let kinds = name::ENDINGS.iter().zip([Packing::Zstd(tarball::LEVEL), Packing::Gzip]);
    for (ending, packing) in kinds.take(if order.gz { 2 } else { 1 }) {
        interrupt::check()?;
        let path = order.out.join(format!("{}{ending}", order.name));
        files::write_beside(&path, |file| tarball::write(&members, &order.name, order.mtime, packing, file))?;
        archives.push(finished(&path)?);
    }
    if let Some(debian) = &order.deb {
        let path = order.out.join(deb::file_name(order)?);
        files::write_beside(&path, |file| deb::write(&members, order, debian, file))?;
        archives.push(finished(&path)?);
    }
    Ok(Packed {
        archives,
        files: members.len(),
        unpacked: Bytes(members.values().map(|member| member.size).sum()),
        crates: crates.len(),
        without_licence_file,
    })
}

/// The files that were ordered.
fn given(items: &[Item]) -> Result<Members> {
    let mut members = Members::new();
    for item in items {
        add(&mut members, &item.to, Member::of(&item.from, item.executable)?)?;
    }
    for needed in ["bin/anneal", "build_info.json"] {
        ensure!(
            members.contains_key(needed),
            "an archive without {needed} is none: the order names no such file"
        );
    }
    Ok(members)
}

fn add(members: &mut Members, name: &str, member: Member) -> Result<()> {
    name::check_member(name)?;
    ensure!(members.insert(name.to_string(), member).is_none(), "{name} would be in the archive twice");
    Ok(())
}

/// Writes the sum of a finished file beside it.
fn finished(path: &Path) -> Result<Archive> {
    let (size, sha256) = files::digest(path)?;
    let own = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    files::replace(&sum_of(path), sums::text(&BTreeMap::from([(own, sha256.clone())])).as_bytes())?;
    Ok(Archive { path: path.to_path_buf(), size: Bytes(size), sha256 })
}

/// Where the sum of the archive `path` lies.
fn sum_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(".sha256");
    PathBuf::from(name)
}
