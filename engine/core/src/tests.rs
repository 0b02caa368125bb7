//! Tests that cover several modules.

mod device_sampling;
