//! Matrix products of quantised weights for the CPU, with the same bits for every batch.
//!
//! Weights are packed once into panels ([`panel`]), activations are rounded to 8 bits ([`activations`]), and a product
//! follows one exact rule ([`reference`]), which does not depend on the number of columns, on threads or on the
//! instruction set.

pub mod activations;
#[cfg(target_arch = "x86_64")]
pub mod attention;
#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod ffi;
pub mod format;
pub mod panel;
#[cfg(target_arch = "x86_64")]
pub mod product;
pub mod reference;
