//! Progress reports.

/// Callback that receives progress messages, one line at a time.
pub type FetchProgress<'a> = &'a mut dyn FnMut(&str);
