//! Streaming writer for GGUF files: the header, then each tensor's bytes in order. The writer buffers no tensor data,
//! so a model may be larger than memory.

use std::io::{self, Write};

use crate::format::{DEFAULT_ALIGNMENT, MAGIC, VERSION};
use crate::ggml_type::GgmlType;
use crate::value::ValueType;

/// Metadata value to write.
#[derive(Clone, Debug, PartialEq)]
pub enum Meta {
    /// Unsigned, 32 bits.
    U32(u32),
    /// Floating point, 32 bits.
    F32(f32),
    /// Boolean.
    Bool(bool),
    /// Text.
    String(String),
    /// Array of texts.
    Strings(Vec<String>),
    /// Array of signed 32-bit numbers.
    I32s(Vec<i32>),
}

/// Tensor to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name, at most 63 bytes.
    pub name: String,
    /// Dimensions, with the number of elements per row first, as in ggml.
    pub dims: Vec<u64>,
    /// Type of the tensor's data.
    pub kind: GgmlType,
}

impl TensorSpec {
    /// Returns the size of the tensor's data in bytes; `None` if it overflows, or a row is not a whole number of
    /// blocks.
    pub fn bytes(&self) -> Option<u64> {
        let row = self.kind.bytes_of(*self.dims.first()?)?;
        self.dims[1..].iter().try_fold(row, |bytes, dim| bytes.checked_mul(*dim))
    }
}

/// Everything before the tensor data.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Header {
    /// Metadata in the order of the file.
    pub metadata: Vec<(String, Meta)>,
    /// Tensors in the order of their data.
    pub tensors: Vec<TensorSpec>,
}

/// Reason why a file could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The system reported an error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The size of a tensor cannot be computed.
    #[error("tensor '{name}' with the shape {dims:?} cannot have the type {kind}: its rows are not whole blocks of \
             {} elements", kind.block_elements())]
    Shape {
        /// Name of the tensor.
        name: String,
        /// Dimensions of the tensor.
        dims: Vec<u64>,
        /// Type of the tensor.
        kind: GgmlType,
    },
    /// The size of the data differs from the header.
    #[error("tensor '{name}' needs {expected} bytes of data, but {given} were given")]
    Size {
        /// Name of the tensor.
        name: String,
        /// Size from the header, in bytes.
        expected: u64,
        /// Size of the data, in bytes.
        given: u64,
    },
    /// Data was written after the last tensor.
    #[error("{0} bytes were written after the last tensor")]
    TooMuch(usize),
}

/// Writer of one file.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    /// Names and sizes of the tensors.
    sizes: Vec<(String, u64)>,
    /// Index of the tensor that the next bytes belong to, and the number of its bytes written so far.
    tensor: usize,
    filled: u64,
}

impl<W: Write> Writer<W> {
    /// Writes the header to `out`, which should be buffered.
    ///
    /// # Errors
    /// If a tensor's size cannot be computed, or `out` fails.
    pub fn new(mut out: W, header: &Header) -> Result<Self, WriteError> {
        let mut head = Vec::new();
        head.extend(MAGIC);
        head.extend(VERSION.to_le_bytes());
        head.extend((header.tensors.len() as u64).to_le_bytes());
        head.extend((header.metadata.len() as u64).to_le_bytes());
        for (key, value) in &header.metadata {
            put_string(&mut head, key);
            put_meta(&mut head, value);
        }
        let mut sizes = Vec::with_capacity(header.tensors.len());
        let mut offset = 0;
        for tensor in &header.tensors {
            let shape = || WriteError::Shape {
                name: tensor.name.clone(),
                dims: tensor.dims.clone(),
                kind: tensor.kind,
            };
            let bytes = tensor.bytes().ok_or_else(shape)?;
            put_string(&mut head, &tensor.name);
            head.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| head.extend(dim.to_le_bytes()));
            head.extend(tensor.kind.id().to_le_bytes());
            head.extend(u64::to_le_bytes(offset));
            offset = bytes
                .checked_next_multiple_of(DEFAULT_ALIGNMENT)
                .and_then(|padded| offset.checked_add(padded))
                .ok_or_else(shape)?;
            sizes.push((tensor.name.clone(), bytes));
        }
        head.resize(head.len().next_multiple_of(DEFAULT_ALIGNMENT as usize), 0);
        out.write_all(&head)?;
        Ok(Self { out, sizes, tensor: 0, filled: 0 })
    }

    /// Writes the next bytes of the current tensor. `data` must not extend into the next tensor.
    ///
    /// # Errors
    /// If there is more data than the header announced, or `out` fails.
    pub fn write_data(&mut self, data: &[u8]) -> Result<(), WriteError> {
        let Some((name, size)) = self.sizes.get(self.tensor) else {
            return Err(WriteError::TooMuch(data.len()));
        };
        let filled = self.filled + data.len() as u64;
        if filled > *size {
            return Err(WriteError::Size { name: name.clone(), expected: *size, given: filled });
        }
        self.out.write_all(data)?;
        self.filled = filled;
        if filled == *size {
            let padding = size.next_multiple_of(DEFAULT_ALIGNMENT) - size;
            self.out.write_all(&[0; DEFAULT_ALIGNMENT as usize][..padding as usize])?;
            self.tensor += 1;
            self.filled = 0;
        }
        Ok(())
    }

    /// Ends the file. All tensors must be complete.
    ///
    /// # Errors
    /// If a tensor is incomplete, or `out` fails.
    pub fn finish(mut self) -> Result<W, WriteError> {
        if let Some((name, size)) = self.sizes.get(self.tensor) {
            return Err(WriteError::Size { name: name.clone(), expected: *size, given: self.filled });
        }
        self.out.flush()?;
        Ok(self.out)
    }
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_meta(out: &mut Vec<u8>, value: &Meta) {
    let put_type = |out: &mut Vec<u8>, kind: ValueType| out.extend(kind.id().to_le_bytes());
    let put_array = |out: &mut Vec<u8>, kind: ValueType, len: usize| {
        put_type(out, ValueType::Array);
        put_type(out, kind);
        out.extend((len as u64).to_le_bytes());
    };
    match value {
        Meta::U32(value) => {
            put_type(out, ValueType::U32);
            out.extend(value.to_le_bytes());
        }
        Meta::F32(value) => {
            put_type(out, ValueType::F32);
            out.extend(value.to_le_bytes());
        }
        Meta::Bool(value) => {
            put_type(out, ValueType::Bool);
            out.push(u8::from(*value));
        }
        Meta::String(value) => {
            put_type(out, ValueType::String);
            put_string(out, value);
        }
        Meta::Strings(values) => {
            put_array(out, ValueType::String, values.len());
            values.iter().for_each(|value| put_string(out, value));
        }
        Meta::I32s(values) => {
            put_array(out, ValueType::I32, values.len());
            values.iter().for_each(|value| out.extend(value.to_le_bytes()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let tensor = |name: &str| TensorSpec { name: name.into(), dims: vec![3, 2], kind: GgmlType::F16 };
        Header { metadata: vec![("a".into(), Meta::Bool(true))], tensors: vec![tensor("x"), tensor("y")] }
    }

    #[test]
    fn data_is_aligned_and_padded() {
        let mut writer = Writer::new(Vec::new(), &header()).unwrap();
        let start = writer.out.len();
        assert_eq!(start % 32, 0);
        writer.write_data(&[1; 6]).unwrap();
        writer.write_data(&[1; 6]).unwrap();
        writer.write_data(&[2; 12]).unwrap();
        let file = writer.finish().unwrap();
        assert_eq!(file.len(), start + 64);
        assert_eq!(file[start..start + 33], [&[1; 12][..], &[0; 20], &[2]].concat());
    }

    #[test]
    fn data_that_does_not_match_the_header_is_refused() {
        let mut writer = Writer::new(Vec::new(), &header()).unwrap();
        let error = writer.write_data(&[0; 13]).unwrap_err();
        assert_eq!(error.to_string(), "tensor 'x' needs 12 bytes of data, but 13 were given");
        writer.write_data(&[0; 12]).unwrap();
        let error = writer.finish().unwrap_err();
        assert_eq!(error.to_string(), "tensor 'y' needs 12 bytes of data, but 0 were given");

        let mut writer = Writer::new(Vec::new(), &header()).unwrap();
        writer.write_data(&[0; 12]).unwrap();
        writer.write_data(&[0; 12]).unwrap();
        assert!(matches!(writer.write_data(&[0]), Err(WriteError::TooMuch(1))));

        let mut odd = header();
        odd.tensors[0].kind = GgmlType::from_id(12).unwrap();
        assert!(matches!(Writer::new(Vec::new(), &odd), Err(WriteError::Shape { .. })));
    }
}
