//! Random salt of a cache folder, which protects the digests of scopes in the folder.
//!
//! The scope of a client with an API key depends only on the key. Without a salt, anyone who copied a cache file
//! could test guessed keys. The salt is stored in the folder, so that a restarted server finds its entries again.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use base::{Access, Pending};
use sha2::{Digest as _, Sha256};

use super::digest::Digest;
use super::key::UNSCOPED;
use super::{entry, place};

/// Name of the salt's file.
const NAME: &str = "scopes.salt";

/// Size of a salt in bytes.
const BYTES: usize = 32;

/// Returns the digest that represents `scope` in the files of `folder`. Creates the salt if it is missing. If the salt
/// is missing and the folder is `read_only`, returns `None`, because no file can belong to the scope.
///
/// # Errors
/// If the salt cannot be read or created.
pub fn salted(folder: &Path, scope: Digest, read_only: bool) -> Result<Option<Digest>, String> {
    if scope == UNSCOPED {
        return Ok(Some(scope));
    }
    let path = folder.join(NAME);
    let failed = |why: String| {
        let mend = match path.symlink_metadata() {
            Ok(_) => "remove the file; until you remove it, clients' prompts are not cached on disk",
            Err(_) => "until the file can be created, clients' prompts are not cached on disk",
        };
        format!("cannot use the salt {}: {why}\nhint: {mend}", path.display())
    };
    let salt = match read(&path) {
        Ok(None) if read_only => return Ok(None),
        Ok(None) => {
            create(folder, &path).map_err(|why| failed(why.to_string()))?;
            read(&path)
        }
        found => found,
    };
    let salt = salt.map_err(failed)?.ok_or_else(|| failed("it was removed".to_string()))?;
    // The salt and the scope have fixed lengths, so no other pair of salt and scope has the same digest.
    Ok(Some(Sha256::new().chain_update(salt).chain_update(scope).finalize().into()))
}

/// Reads the salt at `path`. Returns `None` if the file does not exist.
fn read(path: &Path) -> Result<Option<[u8; BYTES]>, String> {
    let file = match entry::open(path) {
        Ok(file) => file,
        Err(entry::Unfit::Absent) => return Ok(None),
        Err(why) => return Err(why.to_string()),
    };
    let found = file.metadata().map_err(|why| why.to_string())?;
    if found.mode() & 0o077 != 0 {
        return Err("other users can read it".to_string());
    }
    let mut bytes = Vec::with_capacity(BYTES);
    // One extra byte reveals a file that is too long.
    file.take(BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|why| why.to_string())?;
    let length = bytes.len();
    let salt = bytes.try_into().map_err(|_| format!("it has {length} bytes instead of {BYTES}"))?;
    Ok(Some(salt))
}

/// Creates a random salt at `path` in `folder`, unless another process creates one first. Creates the folder if it was
/// deleted.
fn create(folder: &Path, path: &Path) -> io::Result<()> {
    place::create_folder(folder)?;
    let mut salt = [0; BYTES];
    File::open("/dev/urandom")?.read_exact(&mut salt)?;
    let mut pending = Pending::beside(path, Access::Private)?;
    pending.file_mut().write_all(&salt)?;
    pending.commit_new().map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const SCOPE: Digest = [5; 32];

    #[test]
    fn a_scope_depends_on_the_folder_and_survives_a_restart() {
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder"));
        let [one, other] = [0, 1].map(|at| salted(folders[at].path(), SCOPE, false).expect("a salt"));
        assert!(one.is_some() && one != Some(SCOPE) && one != other);
        assert_eq!(salted(folders[0].path(), SCOPE, false), Ok(one));
        assert_eq!(salted(folders[0].path(), SCOPE, true), Ok(one));
        assert_ne!(salted(folders[0].path(), [6; 32], false), Ok(one));
        let mode = fs::metadata(folders[0].path().join(NAME)).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_deleted_folder_is_created_again() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let folder = parent.path().join("cache");
        let before = salted(&folder, SCOPE, false).expect("a salt");
        fs::remove_dir_all(&folder).expect("removed");
        let after = salted(&folder, SCOPE, false).expect("a salt");
        assert!(after.is_some() && after != before);
        assert_eq!(fs::metadata(&folder).expect("a folder").permissions().mode() & 0o777, 0o700);
        // The folder cannot be created, and no file exists that could be removed.
        let file = parent.path().join("file");
        fs::write(&file, "").expect("written");
        let why = salted(&file.join("cache"), SCOPE, false).expect_err("no folder");
        assert!(why.contains("until the file can be created") && !why.contains("remove the file"), "{why}");
    }

    #[test]
    fn no_salt_is_created_without_need() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        assert_eq!(salted(folder.path(), UNSCOPED, false), Ok(Some(UNSCOPED)));
        assert_eq!(salted(folder.path(), SCOPE, true), Ok(None));
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }

    #[test]
    fn a_salt_that_others_know_or_that_is_damaged_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join(NAME);
        for (bytes, mode, expected) in [
            (32, 0o644, "other users can read it"),
            (31, 0o600, "31 bytes instead of 32"),
            (33, 0o600, "33 bytes instead of 32"),
        ] {
            fs::write(&path, vec![7; bytes]).expect("written");
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("a mode");
            let why = salted(folder.path(), SCOPE, false).expect_err("it is no salt");
            assert!(why.contains(expected) && why.contains("until you remove it"), "{why}");
        }
    }
}
