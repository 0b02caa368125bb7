//! Scopes: groups of requests that may share evaluated prompts, in the slots and on the disk.
//!
//! A prompt that begins with evaluated tokens is faster, and its answer reports the number of cached tokens. These
//! differences could leak text between clients. A client could guess another client's text, and the time or
//! `cached_tokens` would show how much of the guess was right. Therefore a request is compared only with tokens of its
//! own scope.

use std::collections::BTreeSet;
use std::fmt;

use engine_core::cache::Digest;
use rustix::process::geteuid;
use sha2::{Digest as _, Sha256};

/// Maximum length of `cache_salt`, in characters.
pub const SALT_CHARACTERS: usize = 256;

/// Owner of evaluated prompts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// User who runs the server, over the Unix socket or from inside the process.
    Server,
    /// Another user of the Unix socket, by user ID. `None` if the system does not report it.
    User(Option<u32>),
    /// All clients of the TCP address of a server without keys.
    Open,
    /// Holder of an API key, identified by a keyed digest.
    Key(Digest),
    /// All clients together, if the configuration enables prompt sharing.
    All,
}

/// Omits the digest of a key.
impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Server => f.write_str("Server"),
            Owner::User(user) => write!(f, "User({user:?})"),
            Owner::Open => f.write_str("Open"),
            Owner::Key(_) => f.write_str("Key(..)"),
            Owner::All => f.write_str("All"),
        }
    }
}

impl Owner {
    /// Returns the owner for a peer of the Unix socket with the user ID `user`.
    pub fn of_user(user: Option<u32>) -> Self {
        match user {
            Some(user) if user == geteuid().as_raw() => Owner::Server,
            user => Owner::User(user),
        }
    }

    /// Returns the owner for a client that sends the API key `key`.
    pub fn of_key(key: &str) -> Self {
        Owner::Key(hmac(key.as_bytes(), b"anneal: owner of prompts"))
    }

    /// Returns the owner's name, from which digests are computed.
    fn name(self) -> Vec<u8> {
        match self {
            Owner::Server => b"server".to_vec(),
            Owner::User(Some(user)) => format!("user {user}").into_bytes(),
            Owner::User(None) => b"user".to_vec(),
            Owner::Open => b"open".to_vec(),
            Owner::Key(digest) => [&b"key "[..], &digest].concat(),
            Owner::All => b"all".to_vec(),
        }
    }
}

/// Scope of a request: its owner, and the request's `cache_salt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    owner: Owner,
    digest: Digest,
}

impl Scope {
    /// Creates the scope of requests from `owner` with this `salt`.
    pub fn new(owner: Owner, salt: Option<&str>) -> Self {
        let digest = match (owner, salt) {
            (Owner::Server, None) => engine_core::cache::UNSCOPED,
            (owner, None) => hmac(&owner.name(), b"anneal: scope without a salt"),
            (owner, Some(salt)) => {
                hmac(&owner.name(), &[b"anneal: scope with the salt ", salt.as_bytes()].concat())
            }
        };
        Scope { owner, digest }
    }

    /// Returns the digest of the scope. The disk cache combines the digest with its folder's salt before writing it.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Returns the owner of the prompts in the scope.
    pub fn owner(&self) -> Owner {
        self.owner
    }
}

/// Owners whose prompts may be reused with the current configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owners {
    keys: BTreeSet<Owner>,
    shares: bool,
}

impl Owners {
    /// Creates the owners of a server with `keys`. If `shares` is true, all clients are one owner.
    pub fn new(keys: &[String], shares: bool) -> Self {
        Owners { keys: keys.iter().map(|key| Owner::of_key(key)).collect(), shares }
    }

    /// True if requests of `owner` may still arrive.
    pub fn has(&self, owner: Owner) -> bool {
        match owner {
            Owner::All => self.shares,
            _ if self.shares => false,
            Owner::Server | Owner::User(_) => true,
            Owner::Open => self.keys.is_empty(),
            Owner::Key(_) => self.keys.contains(&owner),
        }
    }
}

/// Computes HMAC-SHA-256 (RFC 2104).
fn hmac(key: &[u8], message: &[u8]) -> Digest {
    const BLOCK: usize = 64;
    let mut block = [0; BLOCK];
    match key.len() <= BLOCK {
        true => block[..key.len()].copy_from_slice(key),
        false => block[..32].copy_from_slice(&Sha256::digest(key)),
    }
    let inner = Sha256::new().chain_update(block.map(|byte| byte ^ 0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(block.map(|byte| byte ^ 0x5c)).chain_update(inner).finalize().into()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_keyed_digest_is_that_of_the_standard() {
        // RFC 4231, cases 2 and 6.
        let cases: [(&[u8], &[u8], &str); 2] = [
            (
                b"Jefe",
                b"what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
            (
                &[0xaa; 131],
                b"Test Using Larger Than Block-Size Key - Hash Key First",
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
            ),
        ];
        for (key, message, expected) in cases {
            let found: String = hmac(key, message).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn scopes_differ_by_owner_and_by_salt_and_hold_no_key() {
        let key = "0123456789abcdef";
        let owners = [
            Owner::Server,
            Owner::User(Some(7)),
            Owner::User(Some(8)),
            Owner::User(None),
            Owner::Open,
            Owner::of_key(key),
            Owner::of_key("0123456789abcdeF"),
            Owner::All,
        ];
        let salts = [None, Some(""), Some("a"), Some("b")];
        let all = owners.iter().flat_map(|owner| salts.map(|salt| Scope::new(*owner, salt).digest()));
        assert_eq!(all.collect::<HashSet<_>>().len(), owners.len() * salts.len());
        assert_eq!(Scope::new(Owner::of_key(key), Some("a")), Scope::new(Owner::of_key(key), Some("a")));
        assert_eq!(Scope::new(Owner::Server, None).digest(), engine_core::cache::UNSCOPED);
        let Owner::Key(digest) = Owner::of_key(key) else { unreachable!() };
        assert_ne!(digest, <Digest>::from(Sha256::digest(key)), "a plain digest could be looked up");
        assert!(!format!("{:?}", Owner::of_key(key)).contains(char::is_numeric));
    }

    #[test]
    fn an_owner_goes_with_its_key_and_with_another_way_of_sharing() {
        let (one, two) = ("0123456789abcdef".to_string(), "fedcba9876543210".to_string());
        let both = Owners::new(&[one.clone(), two.clone()], false);
        assert!(both.has(Owner::of_key(&one)) && both.has(Owner::of_key(&two)) && both.has(Owner::Server));
        assert!(!both.has(Owner::Open) && !both.has(Owner::All));
        let left = Owners::new(std::slice::from_ref(&two), false);
        assert!(!left.has(Owner::of_key(&one)) && left.has(Owner::of_key(&two)));
        assert!(Owners::new(&[], false).has(Owner::Open));
        let shared = Owners::new(std::slice::from_ref(&one), true);
        assert!(shared.has(Owner::All) && !shared.has(Owner::of_key(&one)) && !shared.has(Owner::Server));
    }
}
