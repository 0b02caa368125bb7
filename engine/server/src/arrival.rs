//! Deadline for a request to arrive.

use std::time::Duration;

use tokio::time::Instant;

use super::api_error::{ApiError, ApiErrorKind};

/// Maximum time for a whole request.
const WHOLE: Duration = Duration::from_secs(60);

/// Time allowed for a request in addition to the transfer time of its bytes at [`RATE`].
const GRACE: Duration = Duration::from_secs(10);

/// Minimum average rate of a request, in bytes per second.
const RATE: usize = 1024;

/// Returns the deadline of a request that began at `begin` and has sent `bytes` so far.
pub fn deadline(begin: Instant, bytes: usize) -> Instant {
    begin + WHOLE.min(GRACE + Duration::from_secs((bytes / RATE) as u64))
}

/// Returns the error for a request that missed its deadline. The request began at `begin` and has sent `bytes` so
/// far. `what` names the part of the request.
pub fn late(what: &str, begin: Instant, bytes: usize) -> ApiError {
    let message = format!(
        "the {what} did not arrive in time ({bytes} bytes in {:.0} seconds): send at least {RATE} bytes per second, \
        and the whole {what} within {} seconds",
        begin.elapsed().as_secs_f64(),
        WHOLE.as_secs()
    );
    ApiError::new(ApiErrorKind::Invalid, message)
}
