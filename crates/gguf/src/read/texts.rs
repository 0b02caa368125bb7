//! Arrays of texts and of floats, which stay in the file until they are needed.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};

use super::error::ReadError;
use super::file::GgufFile;
use crate::value::{Value, ValueType};

/// Texts of an array, as bytes, because a token need not be UTF-8.
#[derive(Clone, Debug, Default)]
pub struct Texts {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Texts {
    /// Returns the number of texts.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True if the array is empty.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the text with this number, which must be less than [`len`](Self::len).
    pub fn get(&self, number: usize) -> &[u8] {
        let start = if number == 0 { 0 } else { self.ends[number - 1] };
        &self.bytes[start..self.ends[number]]
    }

    /// Returns the texts in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|number| self.get(number))
    }
}

impl GgufFile {
    /// Reads the array of texts under `key` from the file. `None` if `key` is missing or has another type.
    ///
    /// # Errors
    /// If the file cannot be read again, or has changed since it was opened.
    pub fn texts(&self, key: &str) -> Result<Option<Texts>, ReadError> {
        let Some(Value::Array { of: ValueType::String, len, offset }) = self.get(key) else {
            return Ok(None);
        };
        let io = |source| ReadError::from_io(&self.path, source);
        let mut file = File::open(&self.path).map_err(io)?;
        let size = file.metadata().map_err(io)?.len();
        file.seek(SeekFrom::Start(*offset)).map_err(io)?;
        let mut file = BufReader::new(file);
        let mut left = size.saturating_sub(*offset);
        let mut texts = Texts::default();
        for _ in 0..*len {
            let mut length = [0; 8];
            file.read_exact(&mut length).map_err(io)?;
            let length = u64::from_le_bytes(length);
            left = left
                .checked_sub(8)
                .and_then(|left| left.checked_sub(length))
                .ok_or_else(|| self.changed(key))?;
            let start = texts.bytes.len();
            // The number of bytes was checked against the file's size.
            texts.bytes.resize(start + length as usize, 0);
            file.read_exact(&mut texts.bytes[start..]).map_err(io)?;
            texts.ends.push(texts.bytes.len());
        }
        Ok(Some(texts))
    }

    /// Reads the array of 32-bit floats under `key` from the file. `None` if `key` is missing or has another type.
    ///
    /// # Errors
    /// If the file cannot be read again.
    pub fn floats(&self, key: &str) -> Result<Option<Vec<f32>>, ReadError> {
        let Some(Value::Array { of: ValueType::F32, len, offset }) = self.get(key) else { return Ok(None) };
        let io = |source| ReadError::from_io(&self.path, source);
        let mut file = File::open(&self.path).map_err(io)?;
        let size = file.metadata().map_err(io)?.len();
        // The array fitted the file when it was opened.
        if len.saturating_mul(4) > size.saturating_sub(*offset) {
            return Err(self.changed(key));
        }
        file.seek(SeekFrom::Start(*offset)).map_err(io)?;
        let mut content = vec![0; *len as usize * 4];
        file.read_exact(&mut content).map_err(io)?;
        Ok(Some(
            content
                .chunks_exact(4)
                .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
                .collect(),
        ))
    }

    fn changed(&self, key: &str) -> ReadError {
        ReadError::Unusable {
            path: self.path.clone(),
            what: format!("the file has changed since it was opened, and {key} no longer fits into it"),
            mend: "load the model again; to replace a file in use, rename the new file over it",
        }
    }
}
