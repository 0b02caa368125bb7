//! Prompt caches on the disk: one file, or a folder of them with a bound.
//!
//! In a folder a file is named after its key, its first tokens and all of them. A prompt finds those that begin as it
//! does by their names, and opens no others; of those it reads the heads, and the content only of the one it takes.

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

/// Tokens that a prompt must have in common with a file of a folder, and new ones that it must have to be written: fewer
/// are evaluated nearly as fast.
pub const BLOCK: usize = 128;

/// What a folder may take where nothing is said.
pub const DEFAULT_BOUND: Bytes = Bytes::gib(2);

/// A file is read where at least one in so many of its tokens is used: reading one takes a small part of the time of
/// evaluating one.
const READ_FOR_ONE: usize = 16;

/// How the names of files in a folder end.
const ENDING: &str = ".kv";

/// Where caches lie, and what may be done there.
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

/// A file that begins as a prompt does.
#[derive(Debug)]
pub struct CachedPrefix {
    /// How many tokens of the prompt it holds.
    pub common: usize,
    path: PathBuf,
    file: File,
    head: Head,
}

impl CachedPrefix {
    /// Size of its file.
    pub fn size(&self) -> Bytes {
        self.head.file_size()
    }
}

/// The content of a file, ready to be put into a context.
#[derive(Debug)]
pub struct Loaded {
    /// The file.
    pub path: PathBuf,
    /// The tokens that it holds.
    pub tokens: Vec<Token>,
    /// How many of them the prompt begins with.
    pub common: usize,
    /// Logits and state.
    pub content: Content,
    /// Size of the file.
    pub size: Bytes,
    /// How long reading and checking took.
    pub time: Duration,
}

/// What became of something that was to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// It was written.
    Written(Bytes),
    /// All of it, or nearly, is there.
    Known,
}

impl Store {
    /// The file `path`.
    ///
    /// # Errors
    /// Where none can be there.
    pub fn file(path: &Path, read_only: bool) -> Result<Self> {
        place::check_file(path, read_only)?;
        Ok(Store { place: CacheStorage::File(path.to_path_buf()), read_only })
    }

    /// The folder `path`, which is made where it is not there and holds at most `bound`.
    ///
    /// # Errors
    /// Where none can be there.
    pub fn folder(path: &Path, bound: Bytes, read_only: bool) -> Result<Self> {
        place::check_folder(path, read_only)?;
        Ok(Store { place: CacheStorage::Folder { path: path.to_path_buf(), bound }, read_only })
    }

    /// What `--prompt-cache PATH` means: a folder where there is one, where `path` ends as one, or where a bound was
    /// given; else a file.
    ///
    /// # Errors
    /// Where that cannot be there.
    pub fn at(path: &Path, bound: Option<Bytes>, read_only: bool) -> Result<Self> {
        let ends_as_folder = path.as_os_str().as_encoded_bytes().ends_with(b"/");
        if !path.is_dir() && !ends_as_folder && bound.is_none() {
            return Self::file(path, read_only);
        }
        if path.is_file() {
            return Err(Error::Cache {
                path: path.to_path_buf(),
                why:
                    "it is a file, and --prompt-cache-size bounds a folder: leave that out, or name a folder"
                        .into(),
            });
        }
        Self::folder(path, bound.unwrap_or(DEFAULT_BOUND), read_only)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        match &self.place {
            CacheStorage::File(path) | CacheStorage::Folder { path, .. } => path,
        }
    }

    /// Whether nothing is ever written.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns `key` in `scope`, as the files of this store name it; `None` if the store cannot have a file of the scope.
    ///
    /// # Errors
    /// A message if the folder's salt cannot be read or created.
    pub fn key_in(&self, key: &CacheKey, scope: Digest) -> std::result::Result<Option<CacheKey>, String> {
        match &self.place {
            // A file serves one user: only folders are shared by the clients of a server.
            CacheStorage::File(_) => Ok(Some(key.in_scope(scope))),
            CacheStorage::Folder { path, .. } => {
                let scope = salt::salted(path, scope, self.read_only)?;
                Ok(scope.map(|scope| key.in_scope(scope)))
            }
        }
    }

    /// The file that holds the most of `prompt`'s beginning, in a context of `n_ctx` tokens that has the first `have` of
    /// them. What is wrong with a file is said to `notes`.
    pub fn find(
        &self,
        key: &CacheKey,
        prompt: &[Token],
        have: usize,
        n_ctx: u32,
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
            CacheStorage::Folder { path, .. } => self.find_in(path, key, prompt, n_ctx, notes),
        }?;
        let tokens = found.head.tokens.len();
        if tokens > n_ctx as usize {
            notes.push(self.not_used(&found.path, &Unfit::TooLong { tokens, n_ctx }));
            return None;
        }
        let gain = found.common.saturating_sub(have);
        let least = if matches!(self.place, CacheStorage::Folder { .. }) { BLOCK } else { 1 };
        (gain >= least && gain.saturating_mul(READ_FOR_ONE) >= tokens).then_some(found)
    }

    /// The best in a folder, of those that fit.
    fn find_in(
        &self,
        folder: &Path,
        key: &CacheKey,
        prompt: &[Token],
        n_ctx: u32,
        notes: &mut Vec<String>,
    ) -> Option<CachedPrefix> {
        let mut best: Option<CachedPrefix> = None;
        for path in alike(folder, key, prompt) {
            let found = match look(&path, key, prompt) {
                Ok(found) => found,
                // Another process has removed it.
                Err(Unfit::Absent) => continue,
                Err(why) => {
                    self.drop_damaged(&path, &why, notes);
                    continue;
                }
            };
            // Another server's, with a larger context.
            if found.head.tokens.len() > n_ctx as usize {
                continue;
            }
            let rank = |found: &CachedPrefix| (found.common, std::cmp::Reverse(found.head.tokens.len()));
            if best.as_ref().is_none_or(|best| rank(&found) > rank(best)) {
                best = Some(found);
            }
        }
        best
    }

    /// Reads and checks the content of what was found.
    pub fn read(&self, mut found: CachedPrefix, notes: &mut Vec<String>) -> Option<Loaded> {
        let start = Instant::now();
        match entry::read_content(&mut found.file, &found.head) {
            Ok(content) => {
                if let (CacheStorage::Folder { .. }, false) = (&self.place, self.read_only) {
                    // So that it is not the next to go. Where that fails it goes sooner.
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

    /// Says that the file at `path` is of no use; in a folder it goes.
    pub fn discard(&self, path: &Path, why: &Unfit, notes: &mut Vec<String>) {
        match &self.place {
            CacheStorage::File(path) => notes.push(self.not_used(path, why)),
            CacheStorage::Folder { .. } => self.drop_damaged(path, why, notes),
        }
    }

    fn not_used(&self, path: &Path, why: &Unfit) -> String {
        let then = match why {
            _ if self.read_only => "",
            Unfit::NoCache | Unfit::NotOurs | Unfit::NotRegular => ", and is left as it is",
            _ => "; it is written anew",
        };
        format!("the prompt cache {} is not used: {why}{then}", path.display())
    }

    /// A file of a folder that is of no use is in the way of the next one.
    fn drop_damaged(&self, path: &Path, why: &Unfit, notes: &mut Vec<String>) {
        let ours = matches!(why, Unfit::Damaged(_) | Unfit::NoCache | Unfit::Empty | Unfit::Refused(_));
        let removed = ours && !self.read_only && fs::remove_file(path).is_ok();
        let then = if removed { "; it is removed" } else { "" };
        notes.push(format!("the prompt cache {} is not used: {why}{then}", path.display()));
    }

    /// Keeps `state`, which is that of `tokens`, and the logits after them where they are given.
    ///
    /// # Errors
    /// Why it could not be written, in words.
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
                put(path, &parts)?;
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                place::remove_left_behind(base::folder_of(path), |of| of == name);
                Ok(Saved::Written(parts.size()))
            }
            CacheStorage::Folder { path, bound } => self.save_in(path, *bound, key, tokens, logits, state),
        }
    }

    /// Whether what is at `path` is a prompt cache or nothing: a text that was named by mistake is not overwritten.
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
        place::remove_left_behind(folder, is_ours);
        make_room(folder, bound, parts.size())?;
        let path = folder.join(name(key, tokens));
        put(&path, &parts)?;
        self.remove_superseded(folder, key, tokens, &path);
        Ok(Saved::Written(parts.size()))
    }

    /// Whether a file that fits a context of `n_ctx` tokens holds `tokens`: in a folder, but for fewer than [`BLOCK`] of
    /// them. Looks at the heads of those that begin the same.
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

    /// Removes files that `tokens` go on from: the new one serves whoever they served. Not much shorter ones, which are
    /// read in a fraction of the time, by prompts that have no more in common.
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

/// Opens the file at `path`, reads its head, and says what `prompt` has in common with it.
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

/// How the names begin of files of `key` whose first tokens are those of `tokens`.
fn beginning(key: &CacheKey, tokens: &[Token]) -> String {
    format!("{}-{}-", key.short(), hex(&digest(&tokens[..BLOCK.min(tokens.len())]), 16))
}

fn name(key: &CacheKey, tokens: &[Token]) -> String {
    format!("{}{}{ENDING}", beginning(key, tokens), hex(&digest(tokens), 32))
}

/// Whether `name` is that of a file in a folder of caches.
fn is_ours(name: &str) -> bool {
    let parts: Vec<&str> = name.strip_suffix(ENDING).unwrap_or_default().split('-').collect();
    let digits = |text: &&str| text.bytes().all(|c| c.is_ascii_hexdigit());
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    lengths == [16, 16, 32] && parts.iter().all(digits)
}

/// The files of `folder` that begin as `tokens` do.
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

/// Removes files of `folder`, those that were used longest ago first, until `more` fits below `bound`.
fn make_room(folder: &Path, bound: Bytes, more: Bytes) -> std::result::Result<(), String> {
    if more > bound {
        return Err(format!(
            "the prompt is not kept in {}: it takes {more}, and --prompt-cache-size is {bound}",
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

fn put(path: &Path, parts: &Parts) -> std::result::Result<(), String> {
    place::write_atomically(path, &parts.slices()).map_err(|why| not_written(path, &why))
}

fn not_written(path: &Path, why: &std::io::Error) -> String {
    let mend = match why.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            "the disk is full; free some space, or keep it elsewhere".to_string()
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

    /// `common` tokens that all have, then `more` of its own.
    fn tokens(common: usize, own: Token, more: usize) -> Vec<Token> {
        (0..common as Token).chain((0..more as Token).map(|token| 10_000 * own + token)).collect()
    }

    fn save(store: &Store, tokens: &[Token]) -> std::result::Result<Saved, String> {
        store.save(&key(), tokens, &[], vec![7; 10 * tokens.len()])
    }

    /// How many tokens of `prompt` the store gives.
    fn common(store: &Store, prompt: &[Token]) -> (usize, Vec<String>) {
        let mut notes = Vec::new();
        let found = store.find(&key(), prompt, 0, 100_000, &mut notes);
        let loaded = found.and_then(|found| store.read(found, &mut notes));
        (loaded.map_or(0, |loaded| loaded.common), notes)
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).expect("a folder");
        entries.map(|entry| entry.expect("an entry").path()).collect()
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
            // Too little in common, or too short to be looked for.
            (tokens(100, 9, 500), 0),
            (tokens(0, 3, 127), 0),
            (tokens(0, 8, 500), 0),
        ];
        for (prompt, expected) in cases {
            assert_eq!(common(&store, &prompt), (expected, vec![]), "{} tokens", prompt.len());
        }
        let foreign = CacheKey { settings: [9; 32], ..key() };
        let mut notes = Vec::new();
        assert!(store.find(&foreign, &tokens(400, 1, 600), 0, 100_000, &mut notes).is_none());
        // Not where a context is too small, or a slot has nearly as much.
        let small = store.find(&key(), &tokens(400, 1, 600), 0, 899, &mut notes);
        assert_eq!(small.map(|found| found.common), Some(300), "the one that fits");
        assert!(store.find(&key(), &tokens(400, 1, 600), 880, 100_000, &mut notes).is_none());
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
            // So long that the shorter ones stay.
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
                // The first is used again.
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
        // In the head, and at the end.
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
            assert!(found == 0 && notes.len() == 1 && notes[0].contains("it is removed"), "{notes:?}");
            assert!(!path.exists());
        }
    }

    #[test]
    fn a_file_is_written_anew_but_nobodys_text() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("cache");
        let store = Store::at(&path, None, false).expect("a place");
        let (first, second) = (tokens(0, 1, 20), tokens(0, 2, 20));
        assert_eq!(common(&store, &first), (0, vec![]), "nothing is there, and nothing to be said");
        save(&store, &first).expect("written");
        assert_eq!(common(&store, &first), (20, vec![]));
        save(&store, &second).expect("written");
        assert_eq!((common(&store, &first).0, common(&store, &second).0), (0, 20));

        let foreign = CacheKey { model: [9; 32], ..key() };
        store.save(&foreign, &first, &[], vec![1]).expect("written");
        let (found, notes) = common(&store, &first);
        assert!(found == 0 && notes[0].contains("another model; it is written anew"), "{notes:?}");

        fs::write(&path, "a text").expect("written");
        let mode = fs::Permissions::from_mode(0o600);
        fs::set_permissions(&path, mode).expect("a mode");
        let (found, notes) = common(&store, &first);
        assert!(found == 0 && notes[0].contains("no prompt cache, and is left as it is"), "{notes:?}");
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
