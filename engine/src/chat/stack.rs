//! A stack for templates.
//!
//! minijinja goes down into expressions and values by recursion: it compiles `a.b.b.b…` and drops `[[[…]]]` one native
//! call a level. Both are as deep as a template's source is long or its steps allow, which is deeper than the stack of a
//! server's thread.

use std::thread;

use crate::error::{Error, Result};

/// Bytes of address space; what is not touched takes no memory. Enough for the longest source and the most steps in a
/// build without optimisation, whose frames are the largest: the tests try it.
const SIZE: usize = 512 << 20;

/// Does `work` in a thread with a stack for the deepest template. What it returns must not be nested itself.
///
/// # Errors
/// When there is no memory for the stack, or `work` panics; `origin` is the template's.
pub(super) fn with_room<T: Send>(origin: &str, work: impl FnOnce() -> T + Send) -> Result<T> {
    let failed = |why: String| Error::Template {
        origin: origin.to_string(),
        why,
        mend: "raise the limit of address space (`ulimit -v`), or take another with --chat-template NAME|FILE",
    };
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("template".to_string()).stack_size(SIZE);
        let thread = builder.spawn_scoped(scope, work);
        let thread = thread
            .map_err(|error| failed(format!("there is no room for its stack of {SIZE} bytes: {error}")))?;
        thread.join().map_err(|_| failed("rendering it ended with a mistake of the renderer".to_string()))
    })
}
