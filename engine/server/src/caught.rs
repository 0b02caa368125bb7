//! Handling of panics in all threads except the scheduler's: the current work fails, and the thread continues.
//!
//! If one of these threads ended, requests would wait for it forever.

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use build_info::words::printable;

use super::metrics::Metrics;

/// Runs `work` and returns its result. `None` if `work` panicked; the panic is then counted, and logged with the name
/// `what`. After a panic, do not use values that `work` may have left half changed.
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
        "warning: {what} panicked (a bug in this program): {}; the current request fails, and the server continues",
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
