//! CPU time in nanoseconds, from clocks of the kernel. They stand still while a thread waits for a CPU.

use std::time::Duration;

/// Returns the CPU time, user and system, that this process has used, without its children.
pub fn own_cpu_time() -> Duration {
    read(libc::CLOCK_PROCESS_CPUTIME_ID).unwrap_or_default()
}

/// What this thread has computed so far: times in which it was not let to do not count.
pub fn thread_time() -> Duration {
    read(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or_default()
}

/// The clock of what one thread computes, for others to read.
#[derive(Clone, Copy, Debug)]
pub struct ThreadClock(libc::clockid_t);

impl ThreadClock {
    /// That of this thread, where the system has one.
    pub fn own() -> Option<Self> {
        let mut clock = 0;
        // SAFETY: this thread lives, and the call fills the clock.
        let code = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock) };
        (code == 0).then_some(Self(clock))
    }

    /// What the thread has computed so far; `None` where it has ended.
    pub fn time(self) -> Option<Duration> {
        read(self.0)
    }
}

fn read(clock: libc::clockid_t) -> Option<Duration> {
    // SAFETY: plain zeros are valid for a `timespec`, which the call fills; it refuses a clock that is not one.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        match libc::clock_gettime(clock, &mut time) {
            0 => time,
            _ => return None,
        }
    };
    let nanos = u32::try_from(time.tv_nsec).ok()?.min(999_999_999);
    Some(Duration::new(u64::try_from(time.tv_sec).ok()?, nanos))
}
