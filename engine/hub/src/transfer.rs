//! Downloads a file into the cache. Resumes a partial download, and renames the file only once its digest matches.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use build_info::Bytes;
use hf_hub::api::sync::ApiRepo;
use rustix::fs::statvfs;
use sha2::{Digest as _, Sha256};
use ureq::Body;
use ureq::http::{Response, StatusCode};

use super::error::Error;
use super::listing::HubFile;
use super::name::Name;
use super::options::{HubOptions, Watch};
use super::place::CachedRepository;
use super::request::{asked_rest, call, header, network, refused, rest};

/// Size of the read buffer in bytes.
const PIECE: usize = 256 << 10;

/// Disk space, in bytes, that a download must leave free.
const SPARE: u64 = 64 << 20;

/// Source of a download.
pub struct From<'a> {
    /// Repository, pinned to a commit.
    pub repo: &'a ApiRepo,
    /// Name that the user requested.
    pub name: &'a Name,
    /// Options of the hub client.
    pub options: &'a HubOptions,
}

/// Download in progress.
struct PartialFile<'a> {
    from: &'a From<'a>,
    entry: &'a HubFile,
    path: PathBuf,
    file: File,
    /// Number of bytes on disk. `hasher` has processed exactly these bytes.
    done: u64,
    hasher: Sha256,
    size: u64,
    /// Number of bytes downloaded by this process.
    fetched: u64,
}

/// Outcome of a failed attempt.
enum Failed {
    /// Another attempt may succeed, after the delay that the server requested.
    Again(Error, Option<Duration>),
    /// Further attempts are useless.
    Over(Error),
}

/// Downloads `entry` into its blob if it is missing. Returns the number of bytes downloaded.
///
/// # Errors
/// If the listing contains no digest, the download fails, the digest does not match, or the file cannot be written.
pub fn fetch(
    from: &From<'_>,
    place: &CachedRepository,
    entry: &HubFile,
    watch: &mut dyn Watch,
) -> Result<u64, Error> {
    let (Some(size), Some(sha256)) = (entry.size, &entry.sha256) else {
        let endpoint = from.options.endpoint.clone();
        return Err(Error::NoDigest { file: entry.path.clone(), endpoint });
    };
    let blob = place.blob(sha256);
    if is_there(&blob, size)? {
        return Ok(0);
    }
    let _lock = place.lock(sha256, || {
        watch.say(&format!("waiting for another process that is downloading {}", entry.path));
    })?;
    // The other process may have completed the blob.
    if is_there(&blob, size)? {
        return Ok(0);
    }
    let mut part = PartialFile::open(from, entry, place.incomplete(sha256), size)?;
    let resumed = part.done > 0;
    part.check_room()?;
    watch.begin(&entry.path, part.done, size);
    part.fill(watch)?;
    if !part.is_right(sha256) && resumed {
        watch.say(&format!("the partial download of {} is damaged; downloading it again", entry.path));
        part.empty()?;
        part.fill(watch)?;
    }
    if !part.is_right(sha256) {
        // The partial file can be removed: it was written, or resumed, under the lock.
        let _ = fs::remove_file(&part.path);
        return Err(part.wrong(format!("checksum mismatch: expected SHA-256 {sha256}")));
    }
    part.file.sync_all().map_err(Error::disk("write", &part.path))?;
    fs::rename(&part.path, &blob).map_err(Error::disk("rename", &part.path))?;
    watch.end();
    Ok(part.fetched)
}

/// True if the blob exists with the expected size.
///
/// # Errors
/// If the blob has a different size. Anneal verifies its own blobs, so another tool wrote this blob, and Anneal must
/// not remove it.
fn is_there(blob: &Path, expected: u64) -> Result<bool, Error> {
    match fs::metadata(blob) {
        Ok(found) if found.is_file() && found.len() == expected => Ok(true),
        Ok(found) => Err(Error::Foreign {
            path: blob.to_path_buf(),
            found: Bytes(found.len()),
            expected: Bytes(expected),
        }),
        Err(_) => Ok(false),
    }
}

impl<'a> PartialFile<'a> {
    /// Opens the partial file and computes the digest of its current content.
    fn open(from: &'a From<'a>, entry: &'a HubFile, path: PathBuf, size: u64) -> Result<Self, Error> {
        let failed = Error::disk("write", &path);
        let mut file = base::open_or_create(&path).map_err(&failed)?;
        let (mut hasher, mut done) = (Sha256::new(), 0);
        if file.metadata().map_err(&failed)?.len() > size {
            file.set_len(0).map_err(&failed)?;
        }
        let mut piece = vec![0; PIECE];
        loop {
            let read = file.read(&mut piece).map_err(&failed)?;
            if read == 0 {
                break;
            }
            hasher.update(&piece[..read]);
            done += read as u64;
        }
        Ok(PartialFile { from, entry, path, file, done, hasher, size, fetched: 0 })
    }

    fn check_room(&self) -> Result<(), Error> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        // If the system does not report free space, a full disk causes a write error later.
        let Ok(found) = statvfs(folder) else { return Ok(()) };
        let available = found.f_bavail.saturating_mul(found.f_frsize);
        let needed = self.size - self.done;
        match needed.saturating_add(SPARE) > available {
            true => Err(Error::NoRoom {
                file: self.entry.path.clone(),
                needed: Bytes(needed),
                available: Bytes(available),
                folder: folder.to_path_buf(),
            }),
            false => Ok(()),
        }
    }

    /// Truncates the partial file to zero and resets the digest.
    fn empty(&mut self) -> Result<(), Error> {
        let failed = Error::disk("write", &self.path);
        self.file.set_len(0).and_then(|()| self.file.rewind()).map_err(failed)?;
        (self.done, self.hasher) = (0, Sha256::new());
        Ok(())
    }

    fn is_right(&self, sha256: &str) -> bool {
        self.done == self.size && build_info::Sha256::from(self.hasher.clone()).as_str() == sha256
    }

    fn wrong(&self, why: String) -> Error {
        let endpoint = self.from.options.endpoint.clone();
        Error::Wrong { file: self.entry.path.clone(), why, endpoint }
    }

    /// Downloads until the file is complete. Gives up after several consecutive attempts without progress.
    fn fill(&mut self, watch: &mut dyn Watch) -> Result<(), Error> {
        let patience = self.from.options.patience;
        let mut tries = 0;
        while self.done < self.size {
            let before = self.done;
            let (error, asked) = match self.go_on(watch) {
                Ok(()) => continue,
                Err(Failed::Over(error)) => return Err(error),
                Err(Failed::Again(error, asked)) => (error, asked),
            };
            tries = if self.done > before { 0 } else { tries + 1 };
            if tries >= patience.tries {
                return Err(error);
            }
            sleep(rest(&patience, tries, asked));
        }
        Ok(())
    }

    /// Sends one request for the remaining bytes and writes them.
    fn go_on(&mut self, watch: &mut dyn Watch) -> Result<(), Failed> {
        let options = self.from.options;
        let what = || format!("download {} of {} from {}", self.entry.path, self.from.name, options.endpoint);
        let address = self.from.repo.url(&encoded(&self.entry.path));
        let mut request = self.from.repo.info_request().uri(address);
        // In a compressed response, ranges and lengths would count compressed bytes.
        request = request.header("Accept-Encoding", "identity");
        if self.done > 0 {
            request = request.header("Range", format!("bytes={}-", self.done));
        }
        let answer = call(request, &options.patience)
            .map_err(|why| Failed::Again(network(what(), why.to_string()), None))?;
        match answer.status() {
            // The server does not support ranges, or the partial content belongs to another version of the file.
            StatusCode::OK if self.done > 0 => self.empty().map_err(Failed::Over)?,
            StatusCode::OK => {}
            StatusCode::PARTIAL_CONTENT => self.check_range(&answer).map_err(Failed::Over)?,
            StatusCode::RANGE_NOT_SATISFIABLE => {
                let why = format!("the server has no more than {} of the {} bytes", self.done, self.size);
                return Err(Failed::Over(self.give_up(why)));
            }
            _ => {
                let asked = asked_rest(&answer);
                let error = refused(what(), answer, options);
                return Err(match error.is_temporary() {
                    true => Failed::Again(error, asked),
                    false => Failed::Over(error),
                });
            }
        }
        let due = self.size - self.done;
        let told = header(&answer, "content-length").and_then(|length| length.parse::<u64>().ok());
        if let Some(told) = told.filter(|told| *told != due) {
            return Err(Failed::Over(
                self.give_up(format!("the server announced {told} bytes instead of {due}")),
            ));
        }
        self.seek().map_err(Failed::Over)?;
        self.pour(answer, watch, what)
    }

    /// Checks that a partial response covers exactly the requested range.
    fn check_range(&mut self, answer: &Response<Body>) -> Result<(), Error> {
        let expected = format!("bytes {}-{}/{}", self.done, self.size - 1, self.size);
        let open = format!("bytes {}-{}/*", self.done, self.size - 1);
        match header(answer, "content-range") {
            Some(range) if range.trim() == expected || range.trim() == open => Ok(()),
            other => {
                let why = format!(
                    "{expected} was requested, but the server sent {}",
                    other.unwrap_or("an unknown range")
                );
                Err(self.give_up(why))
            }
        }
    }

    /// Removes the partial file, which cannot be resumed, and returns the error.
    fn give_up(&self, why: String) -> Error {
        let _ = fs::remove_file(&self.path);
        self.wrong(why)
    }

    fn seek(&mut self) -> Result<(), Error> {
        let at = self.file.seek(SeekFrom::Start(self.done));
        at.map(drop).map_err(Error::disk("write", &self.path))
    }

    /// Writes the response body to the file until the file is complete.
    fn pour(
        &mut self,
        mut answer: Response<Body>,
        watch: &mut dyn Watch,
        what: impl Fn() -> String,
    ) -> Result<(), Failed> {
        let mut reader = answer.body_mut().with_config().limit(u64::MAX).reader();
        let mut piece = vec![0; PIECE];
        while self.done < self.size {
            let read = reader.read(&mut piece);
            let read = read.map_err(|why| Failed::Again(network(what(), why.to_string()), None))?;
            if read == 0 {
                let why = format!("the connection ended after {} of {} bytes", self.done, self.size);
                return Err(Failed::Again(network(what(), why), None));
            }
            if self.done + read as u64 > self.size {
                return Err(Failed::Over(
                    self.give_up(format!("the server sent more than {} bytes", self.size)),
                ));
            }
            self.file
                .write_all(&piece[..read])
                .map_err(|source| Failed::Over(Error::disk("write", &self.path)(source)))?;
            self.hasher.update(&piece[..read]);
            self.done += read as u64;
            self.fetched += read as u64;
            watch.at(self.done);
        }
        Ok(())
    }
}

/// Percent-encodes `path` for a URL.
fn encoded(path: &str) -> String {
    let mut text = String::new();
    for byte in path.bytes() {
        match byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte) {
            true => text.push(char::from(byte)),
            false => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn blanks_and_other_letters_are_encoded() {
        assert_eq!(super::encoded("a b/ü+1.gguf"), "a%20b/%C3%BC%2B1.gguf");
    }
}
