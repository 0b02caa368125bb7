//! The time of day as C writes it, which is as Python does.

use std::ffi::CString;
use std::time::Duration;

/// Now, in this machine's time zone, as `strftime` writes it by `format`. Cut at a NUL; empty where it does not fit
/// into four times the format and a bit.
pub fn strftime_now(format: &str) -> String {
    let format: Vec<u8> = format.bytes().take_while(|&byte| byte != 0).take(4096).collect();
    let mut text = vec![0_u8; 4 * format.len() + 256];
    let Ok(format) = CString::new(format) else { return String::new() };
    // SAFETY: `time` takes null; `localtime_r` fills `parts`, which plain zeros are valid for, and its time zone's name
    // is static; `strftime` writes no more than the given size and reads a NUL-terminated format.
    let written = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut parts: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&now, &mut parts).is_null() {
            return String::new();
        }
        libc::strftime(text.as_mut_ptr().cast(), text.len(), format.as_ptr(), &parts)
    };
    text.truncate(written);
    String::from_utf8_lossy(&text).into_owned()
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
