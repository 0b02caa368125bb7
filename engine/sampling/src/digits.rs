//! Limit on the digits of a number in JSON. A JSON schema without bounds allows numbers with any number of digits, and an
//! uncertain model would then write digits until its answer is cut off.

/// Maximum number of consecutive digits: the number of digits of JavaScript's largest safe integer (2^53 - 1).
const MOST: u32 = 16;

/// Maximum number of digits of an exponent. With two digits, the number is finite as a double.
const MOST_IN_EXPONENT: u32 = 2;

/// Position in a JSON text.
#[derive(Clone, Debug, Default)]
pub struct DigitLimit {
    in_text: bool,
    is_escaped: bool,
    in_exponent: bool,
    /// Number of digits at the end of the text, outside of strings.
    run: u32,
}

impl DigitLimit {
    /// Appends `bytes` to the text.
    pub fn push(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.push_byte(*byte));
    }

    fn push_byte(&mut self, byte: u8) {
        if self.in_text {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.in_text = false,
                _ => {}
            }
            return;
        }
        match byte {
            b'0'..=b'9' => {
                self.run += 1;
                return;
            }
            b'"' => self.in_text = true,
            b'e' | b'E' => self.in_exponent = self.run > 0,
            b'+' | b'-' => {}
            _ => self.in_exponent = false,
        }
        self.run = 0;
    }

    /// Returns the number of digits that may follow; `None` within a string, where any number of digits may follow.
    pub fn left(&self) -> Option<u32> {
        let most = if self.in_exponent { MOST_IN_EXPONENT } else { MOST };
        (!self.in_text).then(|| most.saturating_sub(self.run))
    }
}

/// Tokens that begin with digits.
#[derive(Clone, Debug, Default)]
pub struct DigitTokens(Vec<(u32, u32)>);

impl DigitTokens {
    /// Collects the tokens of a vocabulary, given by the bytes of each token.
    pub fn new<'a>(vocabulary: impl Iterator<Item = &'a [u8]>) -> Self {
        let digits = |bytes: &[u8]| bytes.iter().take_while(|byte| byte.is_ascii_digit()).count() as u32;
        let tokens = (0..).zip(vocabulary.map(digits));
        DigitTokens(tokens.filter(|(_, digits)| *digits > 0).collect())
    }

    /// True if `token` begins with more than `left` digits.
    pub fn exceeds(&self, token: u32, left: u32) -> bool {
        self.0.binary_search_by_key(&token, |(token, _)| *token).is_ok_and(|at| self.0[at].1 > left)
    }

    /// Removes the tokens that begin with more than `left` digits from `mask`, which has one bit per token. Leaves the
    /// mask unchanged if no other token is allowed, because the schema then requires these digits.
    pub fn limit(&self, mask: &mut Vec<u32>, left: u32) {
        let mut limited = None;
        for (token, _) in self.0.iter().filter(|(_, digits)| *digits > left) {
            let limited = limited.get_or_insert_with(|| mask.clone());
            if let Some(word) = limited.get_mut(*token as usize / 32) {
                *word &= !(1 << (token % 32));
            }
        }
        if let Some(limited) = limited.filter(|mask| mask.iter().any(|word| *word != 0)) {
            *mask = limited;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_counted_outside_of_strings() {
        let left = |text: &str| {
            let mut limit = DigitLimit::default();
            limit.push(text.as_bytes());
            limit.left()
        };
        for (text, expected) in [
            ("", Some(16)),
            ("{\"a\": 123", Some(13)),
            ("-1234567890123456", Some(0)),
            ("12345678901234567", Some(0)),
            ("1.25", Some(14)),
            ("1.5e", Some(2)),
            ("1.5e-3", Some(1)),
            ("[1e5, 7", Some(15)),
            ("[true, 7", Some(15)),
            ("\"123", None),
            (r#""a\"12"#, None),
            (r#""a\\", 12"#, Some(14)),
        ] {
            assert_eq!(left(text), expected, "{text}");
        }
    }

    #[test]
    fn tokens_with_too_many_digits_are_removed_unless_no_other_is_allowed() {
        let vocabulary = ["1", "12", "1a", "}", "a1"].map(str::as_bytes);
        let tokens = DigitTokens::new(vocabulary.into_iter());
        for (mask, left, expected) in
            [(0b11111, 2, 0b11111), (0b11111, 1, 0b11101), (0b11111, 0, 0b11000), (0b00110, 0, 0b00110)]
        {
            let mut limited = vec![mask];
            tokens.limit(&mut limited, left);
            assert_eq!(limited, [expected], "{mask:b} {left}");
        }
    }
}
