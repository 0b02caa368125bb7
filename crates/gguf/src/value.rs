//! Metadata values.

/// Type of a metadata value, or of the elements of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// Unsigned, 8 bits.
    U8,
    /// Signed, 8 bits.
    I8,
    /// Unsigned, 16 bits.
    U16,
    /// Signed, 16 bits.
    I16,
    /// Unsigned, 32 bits.
    U32,
    /// Signed, 32 bits.
    I32,
    /// Floating point, 32 bits.
    F32,
    /// One byte, 0 or 1.
    Bool,
    /// UTF-8 text, preceded by its length.
    String,
    /// Array of elements of one type.
    Array,
    /// Unsigned, 64 bits.
    U64,
    /// Signed, 64 bits.
    I64,
    /// Floating point, 64 bits.
    F64,
}

/// Types in the order of their numbers.
const TYPES: [ValueType; 13] = [
    ValueType::U8,
    ValueType::I8,
    ValueType::U16,
    ValueType::I16,
    ValueType::U32,
    ValueType::I32,
    ValueType::F32,
    ValueType::Bool,
    ValueType::String,
    ValueType::Array,
    ValueType::U64,
    ValueType::I64,
    ValueType::F64,
];

impl ValueType {
    /// Returns the type with the number `id` (`enum gguf_type`).
    pub fn from_id(id: u32) -> Option<Self> {
        TYPES.get(usize::try_from(id).ok()?).copied()
    }

    /// Returns the number of the type in a file.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// Returns the size of one value in bytes; `None` for strings and arrays.
    pub fn size(self) -> Option<u64> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }
}

/// Single value.
#[derive(Clone, Debug, PartialEq)]
pub enum Scalar {
    /// Unsigned integer of any width.
    Unsigned(u64),
    /// Signed integer of any width.
    Signed(i64),
    /// Floating-point number of any width.
    Float(f64),
    /// Boolean.
    Bool(bool),
    /// Text; invalid UTF-8 was replaced.
    String(String),
}

/// Value of a metadata key.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Single value.
    Scalar(Scalar),
    /// Array. Its elements stay in the file, because a vocabulary has hundreds of thousands.
    Array {
        /// Type of the elements.
        of: ValueType,
        /// Number of elements.
        len: u64,
        /// Offset of the first element in the file, in bytes.
        offset: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_gguf_h() {
        for (id, kind) in TYPES.into_iter().enumerate() {
            assert_eq!(kind.id() as usize, id, "{kind:?}");
        }
        assert_eq!(ValueType::from_id(8), Some(ValueType::String));
        assert_eq!(ValueType::from_id(13), None);
    }
}
