#![no_main]

#[path = "../src/gbnf.rs"]
mod gbnf;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gbnf::check(bytes));
