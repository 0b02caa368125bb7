//! Table `[defaults]` of a profile. It has the same keys as `defaults` in `build_info.json`. A `build_info.json`
//! may contain unknown keys of other versions; a profile may not.

use build_info::Defaults;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::serde_error::{explain, key_hint};

/// Reads the table.
pub(super) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Defaults, D::Error> {
    let table = toml::Table::deserialize(deserializer)?;
    if let Some(unknown) = table.keys().find(|key| !Defaults::KEYS.contains(&key.as_str())) {
        let hint = key_hint(unknown, &Defaults::KEYS);
        return Err(D::Error::custom(format!("`defaults` has no key `{unknown}`{hint}")));
    }
    // Read the keys one by one, because the error for a whole table would not name the key.
    let mut all = Defaults::default();
    for (key, value) in table {
        let one = toml::Table::from_iter([(key.clone(), value.clone())]);
        let one = Defaults::deserialize(one).map_err(|error| {
            D::Error::custom(explain(&format!("defaults.{key}"), &value, error.message(), &[]))
        })?;
        all = all.or(&one);
    }
    Ok(all)
}
