//! Tests of the shim between C++ and Rust: failures become codes and messages, and an abort becomes exit code 1.

use std::ffi::{CStr, CString, c_char};
use std::process::Command;
use std::sync::Mutex;

// The crate llama_link links the declared functions.
use llama_link as _;
use llama_sys as sys;

/// Lock for llama.cpp's log, which the whole process shares. Error messages are made from the log, so no two calls
/// may fail at the same time.
static LOG: Mutex<()> = Mutex::new(());

/// Environment variable that names the fault with which the child process ends.
const FATE: &str = "LLAMA_SYS_TEST_FATE";

#[test]
fn an_abort_is_a_message_and_exit_code_1() {
    if std::env::var_os(FATE).is_some() {
        // SAFETY: the arguments are C strings, and the format string takes one int.
        unsafe {
            sys::anneal_start(false);
            sys::ggml_abort(c"graph.cpp".as_ptr(), 42, c"GGML_ASSERT(%d == 4) failed".as_ptr(), 5);
        }
    }
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "an_abort_is_a_message_and_exit_code_1", "--nocapture"])
        .env(FATE, "abort")
        .output()
        .expect("this test runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "not an orderly exit: {:?} {stderr}", output.status);
    assert!(stderr.contains("error: llama.cpp aborted: "), "{stderr}");
    assert!(stderr.contains("  caused by: graph.cpp:42: GGML_ASSERT(5 == 4) failed\n"), "{stderr}");
    assert!(stderr.contains("--verbose"), "no hint: {stderr}");
}

/// Calls `call` with a message buffer and returns the message.
fn message(call: impl FnOnce(*mut c_char, usize)) -> String {
    let mut buffer = [0 as c_char; 512];
    call(buffer.as_mut_ptr(), buffer.len());
    // SAFETY: the shim terminates every message within the size.
    unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_string_lossy().into_owned()
}

#[test]
fn a_failed_load_tells_why() {
    let _alone = LOG.lock();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("no model.gguf");
    std::fs::write(&path, b"GGUF but no more").expect("a file");
    let path = CString::new(path.to_str().expect("UTF-8")).expect("no NUL");
    let why = message(|err, size| {
        // SAFETY: strings and buffers are live during the call.
        unsafe {
            sys::anneal_start(false);
            let params = sys::llama_model_default_params();
            assert!(sys::anneal_model_load(path.as_ptr(), &params, err, size).is_null());
        }
    });
    assert!(why.contains("failed to load model"), "{why:?}");
    let why = message(|err, size| {
        // SAFETY: strings and buffers are live during the call.
        unsafe {
            let params = sys::llama_model_quantize_default_params();
            assert_ne!(sys::anneal_quantize(path.as_ptr(), path.as_ptr(), &params, err, size), 0);
        }
    });
    assert!(!why.is_empty());
}

#[test]
fn messages_are_cut_to_the_buffer() {
    let _alone = LOG.lock();
    let mut buffer = [b'x' as c_char; 8];
    // SAFETY: the size given is smaller than the buffer.
    unsafe {
        sys::anneal_start(false);
        let params = sys::llama_model_default_params();
        assert!(
            sys::anneal_model_load(c"/no/such/model".as_ptr(), &params, buffer.as_mut_ptr(), 4).is_null()
        );
    }
    assert_eq!(buffer[3], 0);
    assert_eq!(buffer[4], b'x' as c_char, "written past the given size");
}
