//! Check of the folders above a Unix socket: no other user may be able to replace the socket.
//!
//! A user who may rename or remove a part of the socket's path could make clients connect to another program. In an
//! ordinary folder, these users are the folder's owner and all users with write access. In a folder with the sticky
//! bit, only the owner of the folder and the owner of the part can rename or remove the part. Therefore the check
//! covers every folder from the root to the socket, and every link on the path.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::process::geteuid;

/// Maximum number of symbolic links in a path, as in Linux.
const LINKS: usize = 40;

const STICKY: u32 = 0o1000;
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;

/// Owner and permissions of a folder or link.
#[derive(Clone, Copy, Debug)]
struct FolderFacts {
    owner: u32,
    mode: u32,
    /// True if the folder's group has write access, and has members other than root and this user.
    group_has_others: bool,
}

impl FolderFacts {
    fn of(path: &Path, found: &Metadata) -> Self {
        let has_group = found.mode() & GROUP_WRITES != 0;
        FolderFacts {
            owner: found.uid(),
            mode: found.mode() & 0o7777,
            group_has_others: has_group && (has_list(path) || group_has_others(found.gid())),
        }
    }

    fn is_shared(self) -> bool {
        self.mode & OTHERS_WRITE != 0 || (self.mode & GROUP_WRITES != 0 && self.group_has_others)
    }

    fn is_sticky(self) -> bool {
        self.mode & STICKY != 0
    }
}

/// Checks every folder from the root to `folder`, which contains the socket. Returns a warning if other users can
/// create a socket in `folder` while no server runs.
///
/// # Errors
/// If another user could replace the socket, or if a folder cannot be checked. The message states the folder and the
/// remedy.
pub fn check(folder: &Path) -> Result<Option<String>, String> {
    let last = walk(folder, &mut |path| {
        let found = fs::symlink_metadata(path)?;
        Ok((FolderFacts::of(path, &found), found.is_symlink()))
    })?;
    Ok(last.1.is_shared().then(|| {
        format!(
            "other users can write to {} (mode {:04o}), so they can create a socket in this folder while no server \
            runs\nhint: use --socket to choose a folder that belongs to you",
            last.0.display(),
            last.1.mode
        )
    }))
}

/// Returns the error for a folder that cannot be used because of `why`.
pub fn cannot(folder: &Path, why: &io::Error) -> String {
    let mend = match why.kind() {
        io::ErrorKind::NotFound => "create it first",
        _ => "use --socket to choose a folder that belongs to you",
    };
    format!("cannot use the folder {}: {why}\nhint: {mend}", folder.display())
}

/// Checks the parts of `folder`. `look` reads the properties of a part. Returns the last folder after all links are
/// resolved, and its permissions.
fn walk(
    folder: &Path,
    look: &mut dyn FnMut(&Path) -> io::Result<(FolderFacts, bool)>,
) -> Result<(PathBuf, FolderFacts), String> {
    let absolute = std::path::absolute(folder).map_err(|why| cannot(folder, &why))?;
    let mut rest: VecDeque<OsString> = parts(&absolute).collect();
    let mut at = PathBuf::from("/");
    let (mut facts, _) = look(&at).map_err(|why| cannot(&at, &why))?;
    judge(&at, facts)?;
    let mut links = 0;
    while let Some(part) = rest.pop_front() {
        if part == ".." {
            at.pop();
            (facts, _) = look(&at).map_err(|why| cannot(&at, &why))?;
            continue;
        }
        let next = at.join(&part);
        let (found, is_link) = look(&next).map_err(|why| cannot(&next, &why))?;
        // In folders without the sticky bit, only the folder's owner matters, and that owner was already checked.
        if facts.is_shared() && !is_trusted(found.owner) {
            return Err(format!(
                "{} belongs to user {}, who can replace it\nhint: use --socket to choose a folder that belongs to you",
                next.display(),
                found.owner
            ));
        }
        if !is_link {
            judge(&next, found)?;
            (at, facts) = (next, found);
            continue;
        }
        links += 1;
        if links > LINKS {
            return Err(format!("{} contains more than {LINKS} symbolic links", folder.display()));
        }
        let target = fs::read_link(&next).map_err(|why| cannot(&next, &why))?;
        if target.is_absolute() {
            at = PathBuf::from("/");
            (facts, _) = look(&at).map_err(|why| cannot(&at, &why))?;
        }
        for part in parts(&target).collect::<Vec<_>>().into_iter().rev() {
            rest.push_front(part);
        }
    }
    Ok((at, facts))
}

/// Returns the components of `path` that are names or `..`.
fn parts(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_os_string()),
        Component::ParentDir => Some("..".into()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    })
}

/// Rejects a folder in which other users could remove or rename files of this user.
fn judge(path: &Path, facts: FolderFacts) -> Result<(), String> {
    const COULD: &str = "and could replace the socket";
    let shown = path.display();
    if !is_trusted(facts.owner) {
        return Err(format!(
            "the folder {shown} belongs to user {}, who can write to it {COULD}\nhint: use --socket to choose a folder \
            that belongs to you",
            facts.owner
        ));
    }
    if !facts.is_shared() || facts.is_sticky() {
        return Ok(());
    }
    let (who, mend) = match facts.mode & OTHERS_WRITE {
        0 => ("other members of its group", "g-w"),
        _ => ("all users", "o-w"),
    };
    Err(format!(
        "{who} can write to the folder {shown} (mode {:04o}) {COULD}\nhint: restrict it with chmod {mend}, or choose \
        another folder with --socket",
        facts.mode
    ))
}

/// True for root and for this user.
fn is_trusted(user: u32) -> bool {
    user == 0 || user == geteuid().as_raw() || is_unmapped(user)
}

/// True for the user ID that represents all users outside a user namespace, including root. No process inside the
/// namespace can have this ID.
fn is_unmapped(user: u32) -> bool {
    let all = |map: &str| map.split_whitespace().eq(["0", "0", "4294967295"]);
    let inside = fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| !all(&map));
    let unmapped = || fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?.trim().parse().ok();
    inside && unmapped() == Some(user)
}

/// True if `path` has an access control list. With a list, the group permissions may also apply to other users.
fn has_list(path: &Path) -> bool {
    rustix::fs::getxattr(path, c"system.posix_acl_access", &mut [0_u8; 0][..]).is_ok_and(|size| size > 0)
}

/// True if `group` has members other than root and this user, or if its members are unknown.
fn group_has_others(group: u32) -> bool {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    has_others(group, &read("/etc/group"), &read("/etc/passwd"), &is_trusted)
}

fn has_others(group: u32, groups: &str, users: &str, is_trusted: &dyn Fn(u32) -> bool) -> bool {
    let field = |line: &str, at: usize| line.split(':').nth(at).map(str::to_string);
    let number = |line: &str, at| field(line, at)?.parse::<u32>().ok();
    let Some(line) = groups.lines().find(|line| number(line, 2) == Some(group)) else { return true };
    let members = field(line, 3).unwrap_or_default();
    let named = members.split(',').map(str::trim).filter(|name| !name.is_empty()).map(|name| {
        let user = users.lines().find(|line| field(line, 0).as_deref() == Some(name));
        user.and_then(|line| number(line, 2))
    });
    let first = users.lines().filter(|line| number(line, 3) == Some(group)).map(|line| number(line, 2));
    named.chain(first).any(|user| user.is_none_or(|user| !is_trusted(user)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// ID of another user.
    const OTHER: u32 = 54_321;

    fn facts(owner: u32, mode: u32, group_has_others: bool) -> FolderFacts {
        FolderFacts { owner, mode, group_has_others }
    }

    #[test]
    fn every_folder_above_is_looked_at() {
        let own = facts(geteuid().as_raw(), 0o700, false);
        let root = facts(0, 0o755, false);
        let shared = facts(0, 0o1777, true);
        type Case<'a> = (&'a [(&'a str, FolderFacts)], &'a str);
        let cases: [Case<'_>; 11] = [
            (&[("/tmp", shared), ("/tmp/a", own)], ""),
            (&[("/run", root), ("/run/a", own)], ""),
            (&[("/srv", root), ("/srv/a", facts(0, 0o775, false))], ""),
            (&[("/tmp", shared)], ""),
            (
                &[("/srv", facts(0, 0o777, true)), ("/srv/a", own)],
                "all users can write to the folder /srv (mode 0777)",
            ),
            (
                &[("/srv", root), ("/srv/a", facts(0, 0o775, true))],
                "other members of its group can write to the folder /srv/a",
            ),
            (&[("/srv", root), ("/srv/a", facts(0, 0o1775, true))], ""),
            (&[("/home", root), ("/home/a", facts(OTHER, 0o755, false))], "/home/a belongs to user 54321"),
            (&[("/home", facts(OTHER, 0o755, false)), ("/home/a", own)], "/home belongs to user 54321"),
            (&[("/tmp", shared), ("/tmp/a", facts(OTHER, 0o700, false))], "/tmp/a belongs to user 54321"),
            (
                &[("/srv", root), ("/srv/a", facts(0, 0o733, false))],
                "all users can write to the folder /srv/a",
            ),
        ];
        for (folders, expected) in cases {
            let known: HashMap<&Path, FolderFacts> =
                folders.iter().map(|(path, facts)| (Path::new(*path), *facts)).collect();
            let mut look = |path: &Path| Ok((known.get(path).copied().unwrap_or(root), false));
            let folder = folders.last().expect("a folder").0;
            let found = walk(Path::new(folder), &mut look).map(|(path, _)| path);
            match expected {
                "" => assert_eq!(found, Ok(PathBuf::from(folder))),
                _ => assert!(found.as_ref().is_err_and(|why| why.contains(expected)), "{folder}: {found:?}"),
            }
        }
    }

    #[test]
    fn links_are_followed_and_belong_to_whom_they_must() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let real = folder.path().canonicalize().expect("it is there").join("real");
        fs::create_dir(&real).expect("made");
        std::os::unix::fs::symlink("real/../real", folder.path().join("one")).expect("a link");
        std::os::unix::fs::symlink(folder.path().join("one"), folder.path().join("two")).expect("a link");
        std::os::unix::fs::symlink("round", folder.path().join("round")).expect("a link");
        let mut look = |path: &Path| {
            let found = fs::symlink_metadata(path)?;
            Ok((facts(0, 0o755, false), found.is_symlink()))
        };
        let (found, _) = walk(&folder.path().join("two"), &mut look).expect("a folder");
        assert_eq!(found, real);
        let round = walk(&folder.path().join("round"), &mut look).expect_err("a loop of links");
        assert!(round.contains("more than 40 symbolic links"), "{round}");
        // A link that another user created in a shared folder.
        let mut look = |path: &Path| {
            let is_link = fs::symlink_metadata(path)?.is_symlink();
            let shared = path == folder.path();
            Ok((facts(if is_link { OTHER } else { 0 }, if shared { 0o1777 } else { 0o755 }, shared), is_link))
        };
        let why = walk(&folder.path().join("two"), &mut look).expect_err("the link belongs to another user");
        assert!(why.contains("two belongs to user 54321, who can replace it"), "{why}");
    }

    #[test]
    fn a_group_of_this_user_alone_is_no_other() {
        let (groups, users) = (
            "me:x:7:\nteam:x:8:me,her\nalone:x:9:me\ngone:x:10:nobody-knows\n",
            "me:x:70:7:::\nher:x:80:11:::\n",
        );
        let trusted = |user: u32| user == 70;
        for (group, expected) in [(7, false), (8, true), (9, false), (10, true), (11, true), (99, true)] {
            assert_eq!(has_others(group, groups, users, &trusted), expected, "{group}");
        }
    }
}
