//! Ctrl-C, a kill, and two builds at once.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::checkout::{Checkout, Run, write};

/// A build that waits in its C++ part. Returns when it is there.
fn slow_build(checkout: &Checkout) -> Child {
    write(&checkout.source.join("slow"), "");
    let child = checkout.build_command("native").spawn().unwrap();
    let begun = Instant::now();
    while !sleeping(child.id()) {
        assert!(begun.elapsed() < Duration::from_secs(60), "the build did not get to its slow step");
        std::thread::sleep(Duration::from_millis(50));
    }
    child
}

/// Whether a descendant of `parent` is the slow step.
fn sleeping(parent: u32) -> bool {
    let children = |pid: u32| -> Vec<u32> {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        tasks
            .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
            .flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>())
            .collect()
    };
    children(parent).into_iter().any(|child| {
        std::fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|name| name.trim() == "sleep")
            || sleeping(child)
    })
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args([format!("-{name}"), child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

#[test]
fn ctrl_c_ends_the_build_and_its_children_and_the_next_run_goes_on() {
    let checkout = Checkout::new("checkout");
    checkout.build("native").expect(0, "built");
    let good = std::fs::canonicalize(checkout.current("native")).unwrap();
    for name in ["INT", "TERM"] {
        let child = slow_build(&checkout);
        let pid = child.id();
        signal(&child, name);
        let begun = Instant::now();
        let run = Run::from(child.wait_with_output().unwrap()).expect(130, "run the same again to go on");
        assert!(begun.elapsed() < Duration::from_secs(20), "{}", run.err);
        assert!(!sleeping(pid), "children were left behind");
        assert_eq!(std::fs::canonicalize(checkout.current("native")).unwrap(), good);
    }
    // Same plan, and what was configured is kept. The step is only waited for, so it is cut short here.
    let child = slow_build(&checkout);
    assert!(Command::new("pkill").args(["-x", "sleep", "--newest"]).status().unwrap().success());
    Run::from(child.wait_with_output().unwrap()).expect(1, "kept configure");
}

#[test]
fn a_second_build_is_told_to_try_again_and_a_killed_one_holds_nothing() {
    let checkout = Checkout::new("checkout");
    let mut child = slow_build(&checkout);
    let second = checkout.build("portable").expect(75, "another build is running in this checkout");
    assert!(second.err.contains(&format!("(process {})", child.id())), "{}", second.err);
    signal(&child, "KILL");
    child.wait().unwrap();
    std::fs::remove_file(checkout.source.join("slow")).unwrap();
    checkout.build("native").expect(0, "built");
}
