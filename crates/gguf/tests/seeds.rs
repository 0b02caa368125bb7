//! Tests with the fuzzer's seeds and findings, without a fuzzer.

#[path = "../../../fuzz/src/gguf_header.rs"]
mod gguf_header;
#[path = "../../../fuzz/src/seeds.rs"]
mod seeds;

#[test]
fn every_seed_is_read_or_refused() {
    seeds::every("gguf_header", gguf_header::check);
}
