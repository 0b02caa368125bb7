//! Single file of a profile, before inheritance is resolved.

use std::collections::BTreeMap;

use build_info::Defaults;
use build_info::switches::Switches;
use serde::Deserialize;
use toml::Table;

use super::choices::{Blas, CompilerChoice, CudaMulMat, Gpu, Isa, Linkage, Lto, Target, Threading};
use super::{defaults, glibc};

/// Content of a file; every key may be inherited from the parent.
pub(super) struct ProfileFile {
    pub keys: Keys,
    /// Keys that are switches.
    pub switches: Table,
}

impl ProfileFile {
    /// Parses a file from `table`.
    ///
    /// # Errors
    /// If a key is unknown or a value is invalid.
    pub(super) fn from_table(mut table: Table) -> Result<Self, String> {
        let defaults = switches_of(&Switches::default());
        let mut switches = Table::new();
        for name in defaults.keys() {
            let Some(value) = table.remove(name) else { continue };
            let mut whole = defaults.clone();
            whole.insert(name.clone(), value.clone());
            if let Err(why) = Switches::deserialize(whole) {
                return Err(format!("`{name}`: {}", why.message()));
            }
            switches.insert(name.clone(), value);
        }
        let keys = Keys::deserialize(table).map_err(|why| match why.message() {
            unknown if unknown.starts_with("unknown field") => {
                let names: Vec<String> = defaults.keys().map(|name| format!("`{name}`")).collect();
                format!("{unknown}, {}", names.join(", "))
            }
            other => other.to_string(),
        })?;
        Ok(ProfileFile { keys, switches })
    }
}

/// Returns `switches` as the keys of a profile.
pub(super) fn switches_of(switches: &Switches) -> Table {
    Table::try_from(switches).expect("switches are plain values")
}

/// Keys that are not switches.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Keys {
    pub inherits: Option<String>,
    pub description: Option<String>,
    pub set: Option<Vec<String>>,
    pub target: Option<Target>,
    pub isa: Option<Isa>,
    pub variants: Option<Vec<String>>,
    pub compiler: Option<CompilerChoice>,
    pub glibc: Option<glibc::GlibcChoice>,
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
    pub cargo_profile: Option<String>,
    pub reproducible: Option<bool>,
    #[serde(default)]
    pub definitions: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "defaults::read")]
    pub defaults: Defaults,
}
