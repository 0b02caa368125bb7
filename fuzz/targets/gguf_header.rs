#![no_main]

#[path = "../src/gguf_header.rs"]
mod gguf_header;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gguf_header::check(bytes));
