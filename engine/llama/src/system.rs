//! Functions that concern the whole library: start, version, backends and linked libraries.

use std::ffi::CStr;
use std::sync::OnceLock;

use build_info::Defaults;
use llama_sys as sys;

use crate::message::owned;

/// Installs the handlers and initialises the backends. Only the first call has an effect. If `verbose` is true,
/// llama.cpp's log is printed to stderr.
pub fn start(verbose: bool) {
    // SAFETY: no preconditions; the function itself runs only once.
    unsafe { sys::anneal_start(verbose) }
}

/// Starts the library for commands that only list what is available. Also loads the kernels; if loading fails, the
/// error is reported when a model is loaded.
pub(super) fn start_all() {
    start(false);
    let _ = crate::kernels::load();
}

/// Sets or clears the flag that stops interruptible contexts.
pub fn interrupt(on: bool) {
    // SAFETY: stores an atomic.
    unsafe { sys::anneal_interrupt(on) }
}

/// True if the interrupt flag is set.
pub fn interrupted() -> bool {
    // SAFETY: reads an atomic, and ignores its argument.
    unsafe { sys::anneal_interrupted(std::ptr::null_mut()) }
}

/// Ends the process without running destructors, for use while other threads are inside llama.cpp.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit has no preconditions.
    unsafe { sys::anneal_exit_now(code) };
    std::process::abort()
}

/// Closes every file that this process inherited, except its standard streams. Call this function at the start of a
/// process, before the process opens a file.
pub fn close_inherited() {
    // SAFETY: closes descriptors that nothing in this process owns. Kernels older than 5.9 do not support the call and
    // leave the descriptors open.
    unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) };
}

/// Fails like a ggml assertion. Used by tests of failed assertions.
pub fn fail_assertion() -> ! {
    // SAFETY: NUL-terminated texts without format arguments.
    unsafe { sys::ggml_abort(c"llama.cpp/src/test.cpp".as_ptr(), 1, c"GGML_ASSERT(false) failed".as_ptr()) };
    std::process::abort()
}

/// Returns the version of the linked llama.cpp.
pub fn llama_version() -> String {
    // SAFETY: has no arguments and returns a string literal.
    unsafe { owned(sys::llama_version()) }
}

/// Returns the features of the linked backends, in llama.cpp's words.
pub fn system_info() -> String {
    start_all();
    // SAFETY: the backends are initialised; returns a static buffer that is copied at once.
    unsafe { owned(sys::llama_print_system_info()) }
}

/// True if a large buffer of the CPU backend requests huge pages from the kernel.
pub fn huge_pages() -> bool {
    start_all();
    // SAFETY: creates and frees a separate buffer.
    unsafe { sys::anneal_huge_pages() }
}

/// Sets whether large buffers request huge pages from now on, in a build that supports huge pages.
pub fn ask_huge_pages(on: bool) {
    // SAFETY: stores an atomic.
    unsafe { sys::anneal_ask_huge_pages(on) }
}

/// Turns off ggml's tiled kernels for the rest of the process. ggml reads the environment once, at the first matrix
/// product, so call this function before a model is loaded.
pub fn turn_off_tiled() {
    // The variable is not set again for a later model, because other threads may then read the environment.
    if std::env::var(TILED).as_deref() == Ok("0") {
        return;
    }
    // SAFETY: at this time, the only other thread waits for signals and does not read the environment. llama.cpp's
    // threads start later.
    unsafe { std::env::set_var(TILED, "0") }
}

/// Environment variables of ggml for CUDA. Graphs are off if the first variable exists. Fusion is off if the second
/// variable is a number other than 0.
const CUDA: [&str; 2] = ["GGML_CUDA_DISABLE_GRAPHS", "GGML_CUDA_DISABLE_FUSION"];

/// Returns the values of ggml's CUDA variables at the start of the process. Later calls return the same values, even
/// after [`switch_cuda`]. The value 0 for the first variable means that graphs are on, although ggml itself does not
/// interpret it in this way.
pub fn cuda_variables() -> Defaults {
    static AT_START: OnceLock<Defaults> = OnceLock::new();
    let read = || {
        let [graphs, fusion] = CUDA.map(|name| std::env::var(name).ok());
        let is_zero = |value: &str| value.trim().parse() == Ok(0_i64);
        let is_number = |value: &str| value.trim().parse::<i64>().is_ok_and(|number| number != 0);
        Defaults {
            cuda_graphs: graphs.map(|value| is_zero(&value)),
            cuda_fusion: fusion.map(|value| !is_number(&value)),
            ..Defaults::default()
        }
    };
    AT_START.get_or_init(read).clone()
}

/// Sets the variables for the features that `wanted` turns off, unless the user has set them (`said`). Removes the
/// graphs variable if the user set it to 0. ggml reads both variables once, at the first graph.
///
/// Call this function at the start of a command, when no other thread runs except the thread that waits for signals.
/// Programs that use the engine as a library must set these variables themselves.
pub fn switch_cuda(wanted: &Defaults, said: &Defaults) {
    let [graphs, fusion] = CUDA;
    let turn_off = |name: &str| {
        // SAFETY: nothing else accesses the environment at the same time, as the caller guarantees.
        unsafe { std::env::set_var(name, "1") }
    };
    match (said.cuda_graphs, wanted.cuda_graphs) {
        // SAFETY: as above.
        (Some(true), _) => unsafe { std::env::remove_var(graphs) },
        (None, Some(false)) => turn_off(graphs),
        _ => {}
    }
    if said.cuda_fusion.is_none() && wanted.cuda_fusion == Some(false) {
        turn_off(fusion);
    }
}

/// Environment variable for ggml's tiled kernels.
pub const TILED: &str = "GGML_CPU_TILED_MM";

/// True if C and C++ use the same linked allocator as Rust.
#[cfg(any(feature = "jemalloc", feature = "mimalloc"))]
pub fn allocator_serves_cpp() -> bool {
    // SAFETY: `owns` is called with live memory and only looks up the address.
    unsafe { sys::anneal_memory_is(Some(owns)) }
}

#[cfg(all(feature = "mimalloc", not(feature = "jemalloc")))]
unsafe extern "C" fn owns(memory: *const std::ffi::c_void) -> bool {
    // SAFETY: compares the address with the addresses of mimalloc's arenas.
    unsafe { libmimalloc_sys::mi_is_in_heap_region(memory) }
}

#[cfg(feature = "jemalloc")]
unsafe extern "C" fn owns(memory: *const std::ffi::c_void) -> bool {
    let mut memory = memory;
    let (mut arena, mut size) = (0u32, size_of::<u32>());
    // SAFETY: the shim has checked that `malloc` belongs to this program, so jemalloc knows the address. The call
    // reads one pointer and writes one number.
    unsafe {
        tikv_jemalloc_sys::mallctl(
            c"arenas.lookup".as_ptr(),
            (&raw mut arena).cast(),
            &mut size,
            (&raw mut memory).cast(),
            size_of_val(&memory),
        ) == 0
    }
}

/// Returns the messages of backends whose devices could not be initialised, one per line.
pub fn device_log() -> Vec<String> {
    start_all();
    let mut text = vec![0_u8; 1 << 14];
    // SAFETY: writes at most the given size.
    let size = unsafe { sys::anneal_device_log(text.as_mut_ptr().cast(), text.len()) };
    text.truncate(size);
    let text = String::from_utf8_lossy(&text);
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_string).collect()
}

/// Returns the names of the linked backends.
pub fn backends() -> Vec<String> {
    start_all();
    // SAFETY: the backends are initialised, every index is below the count, and names are copied at once.
    unsafe {
        (0..sys::ggml_backend_reg_count())
            .map(|index| owned(sys::ggml_backend_reg_name(sys::ggml_backend_reg_get(index))))
            .collect()
    }
}

/// Returns the name that the linked BLAS library reports; `None` if no BLAS library is linked.
pub fn blas_library() -> Option<String> {
    let mut text = [0_u8; 256];
    // SAFETY: writes at most the given size, NUL-terminated; needs no initialised backends.
    let found = unsafe { sys::anneal_blas_library(text.as_mut_ptr().cast(), text.len()) };
    let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
    found.then(|| text.to_string_lossy().trim().to_string())
}

/// True if [`set_blas_threads`] has an effect on the BLAS library.
pub fn blas_threads_obeyed() -> bool {
    // SAFETY: compares addresses of functions.
    unsafe { sys::anneal_blas_threads_obeyed() }
}

/// Sets the number of threads that the BLAS library may use from its next call on; 0 sets as many threads as
/// llama.cpp uses.
pub fn set_blas_threads(threads: u32) {
    // SAFETY: stores an atomic.
    unsafe { sys::anneal_blas_set_threads(i32::try_from(threads).unwrap_or(i32::MAX)) }
}
