//! Reports of what is going on.

/// Told what is going on, one line at a time.
pub type FetchProgress<'a> = &'a mut dyn FnMut(&str);
