//! Texts that cross the boundary between Rust and C: the shim's failure messages, C strings and paths.

use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::error::{Error, Result, readable};

/// Copies a C string; null becomes an empty string.
///
/// # Safety
/// `text` is null, or NUL-terminated and alive during the call.
pub unsafe fn owned(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller guarantees this.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Buffer for the shim's failure messages.
pub struct Message(Box<[u8; 4096]>);

impl Message {
    pub fn new() -> Self {
        Self(Box::new([0; 4096]))
    }

    pub fn parts(&mut self) -> (*mut c_char, usize) {
        (self.0.as_mut_ptr().cast(), self.0.len())
    }

    /// Returns the message of a failure.
    pub fn text(&self) -> String {
        readable(&self.raw())
    }

    /// Returns the message, or `None` if it is empty.
    pub fn said(&self) -> Option<String> {
        Some(self.raw()).filter(|raw| !raw.is_empty()).map(|raw| readable(&raw))
    }

    fn raw(&self) -> String {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(self.0.len());
        String::from_utf8_lossy(&self.0[..end]).into_owned()
    }
}

pub fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| {
        Error::Usage(format!("{} contains a NUL byte, which is not allowed in a file name", path.display()))
    })
}
