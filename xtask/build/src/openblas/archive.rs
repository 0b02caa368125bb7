//! OpenBLAS's source archive: downloaded with curl or python3, verified, and unpacked with tar.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use base::{Access, Pending};
use build_info::Sha256;

use crate::fs;
use crate::process::{Log, Run};
use crate::ui::Ui;

/// Python program that downloads the URL in its second argument to the file in its first argument. It is used if curl
/// is missing, for example in a fresh container.
const PYTHON: &str = "import shutil, sys, urllib.request
with urllib.request.urlopen(sys.argv[2], timeout=60) as source, open(sys.argv[1], 'wb') as file:
    shutil.copyfileobj(source, file)
    length = source.headers.get('Content-Length')
    if length and file.tell() != int(length):
        sys.exit('the transfer was cut off at %d of %s bytes' % (file.tell(), length))";

/// Source archive of OpenBLAS.
#[derive(Clone, Debug)]
pub struct Archive {
    /// URL or path of the archive.
    pub place: String,
    /// Version of OpenBLAS.
    pub version: String,
    /// Expected SHA-256 of the archive.
    pub sha256: Sha256,
}

impl Archive {
    /// Returns the path of the verified archive, after downloading it to `downloads` if necessary.
    ///
    /// # Errors
    /// If the archive cannot be downloaded or its digest differs.
    pub fn fetch(&self, downloads: &Path, log: &Log, ui: &Ui) -> Result<PathBuf> {
        if !self.place.contains("://") {
            let file = PathBuf::from(&self.place);
            self.verify(&file, "hint: pass the correct archive to --blas-archive")?;
            return Ok(file);
        }
        std::fs::create_dir_all(downloads)
            .with_context(|| format!("cannot create {}", downloads.display()))?;
        let name = self.place.rsplit('/').next().unwrap_or("openblas.tar.gz");
        let kept = downloads.join(format!("{}-{name}", self.sha256.short()));
        if kept.is_file() && self.verify(&kept, "").is_ok() {
            return Ok(kept);
        }
        let cannot = || format!("cannot write {}", kept.display());
        let beside = Pending::beside(&kept, Access::Usual).with_context(cannot)?;
        self.download(beside.path(), log, ui)?;
        self.verify(
            beside.path(),
            "hint: a proxy or a mirror may have served another file; check that file before you use it",
        )?;
        beside.commit().with_context(cannot)?;
        Ok(kept)
    }

    fn download(&self, to: &Path, log: &Log, ui: &Ui) -> Result<()> {
        let progress = ui.progress("openblas");
        progress.message(&format!("fetching {}", self.place));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let fetch = if std::env::split_paths(&path).any(|folder| folder.join("curl").is_file()) {
            Run::new("curl", log)
                .args(["--fail", "--location", "--silent", "--show-error", "--proto", "=https,http"])
                .args(["--retry", "2", "--connect-timeout", "20", "--output"])
                .args([to])
                .args([&self.place])
        } else {
            Run::new("python3", log).args(["-c", PYTHON]).args([to]).args([&self.place])
        };
        let done = fetch.watch(|_, line| progress.message(line.trim()));
        progress.finish();
        done.with_context(|| {
            format!(
                "cannot download OpenBLAS {} from {}\nhint: the download needs curl or python3, and a \
                 network connection\nhint: otherwise, download the file on another machine and pass it with \
                 --blas-archive FILE",
                self.version, self.place
            )
        })
    }

    fn verify(&self, file: &Path, mend: &str) -> Result<()> {
        let found = fs::digest_file(file)?;
        if found != self.sha256 {
            let size = std::fs::metadata(file).map_or(0, |found| found.len());
            bail!(
                "checksum mismatch: {} ({size} bytes) is not the archive of OpenBLAS {}, or is incomplete\n  \
                 expected SHA-256 {}\n  found            {found}\n{mend}",
                file.display(),
                self.version,
                self.sha256
            );
        }
        Ok(())
    }
}

/// Unpacks `archive` into `folder` and returns the single folder that it contains.
///
/// The digest has already been verified. The checks for paths outside the folder, links and special files guard
/// against a pin that was changed without a review.
///
/// # Errors
/// If the archive cannot be read, contains a forbidden entry, or is not OpenBLAS.
pub fn unpack(archive: &Path, folder: &Path, log: &Log) -> Result<PathBuf> {
    let cannot = || format!("cannot read the archive {}", archive.display());
    let names = Run::new("tar", log).args(["-tf"]).args([archive]).output().with_context(cannot)?;
    let kinds = Run::new("tar", log).args(["-tvf"]).args([archive]).output().with_context(cannot)?;
    let top = top_folder(&names, &kinds).with_context(cannot)?;
    Run::new("tar", log)
        .args(["--no-same-owner", "-xf"])
        .args([archive])
        .args(["-C"])
        .args([folder])
        .watch(|_, _| {})
        .with_context(|| format!("cannot unpack {}", archive.display()))?;
    let source = folder.join(top);
    if !source.join("Makefile.rule").is_file() {
        bail!("{} does not contain OpenBLAS: Makefile.rule is missing", archive.display());
    }
    Ok(source)
}

/// Returns the single folder that contains all `names`. Each line of `kinds` begins with the type of an entry, as in
/// `ls -l`.
fn top_folder(names: &str, kinds: &str) -> Result<String> {
    let mut top: Option<&str> = None;
    for name in names.lines() {
        let plain = name.strip_prefix("./").unwrap_or(name);
        if plain.starts_with('/') || plain.split('/').any(|part| part == "..") {
            bail!("the archive contains {name:?}, which would be unpacked outside the folder");
        }
        let first = plain.split('/').next().unwrap_or_default();
        if first.is_empty() {
            continue;
        }
        if top.is_some_and(|top| top != first) {
            bail!(
                "the archive contains {first:?} in addition to {:?}, but a single folder is expected",
                top.unwrap_or_default()
            );
        }
        top = Some(first);
    }
    if let Some(odd) = kinds.lines().find(|line| !line.starts_with(['-', 'd'])) {
        bail!("the archive contains a link or a special file: {odd}");
    }
    top.map(str::to_string).context("the archive is empty")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_that_leads_elsewhere_is_refused() {
        let cases = [
            ("O-1/\nO-1/a\nO-1/b/c\n", "drwx x\n-rw- x\n", Ok("O-1")),
            ("./O-1/a\n", "-rw- x\n", Ok("O-1")),
            ("O-1/a\nO-2/b\n", "-rw- x\n", Err("in addition to")),
            ("O-1/../../x\n", "-rw- x\n", Err("outside the folder")),
            ("/etc/passwd\n", "-rw- x\n", Err("outside the folder")),
            ("O-1/a\n", "lrwx O-1/a -> /etc\n", Err("link")),
            ("O-1/a\n", "hrwx O-1/a link to x\n", Err("link")),
            ("", "", Err("empty")),
        ];
        for (names, kinds, expected) in cases {
            match (top_folder(names, kinds), expected) {
                (Ok(found), Ok(top)) => assert_eq!(found, top),
                (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{names:?}: {error}"),
                (other, _) => panic!("{names:?}: {other:?}"),
            }
        }
    }
}
