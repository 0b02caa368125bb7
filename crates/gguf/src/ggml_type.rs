//! Data types of tensors.

use std::fmt;

/// One of ggml's tensor types, with its block layout.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct GgmlType(&'static Layout);

/// Storage of a type: `elements` values in `bytes` bytes.
#[derive(Debug, PartialEq, Eq)]
struct Layout {
    id: u32,
    name: &'static str,
    elements: u64,
    bytes: u64,
}

/// Types in `enum ggml_type` of ggml.h, with the block sizes of ggml-common.h (ggml 0.26). Sizes are written as sums
/// of the block's fields, in the order of the C struct.
const LAYOUTS: &[Layout] = &[
    layout(0, "f32", 1, 4),
    layout(1, "f16", 1, 2),
    layout(2, "q4_0", 32, 2 + 16),
    layout(3, "q4_1", 32, 4 + 16),
    layout(6, "q5_0", 32, 2 + 4 + 16),
    layout(7, "q5_1", 32, 4 + 4 + 16),
    layout(8, "q8_0", 32, 2 + 32),
    layout(9, "q8_1", 32, 4 + 32),
    layout(10, "q2_K", 256, 16 + 64 + 4),
    layout(11, "q3_K", 256, 32 + 64 + 12 + 2),
    layout(12, "q4_K", 256, 4 + 12 + 128),
    layout(13, "q5_K", 256, 4 + 12 + 32 + 128),
    layout(14, "q6_K", 256, 128 + 64 + 16 + 2),
    layout(15, "q8_K", 256, 4 + 256 + 32),
    layout(16, "iq2_xxs", 256, 2 + 64),
    layout(17, "iq2_xs", 256, 2 + 64 + 8),
    layout(18, "iq3_xxs", 256, 2 + 96),
    layout(19, "iq1_s", 256, 2 + 32 + 16),
    layout(20, "iq4_nl", 32, 2 + 16),
    layout(21, "iq3_s", 256, 2 + 64 + 8 + 32 + 4),
    layout(22, "iq2_s", 256, 2 + 64 + 8 + 8),
    layout(23, "iq4_xs", 256, 2 + 2 + 4 + 128),
    layout(24, "i8", 1, 1),
    layout(25, "i16", 1, 2),
    layout(26, "i32", 1, 4),
    layout(27, "i64", 1, 8),
    layout(28, "f64", 1, 8),
    layout(29, "iq1_m", 256, 32 + 16 + 8),
    layout(30, "bf16", 1, 2),
    layout(34, "tq1_0", 256, 48 + 4 + 2),
    layout(35, "tq2_0", 256, 64 + 2),
    layout(39, "mxfp4", 32, 1 + 16),
    layout(40, "nvfp4", 64, 4 + 32),
    layout(41, "q1_0", 128, 2 + 16),
    layout(42, "q2_0", 64, 2 + 16),
];

/// Types of old GGUF files that llama.cpp no longer reads.
const REMOVED: &[(u32, &str)] = &[
    (4, "Q4_2"),
    (5, "Q4_3"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
];

const fn layout(id: u32, name: &'static str, elements: u64, bytes: u64) -> Layout {
    Layout { id, name, elements, bytes }
}

/// Reason why a type number was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownType {
    /// llama.cpp has removed the type.
    #[error("type {0} was removed from llama.cpp\nhint: quantise the original weights again")]
    Removed(&'static str),
    /// The number is unknown; a later version of llama.cpp may define it.
    #[error("type number {0} is unknown: the file is damaged, or newer than this program")]
    Unknown(u32),
}

impl GgmlType {
    /// 32-bit floating point.
    pub const F32: Self = Self(&LAYOUTS[0]);
    /// IEEE half precision.
    pub const F16: Self = Self(&LAYOUTS[1]);

    /// Returns the type with the number `id`, for use in constants.
    ///
    /// # Panics
    /// If the table does not contain the number.
    pub const fn known(id: u32) -> Self {
        let mut index = 0;
        while LAYOUTS[index].id != id {
            index += 1;
        }
        Self(&LAYOUTS[index])
    }

    /// Returns the type with the number `id`.
    ///
    /// # Errors
    /// If the number is unknown or its type was removed.
    pub fn from_id(id: u32) -> Result<Self, UnknownType> {
        if let Some(layout) = LAYOUTS.iter().find(|layout| layout.id == id) {
            return Ok(Self(layout));
        }
        match REMOVED.iter().find(|(removed, _)| *removed == id) {
            Some((_, name)) => Err(UnknownType::Removed(name)),
            None => Err(UnknownType::Unknown(id)),
        }
    }

    /// Returns the type called `name`, ignoring case.
    pub fn from_name(name: &str) -> Option<Self> {
        LAYOUTS.iter().find(|layout| layout.name.eq_ignore_ascii_case(name)).map(Self)
    }

    /// True if several values share a block and each value has fewer bits than a float.
    pub fn is_quantised(self) -> bool {
        self.0.elements > 1
    }

    /// Returns the number of the type in a file.
    pub fn id(self) -> u32 {
        self.0.id
    }

    /// Returns the name of the type in ggml's spelling: `q4_K`, `f16`.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// Returns the number of values in one block; 1 for plain numbers.
    pub fn block_elements(self) -> u64 {
        self.0.elements
    }

    /// Returns the size of `elements` values in bytes; `None` if `elements` is not a whole number of blocks, or the
    /// size overflows.
    pub fn bytes_of(self, elements: u64) -> Option<u64> {
        let whole = elements.is_multiple_of(self.0.elements);
        whole.then_some(elements / self.0.elements)?.checked_mul(self.0.bytes)
    }
}

impl fmt::Debug for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name)
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_ascending_and_each_is_known_or_removed() {
        assert!(LAYOUTS.windows(2).all(|pair| pair[0].id < pair[1].id));
        for id in 0..=42 {
            match GgmlType::from_id(id) {
                Ok(found) => assert_eq!(found.id(), id),
                Err(error) => assert!(matches!(error, UnknownType::Removed(_)), "type {id}: {error}"),
            }
        }
        assert_eq!(GgmlType::from_id(43), Err(UnknownType::Unknown(43)));
        assert_eq!((GgmlType::F32.name(), GgmlType::F16.name()), ("f32", "f16"));
        assert_eq!(GgmlType::from_name("Q4_k").map(GgmlType::id), Some(12));
        assert_eq!(GgmlType::from_name("q4_k_m"), None);
        assert!(!GgmlType::F16.is_quantised() && GgmlType::known(8).is_quantised());
    }

    #[test]
    fn sizes_give_the_bits_per_weight_that_llama_cpp_prints() {
        let cases = [
            ("q4_0", 4.5),
            ("q8_0", 8.5),
            ("q2_K", 2.625),
            ("q3_K", 3.4375),
            ("q4_K", 4.5),
            ("q5_K", 5.5),
            ("q6_K", 6.5625),
            ("iq1_s", 1.5625),
            ("iq1_m", 1.75),
            ("iq2_xxs", 2.0625),
            ("iq2_xs", 2.3125),
            ("iq2_s", 2.5625),
            ("iq3_xxs", 3.0625),
            ("iq3_s", 3.4375),
            ("iq4_nl", 4.5),
            ("iq4_xs", 4.25),
            ("tq1_0", 1.6875),
            ("tq2_0", 2.0625),
            ("mxfp4", 4.25),
            ("nvfp4", 4.5),
            ("q1_0", 1.125),
            ("q2_0", 2.25),
        ];
        for (name, bits) in cases {
            let found = LAYOUTS.iter().find(|known| known.name == name);
            let known = found.unwrap_or_else(|| panic!("{name} is missing"));
            assert_eq!(known.bytes as f64 * 8.0 / known.elements as f64, bits, "{name}");
        }
    }

    #[test]
    fn part_of_a_block_has_no_size() {
        let q4_k = GgmlType::from_id(12).unwrap();
        assert_eq!(q4_k.bytes_of(512), Some(288));
        assert_eq!(q4_k.bytes_of(100), None);
        assert_eq!(GgmlType::F32.bytes_of(u64::MAX), None);
    }
}
