//! Current time, formatted by C's `strftime`, which Python also uses.

use std::ffi::CString;

/// Formats the current time in this machine's time zone with `strftime` and `format`. `format` is truncated at a NUL.
/// Returns an empty string if the result is longer than about four times `format`.
pub fn strftime_now(format: &str) -> String {
    let format: Vec<u8> = format.bytes().take_while(|&byte| byte != 0).take(4096).collect();
    let mut text = vec![0_u8; 4 * format.len() + 256];
    let Ok(format) = CString::new(format) else { return String::new() };
    // SAFETY: `time` accepts null. `localtime_r` fills `parts`, for which zeros are a valid value, and the name of
    // the time zone is static. `strftime` writes at most the given number of bytes and reads a NUL-terminated format.
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
