//! Parser for untrusted files.
//!
//! The rules follow llama.cpp's `gguf.cpp`, so that this parser accepts the same files. This parser also checks some
//! rules that llama.cpp leaves to later assertions. Memory use depends on the actual content of the file, never on a
//! number that the file claims.

mod cursor;
mod error;
mod file;
mod numbers;
mod split;
mod texts;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;

use build_info::Bytes;
use cursor::Cursor;

use crate::format::{DEFAULT_ALIGNMENT, MAGIC};
use crate::ggml_type::GgmlType;
use crate::value::{Scalar, Value, ValueType};

pub use error::ReadError;
pub use file::{GgufFile, Split, TensorInfo};
pub use texts::Texts;

/// Maximum length of a key, from the GGUF specification.
const KEY_LIMIT: u64 = (1 << 16) - 1;
/// Maximum length of a text value in bytes. The longest real text values are chat templates of about 20 kB.
const TEXT_LIMIT: u64 = 16 << 20;
/// Maximum length of a tensor's name, `GGML_MAX_NAME` minus its closing zero.
const NAME_LIMIT: u64 = 63;
/// Maximum number of elements in an array, `GGUF_MAX_ARRAY_ELEMENTS`.
const ARRAY_LIMIT: u64 = 1 << 30;
/// Minimum size of a key in bytes: length, one letter, type, one byte.
const SHORTEST_KEY: u64 = 8 + 1 + 4 + 1;
/// Minimum size of a tensor's entry in bytes: length, number of dimensions, type, offset.
const SHORTEST_TENSOR: u64 = 8 + 4 + 4 + 8;

impl GgufFile {
    /// Reads and validates everything in the file except the tensor data.
    ///
    /// # Errors
    /// If the file cannot be read, or is not a valid GGUF file.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let io = |source| ReadError::from_io(path, source);
        // The path is checked before it is opened, because opening a pipe would wait for its other end.
        let found = std::fs::metadata(path).map_err(io)?;
        if !found.is_file() {
            let what = if found.is_dir() { "a folder" } else { "a device or pipe" };
            return Err(ReadError::NotAFile { path: path.to_path_buf(), what });
        }
        let file = File::open(path).map_err(io)?;
        let size = file.metadata().map_err(io)?.len();
        Self::from_reader(path, file, Bytes(size))
    }

    /// Reads and validates the `size` bytes of `content`; `path` is only used in errors.
    ///
    /// # Errors
    /// If the content cannot be read, or is not a valid GGUF file.
    pub fn from_reader(path: &Path, content: impl Read + Seek, size: Bytes) -> Result<Self, ReadError> {
        if size.0 == 0 {
            return Err(ReadError::Empty { path: path.to_path_buf() });
        }
        let mut cursor = Cursor::new(path, content, size.0);
        check_magic(path, &mut cursor)?;
        check_version(path, &mut cursor)?;
        let tensors = read_count(&mut cursor, "tensors", SHORTEST_TENSOR)?;
        let keys = read_count(&mut cursor, "metadata keys", SHORTEST_KEY)?;

        let metadata = read_metadata(&mut cursor, keys)?;
        let alignment = read_alignment(&cursor, &metadata.0)?;
        let mut tensors = read_tensors(path, &mut cursor, tensors)?;
        place_tensors(&cursor, &mut tensors, alignment)?;
        let (metadata, types) = metadata;
        Ok(Self { path: path.to_path_buf(), metadata, types, tensors })
    }
}

fn check_magic(path: &Path, cursor: &mut Cursor<'_>) -> Result<(), ReadError> {
    let mut first = [0; 16];
    let len = cursor.remaining().min(16) as usize;
    let io = |source: io::Error| ReadError::from_io(path, source);
    cursor.peek(&mut first[..len]).map_err(io)?;
    let first = &first[..len];
    // A file that ends within the magic is reported as truncated.
    if !first.starts_with(&MAGIC) && !MAGIC.starts_with(first) {
        return Err(ReadError::NotGguf { path: path.to_path_buf(), first: first.to_vec() });
    }
    cursor.array::<4>(&|| "the header".into())?;
    Ok(())
}

fn check_version(path: &Path, cursor: &mut Cursor<'_>) -> Result<(), ReadError> {
    let version = cursor.u32(&|| "the header".into())?;
    let (found, mend) = match version {
        2 | 3 => return Ok(()),
        1 => ("version 1".to_string(), "download a newer file of the model"),
        _ if version & 0xffff == 0 && version != 0 => (
            format!("version {}, big endian", version.swap_bytes()),
            "download the little-endian file of the model",
        ),
        0 => ("version 0".to_string(), "copy or download the file again"),
        _ => (format!("version {version}"), "copy or download the file again, or use a newer program"),
    };
    Err(ReadError::Version { path: path.to_path_buf(), found, mend })
}

/// Reads a number of items that take at least `shortest` bytes each.
fn read_count(cursor: &mut Cursor<'_>, things: &str, shortest: u64) -> Result<u64, ReadError> {
    let offset = cursor.offset();
    let count = cursor.u64(&|| "the header".into())?;
    if count > cursor.remaining() / shortest {
        // In a file that is truncated within its header, this is the first check that fails.
        let needed = count.saturating_mul(shortest);
        return match cursor.need(needed, &|| format!("the header with {count} {things}")) {
            Err(truncated) if count < 1 << 20 => Err(truncated),
            _ => Err(cursor.corrupt(offset, format!("a file of this size cannot contain {count} {things}"))),
        };
    }
    Ok(count)
}

type Metadata = HashMap<String, Value>;
type Types = HashMap<String, ValueType>;

fn read_metadata(cursor: &mut Cursor<'_>, count: u64) -> Result<(Metadata, Types), ReadError> {
    let (mut metadata, mut types) = (Metadata::new(), Types::new());
    for number in 1..=count {
        let start = cursor.offset();
        let key = cursor.string(KEY_LIMIT, &|| format!("metadata key {number} of {count}"))?;
        if key.is_empty() {
            return Err(
                cursor.corrupt(start, format!("the name of metadata key {number} of {count} is empty"))
            );
        }
        if metadata.contains_key(&key) {
            return Err(cursor.corrupt(start, format!("metadata key '{key}' occurs twice")));
        }
        let (kind, value) = read_value(cursor, &key)?;
        types.insert(key.clone(), kind);
        metadata.insert(key, value);
    }
    Ok((metadata, types))
}

fn read_value(cursor: &mut Cursor<'_>, key: &str) -> Result<(ValueType, Value), ReadError> {
    let what = || format!("metadata key '{key}'");
    let kind = read_type(cursor, key)?;
    let value = match kind {
        ValueType::Array => {
            let of = read_type(cursor, key)?;
            read_array(cursor, key, of)?
        }
        kind => Value::Scalar(match kind {
            ValueType::U8 => Scalar::Unsigned(u8::from_le_bytes(cursor.array(&what)?).into()),
            ValueType::I8 => Scalar::Signed(i8::from_le_bytes(cursor.array(&what)?).into()),
            ValueType::U16 => Scalar::Unsigned(u16::from_le_bytes(cursor.array(&what)?).into()),
            ValueType::I16 => Scalar::Signed(i16::from_le_bytes(cursor.array(&what)?).into()),
            ValueType::U32 => Scalar::Unsigned(cursor.u32(&what)?.into()),
            ValueType::I32 => Scalar::Signed(i32::from_le_bytes(cursor.array(&what)?).into()),
            ValueType::F32 => Scalar::Float(f32::from_le_bytes(cursor.array(&what)?).into()),
            ValueType::Bool => Scalar::Bool(cursor.array::<1>(&what)? != [0]),
            ValueType::U64 => Scalar::Unsigned(cursor.u64(&what)?),
            ValueType::I64 => Scalar::Signed(i64::from_le_bytes(cursor.array(&what)?)),
            ValueType::F64 => Scalar::Float(f64::from_le_bytes(cursor.array(&what)?)),
            // `Array` was handled above.
            ValueType::String | ValueType::Array => Scalar::String(cursor.string(TEXT_LIMIT, &what)?),
        }),
    };
    Ok((kind, value))
}

fn read_type(cursor: &mut Cursor<'_>, key: &str) -> Result<ValueType, ReadError> {
    let start = cursor.offset();
    let id = cursor.u32(&|| format!("metadata key '{key}'"))?;
    ValueType::from_id(id)
        .ok_or_else(|| cursor.corrupt(start, format!("metadata key '{key}' has the unknown type {id}")))
}

/// Skips an array, and validates every length in the array.
fn read_array(cursor: &mut Cursor<'_>, key: &str, of: ValueType) -> Result<Value, ReadError> {
    let what = || format!("metadata key '{key}'");
    let start = cursor.offset();
    let len = cursor.u64(&what)?;
    if len > ARRAY_LIMIT {
        return Err(cursor.corrupt(
            start,
            format!("{} has {len} elements, but at most {ARRAY_LIMIT} are allowed", what()),
        ));
    }
    let offset = cursor.offset();
    match (of, of.size()) {
        // Fewer than 2^30 elements of at most 8 bytes cannot overflow.
        (_, Some(size)) => cursor.skip(len * size, &what)?,
        (ValueType::Array, None) => {
            return Err(
                cursor.corrupt(start, format!("{} is an array of arrays, which is unsupported", what()))
            );
        }
        (_, None) => {
            cursor.need(len * 8, &what)?;
            for _ in 0..len {
                let bytes = cursor.u64(&what)?;
                cursor.skip(bytes, &what)?;
            }
        }
    }
    Ok(Value::Array { of, len, offset })
}

fn read_alignment(cursor: &Cursor<'_>, metadata: &Metadata) -> Result<u64, ReadError> {
    const KEY: &str = "general.alignment";
    let Some(value) = metadata.get(KEY) else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    match value {
        Value::Scalar(Scalar::Unsigned(value)) if value.is_power_of_two() && *value <= 1 << 31 => Ok(*value),
        _ => Err(cursor.corrupt(
            cursor.offset(),
            format!("the value of metadata key '{KEY}' is not a power of two up to 2^31"),
        )),
    }
}

fn read_tensors(path: &Path, cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<TensorInfo>, ReadError> {
    let mut tensors = Vec::new();
    let mut names = std::collections::HashSet::new();
    for number in 1..=count {
        let start = cursor.offset();
        let name = cursor.string(NAME_LIMIT, &|| format!("the name of tensor {number} of {count}"))?;
        if !names.insert(name.clone()) {
            return Err(cursor.corrupt(start, format!("tensor '{name}' occurs twice")));
        }
        tensors.push(read_tensor(path, cursor, name)?);
    }
    Ok(tensors)
}

fn read_tensor(path: &Path, cursor: &mut Cursor<'_>, name: String) -> Result<TensorInfo, ReadError> {
    let what = || format!("the description of tensor '{name}'");
    let start = cursor.offset();
    let dimensions = cursor.u32(&what)?;
    if dimensions > 4 {
        return Err(cursor.corrupt(
            start,
            format!("tensor '{name}' has {dimensions} dimensions, but at most 4 are allowed"),
        ));
    }
    let mut dims = Vec::with_capacity(4);
    for _ in 0..dimensions {
        dims.push(cursor.u64(&what)?);
    }
    // ggml counts in signed 64-bit numbers.
    let elements = dims.iter().try_fold(1u64, |product, dim| product.checked_mul((*dim).max(1)));
    let fits = elements.is_some_and(|elements| i64::try_from(elements).is_ok());
    if !fits {
        return Err(
            cursor.corrupt(start, format!("tensor '{name}' with the shape {dims:?} has too many elements"))
        );
    }
    let id = cursor.u32(&what)?;
    let kind = GgmlType::from_id(id).map_err(|source| ReadError::Type {
        path: path.to_path_buf(),
        tensor: name.clone(),
        source,
    })?;
    // A tensor without dimensions is a single number.
    let row = dims.first().copied().unwrap_or(1);
    let bytes = kind
        .bytes_of(row)
        .and_then(|bytes| dims.iter().skip(1).try_fold(bytes, |product, dim| product.checked_mul(*dim)));
    let Some(bytes) = bytes else {
        let block = kind.block_elements();
        let why = format!(
            "tensor '{name}' with the shape {dims:?} cannot have the type {kind}: its rows are not whole blocks of \
             {block} elements"
        );
        return Err(cursor.corrupt(start, why));
    };
    let offset_at = cursor.offset();
    let offset = cursor.u64(&what)?;
    Ok(TensorInfo { name, dims, kind, bytes: Bytes(bytes), offset, offset_at })
}

/// Converts the tensors' offsets, which are relative to the data section, to offsets in the file. Checks that each
/// tensor starts where the previous one ends, and lies within the file.
fn place_tensors(cursor: &Cursor<'_>, tensors: &mut [TensorInfo], alignment: u64) -> Result<(), ReadError> {
    let overflow = |tensor: &TensorInfo| {
        cursor.corrupt(
            tensor.offset_at,
            format!("tensor '{}' ends beyond the largest possible file", tensor.name),
        )
    };
    let size = cursor.offset() + cursor.remaining();
    let data_offset = cursor.offset().next_multiple_of(alignment);
    if data_offset > size && !tensors.is_empty() {
        return Err(cursor.truncated(data_offset, "the padding before the tensors".into()));
    }
    let mut due = 0u64;
    let mut cut_off = None;
    for tensor in tensors {
        let given = tensor.offset;
        if given != due {
            let why = if given.is_multiple_of(alignment) { "" } else { ", which is not aligned," };
            let name = &tensor.name;
            let what = format!("tensor '{name}' has the data offset {given}{why} instead of {due}");
            return Err(cursor.corrupt(tensor.offset_at, what));
        }
        let padded = tensor.bytes.0.checked_next_multiple_of(alignment).ok_or_else(|| overflow(tensor))?;
        tensor.offset = data_offset.checked_add(due).ok_or_else(|| overflow(tensor))?;
        let end = tensor.offset.checked_add(tensor.bytes.0).ok_or_else(|| overflow(tensor))?;
        due = due.checked_add(padded).ok_or_else(|| overflow(tensor))?;
        // Reported only after all tensors were found to be consistent, because an absurd size means corruption, not
        // truncation.
        if end > size && cut_off.is_none() {
            cut_off = Some(cursor.truncated(end, format!("tensor '{}'", tensor.name)));
        }
    }
    match cut_off {
        Some(error) => Err(error),
        None => Ok(()),
    }
}
