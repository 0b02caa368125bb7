//! Packing of a build into archives. On any machine, equal files produce byte-identical archives.

mod ar;
mod deb;
mod downloads;
mod index;
mod licences;
mod members;
mod place;
mod plain;
mod readme;
mod tarball;
mod wheel;
mod zip;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use build_info::{Bytes, Sha256};
use install::{files, interrupt, name, sums};
use members::{DOCUMENTS, Member, SBOM, add, given, sum_of};
use tarball::Packing;

use crate::order::{Archive, Pack, Packed};
use crate::sbom;

pub use place::place;
pub use plain::plain;

/// Makes the archives of a build.
///
/// # Errors
/// If a file cannot be read or an archive cannot be written.
pub fn pack(order: &Pack) -> Result<Packed> {
    name::check_version(&order.name)?;
    std::fs::create_dir_all(&order.out).with_context(|| format!("cannot create {}", order.out.display()))?;
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
    if let Some(python) = &order.wheel {
        interrupt::check()?;
        let path = order.out.join(wheel::file_name(order, python)?);
        files::write_beside(&path, |file| wheel::write(&members, order, python, file))?;
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

/// Writes the checksum file of a finished archive next to the archive.
fn finished(path: &Path) -> Result<Archive> {
    let (size, sha256) = files::digest(path)?;
    let own = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    files::replace(&sum_of(path), sums::text(&BTreeMap::from([(own, sha256.clone())])).as_bytes())?;
    Ok(Archive { path: path.to_path_buf(), size: Bytes(size), sha256 })
}
