//! Arrays of numbers, which stay in the file until they are asked for.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use super::error::ReadError;
use super::file::GgufFile;
use crate::value::{Scalar, Value, ValueType};

/// Longest array that is read: something of each token, of which the largest vocabularies have 262,144.
const LIMIT: u64 = 1 << 20;

impl GgufFile {
    /// The whole numbers under `key`: one for a number, all for an array of them, read from the file. `None` where the
    /// key is missing, holds something else or a negative number, or is longer than a list of any vocabulary's tokens.
    ///
    /// # Errors
    /// When the file cannot be read again.
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<u64>>, ReadError> {
        let found = self.integers(key)?;
        Ok(found.and_then(|all| all.into_iter().map(|value| u64::try_from(value).ok()).collect()))
    }

    /// The same with negative numbers.
    ///
    /// # Errors
    /// When the file cannot be read again.
    pub fn integers(&self, key: &str) -> Result<Option<Vec<i128>>, ReadError> {
        match self.get(key) {
            Some(Value::Scalar(Scalar::Unsigned(value))) => Ok(Some(vec![i128::from(*value)])),
            Some(Value::Scalar(Scalar::Signed(value))) => Ok(Some(vec![i128::from(*value)])),
            Some(Value::Array { of, len, offset }) if *len <= LIMIT => self.array(*of, *len, *offset),
            _ => Ok(None),
        }
    }

    fn array(&self, of: ValueType, len: u64, offset: u64) -> Result<Option<Vec<i128>>, ReadError> {
        let signed = match of {
            ValueType::U8 | ValueType::U16 | ValueType::U32 | ValueType::U64 => false,
            ValueType::I8 | ValueType::I16 | ValueType::I32 | ValueType::I64 => true,
            _ => return Ok(None),
        };
        // Whole numbers have a size of at most 8.
        let size = of.size().unwrap_or(8) as usize;
        let io = |source| ReadError::from_io(&self.path, source);
        let mut file = File::open(&self.path).map_err(io)?;
        file.seek(SeekFrom::Start(offset)).map_err(io)?;
        let mut content = vec![0; len as usize * size];
        file.read_exact(&mut content).map_err(io)?;
        let number = |bytes: &[u8]| {
            let negative = signed && bytes.last().is_some_and(|last| last & 0x80 != 0);
            let mut wide = if negative { [0xff; 16] } else { [0; 16] };
            wide[..size].copy_from_slice(bytes);
            i128::from_le_bytes(wide)
        };
        Ok(Some(content.chunks_exact(size).map(number).collect()))
    }
}
