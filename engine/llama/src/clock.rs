//! The time of day as C writes it, which is as Python does.

use std::ffi::CString;

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
