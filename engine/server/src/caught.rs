//! Panics of the threads beside the scheduler: what was to be done fails, and the thread goes on.
//!
//! A thread that ended would be missed by nobody until someone waits for it for ever.

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use build_info::words::printable;

use super::metrics::Metrics;

/// What `work` gives; nothing where it panicked, which is counted and said: `what` did. Whatever it worked on must not be
/// used again, but for what is whole at any time.
pub fn caught<T>(what: &str, metrics: &Metrics, work: impl FnOnce() -> T) -> Option<T> {
    let panic = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(value) => return Some(value),
        Err(panic) => panic,
    };
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_string());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    metrics.panics.add(1);
    let _ = writeln!(
        std::io::stderr(),
        "warning: {what} panicked, which is an error in this program: {}; what was asked for fails, and the server goes on",
        printable(&text)
    );
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_counted_and_ends_nothing_else() {
        let metrics = Metrics::default();
        assert_eq!(caught("a test", &metrics, || 7), Some(7));
        assert_eq!(caught("a test", &metrics, || -> u32 { panic!("on purpose {}", 1) }), None);
        assert_eq!(caught("a test", &metrics, || -> u32 { panic!("on purpose") }), None);
        assert_eq!(metrics.panics.get(), 2);
    }
}
