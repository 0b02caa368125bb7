//! Entries of a store. Anyone with write access to the store can write entries. Therefore, no value is used as a path,
//! and every value is checked against the key and the digests.

use std::fmt;

use build_info::{Bytes, Glibc, Sha256};
use serde::{Deserialize, Serialize};

use crate::key::Parts;

/// Version of the format. Newer versions are refused.
pub const SCHEMA: u32 = 1;

/// Maximum size of an object, equal to the limit of unpacking.
pub const LARGEST_OBJECT: Bytes = Bytes(2 << 30);

/// Maximum size of a list, which contains a few digests.
#[cfg(feature = "tools")]
pub const LARGEST_LIST: Bytes = Bytes(1 << 16);

/// Maximum length of an archive's name.
const LONGEST_NAME: usize = 128;

/// Maximum number of entries in the list of a kind.
const MOST_NEWEST: usize = 16;

/// Entry of one build.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Version of the format.
    pub schema: u32,
    /// Key of the build.
    pub key: Sha256,
    /// Publisher's description of the build.
    #[serde(flatten)]
    pub build: Build,
    /// Archive for `install`.
    pub archive: Object,
    /// Files of the build folder for `build`; `None` if another checkout cannot use them.
    pub tree: Option<Object>,
}

/// Publisher's description of a build.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Build {
    /// Parts of the key.
    pub parts: Parts,
    /// Profile of the build.
    pub profile: String,
    /// Version of Anneal.
    pub version: String,
    /// Target triple.
    pub target: String,
    /// Oldest glibc that can load the program; `None` if the program does not use glibc.
    pub glibc: Option<Glibc>,
    /// Hash of the plan on the machine that built the program. Tuning records name the build by this hash.
    pub plan_hash: Sha256,
    /// Optimisation applied to the plain build: `pgo` or `bolt`; `None` for a plain build.
    pub variant: Option<String>,
    /// Time of publication, RFC 3339 in UTC.
    pub published: String,
    /// Result of the correctness gate, as text.
    pub gate: String,
    /// Result of the audit, as text.
    pub audit: String,
    /// Name of the archive without its suffix: `anneal-VERSION-TARGET-PROFILE`.
    pub name: String,
}

/// Object of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// Digest of the object's content, which is also the object's name.
    pub sha256: Sha256,
    /// Size of the object's content.
    pub size: Bytes,
}

/// Reason why an entry or a list is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A later version of Anneal wrote the entry or list.
    Newer {
        /// Version of the format of the entry or list.
        schema: u32,
    },
    /// Damaged or inconsistent content.
    Wrong(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Newer { schema } => {
                write!(f, "a newer version of Anneal wrote it (version {schema} of the format)")
            }
            Self::Wrong(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Refused {}

impl Entry {
    /// Parses the entry in `text`, which was found under `key`.
    ///
    /// # Errors
    /// If the entry is damaged, inconsistent, or of a newer version.
    pub fn parse(text: &[u8], key: &Sha256) -> Result<Self, Refused> {
        let refuse = |why: String| Err(Refused::Wrong(why));
        newer(text)?;
        let entry: Self = serde_json::from_slice(text).map_err(damaged)?;
        if entry.key != *key || entry.build.parts.key() != *key {
            return refuse(format!(
                "it describes another build: its parts have the key {}",
                entry.build.parts.key()
            ));
        }
        for object in std::iter::once(&entry.archive).chain(&entry.tree) {
            if object.size > LARGEST_OBJECT {
                return refuse(format!(
                    "it lists an object of {}, which is larger than any build",
                    object.size
                ));
            }
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
        if !entry.build.name.starts_with("anneal-")
            || entry.build.name.len() > LONGEST_NAME
            || !entry.build.name.chars().all(plain)
        {
            return refuse(format!("{:?} is not the name of an Anneal archive", entry.build.name));
        }
        let words = [
            &entry.build.profile,
            &entry.build.version,
            &entry.build.target,
            &entry.build.published,
            &entry.build.gate,
            &entry.build.audit,
        ];
        if words.into_iter().chain(&entry.build.variant).any(|text| text.chars().any(char::is_control)) {
            return refuse("it contains control characters".to_string());
        }
        Ok(entry)
    }

    /// Returns the entry as it is stored.
    pub fn to_json(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).unwrap_or_default();
        text.push(b'\n');
        text
    }
}

/// Refuses text of a newer version, before interpreting its other fields.
fn newer(text: &[u8]) -> Result<(), Refused> {
    #[derive(Deserialize)]
    struct EntryVersion {
        schema: u32,
    }
    let EntryVersion { schema } = serde_json::from_slice(text).map_err(damaged)?;
    match schema <= SCHEMA {
        true => Ok(()),
        false => Err(Refused::Newer { schema }),
    }
}

fn damaged(error: serde_json::Error) -> Refused {
    Refused::Wrong(format!("it is damaged: {error}"))
}

/// Newest entries for a kind of CPU and a profile, the newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Newest {
    /// Version of the format.
    pub schema: u32,
    /// References to the entries.
    pub builds: Vec<Pointer>,
}

/// Reference to an entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pointer {
    /// Key of the entry.
    pub key: Sha256,
    /// Oldest glibc that can load the program; `None` if the program does not use glibc.
    pub glibc: Option<Glibc>,
    /// Time of publication.
    pub published: String,
}

impl Newest {
    /// Parses the list in `text`.
    ///
    /// # Errors
    /// If the list is damaged or of a newer version.
    pub fn parse(text: &[u8]) -> Result<Self, Refused> {
        newer(text)?;
        serde_json::from_slice(text).map_err(damaged)
    }

    /// Returns this list with `entry` inserted in order of time. The entry is dropped if the list is full of newer
    /// entries.
    #[must_use]
    pub fn with(mut self, entry: &Entry) -> Self {
        self.builds.retain(|pointer| pointer.key != entry.key);
        let (key, glibc, published) = (entry.key.clone(), entry.build.glibc, entry.build.published.clone());
        self.builds.insert(0, Pointer { key, glibc, published });
        // Times in RFC 3339 and UTC sort as text.
        self.builds.sort_by(|one, other| other.published.cmp(&one.published));
        self.builds.truncate(MOST_NEWEST);
        self
    }

    /// Returns the entries whose programs run with the C library `here`, the newest first; all entries if `here` is
    /// unknown.
    pub fn for_glibc(&self, here: Option<Glibc>) -> impl Iterator<Item = &Pointer> {
        let starts = move |pointer: &&Pointer| match (pointer.glibc, here) {
            (Some(needed), Some(here)) => needed <= here,
            _ => true,
        };
        // A list with more entries was not written by `with`.
        self.builds.iter().take(MOST_NEWEST).filter(starts)
    }
}

impl Default for Newest {
    fn default() -> Self {
        Self { schema: SCHEMA, builds: Vec::new() }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub fn entry(engine: &str, glibc: &str) -> Entry {
        let parts = Parts {
            schema: 1,
            plan: serde_json::json!({ "target": "x86_64-unknown-linux-gnu" }),
            engine: Sha256::of(engine),
            gate: Sha256::of(b"gate"),
            audit: Sha256::of(b"audit"),
            cpu: None,
            glibc: None,
        };
        let key = parts.key();
        let build = Build {
            parts,
            profile: "portable".into(),
            version: "0.1.0".into(),
            target: "x86_64-unknown-linux-gnu".into(),
            glibc: Some(glibc.parse().unwrap()),
            plan_hash: Sha256::of(b"plan"),
            variant: None,
            published: "2026-01-01T00:00:00Z".into(),
            gate: "passed".into(),
            audit: "passed".into(),
            name: "anneal-0.1.0-x86_64-unknown-linux-gnu-portable".into(),
        };
        Entry {
            schema: SCHEMA,
            key,
            build,
            archive: Object { sha256: Sha256::of(b"archive"), size: Bytes(7) },
            tree: None,
        }
    }

    #[test]
    fn an_entry_is_held_against_its_key_and_against_sense() {
        let good = entry("a", "2.28");
        assert_eq!(Entry::parse(&good.to_json(), &good.key), Ok(good.clone()));
        type Case = (fn(&mut Entry), &'static str);
        let cases: [Case; 7] = [
            (|entry| entry.schema = 2, "version 2 of the format"),
            (|entry| entry.key = Sha256::of(b"x"), "another build"),
            (|entry| entry.build.parts.engine = Sha256::of(b"x"), "another build"),
            (|entry| entry.build.name = "anneal-../../x".into(), "not the name of an Anneal archive"),
            (|entry| entry.build.name = "other".into(), "not the name of an Anneal archive"),
            (|entry| entry.archive.size = Bytes(3 << 30), "larger than any build"),
            (|entry| entry.build.gate = "\u{1b}[2J".into(), "control characters"),
        ];
        for (change, expected) in cases {
            let mut wrong = good.clone();
            change(&mut wrong);
            let said = Entry::parse(&wrong.to_json(), &good.key).unwrap_err().to_string();
            assert!(said.contains(expected), "{said}");
        }
        let whole = good.to_json();
        for wrong in [&b""[..], b"[]", b"null", &whole[..whole.len() / 2]] {
            let said = Entry::parse(wrong, &good.key).unwrap_err().to_string();
            assert!(said.contains("damaged"), "{said}");
        }
        // A digest that is a path is refused.
        let text = String::from_utf8(whole).unwrap();
        let path = text.replace(good.archive.sha256.as_str(), "../../etc/passwd");
        assert!(Entry::parse(path.as_bytes(), &good.key).is_err());
    }

    #[test]
    fn the_newest_that_starts_here_comes_first() {
        let (old, new) = (entry("old", "2.28"), entry("new", "2.36"));
        let newest = Newest::default().with(&old).with(&new).with(&old).with(&new);
        let keys: Vec<_> = newest.builds.iter().map(|pointer| pointer.key.clone()).collect();
        assert_eq!(keys, [new.key.clone(), old.key.clone()]);
        let found = |glibc: &str| -> Vec<_> {
            newest.for_glibc(Some(glibc.parse().unwrap())).map(|pointer| pointer.key.clone()).collect()
        };
        assert_eq!(found("2.39"), [new.key, old.key.clone()]);
        assert_eq!((found("2.31"), found("2.17")), (vec![old.key], vec![]));
        let many = (0..40).fold(newest, |all, at| all.with(&entry(&at.to_string(), "2.28")));
        assert_eq!(many.builds.len(), MOST_NEWEST);
    }

    #[test]
    fn what_is_published_again_is_no_newer_for_it() {
        let of = |engine: &str, year: u32| {
            let mut entry = entry(engine, "2.28");
            entry.build.published = format!("{year}-01-01T00:00:00Z");
            entry
        };
        let newest = [2025, 2027, 2026, 2024].map(|year| of(&year.to_string(), year));
        let list = newest.iter().fold(Newest::default(), |list, entry| list.with(entry));
        let years = |list: &Newest| -> Vec<String> {
            list.builds.iter().map(|pointer| pointer.published[..4].to_string()).collect()
        };
        assert_eq!(years(&list), ["2027", "2026", "2025", "2024"]);
        assert_eq!(list.clone().with(&of("2025", 2025)), list);
        // An entry that dropped off the list is not inserted again.
        let full = (0..MOST_NEWEST).fold(list, |list, at| list.with(&of(&format!("later {at}"), 2028)));
        assert_eq!(full.clone().with(&of("2025", 2025)), full);
    }
}
