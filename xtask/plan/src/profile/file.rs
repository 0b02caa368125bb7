//! Single file of a profile, before inheritance is resolved.

use std::collections::BTreeMap;

use build_info::Defaults;
use build_info::switches::Switches;
use serde::Deserialize;
use toml::{Table, Value};

use super::choices::{Blas, CompilerChoice, CudaMulMat, Gpu, Linkage, Lto, Target, Threading};
use super::isa::Isa;
use super::serde_error::explain;
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
                return Err(explain(name, &value, why.message(), &[]));
            }
            switches.insert(name.clone(), value);
        }
        let names: Vec<&str> = defaults.keys().map(String::as_str).collect();
        let keys = Keys::deserialize(table.clone()).map_err(|why| {
            // Read the keys one by one, because the error for a whole table does not name the key.
            let explained = |(key, value): (&String, &Value)| {
                let one = Table::from_iter([(key.clone(), value.clone())]);
                let why = Keys::deserialize(one).err()?;
                Some(explain(key, value, why.message(), &names))
            };
            table.iter().find_map(explained).unwrap_or_else(|| why.message().to_string())
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
