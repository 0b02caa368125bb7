//! One file of a profile, as it is written.

use std::collections::BTreeMap;

use build_info::Defaults;
use build_info::switches::Allocator;
use serde::Deserialize;

use super::choices::{Blas, CompilerChoice, CudaMulMat, Gpu, Isa, Linkage, Lto, Target, Threading};
use super::{defaults, glibc};

/// A file as it is written; every key may be left to the parent.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub inherits: Option<String>,
    pub description: Option<String>,
    pub set: Option<Vec<String>>,
    pub target: Option<Target>,
    pub isa: Option<Isa>,
    pub variants: Option<Vec<String>>,
    pub compiler: Option<CompilerChoice>,
    pub glibc: Option<glibc::Choice>,
    pub build_type: Option<String>,
    pub linkage: Option<Linkage>,
    pub threading: Option<Threading>,
    pub blas: Option<Blas>,
    pub rpc: Option<bool>,
    pub gpu: Option<Gpu>,
    pub cuda_arch: Option<Vec<String>>,
    pub cuda_mul_mat: Option<CudaMulMat>,
    pub cuda_fa_quants: Option<Vec<String>>,
    pub targets: Option<Vec<String>>,
    pub lto: Option<Lto>,
    pub repack: Option<bool>,
    pub llamafile: Option<bool>,
    pub prefetch: Option<bool>,
    pub patched_kernels: Option<bool>,
    pub allocator: Option<Allocator>,
    pub huge_pages: Option<bool>,
    pub extra_flags: Option<Vec<String>>,
    pub fast_math: Option<bool>,
    pub cargo_profile: Option<String>,
    pub reproducible: Option<bool>,
    #[serde(default)]
    pub definitions: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "defaults::read")]
    pub defaults: Defaults,
}
