//! Tests of folders in which another user could replace a server's socket.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};

use crate::client::{PATIENCE, Server, command, greedy};
use crate::common;

/// ID of another user, and of a group that does not exist.
const OTHER: u32 = 54_321;

/// Creates a folder in `above`, with the given owner, group and mode.
fn folder(above: &Path, name: &str, owner: u32, group: u32, mode: u32) -> PathBuf {
    let path = above.join(name);
    fs::create_dir(&path).expect("made");
    chown(&path, Some(owner), Some(group)).expect("given away: these attacks need root, which CI has");
    fs::set_permissions(&path, Permissions::from_mode(mode)).expect("a mode");
    path
}

/// Returns the error of a server that refuses to listen in `folder`.
fn refusal(folder: &Path) -> String {
    let mut child = command(&["--socket"]).arg(folder.join("a.sock")).spawn().expect("the executable runs");
    let mut stderr = child.stderr.take().expect("piped");
    let begin = std::time::Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if folder.join("a.sock").exists() || begin.elapsed() > PATIENCE {
            let _ = child.kill();
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let mut words = String::new();
    std::io::Read::read_to_string(&mut stderr, &mut words).expect("text");
    assert!(!folder.join("a.sock").exists(), "it listens in {}: {words}", folder.display());
    words
}

#[test]
fn a_socket_that_another_user_could_replace_is_refused() {
    if !rustix::process::geteuid().is_root() {
        // A test in engine/server/src/socket_folder.rs checks the rules without needing another user.
        return only_root_sees_all();
    }
    let above = tempfile::tempdir().expect("a temporary folder");
    let above = above.path().canonicalize().expect("it is there");
    let theirs = folder(&above, "theirs", OTHER, OTHER, 0o755);
    let below = folder(&theirs, "below", 0, 0, 0o700);
    let group = folder(&above, "group", 0, OTHER, 0o775);
    let open = folder(&above, "open", 0, 0, 0o777);
    let below_open = folder(&open, "below", 0, 0, 0o700);
    let sticky = folder(&above, "sticky", 0, 0, 0o1777);
    let their_link = sticky.join("link");
    symlink(folder(&above, "own", 0, 0, 0o700), &their_link).expect("a link");
    lchown(&their_link, Some(OTHER), Some(OTHER)).expect("given away");
    let into_theirs = above.join("into");
    symlink("theirs/below", &into_theirs).expect("a link");
    for (folder, expected) in [
        (&theirs, "belongs to user 54321, who can write to it"),
        (&below, "theirs belongs to user 54321, who can write to it"),
        (&group, "other members of its group can write to the folder"),
        (&open, "all users can write to the folder"),
        (&below_open, "open (mode 0777)"),
        (&their_link, "belongs to user 54321, who can replace it"),
        (&into_theirs, "theirs belongs to user 54321"),
    ] {
        let words = refusal(folder);
        assert!(
            words.contains(expected)
                && words.lines().any(|line| line.starts_with("hint: ") && line.contains("--socket")),
            "{}: {words}",
            folder.display()
        );
    }
}

/// Tests a folder that all users can write to. This test does not need another user.
fn only_root_sees_all() {
    let above = tempfile::tempdir().expect("a temporary folder");
    let open = above.path().join("open");
    fs::create_dir(&open).expect("made");
    fs::set_permissions(&open, Permissions::from_mode(0o777)).expect("a mode");
    assert!(refusal(&open).contains("all users can write to the folder"));
}

#[test]
fn a_folder_of_ones_own_is_fine_also_below_one_that_all_share() {
    let shared = tempfile::tempdir().expect("a temporary folder");
    fs::set_permissions(shared.path(), Permissions::from_mode(0o1777)).expect("a mode");
    let own = shared.path().join("own");
    fs::create_dir(&own).expect("made");
    fs::set_permissions(&own, Permissions::from_mode(0o755)).expect("a mode");
    for (socket, warned) in [(own.join("a.sock"), false), (shared.path().join("a.sock"), true)] {
        let mut command = command(&[]);
        command.arg("--socket").arg(&socket);
        let mut server = Server::with(command, tempfile::tempdir().expect("a temporary folder"));
        let answer = crate::client::Lines::new(&socket).ask(&greedy("a", 1));
        assert!(answer["usage"].is_object(), "{answer}");
        server.signal("TERM");
        assert_eq!(common::code(&mut server.child, PATIENCE), Some(0));
        let mut words = String::new();
        let mut stderr = server.child.stderr.take().expect("piped");
        std::io::Read::read_to_string(&mut stderr, &mut words).expect("text");
        assert_eq!(
            words.contains("can create a socket in this folder while no server runs"),
            warned,
            "{words}"
        );
    }
}
