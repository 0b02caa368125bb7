//! Tests of the program `ship`: it carries out orders of all kinds, and each reply says what was done. The tests of the
//! crate `install` cover installing itself.

mod common;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{archives, name, snapshot};
use ship::order::{Install, Installed, List, Rollback, Uninstall};
use ship::{Answer, Order, Reply};

/// Gives an order to the program, whose stdout is `stdout`. Returns its exit code, stdout and stderr.
fn give(order: &Order, stdout: Stdio) -> (i32, Vec<u8>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ship"));
    command.stdin(Stdio::piped()).stdout(stdout).stderr(Stdio::piped()).env_remove("ANNEAL_MINISIGN_KEY");
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(&serde_json::to_vec(order).unwrap()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().unwrap_or(-1), output.stdout, said)
}

fn reply(order: &Order) -> (i32, Reply) {
    let (code, stdout, said) = give(order, Stdio::piped());
    let reply = serde_json::from_slice(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout:?} {said}"));
    (code, reply)
}

fn install(dist: &Path, version: &str, prefix: &Path) -> Order {
    let from = dist.join(format!("{}.tar.zst", name(version))).display().to_string();
    Order::Install(Install { from, prefix: Some(prefix.to_path_buf()), ..Install::default() })
}

/// Returns the version that is current in `prefix`.
fn current(prefix: &Path) -> Option<PathBuf> {
    fs::read_link(prefix.join("lib/anneal/current")).ok()
}

#[test]
fn orders_install_switch_list_and_remove() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path(), &["0.1.0", "0.2.0"]);
    let prefix = temp.path().join("prefix");
    for (version, before) in [("0.1.0", None), ("0.2.0", Some(name("0.1.0")))] {
        let (code, reply) = reply(&install(&dist, version, &prefix));
        let Reply::Done(Answer::Installed(Installed { name: installed, previous, .. })) = reply else {
            panic!("{reply:?}")
        };
        assert_eq!((code, installed, previous), (0, name(version), before));
    }
    let order = Order::Rollback(Rollback { prefix: Some(prefix.clone()), dry_run: false });
    let (code, switched) = reply(&order);
    let Reply::Done(Answer::Switched(switched)) = switched else { panic!("{switched:?}") };
    assert_eq!((code, switched.current), (0, name("0.1.0")));
    let (_, listed) = reply(&Order::List(List { prefix: Some(prefix.clone()) }));
    let Reply::Done(Answer::Listed(listed)) = listed else { panic!("{listed:?}") };
    assert_eq!(listed.iter().map(|one| one.current).collect::<Vec<_>>(), [true, false]);
    let order =
        Order::Uninstall(Uninstall { all: true, prefix: Some(prefix.clone()), ..Uninstall::default() });
    let (code, removed) = reply(&order);
    let Reply::Done(Answer::Uninstalled(removed)) = removed else { panic!("{removed:?}") };
    assert_eq!((code, removed.removed.len(), snapshot(&prefix).len()), (0, 2, 0));
    let (code, failed) = reply(&order);
    let Reply::Failed(failed) = failed else { panic!("{failed:?}") };
    assert!(code == 1 && failed.said.concat().contains("nothing is installed"), "{failed:?}");
}

#[test]
fn what_cannot_be_answered_is_done_all_the_same() {
    let temp = tempfile::tempdir().unwrap();
    let dist = archives(temp.path(), &["0.1.0", "0.2.0"]);
    let prefix = temp.path().join("prefix");
    for version in ["0.1.0", "0.2.0"] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (code, _, said) = give(&install(&dist, version, &prefix), full.into());
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("cannot write the reply to stdout"), "{said}");
        assert_eq!(current(&prefix), Some(Path::new("versions").join(name(version))));
    }
}
