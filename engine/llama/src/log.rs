//! Log of llama.cpp, line by line.

use std::ffi::{CStr, c_char};
use std::panic::catch_unwind;
use std::sync::OnceLock;

use llama_sys as sys;

/// Severity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Failure.
    Error,
    /// Unexpected event.
    Warn,
    /// Completed operation.
    Info,
    /// Details for developers of llama.cpp.
    Debug,
}

/// Function that receives log lines.
type Sink = fn(LogLevel, &str);

static SINK: OnceLock<Sink> = OnceLock::new();

/// Passes every line that llama.cpp logs from now on to `sink`, and prints no lines on stderr. Only the first call
/// has an effect.
pub fn log_to(sink: Sink) {
    if SINK.set(sink).is_ok() {
        // SAFETY: a `'static` function that takes a level and a NUL-terminated text.
        unsafe { sys::anneal_log_to(Some(on_line)) };
    }
}

unsafe extern "C" fn on_line(level: i32, line: *const c_char) {
    // The numbers are the levels of ggml.h; GGML_LOG_LEVEL_DEBUG is 1.
    let level = match level {
        1 => LogLevel::Debug,
        3 => LogLevel::Warn,
        4 => LogLevel::Error,
        _ => LogLevel::Info,
    };
    // SAFETY: the shim passes a NUL-terminated text, which stays valid during this function.
    let line = unsafe { CStr::from_ptr(line) }.to_string_lossy();
    // A panic must not unwind into C++.
    let _ = catch_unwind(|| {
        if let Some(sink) = SINK.get() {
            sink(level, &line);
        }
    });
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::process::Command;

    use super::*;

    unsafe extern "C" {
        /// Function that implements `GGML_LOG_ERROR` (declared in ggml-impl.h).
        fn ggml_log_internal(level: i32, format: *const c_char, ...);
        /// Function that implements `GGML_ABORT` (declared in ggml.h).
        fn ggml_abort(file: *const c_char, line: i32, format: *const c_char, ...) -> !;
    }

    /// Logs and aborts like `ggml_cuda_error` in ggml-cuda.cu when CUDA or cuBLAS reports `reason`.
    fn end_as_ggml_cuda_does(reason: &str) -> ! {
        crate::system::start(false);
        let text = |text: &str| CString::new(text).expect("no NUL byte");
        let lines = [
            format!("CUDA error: {reason}\n"),
            "  current device: 0, in function alloc at /src/llama.cpp/ggml/src/ggml-cuda/ggml-cuda.cu:560\n"
                .to_string(),
            "  cuMemCreate(&handle, reserve_size, &prop, 0)\n".to_string(),
        ];
        // SAFETY: NUL-terminated texts without a per cent sign.
        unsafe {
            for line in lines {
                ggml_log_internal(4, text(&line).as_ptr());
            }
            ggml_abort(c"/src/llama.cpp/ggml/src/ggml-cuda/ggml-cuda.cu".as_ptr(), 98, c"CUDA error".as_ptr())
        }
    }

    #[test]
    fn a_gpu_that_cannot_go_on_says_why_and_what_to_do() {
        const REASON: &str = "ANNEAL_TEST_CUDA_REASON";
        if let Ok(reason) = std::env::var(REASON) {
            end_as_ggml_cuda_does(&reason);
        }
        let cases = [
            ("out of memory", "--fit-target 1024"),
            ("no kernel image is available for execution on the device", "--cuda-arch"),
            ("cuBLAS is missing, but unquantised matrices need it: libcublas.so.13", "LD_LIBRARY_PATH"),
            ("an illegal memory access was encountered", "dmesg"),
            ("something that nobody knows", "GGML_CUDA_DISABLE_GRAPHS=1"),
        ];
        for (reason, mend) in cases {
            let name = "a_gpu_that_cannot_go_on_says_why_and_what_to_do";
            let this = std::env::current_exe().expect("this program");
            let mut child = Command::new(this);
            let ended = child.args([name, "--nocapture"]).env(REASON, reason).output().expect("a child");
            let said = String::from_utf8_lossy(&ended.stderr);
            assert_eq!(ended.status.code(), Some(1), "{said}");
            let expected = format!("error: the GPU failed: {reason}\n");
            assert!(said.contains(&expected) && said.contains(mend), "{reason}: {said}");
            assert!(said.contains("caused by: current device: 0") && said.contains("cuMemCreate"), "{said}");
            assert!(!said.contains("the model file or the settings"), "{said}");
        }
    }
}
