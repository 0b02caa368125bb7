//! Tests of several modules together.

mod device_sampling;
