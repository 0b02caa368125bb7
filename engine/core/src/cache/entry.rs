//! File format of the prompt cache: a header with the key, the tokens, and the context's state after these tokens.
//!
//! All numbers are little-endian. No data is used before its digest is checked, and each length is checked against
//! the size of the file. The SHA-256 digest detects damage, not attacks: a program that can write the file can also
//! write a matching digest. Therefore, only files that belong to this user are read.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use build_info::Bytes;
use llama::Token;
use sha2::{Digest as _, Sha256};

use super::digest::Digest;
use super::format::{MAGIC, VERSION};
use super::key::CacheKey;

/// Size of the header in bytes. The tokens follow the header.
const HEAD: usize = 224;

/// Number of header bytes that the header's digest covers. The digest also covers the tokens.
const SIGNED: usize = HEAD - 32;

/// Number of bytes that are read and hashed per step. This many bytes fit into the CPU's cache.
const CHUNK: u64 = 1 << 20;

/// Reason why a file cannot be used.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the error text of each variant describes it")]
pub enum Unfit {
    #[error("it does not exist")]
    Absent,
    #[error("it is empty")]
    Empty,
    #[error("it is not a regular file")]
    NotRegular,
    #[error("it belongs to another user, or other users may write to it")]
    NotOurs,
    #[error("it is not a prompt cache")]
    NoCache,
    #[error("it was written by another version of anneal")]
    Version,
    #[error("it is damaged ({0})")]
    Damaged(&'static str),
    #[error("it belongs to another model")]
    Model,
    #[error("it belongs to another build of anneal")]
    Build,
    #[error("it was made with different settings (cache types, flash attention, repacking)")]
    Settings,
    #[error("it belongs to another client")]
    Scope,
    #[error("it contains {tokens} tokens, but the context holds only {n_ctx}")]
    TooLong { tokens: usize, n_ctx: u32 },
    #[error("there is not enough memory for its {0}")]
    TooLarge(Bytes),
    #[error("it cannot be restored: {0}")]
    Refused(String),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Header of a file, and its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Key of the entry.
    pub key: CacheKey,
    /// Tokens that were evaluated.
    pub tokens: Vec<Token>,
    /// Number of logits after the last token: 0, or the size of the vocabulary.
    logits: u32,
    /// Size of the state in bytes.
    state: u64,
    /// Digest of the logits and the state.
    content: Digest,
}

/// Checked content of a file.
#[derive(Debug)]
pub struct Content {
    /// Logits after the last token; empty if they were not kept.
    pub logits: Vec<f32>,
    /// State of the context, from [`Context::save`](llama::Context::save).
    pub state: Vec<u8>,
}

impl Head {
    /// Returns the size of the whole file.
    pub fn file_size(&self) -> Bytes {
        Bytes((HEAD + 4 * self.tokens.len()) as u64 + 4 * u64::from(self.logits) + self.state)
    }

    /// Checks that the file belongs to `key`.
    ///
    /// # Errors
    /// If the file does not belong to `key`. The error describes the first difference.
    pub fn check(&self, key: &CacheKey) -> Result<(), Unfit> {
        match () {
            () if self.key.model != key.model => Err(Unfit::Model),
            () if self.key.build != key.build => Err(Unfit::Build),
            () if self.key.settings != key.settings => Err(Unfit::Settings),
            () if self.key.scope != key.scope => Err(Unfit::Scope),
            () => Ok(()),
        }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for number in [VERSION, self.tokens.len() as u32, self.logits, 0] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.state.to_le_bytes());
        let key = &self.key;
        for digest in [&key.model, &key.build, &key.settings, &key.scope, &self.content] {
            bytes.extend(digest);
        }
        debug_assert_eq!(bytes.len(), SIGNED, "the header has the wrong size");
        let tokens: Vec<u8> = self.tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let digest = Sha256::new().chain_update(&bytes).chain_update(&tokens).finalize();
        bytes.extend(digest);
        bytes.extend(tokens);
        bytes
    }
}

/// Content of a new file, in parts that are written one after the other.
#[derive(Debug)]
pub struct Parts {
    head: Vec<u8>,
    logits: Vec<u8>,
    state: Vec<u8>,
}

impl Parts {
    /// Creates the parts of a file for `tokens`. `logits` are the logits after the last token; empty if they are
    /// unknown.
    pub fn new(key: &CacheKey, tokens: &[Token], logits: &[f32], state: Vec<u8>) -> Self {
        let logits: Vec<u8> = logits.iter().flat_map(|value| value.to_le_bytes()).collect();
        let content = Sha256::new().chain_update(&logits).chain_update(&state).finalize();
        let head = Head {
            key: *key,
            tokens: tokens.to_vec(),
            logits: (logits.len() / 4) as u32,
            state: state.len() as u64,
            content: content.into(),
        };
        Parts { head: head.to_bytes(), logits, state }
    }

    /// Returns all parts in order.
    pub fn slices(&self) -> [&[u8]; 3] {
        [&self.head, &self.logits, &self.state]
    }

    /// Returns the total size of the parts.
    pub fn size(&self) -> Bytes {
        Bytes(self.slices().iter().map(|part| part.len() as u64).sum())
    }
}

/// Opens the file at `path` and checks that this user may trust it. Does not block on a pipe.
///
/// # Errors
/// If the file cannot be opened or trusted.
pub fn open(path: &Path) -> Result<File, Unfit> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
    let file = match options.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Unfit::Absent),
        Err(error) => return Err(error.into()),
    };
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(Unfit::NotRegular);
    }
    if found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o022 != 0 {
        return Err(Unfit::NotOurs);
    }
    match found.len() {
        0 => Err(Unfit::Empty),
        _ => Ok(file),
    }
}

/// Reads the header of `file` from its beginning. The content follows the header.
///
/// # Errors
/// If the file is not a prompt cache, has another version, or is damaged.
pub fn read_head(file: &mut File) -> Result<Head, Unfit> {
    let size = file.metadata()?.len();
    let mut head = [0; HEAD];
    let there = size.min(HEAD as u64) as usize;
    file.read_exact(&mut head[..there])?;
    if there < MAGIC.len() || head[..MAGIC.len()] != MAGIC {
        return Err(Unfit::NoCache);
    }
    if there < HEAD {
        return Err(Unfit::Damaged("it is truncated"));
    }
    let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if number(8) != VERSION {
        return Err(Unfit::Version);
    }
    let (tokens, logits) = (u64::from(number(12)), number(16));
    let state = u64::from(number(24)) | u64::from(number(28)) << 32;
    // The products cannot overflow, but the sum can.
    let expected = state.checked_add(HEAD as u64 + 4 * tokens + 4 * u64::from(logits));
    if expected != Some(size) || tokens == 0 {
        return Err(Unfit::Damaged("its length is wrong"));
    }
    let bytes = read_exactly(file, 4 * tokens)?;
    let digest = |at: usize| -> Digest { std::array::from_fn(|index| head[at + index]) };
    let signed = Sha256::new().chain_update(&head[..SIGNED]).chain_update(&bytes).finalize();
    if digest(SIGNED) != <Digest>::from(signed) {
        return Err(Unfit::Damaged("checksum mismatch in its header"));
    }
    let (tokens, _) = bytes.as_chunks::<4>();
    Ok(Head {
        key: CacheKey { model: digest(32), build: digest(64), settings: digest(96), scope: digest(128) },
        tokens: tokens.iter().map(|token| Token::from_le_bytes(*token)).collect(),
        logits,
        state,
        content: digest(160),
    })
}

/// Reads the content that follows the header `head` and checks its digest.
///
/// # Errors
/// If the content is truncated or damaged.
pub fn read_content(file: &mut File, head: &Head) -> Result<Content, Unfit> {
    let logits = read_exactly(file, 4 * u64::from(head.logits))?;
    let mut hasher = Sha256::new().chain_update(&logits);
    let mut state = reserved(head.state)?;
    while (state.len() as u64) < head.state {
        let from = state.len();
        let part = (head.state - from as u64).min(CHUNK);
        // The buffer is not zeroed first, because zeroing it would take as long as hashing the file.
        if Read::take(&mut *file, part).read_to_end(&mut state)? as u64 != part {
            return Err(ended(io::ErrorKind::UnexpectedEof.into()));
        }
        hasher.update(&state[from..]);
    }
    if <Digest>::from(hasher.finalize()) != head.content {
        return Err(Unfit::Damaged("checksum mismatch in its content"));
    }
    let (logits, _) = logits.as_chunks::<4>();
    Ok(Content { logits: logits.iter().map(|value| f32::from_le_bytes(*value)).collect(), state })
}

fn reserved(size: u64) -> Result<Vec<u8>, Unfit> {
    let mut bytes = Vec::new();
    let fits = usize::try_from(size).is_ok_and(|size| bytes.try_reserve_exact(size).is_ok());
    if fits { Ok(bytes) } else { Err(Unfit::TooLarge(Bytes(size))) }
}

/// Reads `size` bytes, or fewer if the file is shorter.
fn read_exactly(file: &mut File, size: u64) -> Result<Vec<u8>, Unfit> {
    let mut bytes = reserved(size)?;
    bytes.resize(size as usize, 0);
    file.read_exact(&mut bytes).map_err(ended)?;
    Ok(bytes)
}

/// Converts a read error. If the file ends early, it was truncated after its size was checked.
fn ended(error: io::Error) -> Unfit {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Unfit::Damaged("it was truncated while it was read"),
        _ => Unfit::Io(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn key() -> CacheKey {
        CacheKey { model: [1; 32], build: [2; 32], settings: [3; 32], scope: [4; 32] }
    }

    fn bytes() -> Vec<u8> {
        Parts::new(&key(), &[5, -1, 7], &[0.5, -2.0], (0..=255).collect()).slices().concat()
    }

    /// Reads a file with the content `bytes`.
    fn read(bytes: &[u8]) -> Result<(Head, Content), Unfit> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("cache");
        fs::write(&path, bytes).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("a mode");
        let mut file = open(&path)?;
        let head = read_head(&mut file)?;
        head.check(&key())?;
        let content = read_content(&mut file, &head)?;
        Ok((head, content))
    }

    #[test]
    fn what_was_written_is_read() {
        let (head, content) = read(&bytes()).expect("whole");
        assert_eq!((head.tokens.as_slice(), head.file_size()), ([5, -1, 7].as_slice(), Bytes(500)));
        assert_eq!((content.logits.as_slice(), content.state.len()), ([0.5, -2.0].as_slice(), 256));
    }

    #[test]
    fn no_changed_byte_and_no_other_length_is_taken() {
        let whole = bytes();
        for at in 0..whole.len() {
            for flip in [1, 0x80] {
                let mut bytes = whole.clone();
                bytes[at] ^= flip;
                assert!(read(&bytes).is_err(), "byte {at} was changed");
            }
        }
        for len in 0..whole.len() {
            assert!(read(&whole[..len]).is_err(), "it ends at byte {len}");
        }
        assert!(matches!(read(&[whole, vec![0]].concat()), Err(Unfit::Damaged(_))));
    }

    #[test]
    fn lengths_that_no_file_has_take_no_memory() {
        for (at, value) in [(12, u32::MAX), (16, u32::MAX), (24, u32::MAX), (28, u32::MAX)] {
            let mut bytes = bytes();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            let found = read(&bytes);
            assert!(matches!(found, Err(Unfit::Damaged("its length is wrong"))), "{at}: {found:?}");
        }
    }

    #[test]
    fn what_it_is_not_of_is_named() {
        let other = [CacheKey { model: [9; 32], ..key() }, CacheKey { build: [9; 32], ..key() }];
        let other = other.into_iter();
        let other =
            other.chain([CacheKey { settings: [9; 32], ..key() }, CacheKey { scope: [9; 32], ..key() }]);
        let words = ["another model", "another build", "different settings", "another client"];
        for (key, words) in other.zip(words) {
            let bytes = Parts::new(&key, &[1], &[], vec![1]).slices().concat();
            let why = read(&bytes).expect_err("it is foreign").to_string();
            assert!(why.contains(words), "{why}");
        }
        let mut newer = bytes();
        newer[8] += 1;
        let cases: [(&[u8], &str); 4] = [
            (b"", "empty"),
            (b"hello", "not a prompt cache"),
            (&newer, "another version"),
            (&MAGIC, "damaged"),
        ];
        for (bytes, words) in cases {
            let why = read(bytes).expect_err("it is none").to_string();
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn only_a_file_of_ones_own_is_read() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("cache");
        assert!(matches!(open(&path), Err(Unfit::Absent)));
        assert!(matches!(open(folder.path()), Err(Unfit::NotRegular)));
        fs::write(&path, bytes()).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("a mode");
        assert!(matches!(open(&path), Err(Unfit::NotOurs)));
        let pipe = folder.path().join("pipe");
        let status = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(status.expect("mkfifo runs").success());
        assert!(matches!(open(&pipe), Err(Unfit::NotRegular)), "a pipe without a writer");
    }
}
