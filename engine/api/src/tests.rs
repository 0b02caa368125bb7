//! Tests that the public types can be sent to other threads or shared with them, and that panics become errors.

use llama::error::Error;

use super::caught::caught;
use super::*;

const fn shared<T: Send + Sync + 'static>() {}
const fn sent<T: Send + 'static>() {}

/// Fails to compile if a type lacks a trait that the documentation promises.
const _: () = {
    shared::<Model>();
    shared::<Canceller>();
    shared::<ChatTemplate>();
    shared::<Estimate>();
    shared::<Error>();
    sent::<Session>();
    sent::<Sampler>();
    sent::<Embedder>();
    sent::<TokenStream>();
    sent::<Finished>();
    sent::<Tokens<'static>>();
};

#[test]
fn a_panic_is_an_error() {
    let error =
        caught("count", || -> llama::error::Result<()> { panic!("{} apples", 3) }).expect_err("a panic");
    assert!(matches!(&error, Error::Internal { what: "count", why } if why == "3 apples"), "{error}");
    let error =
        caught("count", || -> llama::error::Result<()> { std::panic::panic_any(3) }).expect_err("a panic");
    assert!(error.to_string().contains("without a message"), "{error}");
}
