//! Configuration of the minisign public key.
//!
//! `install`, `build --store` and `ANNEAL_STORE` follow the same rule: if a key is configured, they refuse
//! everything that has no valid signature from this key.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Environment variable that sets the key.
pub const VARIABLE: &str = "ANNEAL_MINISIGN_KEY";

/// Configured key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configured {
    /// Key, or the path of a file that contains the key.
    pub given: OsString,
    /// Source of the setting, for messages: `--key`, the variable or a file.
    pub from: String,
}

/// Returns the key for `prefix`: the key that the user has `given`, else the key in the environment variable, else
/// the file `etc/anneal/minisign.pub` in the prefix. Returns `None` if no key is configured.
///
/// # Errors
/// If the path of the prefix's key cannot be examined. An unreadable key must not be treated as missing.
pub fn configured(given: Option<&str>, prefix: Option<&Path>) -> Result<Option<Configured>> {
    find(given, std::env::var_os(VARIABLE), prefix)
}

/// Refuses `what`, which has no signature, if a key is configured.
///
/// # Errors
/// If a key is configured, or if the configuration cannot be read.
pub fn refuse_unsigned(what: &str, given: Option<&str>, prefix: Option<&Path>) -> Result<()> {
    refuse(what, configured(given, prefix)?)
}

fn refuse(what: &str, key: Option<Configured>) -> Result<()> {
    let Some(Configured { from, .. }) = key else { return Ok(()) };
    bail!("{what} has no signature, but the key from {from} requires one")
}

fn find(
    given: Option<&str>,
    variable: Option<OsString>,
    prefix: Option<&Path>,
) -> Result<Option<Configured>> {
    let found = |given: OsString, from: &str| Ok(Some(Configured { given, from: from.to_string() }));
    if let Some(given) = given {
        return found(given.into(), "--key");
    }
    if let Some(given) = variable.filter(|value| !value.is_empty()) {
        return found(given, VARIABLE);
    }
    let Some(prefix) = prefix else { return Ok(None) };
    let kept = prefix.join("etc/anneal/minisign.pub");
    // A dangling link at any level of the path is not treated as a missing key.
    let broken = [prefix.join("etc"), prefix.join("etc/anneal")]
        .into_iter()
        .find(|folder| folder.symlink_metadata().is_ok() && !folder.is_dir());
    if let Some(broken) = broken {
        bail!("cannot determine whether there is a minisign key: {} is not a folder", broken.display());
    }
    match std::fs::symlink_metadata(&kept) {
        Ok(_) => found(kept.clone().into(), &kept.to_string_lossy()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        // The file may exist even if it cannot be examined.
        Err(error) => Err(error).with_context(|| {
            format!(
                "cannot determine whether there is a minisign key: cannot examine {}\nhint: check the prefix",
                kept.display()
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_where_it_is_configured_and_then_nothing_unsigned_is_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = Some(folder.path());
        let kept = folder.path().join("etc/anneal/minisign.pub");
        assert_eq!(find(None, Some(OsString::new()), prefix).unwrap(), None);
        assert_eq!(find(None, None, None).unwrap(), None);
        refuse("a build", None).unwrap();
        std::fs::create_dir_all(kept.parent().unwrap()).unwrap();
        std::fs::write(&kept, "").unwrap();
        let cases = [
            (None, None, kept.to_string_lossy().into_owned()),
            (None, Some("k"), VARIABLE.to_string()),
            (Some("k"), Some("k"), "--key".to_string()),
        ];
        for (given, variable, from) in cases {
            let key = find(given, variable.map(OsString::from), prefix).unwrap();
            assert_eq!(key.as_ref().map(|key| &key.from), Some(&from));
            let error = refuse("the build in /srv/builds", key).unwrap_err().to_string();
            assert!(error.contains("/srv/builds has no signature") && error.contains(&from), "{error}");
        }
        // A dangling link is treated as an unreadable key.
        std::fs::remove_file(&kept).unwrap();
        std::os::unix::fs::symlink("nowhere", &kept).unwrap();
        assert!(find(None, None, prefix).unwrap().is_some());
        std::fs::remove_dir_all(folder.path().join("etc")).unwrap();
        std::os::unix::fs::symlink("nowhere", folder.path().join("etc")).unwrap();
        assert!(find(None, None, prefix).is_err());
    }
}
