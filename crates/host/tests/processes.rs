//! Tests of memory and CPU time of processes against the kernel's values.
#![cfg(target_os = "linux")]

use std::fs::read_to_string;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use host::process::{
    ProcFolder, TICKS_PER_SECOND, cpu_seconds, load_average, own_cpu_time, resident, thread_time, threads,
};

/// Number of bytes that [`Busy`] writes.
const BUFFER: u64 = 50 << 20;

/// Time limit of a wait, for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Child process that writes [`BUFFER`] bytes repeatedly and uses a CPU.
struct Busy(Child);

impl Busy {
    fn start() -> Self {
        let arguments = ["if=/dev/zero", "of=/dev/null", &format!("bs={BUFFER}")];
        let child = Command::new("dd").args(arguments).stderr(Stdio::null()).spawn();
        Self(child.expect("dd runs"))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the bytes under `name` in the status file of `pid`.
fn status(pid: u32, name: &str) -> u64 {
    let text = read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() << 10
}

/// Returns fields 14 and 15 of the stat file of `pid`, in seconds.
fn stat(pid: u32) -> f64 {
    let text = read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = text.rsplit_once(')').unwrap();
    let ticks = fields.split_whitespace().skip(11).take(2).map(|word| word.parse::<u64>().unwrap());
    ticks.sum::<u64>() as f64 / TICKS_PER_SECOND
}

#[test]
fn memory_is_what_the_kernel_says() {
    let child = Busy::start();
    let pid = child.pid();
    wait_until("it takes its memory", || resident(pid).is_some_and(|bytes| bytes > BUFFER));
    let (ours, theirs) = (resident(pid).unwrap(), status(pid, "VmRSS:"));
    // Pages of the program itself may still be loaded or evicted.
    assert!(ours.abs_diff(theirs) < 2 << 20, "{ours} {theirs}");
    assert!(ours < BUFFER + (20 << 20), "{ours}");
    let peak = ProcFolder::of(pid).peak_resident().unwrap();
    assert!(peak.abs_diff(status(pid, "VmHWM:")) < 2 << 20 && peak > BUFFER, "{peak}");
    assert_eq!(threads(pid), Some(1));
}

#[test]
fn cpu_time_is_what_the_kernel_says() {
    let child = Busy::start();
    let pid = child.pid();
    wait_until("it burns 0.3 s", || cpu_seconds(pid).is_some_and(|seconds| seconds >= 0.3));
    // The tolerance of a millisecond covers the rounding of sums.
    let before = stat(pid) - 0.001;
    let (ours, counters) = (cpu_seconds(pid).unwrap(), ProcFolder::of(pid).counters().unwrap());
    let after = stat(pid) + 0.001;
    assert!((before..=after).contains(&ours), "{before} {ours} {after}");
    let ticks = (counters.user + counters.system) as f64 / TICKS_PER_SECOND;
    assert!((before..=after).contains(&ticks), "{before} {ticks} {after}");
    assert_eq!(counters.children, 0);
    assert!(counters.minor_faults > 0);
    assert!(ProcFolder::of(pid).switches().is_some_and(|(_, involuntary)| involuntary < 1 << 32));
}

#[test]
fn a_process_that_has_ended_has_no_memory() {
    let mut child = Command::new("true").spawn().unwrap();
    let pid = child.id();
    wait_until("it ends", || status_is_zombie(pid));
    assert_eq!((resident(pid), ProcFolder::of(pid).peak_resident()), (None, None));
    assert!(cpu_seconds(pid).is_some());
    child.wait().unwrap();
    assert_eq!((resident(pid), cpu_seconds(pid), threads(pid)), (None, None, None));
    assert!(ProcFolder::of(pid).counters().is_none() && ProcFolder::of(pid).switches().is_none());
    assert_eq!((resident(0), cpu_seconds(0)), (None, None));
}

fn status_is_zombie(pid: u32) -> bool {
    read_to_string(format!("/proc/{pid}/status")).is_ok_and(|text| text.contains("State:\tZ"))
}

#[test]
fn the_time_of_this_process_is_that_of_all_its_threads() {
    let (process, thread) = (own_cpu_time(), thread_time());
    let mut sum = 0u64;
    while thread_time() - thread < Duration::from_millis(30) {
        sum = std::hint::black_box(sum.wrapping_add(1));
    }
    let (used, ticks) = (own_cpu_time(), cpu_seconds(std::process::id()).unwrap());
    assert!(used - process >= Duration::from_millis(30), "{process:?} {used:?}");
    // The two values are read one after the other, while other tests run.
    assert!((used.as_secs_f64() - ticks).abs() < 1.0, "{used:?} {ticks}");
    // Other tests start and end threads, but this thread and the main thread exist.
    assert!(threads(std::process::id()).is_some_and(|threads| threads >= 2));
    assert!(load_average().is_some_and(|load| load >= 0.0));
}

#[test]
fn a_peak_can_be_reset() {
    let mut child = Busy::start();
    let own = ProcFolder::of(child.pid());
    wait_until("it takes its memory", || own.peak_resident().is_some_and(|bytes| bytes > BUFFER));
    own.reset_peak();
    assert!(own.peak_resident().is_some_and(|bytes| bytes <= BUFFER + (20 << 20)));
    child.0.kill().unwrap();
}
