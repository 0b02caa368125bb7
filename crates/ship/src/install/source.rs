//! Where an archive comes from: a file, a folder, or the net.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use base::exit;
use build_info::Sha256;

use super::choose;
use crate::order::{Index, Install};
use crate::signature::TrustedKey;
use crate::{fetch, files, name, sums};

/// A `.sha256` is one line.
const LARGEST_SUM: u64 = 1 << 16;

/// An index of some thousand archives.
const LARGEST_INDEX: u64 = 1 << 20;

/// What will be installed.
pub enum Source {
    /// A file that is compressed.
    Archive(Archive),
    /// A folder that was unpacked by somebody.
    Tree {
        /// The folder.
        folder: PathBuf,
        /// Name of the version.
        name: String,
    },
}

/// An archive that has been checked as far as it can be without unpacking.
pub struct Archive {
    /// Name of the version.
    pub name: String,
    /// The file, opened: what is unpacked is what was checked.
    pub file: File,
    /// Its size.
    pub size: u64,
    /// What it must have, which it had when it was checked.
    pub sha256: Sha256,
}

/// Where an archive is, before any of it was read.
pub enum ArchiveLocation {
    /// On this machine.
    Here(PathBuf),
    /// An unpacked folder on this machine.
    Tree(PathBuf),
    /// On another, with the digest that an index tells.
    There(String, Option<Sha256>),
}

/// What people should know of what was found.
#[derive(Debug, Default)]
pub struct SourceNotes {
    /// What was chosen, and why.
    pub notes: Vec<String>,
    /// Risks that were taken.
    pub warnings: Vec<String>,
}

/// Finds the archive that `order` means; an index may be fetched, no archive.
pub fn find(order: &Install, told: &mut SourceNotes) -> Result<ArchiveLocation> {
    let from = &order.from;
    if fetch::is_url(from) {
        if from.starts_with("http:") {
            told.warnings.push(format!(
                "{from} is not encrypted: anybody on the way may give another archive with another sum; take https, or a \
                 key of minisign"
            ));
        }
        if !from.ends_with('/') {
            return Ok(ArchiveLocation::There(from.clone(), None));
        }
        let url = format!("{from}index.json");
        let index: Index = serde_json::from_slice(&fetch::small(&url, LARGEST_INDEX)?)
            .with_context(|| format!("cannot understand {url}"))?;
        ensure!(index.schema <= 1, "{url} is of a newer kind ({}): take a newer installer", index.schema);
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
    let meta = std::fs::metadata(&path).with_context(|| format!("cannot install from {}", path.display()))?;
    if !meta.is_dir() {
        return Ok(ArchiveLocation::Here(path));
    }
    if path.join(sums::LIST).is_file() && path.join("bin/anneal").exists() {
        return Ok(ArchiveLocation::Tree(path));
    }
    if path.join("build_info.json").is_file() {
        return Err(exit::usage(format!(
            "{} is a build and no archive: `cargo xtask dist` packs one, with licences, sums and man pages",
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

/// Name of the version at `place`.
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

/// Opens what is at `place` and checks its sum and signature; downloads go to `scratch`.
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
                    "{} has no signature, and there is a key of {} that must have signed what is installed: install the \
                     archive",
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
            let scratch = scratch.context("nowhere to download to")?;
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
        "{} has no signature (.minisig) beside it, and there is a key of {} that must have signed what is installed",
        archive.display(),
        key.from
    )
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(ending);
    PathBuf::from(name)
}

/// The digest that the archive must have: given by hand, else told beside it; an index must not say another.
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
                "{archive}.sha256 and index.json tell two sums: the folder is half written; try again later"
            )
        }
        (Some(told), _) => Ok(Some(told)),
        (None, Some(listed)) => Ok(Some(listed.clone())),
        (None, None) if order.no_check => {
            told.warnings.push(format!(
                "{archive} is installed without a sum (--no-check): whether it is whole, and whose it is, nobody knows"
            ));
            Ok(None)
        }
        (None, None) => Err(anyhow!(
            "there is no {archive}.sha256 beside the archive: fetch that too, or give the sum with --sha256 HEX; \
             --no-check installs whatever it is"
        )),
    }
}

/// Reads the whole archive before any of it is unpacked.
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
            "the archive of {name} is damaged, or not what was meant: its SHA-256 is {sha256} and should be {expected}; \
             fetch it again"
        );
    }
    file.rewind()?;
    if let Some((key, text)) = signed {
        key.check(&mut file, &text, signature)?;
        file.rewind()?;
    }
    Ok(Source::Archive(Archive { name, file, size, sha256 }))
}
