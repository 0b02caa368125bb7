//! Matrix products and attention for the CPU, with results that are bit-identical for every batch size.
//!
//! Quantised weights are packed once into panels ([`panel`]), and activations are rounded to 8 bits ([`activations`]).
//! Float weights keep their format; only their order in memory changes ([`floats`]). Products and attention follow
//! exact rules ([`reference`]), which do not depend on the number of columns, on threads or on the instruction set.

pub mod activations;
#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
pub mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512vnni;
#[cfg(target_arch = "x86_64")]
mod avxvnni;
pub mod cache;
#[cfg(target_arch = "x86_64")]
pub mod ffi;
pub mod floats;
pub mod format;
pub mod instruction_set;
#[cfg(target_arch = "x86_64")]
pub mod kernel;
pub mod panel;
#[cfg(target_arch = "x86_64")]
pub mod product;
pub mod reference;
#[cfg(target_arch = "x86_64")]
pub mod select;
#[cfg(target_arch = "x86_64")]
pub mod team;
pub mod tile_config;
