//! Files and folders of prompt caches: checks of their paths, and atomic writes.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

use base::{Access as Rights, Unfinished};
use llama::error::{Error, Result};
use rustix::fs::Access;

/// Age after which an unfinished temporary file is considered abandoned.
const LEFT_BEHIND: Duration = Duration::from_secs(600);

/// Checks that the file at `path` can be used as a prompt cache.
///
/// # Errors
/// If `path` is not a regular file, or its folder is not writable.
pub fn check_file(path: &Path, read_only: bool) -> Result<()> {
    let failed = |why: String| Err(Error::Cache { path: path.to_path_buf(), why });
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => return failed("it is a folder".to_string()),
        Ok(found) if !found.is_file() => {
            return failed("it is not a regular file\nhint: choose another path".to_string());
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => return failed(error.to_string()),
        _ => {}
    }
    let folder = base::folder_of(path);
    match fs::metadata(folder) {
        _ if read_only => Ok(()),
        Ok(found) if found.is_dir() => check_writable(folder),
        _ => failed(format!("the folder {} does not exist\nhint: create it first", folder.display())),
    }
}

/// Checks that the folder `path` can contain prompt caches. Creates the folder if it does not exist.
///
/// # Errors
/// If `path` is not a folder, or the folder cannot be created or written.
pub fn check_folder(path: &Path, read_only: bool) -> Result<()> {
    let failed = |why: String| Err(Error::Cache { path: path.to_path_buf(), why });
    match fs::metadata(path) {
        Ok(found) if !found.is_dir() => {
            return failed("it is not a folder\nhint: choose another path".into());
        }
        Ok(_) if read_only => return Ok(()),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound && read_only => {
            return failed("the folder does not exist, and --prompt-cache-ro does not create it".into());
        }
        Err(_) => {
            if let Err(error) = create_folder(path) {
                return failed(format!(
                    "the folder cannot be created: {error}\nhint: choose another path with --prompt-cache"
                ));
            }
        }
    }
    check_writable(path)
}

/// Creates the folder `path` for this user only, unless it exists.
pub fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn check_writable(folder: &Path) -> Result<()> {
    match rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => Ok(()),
        Err(why) => Err(Error::Cache {
            path: folder.to_path_buf(),
            why: format!(
                "the folder is not writable ({})\nhint: choose another folder, or use --prompt-cache-ro",
                io::Error::from(why)
            ),
        }),
    }
}

/// Writes `parts` to a temporary file next to `path`, readable only by this user, and renames the file to `path`
/// once it is on disk. Even after a crash, a reader finds either the old file or the new file. Several writers may
/// run at the same time.
pub fn write_atomically(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    base::replace_with(path, Rights::Private, |file| parts.iter().try_for_each(|part| file.write_all(part)))
}

/// Removes temporary files that killed writers left behind in `folder`. `names` returns true for the names of the
/// final files.
pub fn remove_left_behind(folder: &Path, names: impl Fn(&str) -> bool) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !name.to_str().and_then(Unfinished::parse).is_some_and(|found| names(found.name)) {
            continue;
        }
        let modified = entry.metadata().and_then(|found| found.modified());
        let age = modified.ok().and_then(|modified| modified.elapsed().ok());
        if age.is_some_and(|age| age > LEFT_BEHIND) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_is_this_users() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("cache");
        fs::write(&path, "old").expect("written");
        write_atomically(&path, &[b"new ", b"content"]).expect("written");
        assert_eq!(fs::read(&path).expect("it is there"), b"new content");
        assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);
        assert!(write_atomically(&folder.path().join("none/cache"), &[b"x"]).is_err());
        // The temporary file is removed if it cannot be renamed.
        assert!(write_atomically(folder.path(), &[b"x"]).is_err());
        let names = fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(names, 1, "something was left behind");
    }

    #[test]
    fn many_write_the_same_file_and_all_of_them_whole() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("cache");
        std::thread::scope(|scope| {
            for letter in b'a'..=b'd' {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..20 {
                        let half = vec![letter; 5000];
                        write_atomically(path, &[&half, &half]).expect("written");
                        let found = fs::read(path).expect("it is there");
                        assert!(found.len() == 10_000 && found.iter().all(|byte| *byte == found[0]));
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn what_a_killed_writer_left_goes_after_a_while() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let names = [
            (".cache.12-ab0.part", 3600, false),
            (".cache.12-ab1.part", 0, true),
            (".other.12-ab0.part", 3600, true),
            (".cache.part", 3600, true),
            ("cache.12-ab0.part", 3600, true),
        ];
        for (name, age, _) in names {
            let file = fs::File::create(folder.path().join(name)).expect("a file");
            file.set_modified(SystemTime::now() - Duration::from_secs(age)).expect("a time");
        }
        remove_left_behind(folder.path(), |name| name == "cache");
        for (name, _, stays) in names {
            assert_eq!(folder.path().join(name).exists(), stays, "{name}");
        }
    }

    #[test]
    fn what_cannot_be_a_cache_is_named() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("file");
        fs::write(&file, "x").expect("written");
        let pipe = folder.path().join("pipe");
        let status = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(status.expect("mkfifo runs").success());
        let cases = [
            (check_file(folder.path(), false), "it is a folder"),
            (check_file(&pipe, false), "not a regular file"),
            (check_file(Path::new("/dev/null"), false), "not a regular file"),
            (check_file(&folder.path().join("none/cache"), false), "does not exist\nhint: create it first"),
            (check_folder(&file, false), "it is not a folder"),
            (check_folder(&folder.path().join("none"), true), "does not create it"),
            (check_folder(&file.join("below"), false), "cannot be created"),
        ];
        for (found, words) in cases {
            let why = found.expect_err("it cannot be used").to_string();
            assert!(why.contains(words), "{why}");
        }
        check_file(&folder.path().join("new"), false).expect("it can be made");
        let made = folder.path().join("a/b");
        check_folder(&made, false).expect("it is made");
        assert_eq!(fs::metadata(&made).expect("it is there").permissions().mode() & 0o777, 0o700);
    }
}
