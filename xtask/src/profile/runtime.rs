//! The table `[runtime]` of a profile: its keys are those of the record, where unknown ones are another version's; here
//! they are mistakes.

use build_info::Runtime;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// Reads the table.
pub(super) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Runtime, D::Error> {
    let table = toml::Table::deserialize(deserializer)?;
    if let Some(unknown) = table.keys().find(|key| !Runtime::KEYS.contains(&key.as_str())) {
        return Err(D::Error::custom(format!(
            "`runtime` has no key `{unknown}`: there are {}",
            Runtime::KEYS.join(", ")
        )));
    }
    // Key by key, so that the error names it: that of a table alone would not.
    let mut all = Runtime::default();
    for (key, value) in table {
        let one = toml::Table::from_iter([(key.clone(), value)]);
        let one = Runtime::deserialize(one)
            .map_err(|error| D::Error::custom(format!("`runtime.{key}`: {}", error.message().trim())))?;
        all = all.or(&one);
    }
    Ok(all)
}
