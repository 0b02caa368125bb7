//! Layout of the hub's cache on disk. huggingface_hub and hf-hub use the same layout. Each folder
//! `models--owner--repo` contains:
//! - `blobs`: files, named after their digests
//! - `snapshots`: one folder per commit, with links to blobs
//! - `refs`: one file per branch or tag, with its commit
//!
//! A blob is called `DIGEST.incomplete` until it is complete and verified. The process that writes the blob holds
//! `.locks/models--owner--repo/DIGEST.lock`. huggingface_hub uses the same names, so each tool can resume the other's
//! downloads.

use std::env;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use build_info::Bytes;
use hf_hub::{Cache, Repo, RepoType};

use super::error::Error;
use super::listing::{HubFile, is_hex};
use super::name::Name;
use super::options::{ENDPOINT, HubOptions, Patience};

/// Maximum depth to which the folders below a snapshot are searched.
const DEPTH: u32 = 4;

impl HubOptions {
    /// Reads the options from the environment, following huggingface_hub's rules.
    ///
    /// # Errors
    /// If no variable sets a folder for the cache, or if `HF_ENDPOINT` is not a URL.
    pub fn from_env(offline: bool) -> Result<Self, Error> {
        let set = |name: &str| env::var(name).ok().filter(|value| !value.trim().is_empty());
        let path = |name: &str| set(name).map(PathBuf::from);
        let home = || env::home_dir().filter(|home| !home.as_os_str().is_empty());
        let root = path("HF_HOME")
            .or_else(|| path("XDG_CACHE_HOME").map(|cache| cache.join("huggingface")))
            .or_else(|| home().map(|home| home.join(".cache/huggingface")));
        let folder = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE"));
        let folder = folder.or_else(|| root.as_ref().map(|root| root.join("hub"))).ok_or(Error::NoFolder)?;
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_string());
        let endpoint = endpoint.trim().trim_end_matches('/').to_string();
        let authority = ["https://", "http://"].iter().find_map(|scheme| endpoint.strip_prefix(scheme));
        if authority.is_none_or(str::is_empty) || endpoint.contains(char::is_whitespace) {
            return Err(Error::Endpoint { endpoint });
        }
        let is_on = |name: &str| {
            set(name).is_some_and(|value| ["1", "on", "yes", "true"].contains(&value.to_lowercase().as_str()))
        };
        let file = || {
            let path = path("HF_TOKEN_PATH").or_else(|| root.as_ref().map(|root| root.join("token")))?;
            fs::read_to_string(path).ok()
        };
        let token = set("HF_TOKEN").or_else(|| set("HUGGING_FACE_HUB_TOKEN"));
        let token = token.or_else(|| if is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN") { None } else { file() });
        let token = token.map(|token| token.trim().to_string()).filter(|token| is_token(token));
        let may = is_private(&endpoint);
        Ok(HubOptions {
            token_withheld: token.is_some() && !may,
            token: token.filter(|_| may),
            endpoint,
            folder: std::path::absolute(&folder).unwrap_or(folder),
            offline: offline || is_on("HF_HUB_OFFLINE"),
            patience: Patience::default(),
        })
    }

    /// Returns a warning for the user if the connection to the hub is not encrypted.
    pub fn warning(&self) -> Option<String> {
        if self.offline || is_private(&self.endpoint) {
            return None;
        }
        let token = if self.token_withheld { "; your token is not sent" } else { "" };
        Some(format!(
            "the connection to HF_ENDPOINT={} is not encrypted: anyone on the network path can see and replace your \
            downloads, including their checksums{token}\nhint: use an https address",
            self.endpoint
        ))
    }
}

fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// True if others cannot read or change the traffic between this machine and `endpoint`.
fn is_private(endpoint: &str) -> bool {
    let Some(rest) = endpoint.strip_prefix("http://") else { return true };
    let authority = rest.split('/').next().unwrap_or_default();
    let host = authority.strip_prefix('[').and_then(|rest| rest.split(']').next());
    let host = host.unwrap_or_else(|| authority.split(':').next().unwrap_or_default());
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Paths of one repository in the cache.
#[derive(Clone, Debug)]
pub struct Folders {
    repo: PathBuf,
    locks: PathBuf,
    cache: Cache,
    name: String,
}

impl Folders {
    /// Returns the paths of the repository of `name` in the cache folder `folder`.
    pub fn new(folder: &Path, name: &Name) -> Self {
        let own = Repo::new(name.repo(), RepoType::Model).folder_name();
        Folders {
            repo: folder.join(&own),
            locks: folder.join(".locks").join(own),
            cache: Cache::new(folder.to_path_buf()),
            name: name.repo(),
        }
    }
}

/// Repository in the cache.
#[derive(Clone, Debug)]
pub struct CachedRepository(Folders);

/// Exclusive right to write a blob. Released when dropped.
pub struct BlobLock(#[expect(dead_code, reason = "held")] File);

impl CachedRepository {
    /// Creates the view of the repository at `folders`.
    pub fn new(folders: Folders) -> Self {
        CachedRepository(folders)
    }

    /// Returns the repository's folder.
    pub fn folder(&self) -> &Path {
        &self.0.repo
    }

    /// Returns the path of the complete blob with the digest `sha256`.
    pub fn blob(&self, sha256: &str) -> PathBuf {
        self.0.cache.model(self.0.name.clone()).blob_path(sha256)
    }

    /// Returns the path of the incomplete blob with the digest `sha256`.
    pub fn incomplete(&self, sha256: &str) -> PathBuf {
        self.0.repo.join("blobs").join(format!("{sha256}.incomplete"))
    }

    /// Returns the path of the link to the file `path` in the snapshot of `commit`.
    pub fn pointer(&self, commit: &str, path: &str) -> PathBuf {
        self.0.cache.model(self.0.name.clone()).pointer_path(commit).join(path)
    }

    /// True if the snapshot of `commit` contains `file` with the right size.
    pub fn has(&self, commit: &str, file: &HubFile) -> bool {
        let found = fs::metadata(self.pointer(commit, &file.path));
        found.is_ok_and(|found| found.is_file() && file.size.is_some_and(|size| size == found.len()))
    }

    /// Creates the folders and locks the blob `sha256` for writing. Calls `wait` before it blocks on another process.
    ///
    /// # Errors
    /// If a folder or the lock file cannot be created, or if locking fails.
    pub fn lock(&self, sha256: &str, wait: impl FnOnce()) -> Result<BlobLock, Error> {
        let folders = [self.0.repo.join("blobs"), self.0.locks.clone()];
        for folder in folders {
            fs::create_dir_all(&folder).map_err(Error::disk("create the folder", &folder))?;
        }
        let path = self.0.locks.join(format!("{sha256}.lock"));
        let failed = Error::disk("lock", &path);
        let file = base::open_or_create(&path).map_err(&failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                wait();
                file.lock().map_err(failed)?;
            }
            Err(TryLockError::Error(why)) => return Err(failed(why)),
        }
        Ok(BlobLock(file))
    }

    /// Links `file` into the snapshot of `commit`.
    ///
    /// # Errors
    /// If the link cannot be written, or if its path is a regular file of a different size.
    pub fn link(&self, commit: &str, file: &HubFile) -> Result<(), Error> {
        let Some(sha256) = &file.sha256 else { return Ok(()) };
        let pointer = self.pointer(commit, &file.path);
        let failed = Error::disk("write the link", &pointer);
        if let Some(folder) = pointer.parent() {
            fs::create_dir_all(folder).map_err(&failed)?;
        }
        match fs::symlink_metadata(&pointer) {
            // A regular file is a copy that another tool or the user put here.
            Ok(found) if found.is_file() && file.size != Some(found.len()) => {
                return Err(Error::Foreign {
                    path: pointer,
                    found: Bytes(found.len()),
                    expected: Bytes(file.size.unwrap_or_default()),
                });
            }
            Ok(found) if found.is_file() => return Ok(()),
            _ => {}
        }
        let up = "../".repeat(file.path.matches('/').count() + 2);
        base::switch_link(&pointer, Path::new(&format!("{up}blobs/{sha256}"))).map_err(failed)
    }

    /// Records that `revision` refers to `commit`.
    ///
    /// # Errors
    /// If the file in `refs` cannot be written.
    pub fn point(&self, revision: &str, commit: &str) -> Result<(), Error> {
        let path = self.0.repo.join("refs").join(revision);
        if revision == commit || fs::read_to_string(&path).is_ok_and(|found| found.trim() == commit) {
            return Ok(());
        }
        let failed = Error::disk("write", &path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(&failed)?;
        }
        base::replace(&path, commit.as_bytes(), base::Access::Usual).map_err(failed)
    }

    /// Returns the commit that `revision` referred to at the last download. `None` if its snapshot is not in the
    /// cache.
    pub fn commit(&self, revision: &str) -> Option<String> {
        let named = fs::read_to_string(self.0.repo.join("refs").join(revision)).ok();
        let commit = named.map_or_else(|| revision.to_string(), |text| text.trim().to_string());
        let is_there = || self.0.repo.join("snapshots").join(&commit).is_dir();
        (is_hex(&commit, 40) && is_there()).then_some(commit)
    }

    /// Returns the files in the snapshot of `commit`, sorted by path.
    pub fn files(&self, commit: &str) -> Vec<HubFile> {
        let mut files = Vec::new();
        collect(&self.0.repo.join("snapshots").join(commit), "", DEPTH, &mut files);
        files.sort_by(|one, other| one.path.cmp(&other.path));
        files
    }
}

fn collect(folder: &Path, before: &str, depth: u32, files: &mut Vec<HubFile>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        // Temporary link of a process that was killed before it could rename the link.
        if base::Unfinished::parse(&name).is_some() {
            continue;
        }
        let path = format!("{before}{name}");
        // `metadata` follows links, so a dangling link counts as missing.
        match fs::metadata(entry.path()) {
            Ok(found) if found.is_file() => {
                files.push(HubFile { path, size: Some(found.len()), sha256: None });
            }
            Ok(found) if found.is_dir() && depth > 0 => {
                collect(&entry.path(), &format!("{path}/"), depth - 1, files);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_does_not_go_over_the_wire_in_the_open_and_nothing_does_unsaid() {
        for (endpoint, expected) in [
            ("https://huggingface.co", true),
            ("http://127.0.0.1:80/x", true),
            ("http://[::1]:80", true),
            ("http://localhost:1", true),
            ("http://hub.example", false),
            ("http://127.0.0.1.example", false),
            ("http://10.0.0.1", false),
        ] {
            assert_eq!(is_private(endpoint), expected, "{endpoint}");
            for token_withheld in [false, true] {
                let options = HubOptions {
                    endpoint: endpoint.to_string(),
                    folder: PathBuf::new(),
                    token: None,
                    token_withheld,
                    offline: false,
                    patience: Patience::default(),
                };
                let words = options.warning();
                assert_eq!(words.is_none(), expected, "{endpoint}: {words:?}");
                let told = words.is_some_and(|words| words.contains("token is not sent"));
                assert_eq!(told, token_withheld && !expected);
                assert_eq!(HubOptions { offline: true, ..options }.warning(), None);
            }
        }
        for (token, expected) in [("hf_abc", true), ("", false), ("a b", false), ("a\r\nX: y", false)] {
            assert_eq!(is_token(token), expected, "{token:?}");
        }
    }

    #[test]
    fn links_and_refs_are_found_again() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let name: Name = "a/b".parse().expect("a name");
        let place = CachedRepository::new(Folders::new(folder.path(), &name));
        let (commit, digest) = ("1".repeat(40), "2".repeat(64));
        assert_eq!(place.commit("main"), None);
        drop(place.lock(&digest, || panic!("nobody has it")).expect("a lock"));
        fs::write(place.blob(&digest), b"abc").expect("written");
        let file = HubFile { path: "x/y.gguf".to_string(), size: Some(3), sha256: Some(digest.clone()) };
        assert!(!place.has(&commit, &file));
        for _ in 0..2 {
            place.link(&commit, &file).expect("a link");
            place.point("refs/pr/1", &commit).expect("a ref");
        }
        assert!(place.has(&commit, &file));
        assert_eq!(fs::read(place.pointer(&commit, "x/y.gguf")).expect("the file"), b"abc");
        assert_eq!(place.commit("refs/pr/1").as_ref(), Some(&commit));
        assert_eq!(place.commit(&commit).as_ref(), Some(&commit));
        assert_eq!(place.files(&commit), [HubFile { sha256: None, ..file.clone() }]);
        // A dangling link is replaced; a file of a different size from another tool is left alone.
        fs::remove_file(place.blob(&digest)).expect("removed");
        assert!(!place.has(&commit, &file) && place.files(&commit).is_empty());
        place.link(&commit, &file).expect("a link");
        fs::remove_file(place.pointer(&commit, "x/y.gguf")).expect("removed");
        fs::write(place.pointer(&commit, "x/y.gguf"), b"abcd").expect("written");
        assert!(matches!(place.link(&commit, &file), Err(Error::Foreign { .. })));
        assert_eq!(fs::read(place.pointer(&commit, "x/y.gguf")).expect("the file"), b"abcd");
    }

    #[test]
    fn a_ref_that_leads_elsewhere_is_none() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let name: Name = "a/b".parse().expect("a name");
        let place = CachedRepository::new(Folders::new(folder.path(), &name));
        fs::create_dir_all(place.folder().join("refs")).expect("a folder");
        fs::write(place.folder().join("refs/main"), "../..").expect("written");
        assert_eq!(place.commit("main"), None);
    }
}
