//! Tests of ctrl-C, killed builds, and two builds at once.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::checkout::{Checkout, Run, write};

/// Starts a build that waits in its C++ part. Returns the build and the process that it waits for, once it waits.
fn slow_build(checkout: &Checkout) -> (Child, u32) {
    write(&checkout.source.join("slow"), "");
    let child = checkout.build_command("native").spawn().unwrap();
    let step = slow_step(&child);
    (child, step)
}

/// Waits until a descendant of `child` sleeps.
fn slow_step(child: &Child) -> u32 {
    let begun = Instant::now();
    loop {
        if let Some(pid) = sleeping(child.id()) {
            return pid;
        }
        assert!(begun.elapsed() < Duration::from_secs(300), "the slow step was not reached");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the descendant of `parent` that is the slow step.
fn sleeping(parent: u32) -> Option<u32> {
    let children = |pid: u32| -> Vec<u32> {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        tasks
            .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
            .flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>())
            .collect()
    };
    children(parent).into_iter().find_map(|child| {
        let name = std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
        if name.trim() == "sleep" { Some(child) } else { sleeping(child) }
    })
}

/// Time limit for the end of a process. Busy machines are slow, and the slow step ends by itself after 60 s.
const PATIENCE: Duration = Duration::from_secs(50);

/// True if the process `pid` ends in time, or is a zombie that its new parent has not reaped yet. A signal takes a
/// moment to end a process.
fn ends(pid: u32) -> bool {
    // The name, in parentheses, may contain any character; the state follows it.
    let has_ended = || {
        std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .map_or(true, |text| text.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')))
    };
    let begun = Instant::now();
    while !has_ended() {
        if begun.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

fn pid(raw: u32) -> Pid {
    Pid::from_raw(raw.try_into().unwrap())
}

#[test]
fn ctrl_c_ends_the_build_and_its_children_and_the_next_run_goes_on() {
    let checkout = Checkout::new("checkout");
    checkout.build("native").expect(0, "built");
    let good = std::fs::canonicalize(checkout.current("native")).unwrap();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let (child, step) = slow_build(&checkout);
        kill(pid(child.id()), signal).unwrap();
        let begun = Instant::now();
        let run =
            Run::from(child.wait_with_output().unwrap()).expect(130, "run the same command again to resume");
        assert!(begun.elapsed() < PATIENCE, "{}", run.err);
        assert!(ends(step), "children were left behind");
        assert_eq!(std::fs::canonicalize(checkout.current("native")).unwrap(), good);
    }
    // The plan is the same, so the configuration is kept. The test ends the slow step early, because that step only
    // waits.
    let (child, step) = slow_build(&checkout);
    kill(pid(step), Signal::SIGKILL).unwrap();
    Run::from(child.wait_with_output().unwrap()).expect(1, "kept configure");
}

#[test]
fn a_second_build_is_told_to_try_again_and_a_killed_one_holds_nothing() {
    let checkout = Checkout::new("checkout");
    let (mut child, step) = slow_build(&checkout);
    let second = checkout.build("portable").expect(75, "another build is running in this checkout");
    // Usage errors are reported immediately.
    for (args, part) in [
        (&["build", "--profile", "nope"][..], " dev, native,"),
        (&["build-native", "--commit", "abc"], "need --origin git"),
        (&["vendor", "--commit", "abc"], "need --origin git"),
    ] {
        checkout.xtask(args).expect(2, part);
    }
    // The folder also contains an abandoned build.
    write(&checkout.root.join("target/anneal/portable-000000000000/stages/x"), "");
    let shown = checkout.xtask(&["show"]).expect(0, "").out;
    assert_eq!((shown.matches("building").count(), shown.matches("unfinished").count()), (1, 1), "{shown}");
    assert!(second.err.contains(&format!("(process {})", child.id())), "{}", second.err);
    kill(pid(child.id()), Signal::SIGKILL).unwrap();
    child.wait().unwrap();
    assert!(ends(step), "a process of the killed build is still running");
    std::fs::remove_file(checkout.source.join("slow")).unwrap();
    checkout.build("native").expect(0, "built");
}

/// Returns a PATH whose fake `apt-get` takes a minute for every command and logs its arguments, and whose `id` reports
/// root.
fn slow_apt(checkout: &Checkout) -> String {
    let bin = checkout.root.join("bin");
    let asked = checkout.root.join("asked");
    for (name, script) in [
        ("apt-get", format!("echo \"$@\" >> '{}'; /bin/sleep 60", asked.display())),
        ("id", "echo 0".to_string()),
    ] {
        write(&bin.join(name), &format!("#!/bin/sh\n{script}\n"));
        std::fs::set_permissions(bin.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    bin.to_str().unwrap().to_string()
}

#[test]
fn ctrl_c_ends_an_installation_before_its_next_command() {
    let checkout = Checkout::new("checkout");
    let path = slow_apt(&checkout);
    let mut command = checkout.command(&["setup", "--yes"]);
    // The process group mimics a terminal's foreground group, so ctrl-C also reaches the installer.
    let child = command.env("PATH", path).process_group(0).spawn().unwrap();
    slow_step(&child);
    killpg(pid(child.id()), Signal::SIGINT).unwrap();
    Run::from(child.wait_with_output().unwrap()).expect(130, "stopped; missing: ");
    assert_eq!(std::fs::read_to_string(checkout.root.join("asked")).unwrap(), "update\n");
}

#[test]
fn ctrl_c_is_an_answer_to_the_question() {
    let checkout = Checkout::new("checkout");
    let path = slow_apt(&checkout);
    // A prompt needs a terminal, which `script` provides.
    let mut child = Command::new("script")
        .args(["-qec", "PATH=\"$PATH_OF_XTASK\" exec \"$XTASK\" setup", "/dev/null"])
        .env("SHELL", "/bin/sh")
        .env("XTASK", env!("CARGO_BIN_EXE_xtask"))
        .env("PATH_OF_XTASK", path)
        .env("ANNEAL_WORKSPACE", &checkout.root)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut keyboard, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut shown = Vec::new();
    while !shown.ends_with(b"[Y/n] ") {
        let mut byte = [0];
        assert_eq!(screen.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&shown));
        shown.push(byte[0]);
    }
    keyboard.write_all(b"\x03").unwrap();
    let begun = Instant::now();
    screen.read_to_end(&mut shown).unwrap();
    let status = child.wait().unwrap();
    let shown = String::from_utf8_lossy(&shown);
    assert_eq!(status.code(), Some(130), "{shown}");
    assert!(shown.contains("stopped; missing: ") && begun.elapsed() < PATIENCE, "{shown}");
    assert!(!checkout.root.join("asked").exists(), "something was installed");
}
