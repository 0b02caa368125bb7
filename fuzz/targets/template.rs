#![no_main]

#[path = "../src/template.rs"]
mod template;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| template::check(bytes));
