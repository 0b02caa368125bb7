//! Sources of archives: files, folders and URLs.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use base::exit;
use build_info::Sha256;

use crate::choose;
use crate::order::{Index, Install};
use crate::signature::TrustedKey;
use crate::{fetch, files, name, sums};

/// Maximum size of a `.sha256` file, which has one line.
const LARGEST_SUM: u64 = 1 << 16;

/// Maximum size of an index, enough for some thousand archives.
const LARGEST_INDEX: u64 = 1 << 20;

/// Version to install.
pub enum Source {
    /// Compressed archive.
    Archive(Archive),
    /// Folder that was unpacked by the user.
    Tree {
        /// Path of the folder.
        folder: PathBuf,
        /// Name of the version.
        name: String,
    },
}

/// Archive that passed all checks that do not require unpacking.
pub struct Archive {
    /// Name of the version.
    pub name: String,
    /// Handle of the checked file, kept open so that exactly the checked content is unpacked.
    pub file: File,
    /// Size of the file in bytes.
    pub size: u64,
    /// Digest of the checked content.
    pub sha256: Sha256,
}

/// Location of an archive that has not been read yet.
pub enum ArchiveLocation {
    /// File on this machine.
    Here(PathBuf),
    /// Unpacked folder on this machine.
    Tree(PathBuf),
    /// URL, and the digest from an index if an index lists the archive.
    There(String, Option<Sha256>),
}

/// Messages about the source for the user.
#[derive(Debug, Default)]
pub struct SourceNotes {
    /// Choices and the reasons for them.
    pub notes: Vec<String>,
    /// Warnings about risks.
    pub warnings: Vec<String>,
}

/// Finds the archive that `order` specifies. May download an index, but no archive.
///
/// # Errors
/// If there is no archive for this machine.
pub fn find(order: &Install, told: &mut SourceNotes) -> Result<ArchiveLocation> {
    let from = &order.from;
    if fetch::is_url(from) {
        if from.starts_with("http:") {
            told.warnings.push(format!(
                "{from} is not encrypted, so the archive and its checksum may be replaced in transit\nhint: use \
                 https or a minisign key"
            ));
        }
        if !from.ends_with('/') {
            return Ok(ArchiveLocation::There(from.clone(), None));
        }
        let url = format!("{from}index.json");
        let index: Index = serde_json::from_slice(&fetch::small(&url, LARGEST_INDEX)?)
            .with_context(|| format!("cannot parse {url}"))?;
        ensure!(
            index.schema <= 1,
            "cannot read {url}: a newer version of Anneal wrote it (version {} of the format)\nhint: use a newer \
             installer",
            index.schema
        );
        let chosen = choose::choose(index.archives.iter().map(|listed| listed.file.as_str()), from)?;
        told.notes.push(chosen.why);
        let listed = index.archives.iter().find(|listed| listed.file == chosen.file);
        return Ok(ArchiveLocation::There(
            format!("{from}{}", chosen.file),
            listed.map(|listed| listed.sha256.clone()),
        ));
    }
    if let Some((scheme, _)) = from.split_once("://") {
        return Err(exit::usage(format!("cannot install from {from}: {scheme} is neither http nor https")));
    }
    let path = std::path::absolute(from)?;
    let meta = std::fs::metadata(&path).with_context(|| {
        format!("cannot install from {}\nhint: check that the path exists", path.display())
    })?;
    if !meta.is_dir() {
        return Ok(ArchiveLocation::Here(path));
    }
    if path.join(sums::LIST).is_file() && path.join("bin/anneal").exists() {
        return Ok(ArchiveLocation::Tree(path));
    }
    if path.join("build_info.json").is_file() {
        return Err(exit::usage(format!(
            "{} is a build, not an archive\nhint: `cargo xtask dist` packs it with licences, checksums and man \
             pages",
            path.display()
        )));
    }
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&path).with_context(|| format!("cannot list {}", path.display()))? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    let chosen = choose::choose(names.iter().map(String::as_str), &path.display().to_string())?;
    told.notes.push(chosen.why);
    Ok(ArchiveLocation::Here(path.join(chosen.file)))
}

/// Returns the name of the version at `place`.
///
/// # Errors
/// If the file's name is not the name of an archive.
pub fn name_of(place: &ArchiveLocation) -> Result<String> {
    match place {
        ArchiveLocation::Here(path) => {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            name::of_archive(&file).map(str::to_string)
        }
        ArchiveLocation::There(url, _) => name::of_archive(fetch::file_name(url)?).map(str::to_string),
        ArchiveLocation::Tree(folder) => {
            let real = folder.canonicalize().with_context(|| format!("cannot find {}", folder.display()))?;
            let name = real.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name::check_version(&name)?;
            Ok(name)
        }
    }
}

/// Opens the archive at `place` and checks its checksum and signature. Downloads go to `scratch`.
///
/// # Errors
/// If the archive cannot be read or is refused.
pub fn open(
    place: &ArchiveLocation,
    order: &Install,
    key: Option<&TrustedKey>,
    scratch: Option<&Path>,
    told: &mut SourceNotes,
) -> Result<Source> {
    let name = name_of(place)?;
    match place {
        ArchiveLocation::Tree(folder) => {
            if let Some(key) = key {
                bail!(
                    "cannot install {}: the minisign key from {} is configured, but an unpacked folder has \
                     no signature\nhint: install the archive",
                    folder.display(),
                    key.from
                );
            }
            Ok(Source::Tree { folder: folder.clone(), name })
        }
        ArchiveLocation::Here(path) => {
            let file = files::open_regular(path)?;
            let expected = expected(order, None, told, &path.display().to_string(), || {
                let list = beside(path, ".sha256");
                match list.exists() {
                    true => {
                        let own = path.file_name().unwrap_or_default().to_string_lossy();
                        sums::beside(&files::read_small(&list, LARGEST_SUM)?, &list, &own).map(Some)
                    }
                    false => Ok(None),
                }
            })?;
            let signature = beside(path, ".minisig");
            let signed = key.map(|key| {
                let text = TrustedKey::read_signature(&signature).with_context(|| unsigned(path, key))?;
                Ok::<_, anyhow::Error>((key, text))
            });
            check(file, name, expected, signed.transpose()?, &signature)
        }
        ArchiveLocation::There(url, listed) => {
            let scratch = scratch.context("there is no folder to download to")?;
            let own = fetch::file_name(url)?;
            let expected = expected(order, listed.as_ref(), told, url, || {
                let list = format!("{url}.sha256");
                let text = fetch::small_if_there(&list, LARGEST_SUM)?;
                text.map(|text| sums::beside(&text, Path::new(&list), own)).transpose()
            })?;
            let signature = PathBuf::from(format!("{url}.minisig"));
            let signed = key.map(|key| {
                let text = fetch::small_if_there(&signature.to_string_lossy(), LARGEST_SUM)?;
                let text = text.ok_or_else(|| anyhow!(unsigned(Path::new(url), key)))?;
                Ok::<_, anyhow::Error>((key, text))
            });
            let signed = signed.transpose()?;
            let path = scratch.join(own);
            fetch::to_file(url, &path)?;
            check(files::open_regular(&path)?, name, expected, signed, &signature)
        }
    }
}

fn unsigned(archive: &Path, key: &TrustedKey) -> String {
    format!(
        "cannot install {}: the minisign key from {} is configured, but the archive has no signature file \
         (.minisig)",
        archive.display(),
        key.from
    )
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(ending);
    PathBuf::from(name)
}

/// Returns the digest that the archive must have: the digest in `order`, else the digest in the checksum file next to
/// the archive. The digest in an index must not differ from the checksum file.
fn expected(
    order: &Install,
    listed: Option<&Sha256>,
    told: &mut SourceNotes,
    archive: &str,
    beside: impl FnOnce() -> Result<Option<Sha256>>,
) -> Result<Option<Sha256>> {
    if let Some(given) = &order.sha256 {
        let given = Sha256::try_from(given.trim().to_ascii_lowercase()).map_err(exit::usage)?;
        return Ok(Some(given));
    }
    match (beside()?, listed) {
        (Some(told), Some(listed)) if told != *listed => {
            bail!(
                "{archive}.sha256 and index.json have different checksums; the folder may be in the middle \
                 of an update\nhint: try again later"
            )
        }
        (Some(told), _) => Ok(Some(told)),
        (None, Some(listed)) => Ok(Some(listed.clone())),
        (None, None) if order.no_check => {
            told.warnings.push(format!(
                "installing {archive} without verifying its checksum (--no-check), so corruption or \
                 tampering will not be detected"
            ));
            Ok(None)
        }
        (None, None) => Err(anyhow!(
            "cannot check the archive: {archive}.sha256 does not exist\nhint: download that file too, or give \
             the checksum with --sha256 HEX; --no-check installs without a check"
        )),
    }
}

/// Reads and checks the whole archive before any of it is unpacked.
fn check(
    mut file: File,
    name: String,
    expected: Option<Sha256>,
    signed: Option<(&TrustedKey, Vec<u8>)>,
    signature: &Path,
) -> Result<Source> {
    use std::io::Seek;
    let (size, sha256) = files::digest_of(&mut file).context("cannot read the archive")?;
    if let Some(expected) = expected {
        ensure!(
            sha256 == expected,
            "checksum mismatch: the SHA-256 of the archive {name} is {sha256} instead of {expected}\nhint: \
             download it again"
        );
    }
    file.rewind()?;
    if let Some((key, text)) = signed {
        key.check(&mut file, &text, signature)?;
        file.rewind()?;
    }
    Ok(Source::Archive(Archive { name, file, size, sha256 }))
}
