//! Conversion of panics to errors.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use llama::error::{Error, Result};

/// Returns the result of `body`, or [`Error::Internal`] if `body` panics. After an error, the state that `body` changes
/// must be dropped or cleared, unless it can never be inconsistent.
pub(super) fn caught<T>(what: &'static str, body: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(body))
        .unwrap_or_else(|panic| Err(Error::Internal { what, why: words(&*panic) }))
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().map(String::from);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_string())
}
