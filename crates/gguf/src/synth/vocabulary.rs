//! Byte-level BPE vocabulary of pronounceable invented words.
//!
//! The merges are real, not padding. A prompt therefore becomes about as many tokens as with a real model, tokenising
//! and detokenising round-trips, and generated text can be read aloud.

use std::collections::HashSet;

use random_weights::Xoshiro;

/// Vocabulary with its merges.
pub(super) struct Vocabulary {
    /// Texts of all tokens, in GPT-2's byte encoding.
    pub(super) tokens: Vec<String>,
    /// Merges, each as `left right`, in the order of application.
    pub(super) merges: Vec<String>,
    /// Number of control tokens, which are the last tokens.
    pub(super) control: usize,
}

/// Control tokens: the first token begins a text, the second token ends a text.
pub(super) type Control = &'static [&'static str];

const ONSETS: &[&str] = &[
    "t", "s", "r", "n", "l", "d", "m", "c", "p", "b", "h", "f", "w", "g", "v", "k", "th", "st", "sh", "tr",
    "ch", "pr", "gr", "br", "cl", "cr", "fl", "pl", "fr", "dr", "sp", "bl", "j", "z", "sk", "sw", "sl", "gl",
    "qu", "y",
];
const NUCLEI: &[&str] = &["e", "a", "i", "o", "u", "ea", "ou", "ai", "ee", "io", "oo", "au", "ie"];
const CODAS: &[&str] = &[
    "n", "r", "s", "t", "l", "d", "m", "c", "nd", "st", "ng", "nt", "rs", "p", "ck", "th", "ll", "ss", "rt",
    "g", "sh", "k", "ch", "b", "x",
];

/// Most common English words, so that English prompts become fewer tokens.
const WORDS: &[&str] = &[
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "was", "as", "on", "with", "be", "by", "at",
    "are", "this", "have", "from", "or", "an", "not", "but", "you", "all", "which", "one", "were", "can",
    "there", "will", "what", "how", "has", "more", "when", "who", "about", "time", "up", "out", "write",
    "model",
];

/// Space in GPT-2's byte encoding.
const SPACE: &str = "\u{120}";

impl Vocabulary {
    /// Creates a vocabulary of exactly `size` tokens, the last of which are `control`. The words are the same for
    /// every model of that size, because the seed only affects weights.
    pub(super) fn new(size: usize, control: Control) -> Self {
        let mut builder = Builder::default();
        for byte in 0..=255 {
            builder.add(byte_token(byte).to_string());
        }
        builder.limit = size - control.len();
        for cluster in [ONSETS, NUCLEI, CODAS].concat() {
            builder.spell(cluster);
        }
        for word in WORDS {
            builder.spell(&format!("{SPACE}{word}"));
        }
        let mut random = Xoshiro::keyed(0, [0, 0]);
        while !builder.is_full() {
            builder.word(&mut random);
        }
        let Builder { mut tokens, merges, .. } = builder;
        tokens.extend(control.iter().map(|token| token.to_string()));
        Self { tokens, merges, control: control.len() }
    }

    /// True if the model should not generate `token`: control tokens, which would end the text, and bytes that are
    /// not valid text on their own.
    pub(super) fn is_quiet(&self, token: usize) -> bool {
        let printable = |byte: u8| byte.is_ascii_graphic() || byte == b' ' || byte == b'\n';
        match u8::try_from(token) {
            Ok(byte) => !printable(byte),
            Err(_) => token >= self.tokens.len() - self.control,
        }
    }
}

#[derive(Default)]
struct Builder {
    tokens: Vec<String>,
    merges: Vec<String>,
    known: HashSet<String>,
    limit: usize,
}

impl Builder {
    fn is_full(&self) -> bool {
        self.tokens.len() >= self.limit
    }

    fn add(&mut self, token: String) -> bool {
        let new = self.known.insert(token.clone());
        if new {
            self.tokens.push(token);
        }
        new
    }

    /// Merges the tokens `left` and `right` and returns the merged token; returns `left` if the vocabulary is full.
    fn join(&mut self, left: &str, right: &str) -> String {
        let joined = format!("{left}{right}");
        if !self.known.contains(&joined) {
            if self.is_full() {
                return left.to_string();
            }
            self.merges.push(format!("{left} {right}"));
            self.add(joined.clone());
        }
        joined
    }

    /// Merges the letters of `text` one by one.
    fn spell(&mut self, text: &str) -> String {
        let mut letters = text.chars();
        let first = letters.next().map(String::from).unwrap_or_default();
        letters.fold(first, |token, letter| self.join(&token, letter.encode_utf8(&mut [0; 4])))
    }

    /// Adds one word or the end of one word, with all tokens that are merged into it.
    fn word(&mut self, random: &mut Xoshiro) {
        // Three of four tokens start a word, and half of the tokens have a second syllable. A token has about five
        // characters with the space, as in English text.
        let begins = random.below(4) < 3;
        let word = self.syllable(if begins { SPACE } else { "" }, random);
        if random.below(2) > 0 {
            let next = self.syllable("", random);
            self.join(&word, &next);
        }
    }

    /// Returns a syllable after `before`. Half of the syllables are open.
    fn syllable(&mut self, before: &str, random: &mut Xoshiro) -> String {
        let onset = pick(ONSETS, random);
        let mut syllable = match before {
            "" => onset.to_string(),
            _ => self.join(before, onset),
        };
        syllable = self.join(&syllable, pick(NUCLEI, random));
        if random.below(2) > 0 {
            syllable = self.join(&syllable, pick(CODAS, random));
        }
        syllable
    }
}

/// Picks an item of `list`, which is sorted by frequency: the smaller of two random draws.
fn pick(list: &[&'static str], random: &mut Xoshiro) -> &'static str {
    list[random.below(list.len()).min(random.below(list.len()))]
}

/// Returns the character that represents a byte in GPT-2's tokenizer: the byte itself if it is visible in Latin-1,
/// otherwise the next unused character, starting at U+0100 (`bytes_to_unicode` of encoder.py).
fn byte_token(byte: u8) -> char {
    let visible = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if visible(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|byte| !visible(*byte)).count() as u32;
    char::from_u32(0x100 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTROL: Control = &["<s>", "</s>"];

    #[test]
    fn bytes_are_spelled_as_gpt2_does() {
        let cases = [
            (b' ', 'Ġ'),
            (b'\n', 'Ċ'),
            (b'!', '!'),
            (b'a', 'a'),
            (0, 'Ā'),
            (0x7f, 'ġ'),
            (0xad, 'Ń'),
            (0xff, 'ÿ'),
        ];
        for (byte, character) in cases {
            assert_eq!(byte_token(byte), character, "{byte:#x}");
        }
    }

    #[test]
    fn every_token_is_one_merge_of_two_earlier_ones() {
        for size in [300, 2048, 20_000] {
            let vocabulary = Vocabulary::new(size, CONTROL);
            assert_eq!(vocabulary.tokens.len(), size);
            assert_eq!(vocabulary.merges.len(), size - 256 - CONTROL.len());
            let mut known: HashSet<&str> = vocabulary.tokens[..256].iter().map(String::as_str).collect();
            assert_eq!(known.len(), 256);
            for (merge, token) in vocabulary.merges.iter().zip(&vocabulary.tokens[256..]) {
                let (left, right) = merge.split_once(' ').expect("two parts");
                assert!(known.contains(left) && known.contains(right), "{merge}");
                assert_eq!(format!("{left}{right}"), *token);
                assert!(known.insert(token), "{token} occurs twice");
            }
            assert_eq!(&vocabulary.tokens[size - 2..], CONTROL);
        }
    }

    #[test]
    fn tokens_have_the_length_of_real_ones() {
        let vocabulary = Vocabulary::new(20_000, CONTROL);
        let characters: usize = vocabulary.tokens.iter().map(|token| token.chars().count()).sum();
        let mean = characters as f64 / vocabulary.tokens.len() as f64;
        assert!((3.0..8.0).contains(&mean), "{mean} characters a token");
    }

    #[test]
    fn tokens_that_are_no_text_are_quiet() {
        let vocabulary = Vocabulary::new(300, CONTROL);
        let quiet = |token: usize| vocabulary.is_quiet(token);
        assert!(quiet(0) && quiet(0x80) && quiet(0xff) && quiet(298) && quiet(299));
        assert!(!quiet(usize::from(b'a')) && !quiet(usize::from(b' ')) && !quiet(256) && !quiet(297));
    }
}
