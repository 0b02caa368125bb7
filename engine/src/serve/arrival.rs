//! The time that a request may take to arrive.

use std::time::Duration;

use tokio::time::Instant;

use super::refusal::{Kind, Refusal};

/// Time that all of a request may take.
const WHOLE: Duration = Duration::from_secs(60);

/// Time that a request may take besides what its bytes take at [`RATE`].
const GRACE: Duration = Duration::from_secs(10);

/// Bytes a second that a request must have on average.
const RATE: usize = 1024;

/// Returns the time at which a request that began at `begin` and has sent `bytes` so far is late.
pub fn deadline(begin: Instant, bytes: usize) -> Instant {
    begin + WHOLE.min(GRACE + Duration::from_secs((bytes / RATE) as u64))
}

/// Refuses a request that began at `begin` and has sent `bytes` in all that time; `what` names it.
pub fn late(what: &str, begin: Instant, bytes: usize) -> Refusal {
    let message = format!(
        "the {what} did not come in time: {bytes} bytes in {:.0} seconds; send at least {RATE} bytes a second, and all of it \
         within {} seconds",
        begin.elapsed().as_secs_f64(),
        WHOLE.as_secs()
    );
    Refusal::new(Kind::Invalid, message)
}
