//! Store of prompt caches on disk: one file, or a folder of files with a size limit.
//!
//! In a folder, the name of a file consists of the digests of its key, of its first tokens and of all its tokens.
//! The name alone shows whether a file shares a prefix with a prompt, so no other files are opened. Of the
//! matching files, only the headers are read; the content is read only from the chosen file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use build_info::Bytes;
use llama::Token;
use llama::error::{Error, Result};
use sha2::{Digest as _, Sha256};

use super::digest::{Digest, hex};
use super::entry::{self, Content, Head, Parts, Unfit};
use super::key::CacheKey;
use super::{place, salt};

/// Minimum number of tokens that a prompt must share with a file in a folder, and minimum number of new tokens for a
/// prompt to be written. Evaluating fewer tokens is nearly as fast as reading them.
pub const BLOCK: usize = 128;

/// Default size limit of a folder.
pub const DEFAULT_BOUND: Bytes = Bytes::gib(2);

/// Maximum number of tokens read from a file for each token that is used. Reading a token is much faster than
/// evaluating it.
const READ_FOR_ONE: usize = 16;

/// Extension of file names in a folder.
const ENDING: &str = ".kv";

/// Location of prompt caches, and a flag that forbids writing to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    place: CacheStorage,
    read_only: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum CacheStorage {
    File(PathBuf),
    Folder { path: PathBuf, bound: Bytes },
}

/// Cache file whose tokens share a prefix with a prompt.
#[derive(Debug)]
pub struct CachedPrefix {
    /// Number of tokens that the file and the prompt share.
    pub common: usize,
    path: PathBuf,
    file: File,
    head: Head,
}

impl CachedPrefix {
    /// Returns the size of the file.
    pub fn size(&self) -> Bytes {
        self.head.file_size()
    }
}

/// Content of a file, ready to be restored into a context.
#[derive(Debug)]
pub struct Loaded {
    /// Path of the file.
    pub path: PathBuf,
    /// Tokens in the file.
    pub tokens: Vec<Token>,
    /// Number of tokens that the file and the prompt share.
    pub common: usize,
    /// Logits and state.
    pub content: Content,
    /// Size of the file.
    pub size: Bytes,
    /// Time for reading and checking.
    pub time: Duration,
}

/// Result of saving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// The entry was written.
    Written(Bytes),
    /// The store already contains the entry, or nearly all of its tokens.
    Known,
}

impl Store {
    /// Returns a store that consists of the single file `path`.
    ///
    /// # Errors
    /// If `path` cannot be a prompt cache.
    pub fn file(path: &Path, read_only: bool) -> Result<Self> {
        place::check_file(path, read_only)?;
        Ok(Store { place: CacheStorage::File(path.to_path_buf()), read_only })
    }

    /// Returns a store in the folder `path`, limited to `bound` bytes. Creates the folder if it does not exist.
    ///
    /// # Errors
    /// If `path` is not a folder, or the folder cannot be created or written.
    pub fn folder(path: &Path, bound: Bytes, read_only: bool) -> Result<Self> {
        place::check_folder(path, read_only)?;
        Ok(Store { place: CacheStorage::Folder { path: path.to_path_buf(), bound }, read_only })
    }

    /// Opens the store that `--prompt-cache PATH` specifies. The store is a folder if `path` is a folder or ends with a
    /// slash, or if `bound` is given; otherwise, it is a file.
    ///
    /// # Errors
    /// If `path` cannot be used as a store.
    pub fn at(path: &Path, bound: Option<Bytes>, read_only: bool) -> Result<Self> {
        let ends_as_folder = path.as_os_str().as_encoded_bytes().ends_with(b"/");
        if !path.is_dir() && !ends_as_folder && bound.is_none() {
            return Self::file(path, read_only);
        }
        if path.is_file() {
            return Err(Error::Cache {
                path: path.to_path_buf(),
                why:
                    "it is a file, but --prompt-cache-size applies to a folder\nhint: remove the flag, or choose a \
                     folder"
                        .into(),
            });
        }
        Self::folder(path, bound.unwrap_or(DEFAULT_BOUND), read_only)
    }

    /// Returns the path of the file or folder.
    pub fn path(&self) -> &Path {
        match &self.place {
            CacheStorage::File(path) | CacheStorage::Folder { path, .. } => path,
        }
    }

    /// True if this store is never written.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns `key` in `scope`, as used in this store's file names. Returns `None` if the store cannot contain a file
    /// of the scope.
    ///
    /// # Errors
    /// If the folder's salt cannot be read or created.
    pub fn key_in(&self, key: &CacheKey, scope: Digest) -> std::result::Result<Option<CacheKey>, String> {
        match &self.place {
            // A server's clients share only folders, so a file serves a single user.
            CacheStorage::File(_) => Ok(Some(key.in_scope(scope))),
            CacheStorage::Folder { path, .. } => {
                let scope = salt::salted(path, scope, self.read_only)?;
                Ok(scope.map(|scope| key.in_scope(scope)))
            }
        }
    }

    /// Finds the file that shares the longest prefix with `prompt` and fits into a context of `n_ctx` tokens. The
    /// context already contains the first `have` tokens. If `whole` is true, all tokens of the file must be in the
    /// prefix. Adds problems with files to `notes`.
    pub fn find(
        &self,
        key: &CacheKey,
        prompt: &[Token],
        have: usize,
        n_ctx: u32,
        whole: bool,
        notes: &mut Vec<String>,
    ) -> Option<CachedPrefix> {
        let found = match &self.place {
            CacheStorage::File(path) => match look(path, key, prompt) {
                Ok(found) => Some(found),
                Err(Unfit::Absent | Unfit::Empty) if !self.read_only => None,
                Err(why) => {
                    notes.push(self.not_used(path, &why));
                    None
                }
            },
            CacheStorage::Folder { path, .. } => self.find_in(path, key, prompt, n_ctx, whole, notes),
        }?;
        let tokens = found.head.tokens.len();
        if whole && found.common < tokens {
            return None;
        }
        if tokens > n_ctx as usize {
            notes.push(self.not_used(&found.path, &Unfit::TooLong { tokens, n_ctx }));
            return None;
        }
        let gain = found.common.saturating_sub(have);
        let least = if matches!(self.place, CacheStorage::Folder { .. }) { BLOCK } else { 1 };
        (gain >= least && gain.saturating_mul(READ_FOR_ONE) >= tokens).then_some(found)
    }

    /// Finds the best suitable file in a folder.
    fn find_in(
        &self,
        folder: &Path,
        key: &CacheKey,
        prompt: &[Token],
        n_ctx: u32,
        whole: bool,
        notes: &mut Vec<String>,
    ) -> Option<CachedPrefix> {
        let mut best: Option<CachedPrefix> = None;
        for path in alike(folder, key, prompt) {
            let found = match look(&path, key, prompt) {
                Ok(found) => found,
                // Another process has removed the file.
                Err(Unfit::Absent) => continue,
                Err(why) => {
                    self.drop_damaged(&path, &why, notes);
                    continue;
                }
            };
            // This file was written by a server with a larger context.
            let tokens = found.head.tokens.len();
            if tokens > n_ctx as usize || whole && found.common < tokens {
                continue;
            }
            let rank = |found: &CachedPrefix| (found.common, std::cmp::Reverse(found.head.tokens.len()));
            if best.as_ref().is_none_or(|best| rank(&found) > rank(best)) {
                best = Some(found);
            }
        }
        best
    }

    /// Reads and checks the content of a file that [`find`](Self::find) returned.
    pub fn read(&self, mut found: CachedPrefix, notes: &mut Vec<String>) -> Option<Loaded> {
        let start = Instant::now();
        match entry::read_content(&mut found.file, &found.head) {
            Ok(content) => {
                if let (CacheStorage::Folder { .. }, false) = (&self.place, self.read_only) {
                    // Marks the file as recently used, so that it is evicted last. If the time cannot be set, the only
                    // effect is that the file is evicted earlier.
                    let _ = found.file.set_modified(SystemTime::now());
                }
                Some(Loaded {
                    size: found.head.file_size(),
                    path: found.path,
                    tokens: found.head.tokens,
                    common: found.common,
                    content,
                    time: start.elapsed(),
                })
            }
            Err(why) => {
                self.discard(&found.path, &why, notes);
                None
            }
        }
    }

    /// Reports that the file at `path` cannot be used. In a folder, the file is also removed.
    pub fn discard(&self, path: &Path, why: &Unfit, notes: &mut Vec<String>) {
        match &self.place {
            CacheStorage::File(path) => notes.push(self.not_used(path, why)),
            CacheStorage::Folder { .. } => self.drop_damaged(path, why, notes),
        }
    }

    fn not_used(&self, path: &Path, why: &Unfit) -> String {
        let then = match why {
            _ if self.read_only => "",
            Unfit::NoCache | Unfit::NotOurs | Unfit::NotRegular => "; the file is left unchanged",
            _ => "; the file will be rewritten",
        };
        format!("the prompt cache {} is not used: {why}{then}", path.display())
    }

    /// Removes an unusable file from a folder, so that a new file can take its name.
    fn drop_damaged(&self, path: &Path, why: &Unfit, notes: &mut Vec<String>) {
        let ours = matches!(why, Unfit::Damaged(_) | Unfit::NoCache | Unfit::Empty | Unfit::Refused(_));
        let removed = ours && !self.read_only && fs::remove_file(path).is_ok();
        let then = if removed { "; the file was removed" } else { "" };
        notes.push(format!("the prompt cache {} is not used: {why}{then}", path.display()));
    }

    /// Saves `state`, the state after `tokens`, and the logits of the last token, if given.
    ///
    /// # Errors
    /// If the state could not be written; the message contains the reason.
    pub fn save(
        &self,
        key: &CacheKey,
        tokens: &[Token],
        logits: &[f32],
        state: Vec<u8>,
    ) -> std::result::Result<Saved, String> {
        match &self.place {
            _ if self.read_only => Ok(Saved::Known),
            CacheStorage::File(path) => {
                self.may_replace(path)?;
                let parts = Parts::new(key, tokens, logits, state);
                place::write_atomically(path, &parts.slices()).map_err(|why| not_written(path, &why))?;
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                place::remove_left_behind(base::folder_of(path), |of| of == name);
                Ok(Saved::Written(parts.size()))
            }
            CacheStorage::Folder { path, bound } => self.save_in(path, *bound, key, tokens, logits, state),
        }
    }

    /// Checks that `path` is a prompt cache or does not exist, so that no foreign file is overwritten.
    fn may_replace(&self, path: &Path) -> std::result::Result<(), String> {
        let found = entry::open(path).and_then(|mut file| entry::read_head(&mut file).map(drop));
        match found {
            Err(why @ (Unfit::NoCache | Unfit::NotOurs | Unfit::NotRegular)) => {
                Err(format!("the prompt cache {} is not written: {why}", path.display()))
            }
            _ => Ok(()),
        }
    }

    fn save_in(
        &self,
        folder: &Path,
        bound: Bytes,
        key: &CacheKey,
        tokens: &[Token],
        logits: &[f32],
        state: Vec<u8>,
    ) -> std::result::Result<Saved, String> {
        if tokens.len() < BLOCK || self.holds(key, tokens, u32::MAX) {
            return Ok(Saved::Known);
        }
        let parts = Parts::new(key, tokens, logits, state);
        // Somebody may have deleted the folder. An error names the folder, not the entry, so that a server reports a full
        // disk only once.
        let failed = |why: std::io::Error| not_written(folder, &why);
        place::create_folder(folder).map_err(failed)?;
        place::remove_left_behind(folder, is_ours);
        make_room(folder, bound, parts.size())?;
        let path = folder.join(name(key, tokens));
        place::write_atomically(&path, &parts.slices()).map_err(failed)?;
        self.remove_superseded(folder, key, tokens, &path);
        Ok(Saved::Written(parts.size()))
    }

    /// True if a file that fits into a context of `n_ctx` tokens contains `tokens`. In a folder, up to [`BLOCK`] of the
    /// tokens may be missing. Reads the headers of the files that share a prefix with `tokens`.
    pub fn holds(&self, key: &CacheKey, tokens: &[Token], n_ctx: u32) -> bool {
        let common = |path: &Path| {
            let found = look(path, key, tokens).ok();
            found.filter(|found| found.head.tokens.len() <= n_ctx as usize).map_or(0, |found| found.common)
        };
        match &self.place {
            CacheStorage::File(path) => common(path) == tokens.len(),
            CacheStorage::Folder { path, .. } => {
                alike(path, key, tokens).iter().any(|path| common(path) + BLOCK > tokens.len())
            }
        }
    }

    /// Removes files whose tokens are a prefix of `tokens`, because the new file serves the same prompts. Files of at
    /// most half the length are kept, because a prompt that shares only their tokens can be read from them in a
    /// fraction of the time.
    fn remove_superseded(&self, folder: &Path, key: &CacheKey, tokens: &[Token], but: &Path) {
        for path in alike(folder, key, tokens) {
            let Ok(found) = look(&path, key, tokens) else { continue };
            let held = found.head.tokens.len();
            if path != but && found.common == held && held * 2 > tokens.len() {
                let _ = fs::remove_file(&path);
            }
        }
    }
}

/// Opens the file at `path`, reads its header, and counts the tokens that the file shares with `prompt`.
fn look(path: &Path, key: &CacheKey, prompt: &[Token]) -> std::result::Result<CachedPrefix, Unfit> {
    let mut file = entry::open(path)?;
    let head = entry::read_head(&mut file)?;
    head.check(key)?;
    let common = head.tokens.iter().zip(prompt).take_while(|(one, other)| one == other).count();
    Ok(CachedPrefix { common, path: path.to_path_buf(), file, head })
}

fn digest(tokens: &[Token]) -> [u8; 32] {
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    Sha256::digest(bytes).into()
}

/// Returns the file name prefix shared by all files with `key` and the first tokens of `tokens`.
fn beginning(key: &CacheKey, tokens: &[Token]) -> String {
    format!("{}-{}-", key.short(), hex(&digest(&tokens[..BLOCK.min(tokens.len())]), 16))
}

fn name(key: &CacheKey, tokens: &[Token]) -> String {
    format!("{}{}{ENDING}", beginning(key, tokens), hex(&digest(tokens), 32))
}

/// True if `name` has the form of a file in a cache folder.
fn is_ours(name: &str) -> bool {
    let parts: Vec<&str> = name.strip_suffix(ENDING).unwrap_or_default().split('-').collect();
    let digits = |text: &&str| text.bytes().all(|c| c.is_ascii_hexdigit());
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    lengths == [16, 16, 32] && parts.iter().all(digits)
}

/// Returns the files in `folder` that start with the first tokens of `tokens`.
fn alike(folder: &Path, key: &CacheKey, tokens: &[Token]) -> Vec<PathBuf> {
    if tokens.len() < BLOCK {
        return Vec::new();
    }
    let beginning = beginning(key, tokens);
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let alike = entries.flatten().filter(|entry| {
        entry.file_name().to_str().is_some_and(|name| name.starts_with(&beginning) && is_ours(name))
    });
    alike.map(|entry| entry.path()).collect()
}

/// Removes the least recently used files from `folder` until `more` bytes fit within the limit `bound`.
fn make_room(folder: &Path, bound: Bytes, more: Bytes) -> std::result::Result<(), String> {
    if more > bound {
        return Err(format!(
            "the prompt is not cached in {}: it needs {more}, but --prompt-cache-size is {bound}",
            folder.display()
        ));
    }
    let entries = fs::read_dir(folder).map_err(|why| not_written(folder, &why))?;
    let ours = entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_ours));
    let mut files: Vec<(SystemTime, u64, PathBuf)> = ours
        .filter_map(|entry| {
            let found = entry.metadata().ok().filter(fs::Metadata::is_file)?;
            Some((found.modified().unwrap_or(SystemTime::UNIX_EPOCH), found.len(), entry.path()))
        })
        .collect();
    files.sort_unstable();
    let mut total: u64 = files.iter().map(|(_, size, _)| size).sum();
    for (_, size, path) in files {
        if total.saturating_add(more.0) <= bound.0 {
            break;
        }
        match fs::remove_file(&path) {
            Ok(()) => total -= size,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => total -= size,
            Err(error) => return Err(not_written(&path, &error)),
        }
    }
    Ok(())
}

fn not_written(path: &Path, why: &std::io::Error) -> String {
    let mend = match why.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            "the disk is full\nhint: free some space, or choose another path".to_string()
        }
        _ => why.to_string(),
    };
    format!("the prompt cache {} is not written: {mend}", path.display())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn key() -> CacheKey {
        CacheKey { model: [1; 32], build: [2; 32], settings: [3; 32], scope: [4; 32] }
    }

    /// Returns `common` tokens that are the same in all tests, followed by `more` copies of `own`.
    fn tokens(common: usize, own: Token, more: usize) -> Vec<Token> {
        (0..common as Token).chain((0..more as Token).map(|token| 10_000 * own + token)).collect()
    }

    fn save(store: &Store, tokens: &[Token]) -> std::result::Result<Saved, String> {
        store.save(&key(), tokens, &[], vec![7; 10 * tokens.len()])
    }

    /// Returns the number of `prompt` tokens that the store provides, and the notes.
    fn common(store: &Store, prompt: &[Token]) -> (usize, Vec<String>) {
        let mut notes = Vec::new();
        let found = store.find(&key(), prompt, 0, 100_000, false, &mut notes);
        let loaded = found.and_then(|found| store.read(found, &mut notes));
        (loaded.map_or(0, |loaded| loaded.common), notes)
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).expect("a folder");
        entries.map(|entry| entry.expect("an entry").path()).collect()
    }

    #[test]
    fn a_deleted_folder_is_created_again() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let path = parent.path().join("cache");
        let store = Store::folder(&path, DEFAULT_BOUND, false).expect("a store");
        fs::remove_dir(&path).expect("removed");
        let saved = store.save(&key(), &tokens(BLOCK, 1, 9), &[], vec![0; 8]);
        assert!(matches!(saved, Ok(Saved::Written(_))), "{saved:?}");
    }

    #[test]
    fn failed_writes_of_a_folder_have_the_same_message() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = Store::folder(folder.path(), DEFAULT_BOUND, false).expect("a store");
        let refusals = [1, 2].map(|own| {
            let tokens = tokens(BLOCK, own, 9);
            // A folder has the name of the entry.
            fs::create_dir(folder.path().join(name(&key(), &tokens))).expect("a folder");
            store.save(&key(), &tokens, &[], vec![0; 8]).expect_err("it cannot be written")
        });
        assert_eq!(refusals[0], refusals[1]);
    }

    #[test]
    fn the_longest_beginning_is_found() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = Store::folder(folder.path(), Bytes::gib(1), false).expect("a folder");
        for held in [tokens(400, 1, 500), tokens(300, 2, 200), tokens(0, 3, 500)] {
            assert!(matches!(save(&store, &held), Ok(Saved::Written(_))));
        }
        let cases = [
            (tokens(400, 1, 600), 900),
            (tokens(400, 1, 100), 500),
            (tokens(400, 9, 10), 400),
            (tokens(300, 2, 300), 500),
            (tokens(0, 3, 128), 128),
            // The common prefix is too short, or the prompt is too short to be looked up.
            (tokens(100, 9, 500), 0),
            (tokens(0, 3, 127), 0),
            (tokens(0, 8, 500), 0),
        ];
        for (prompt, expected) in cases {
            assert_eq!(common(&store, &prompt), (expected, vec![]), "{} tokens", prompt.len());
        }
        let foreign = CacheKey { settings: [9; 32], ..key() };
        let mut notes = Vec::new();
        assert!(store.find(&foreign, &tokens(400, 1, 600), 0, 100_000, false, &mut notes).is_none());
        // No file is found if the context is too small or already contains nearly as many tokens.
        let small = store.find(&key(), &tokens(400, 1, 600), 0, 899, false, &mut notes);
        assert_eq!(small.map(|found| found.common), Some(300), "the one that fits");
        assert!(store.find(&key(), &tokens(400, 1, 600), 880, 100_000, false, &mut notes).is_none());
        assert_eq!(notes, Vec::<String>::new());
    }

    #[test]
    fn what_goes_on_from_a_file_replaces_it_and_what_is_known_is_not_written() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = Store::folder(folder.path(), Bytes::gib(1), false).expect("a folder");
        let steps = [
            (tokens(200, 1, 0), true, 1),
            (tokens(200, 1, 50), false, 1),
            (tokens(200, 1, 150), true, 1),
            (tokens(200, 1, 150), false, 1),
            (tokens(180, 1, 0), false, 1),
            (tokens(200, 2, 150), true, 2),
            // The new file is so long that the shorter files are kept.
            (tokens(200, 1, 1000), true, 3),
            (tokens(100, 1, 0), false, 3),
        ];
        for (held, written, expected) in steps {
            let saved = save(&store, &held).expect("it can be written");
            assert_eq!(matches!(saved, Saved::Written(_)), written, "{} tokens", held.len());
            assert_eq!(files(folder.path()).len(), expected, "after {} tokens", held.len());
        }
    }

    #[test]
    fn a_folder_keeps_its_bound_and_loses_what_was_used_longest_ago() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = Store::folder(folder.path(), Bytes(10_000), false).expect("a folder");
        fs::write(folder.path().join("precious"), vec![0; 20_000]).expect("written");
        let size = |path: &Path| fs::metadata(path).map_or(0, |found| found.len());
        let held: Vec<Vec<Token>> = (1..=6).map(|own| tokens(0, own, 200)).collect();
        for (at, tokens) in held.iter().enumerate() {
            save(&store, tokens).expect("written");
            let path = folder.path().join(name(&key(), tokens));
            let file = File::open(&path).expect("it is there");
            let age = Duration::from_secs(1000 - 100 * at as u64);
            file.set_modified(SystemTime::now() - age).expect("a time");
            if at == 2 {
                // The first file is used again.
                assert_eq!(common(&store, &held[0]).0, 200);
            }
            let all: u64 = files(folder.path()).iter().map(|path| size(path)).sum();
            assert!(all <= 30_000, "{all} bytes after {at}");
        }
        let there: Vec<bool> = held.iter().map(|tokens| common(&store, tokens).0 == 200).collect();
        assert_eq!(there, [true, false, false, false, true, true]);
        let why = save(&store, &tokens(0, 7, 1000)).expect_err("larger than the bound");
        assert!(why.contains("--prompt-cache-size"), "{why}");
        assert!(folder.path().join("precious").exists());
    }

    #[test]
    fn what_is_damaged_is_removed_from_a_folder_and_said() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = Store::folder(folder.path(), Bytes::gib(1), false).expect("a folder");
        let reader = Store::folder(folder.path(), Bytes::gib(1), true).expect("a folder");
        let held = tokens(0, 1, 200);
        // One byte of the header, and one byte near the end.
        for at in [150, 2900] {
            save(&store, &held).expect("written");
            let path = folder.path().join(name(&key(), &held));
            let mut bytes = fs::read(&path).expect("it is there");
            bytes[at] ^= 1;
            fs::write(&path, &bytes).expect("written");
            let (found, notes) = common(&reader, &held);
            assert!(found == 0 && notes.len() == 1 && notes[0].contains("damaged"), "{notes:?}");
            assert!(path.exists(), "a reader removes nothing");
            let (found, notes) = common(&store, &held);
            assert!(found == 0 && notes.len() == 1 && notes[0].contains("the file was removed"), "{notes:?}");
            assert!(!path.exists());
        }
    }

    #[test]
    fn a_file_is_written_anew_but_nobodys_text() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("cache");
        let store = Store::at(&path, None, false).expect("a place");
        let (first, second) = (tokens(0, 1, 20), tokens(0, 2, 20));
        assert_eq!(common(&store, &first), (0, vec![]), "no file, and no notes");
        save(&store, &first).expect("written");
        assert_eq!(common(&store, &first), (20, vec![]));
        save(&store, &second).expect("written");
        assert_eq!((common(&store, &first).0, common(&store, &second).0), (0, 20));

        let foreign = CacheKey { model: [9; 32], ..key() };
        store.save(&foreign, &first, &[], vec![1]).expect("written");
        let (found, notes) = common(&store, &first);
        assert!(found == 0 && notes[0].contains("another model; the file will be rewritten"), "{notes:?}");

        fs::write(&path, "a text").expect("written");
        let mode = fs::Permissions::from_mode(0o600);
        fs::set_permissions(&path, mode).expect("a mode");
        let (found, notes) = common(&store, &first);
        assert!(
            found == 0 && notes[0].contains("not a prompt cache; the file is left unchanged"),
            "{notes:?}"
        );
        assert!(save(&store, &first).is_err());
        assert_eq!(fs::read(&path).expect("it is there"), b"a text");
    }

    #[test]
    fn a_path_is_a_file_or_a_folder() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("file");
        fs::write(&file, "").expect("written");
        let slash = PathBuf::from(format!("{}/new/", folder.path().display()));
        let is_folder = |path: &Path, bound| {
            Store::at(path, bound, false).map(|store| matches!(store.place, CacheStorage::Folder { .. }))
        };
        let bound = Some(Bytes::gib(1));
        assert_eq!(is_folder(&file, None).ok(), Some(false));
        assert_eq!(is_folder(folder.path(), None).ok(), Some(true));
        assert_eq!(is_folder(&slash, None).ok(), Some(true));
        assert_eq!(is_folder(&folder.path().join("made"), bound).ok(), Some(true));
        assert!(is_folder(&file, bound).is_err());
    }
}
