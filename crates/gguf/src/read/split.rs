//! Models that are split into several files.

use super::error::ReadError;
use super::file::{GgufFile, Split};

impl GgufFile {
    /// Reads and validates the other parts of a split model. `self` must be the first part. The parts are found by
    /// their names, `NAME-00001-of-00003.gguf` and so on, as in llama.cpp. Returns an empty list for a model in one
    /// file.
    ///
    /// # Errors
    /// If a part is missing or damaged.
    pub fn other_parts(&self) -> Result<Vec<GgufFile>, ReadError> {
        let Some(Split { number, count }) = self.split() else { return Ok(Vec::new()) };
        let failed = |why| ReadError::Part { path: self.path.clone(), number, count, why };
        let name = self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(prefix) = name.strip_suffix(&suffix(number, count)) else {
            let wanted = suffix(number, count);
            return Err(failed(format!(
                "its name does not end with {wanted}, so the other parts cannot be found\nhint: rename it to its \
                 original name, NAME{wanted}"
            )));
        };
        let part = |number| self.path.with_file_name(format!("{prefix}{}", suffix(number, count)));
        if number != 0 {
            return Err(failed(format!(
                "a model is loaded from its first part\nhint: use {}",
                part(0).display()
            )));
        }
        let open = |number| {
            GgufFile::open(&part(number)).map_err(|error| match error {
                ReadError::Missing { path } => failed(format!(
                    "the part {} is missing\nhint: put all parts into one folder, with their original names",
                    path.display()
                )),
                other => other,
            })
        };
        (1..count).map(open).collect()
    }
}

/// Suffix of a part's file name in llama.cpp (`llama_split_path`).
fn suffix(number: u32, count: u32) -> String {
    format!("-{:05}-of-{count:05}.gguf", u64::from(number) + 1)
}
