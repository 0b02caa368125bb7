//! The hub's description of a repository: its files, with their sizes and digests.

use serde::Deserialize;

use super::name::is_path;

/// Contents of a repository at one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Commit hash: 40 hexadecimal digits.
    pub commit: String,
    /// Files of the repository, except files whose names are not safe as local paths.
    pub files: Vec<HubFile>,
}

/// One file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubFile {
    /// Path in the repository.
    pub path: String,
    /// Size in bytes, if known.
    pub size: Option<u64>,
    /// SHA-256 as 64 lower-case hexadecimal digits. This digest is also the name of the blob in the cache, and the
    /// hub's LFS object ID. `None` if the listing contains no digest.
    pub sha256: Option<String>,
}

/// The hub's JSON response.
#[derive(Deserialize)]
struct ListingJson {
    sha: Option<String>,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    #[serde(alias = "oid")]
    sha256: Option<String>,
    size: Option<u64>,
}

impl Listing {
    /// Parses the hub's response. The response is not trusted, because its strings become file names.
    ///
    /// # Errors
    /// If the response is not a valid listing. The error describes the defect.
    pub fn read(json: &[u8]) -> Result<Self, String> {
        let answer: ListingJson = serde_json::from_slice(json).map_err(|why| why.to_string())?;
        let commit = answer.sha.ok_or("the commit is missing")?;
        if !is_hex(&commit, 40) {
            return Err("the commit is not a 40-digit hexadecimal number".to_string());
        }
        let files = answer.siblings.into_iter().filter(|file| is_path(&file.rfilename)).map(|file| {
            let (sha256, size) = file.lfs.map_or((None, None), |lfs| (lfs.sha256, lfs.size));
            HubFile {
                path: file.rfilename,
                size: size.or(file.size),
                sha256: sha256.map(|digest| digest.to_lowercase()).filter(|digest| is_hex(digest, 64)),
            }
        });
        Ok(Listing { commit, files: files.collect() })
    }
}

/// True if `text` consists of exactly `digits` hexadecimal digits.
pub(super) fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_left_out() {
        let digest = "AB".repeat(32);
        let text = format!(
            r#"{{"sha": "{}", "private": false, "siblings": [
                {{"rfilename": "a.gguf", "size": 3, "blobId": "x", "lfs": {{"sha256": "{digest}", "size": 4, "pointerSize": 1}}}},
                {{"rfilename": "../b.gguf"}}, {{"rfilename": "/c.gguf"}}, {{"rfilename": "d\u0000.gguf"}},
                {{"rfilename": "e/f.gguf", "size": 5, "lfs": {{"oid": "../../g"}}}}]}}"#,
            "0".repeat(40)
        );
        let listing = Listing::read(text.as_bytes()).expect("a listing");
        let entry = |path: &str, size, sha256| HubFile { path: path.to_string(), size: Some(size), sha256 };
        assert_eq!(listing.files, [entry("a.gguf", 4, Some("ab".repeat(32))), entry("e/f.gguf", 5, None)]);
    }

    #[test]
    fn what_is_no_listing_is_told() {
        for (text, expected) in [
            ("<html>", "expected value"),
            ("{}", "the commit is missing"),
            (r#"{"sha": "../x"}"#, "is not a 40-digit hexadecimal number"),
            (r#"{"sha": "main", "siblings": 3}"#, "invalid type"),
        ] {
            let why = Listing::read(text.as_bytes()).expect_err(text);
            assert!(why.contains(expected), "{why}");
        }
    }
}
