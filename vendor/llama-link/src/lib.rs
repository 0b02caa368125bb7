//! llama.cpp's libraries and the shim, for crates that link a program: `use llama_link as _;` is enough. Only this
//! crate depends on a particular build of the libraries, so different builds share all other crates.
//!
//! The crate also contains the CPU guard: a constructor, compiled for any CPU of the architecture, that runs before
//! anything else in the process. If the CPU or the operating system lacks an instruction set that the build needs,
//! the guard prints a message and exits with code 69. Every executable that links this crate contains the guard; see
//! `csrc/guard.c`.

use std::ffi::{CStr, c_char, c_uint};

unsafe extern "C" {
    fn anneal_guard_required(index: c_uint) -> *const c_char;
}

/// Returns the instruction sets that the guard checked when this process started, named as in
/// `build_info::host::Cpu::features`. Empty on systems other than Linux and on architectures other than x86-64 and
/// aarch64.
pub fn required() -> Vec<&'static str> {
    let mut names = Vec::new();
    for index in 0.. {
        // SAFETY: the function accepts any index and reads a constant table.
        let name = unsafe { anneal_guard_required(index) };
        if name.is_null() {
            break;
        }
        // SAFETY: the pointer is not null, so it is a string literal of guard.c: NUL-terminated and static.
        names.push(unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("?"));
    }
    names
}
