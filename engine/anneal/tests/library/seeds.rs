//! Tests with the fuzzers' seeds and findings, without a fuzzer.

#[path = "../../../../fuzz/src/seeds.rs"]
mod corpus;
#[path = "../../../../fuzz/src/gbnf.rs"]
mod gbnf;
#[path = "../../../../fuzz/src/request.rs"]
mod request;
#[path = "../../../../fuzz/src/template.rs"]
mod template;

use corpus::every;

#[test]
fn requests_are_read_or_refused() {
    every("request", request::check);
}

#[test]
fn grammars_are_translated_or_refused() {
    every("gbnf", gbnf::check);
}

#[test]
fn templates_are_rendered_or_refused() {
    every("template", template::check);
}

/// This input is not a seed, because its thread would continue after the fuzzer's run.
#[test]
fn what_compiling_computes_comes_to_an_end() {
    // Each expression takes a hundred million steps.
    let source = "{{ [0] * 99999999 == [0] * 99999999 }}".repeat(2000);
    let refused = chat::Template::new(&source, "a file", Default::default());
    let why = refused.expect_err("that many steps").to_string();
    assert!(why.contains("did not finish within"), "{why}");
}
