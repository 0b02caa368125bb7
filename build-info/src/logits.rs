//! File format for logits, which `anneal logits` writes and the correctness gate reads.
//!
//! ```text
//! 8 bytes   "ALOGITS1"
//! u32       tokens in the vocabulary, V
//! u32       rows, N
//! N × u32   the token that each row follows
//! N × V × f32
//! ```
//! All numbers are little-endian.

/// First eight bytes of the file.
pub const MAGIC: [u8; 8] = *b"ALOGITS1";
const HEADER: usize = 16;

/// Logits after each token of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Logits {
    /// Tokens of the sequence.
    pub tokens: Vec<u32>,
    vocabulary: usize,
    values: Vec<f32>,
}

/// Reason why bytes are not a valid logits file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogitsError {
    /// The bytes are not a logits file, or the file has a later version of the format.
    #[error("not a logits file: it does not begin with ALOGITS1")]
    Magic,
    /// The file is truncated or too long.
    #[error("truncated or too long: {found} bytes, but {expected} according to its header")]
    Size {
        /// Size according to the header, in bytes.
        expected: u64,
        /// Actual size, in bytes.
        found: u64,
    },
    /// The vocabulary is empty.
    #[error("its vocabulary is empty")]
    Empty,
}

impl Logits {
    /// Creates an empty set of rows over a vocabulary of `vocabulary` tokens.
    pub fn new(vocabulary: usize) -> Self {
        Self { tokens: Vec::new(), vocabulary, values: Vec::new() }
    }

    /// Appends the logits that follow `token`. A row is as long as the vocabulary: a longer row is truncated, and a
    /// shorter row is padded with negative infinity.
    pub fn push(&mut self, token: u32, row: &[f32]) {
        self.tokens.push(token);
        self.values.extend(row.iter().take(self.vocabulary));
        self.values.resize(self.tokens.len() * self.vocabulary, f32::NEG_INFINITY);
    }

    /// Returns the number of tokens in the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Returns the rows in the order of the tokens.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.values.chunks_exact(self.vocabulary.max(1))
    }

    /// Serialises the logits to the bytes of a file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + 4 * (self.tokens.len() + self.values.len()));
        bytes.extend(MAGIC);
        bytes.extend((self.vocabulary as u32).to_le_bytes());
        bytes.extend((self.tokens.len() as u32).to_le_bytes());
        self.tokens.iter().for_each(|token| bytes.extend(token.to_le_bytes()));
        self.values.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
        bytes
    }

    /// True if `bytes` is the beginning of a logits file.
    pub fn begins(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// Parses the logits in `bytes`.
    ///
    /// # Errors
    /// If the bytes are not a logits file, or the file is truncated or too long.
    pub fn parse(bytes: &[u8]) -> Result<Self, LogitsError> {
        if !Self::begins(bytes) {
            return Err(LogitsError::Magic);
        }
        let found = bytes.len() as u64;
        let short = LogitsError::Size { expected: HEADER as u64, found };
        let (Some(vocabulary), Some(rows)) = (number(bytes, 8), number(bytes, 12)) else { return Err(short) };
        if vocabulary == 0 {
            return Err(LogitsError::Empty);
        }
        // The product cannot overflow: both factors are 32-bit numbers, and the arithmetic is 64-bit.
        let cells = u64::from(rows) * (u64::from(vocabulary) + 1);
        let expected = cells.saturating_mul(4).saturating_add(HEADER as u64);
        if found != expected {
            return Err(LogitsError::Size { expected, found });
        }
        let (tokens, values) = bytes[HEADER..].split_at(4 * rows as usize);
        let word = |bytes: &[u8]| [bytes[0], bytes[1], bytes[2], bytes[3]];
        Ok(Self {
            tokens: tokens.chunks_exact(4).map(|bytes| u32::from_le_bytes(word(bytes))).collect(),
            vocabulary: vocabulary as usize,
            values: values.chunks_exact(4).map(|bytes| f32::from_le_bytes(word(bytes))).collect(),
        })
    }
}

/// Parses the little-endian floats in `bytes` into `row`, which has a quarter of the length.
///
/// `inline(never)` keeps the loop in this crate, which is optimised even in xtask.
#[inline(never)]
pub fn parse_row(bytes: &[u8], row: &mut [f32]) {
    for (value, bytes) in row.iter_mut().zip(bytes.chunks_exact(4)) {
        *value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_rows() -> Logits {
        let mut logits = Logits::new(3);
        logits.push(7, &[1.0, -2.0, f32::NAN]);
        logits.push(8, &[0.5, 0.0]);
        logits
    }

    #[test]
    fn what_is_written_is_read_back_bit_for_bit() {
        let bytes = two_rows().to_bytes();
        let read = Logits::parse(&bytes).unwrap();
        assert_eq!(read.to_bytes(), bytes);
        assert_eq!((read.tokens.as_slice(), read.vocabulary()), ([7, 8].as_slice(), 3));
        assert_eq!(read.rows().nth(1), Some([0.5, 0.0, f32::NEG_INFINITY].as_slice()));
        assert_eq!(read.rows().len(), 2);
    }

    #[test]
    fn damage_is_named() {
        let good = two_rows().to_bytes();
        let mut huge = good.clone();
        huge[8..16].fill(0xff);
        let mut empty = good.clone();
        empty[8..12].fill(0);
        let size = |expected, found| LogitsError::Size { expected, found };
        let cases = [
            (&b"GGUF"[..], LogitsError::Magic),
            (&good[..10], size(16, 10)),
            (&good[..40], size(48, 40)),
            (&huge, size(u64::from(u32::MAX) << 34, 48)),
            (&empty, LogitsError::Empty),
        ];
        for (bytes, expected) in cases {
            let error = Logits::parse(bytes).unwrap_err();
            match (error, expected) {
                // The exact expected size does not matter for an absurd header.
                (LogitsError::Size { found: 48, .. }, LogitsError::Size { found: 48, .. }) => {}
                (error, expected) => assert_eq!(error, expected),
            }
        }
    }
}
