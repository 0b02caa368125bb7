//! llama.cpp's libraries and the shim, for whoever links a program: `use llama_link as _;` is enough. This crate depends on
//! one build of them, so that what a program is made of otherwise can be shared by all builds.
//!
//! Beside them the CPU guard: a constructor, compiled for any CPU of the architecture, that runs before anything else in the process
//! and exits with code 69 and a message where the CPU or the operating system lacks what the build needs.
//! It is part of every executable that links this crate; see `csrc/guard.c`.

use std::ffi::{CStr, c_char, c_uint};

unsafe extern "C" {
    fn anneal_guard_required(index: c_uint) -> *const c_char;
}

/// Instruction sets that the guard asked for when this process started, named as
/// `build_info::host::Cpu::features` names them. Empty on systems other than Linux and architectures other
/// than x86-64 and aarch64.
pub fn required() -> Vec<&'static str> {
    let mut names = Vec::new();
    for index in 0.. {
        // SAFETY: takes any index, reads a constant table.
        let name = unsafe { anneal_guard_required(index) };
        if name.is_null() {
            break;
        }
        // SAFETY: not null, so a string literal of guard.c: NUL-terminated and alive for ever.
        names.push(unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("?"));
    }
    names
}
