//! Conversion of tokens to text. The bytes of a token may end in the middle of a character.

/// Collects bytes and returns whole characters. Invalid bytes become U+FFFD.
#[derive(Debug, Default)]
pub struct StreamUtf8 {
    /// Bytes of an incomplete character, followed by the most recently added bytes.
    pending: Vec<u8>,
    text: String,
}

impl StreamUtf8 {
    /// Returns the buffer to append a token's bytes to. Call [`take`](Self::take) afterwards.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.pending
    }

    /// Returns the characters that are complete.
    pub fn take(&mut self) -> &str {
        self.text.clear();
        let mut start = 0;
        loop {
            match std::str::from_utf8(&self.pending[start..]) {
                Ok(rest) => {
                    self.text.push_str(rest);
                    start = self.pending.len();
                    break;
                }
                Err(error) => {
                    let valid = start + error.valid_up_to();
                    self.text.push_str(&String::from_utf8_lossy(&self.pending[start..valid]));
                    start = valid;
                    match error.error_len() {
                        Some(wrong) => {
                            self.text.push(char::REPLACEMENT_CHARACTER);
                            start += wrong;
                        }
                        None => break, // the beginning of a character
                    }
                }
            }
        }
        self.pending.drain(..start);
        &self.text
    }

    /// True if the bytes so far end with a whole character.
    pub fn is_whole(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns the remaining text at the end: U+FFFD for an incomplete character.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.pending.is_empty() {
            self.text.push(char::REPLACEMENT_CHARACTER);
            self.pending.clear();
        }
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_cut_anywhere_comes_out_whole() {
        let text = "naïve — 日本語 🦀 e\u{301}";
        for size in 1..=text.len() {
            let mut stream = StreamUtf8::default();
            let mut out = String::new();
            for piece in text.as_bytes().chunks(size) {
                stream.buffer().extend_from_slice(piece);
                out.push_str(stream.take());
            }
            out.push_str(stream.finish());
            assert_eq!(out, text, "pieces of {size}");
        }
    }

    #[test]
    fn what_is_no_text_is_replaced() {
        let cases: [(&[u8], &str); 4] = [
            (b"a\xffb", "a\u{fffd}b"),
            (b"\xe2\x82", "\u{fffd}"),
            (b"\xe2\x28\xa1", "\u{fffd}(\u{fffd}"),
            (b"", ""),
        ];
        for (bytes, expected) in cases {
            let mut stream = StreamUtf8::default();
            stream.buffer().extend_from_slice(bytes);
            let mut out = stream.take().to_string();
            out.push_str(stream.finish());
            assert_eq!(out, expected, "{bytes:?}");
        }
    }
}
