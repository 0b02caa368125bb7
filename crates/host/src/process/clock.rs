//! CPU time in nanoseconds, from clocks of the kernel. These clocks stop while a thread waits for a CPU.

use std::time::Duration;

/// Returns the CPU time, user and system, that this process has used, without its children.
pub fn own_cpu_time() -> Duration {
    read(libc::CLOCK_PROCESS_CPUTIME_ID).unwrap_or_default()
}

/// Returns the CPU time that this thread has used; time spent waiting for a CPU does not count.
pub fn thread_time() -> Duration {
    read(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or_default()
}

/// Clock of one thread's CPU time, which other threads can read.
#[derive(Clone, Copy, Debug)]
pub struct ThreadClock(libc::clockid_t);

impl ThreadClock {
    /// Returns the clock of this thread; `None` if the system does not support it.
    pub fn own() -> Option<Self> {
        let mut clock = 0;
        // SAFETY: this thread is alive, and the call initialises `clock`.
        let code = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock) };
        (code == 0).then_some(Self(clock))
    }

    /// Returns the CPU time that the thread has used; `None` if the thread has ended.
    pub fn time(self) -> Option<Duration> {
        read(self.0)
    }
}

fn read(clock: libc::clockid_t) -> Option<Duration> {
    // SAFETY: all zeros are a valid `timespec`, which the call fills; the call rejects an invalid clock.
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
