//! Arrays of numbers, which stay in the file until they are needed.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use super::error::ReadError;
use super::file::GgufFile;
use crate::value::{Scalar, Value, ValueType};

/// Maximum length of an array that is read. An array has at most one number per token, and the largest vocabularies
/// have 262,144 tokens.
const LIMIT: u64 = 1 << 20;

impl GgufFile {
    /// Returns the non-negative integers of `key`: one for a single number, or all elements of an array, which are read
    /// from the file. `None` if the key is missing, has a value of another type, contains a negative number, or has
    /// more elements than any vocabulary has tokens.
    ///
    /// # Errors
    /// If the file cannot be read again.
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<u64>>, ReadError> {
        let found = self.integers(key)?;
        Ok(found.and_then(|all| all.into_iter().map(|value| u64::try_from(value).ok()).collect()))
    }

    /// Returns the integers of `key` like [`numbers`](Self::numbers), including negative numbers.
    ///
    /// # Errors
    /// If the file cannot be read again.
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
        // Integers have a size of at most 8 bytes.
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
