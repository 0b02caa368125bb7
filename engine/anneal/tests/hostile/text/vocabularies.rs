//! Vocabularies of every kind of tokenizer, without weights.

use std::io::BufWriter;
use std::path::{Path, PathBuf};

use gguf::write::{Header, Meta, Writer};

/// Token types, with the numbers of `tokenizer.ggml.token_type`.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
pub const CONTROL: i32 = 3;
pub const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

/// Kinds of tokenizers other than plain byte-level BPE.
pub const OTHERS: &[&str] = &["llama", "bert", "t5", "rwkv", "plamo2", "gemma4", "whitespace", "hybriddna"];

/// Vocabulary to write.
pub struct Vocabulary {
    model: &'static str,
    pre: String,
    tokens: Vec<(String, i32)>,
    merges: Vec<String>,
    ids: Vec<(&'static str, u32)>,
}

impl Vocabulary {
    /// Creates a byte-level BPE vocabulary with the pre-tokenizer `pre` and a few merges. Also adds tokens for
    /// tokenizers that do not spell bytes.
    pub fn bpe(pre: &str) -> Self {
        let mut vocabulary = Self::empty("gpt2", pre);
        vocabulary.add((0..=255).map(|byte| byte_token(byte).to_string()), NORMAL);
        vocabulary.add((0..=255).map(|byte| format!("<0x{byte:02X}>")), BYTE);
        vocabulary.merge();
        vocabulary
    }

    /// Creates a vocabulary for a tokenizer of the kind `model`, one of [`OTHERS`].
    pub fn other(model: &'static str) -> Self {
        let pre = match model {
            "hybriddna" => "qwen2",
            other => other,
        };
        let mut vocabulary = Self::empty(model, pre);
        let bytes = || (0..=255).map(|byte| format!("<0x{byte:02X}>"));
        let words =
            ["\u{2581}", "a", "b", "A", "1", "ab", "aa", "\u{2581}a", "中", "é", "aaaa", "\u{2581}\u{2581}"];
        match model {
            "bert" => {
                vocabulary.add(["[PAD]", "[UNK]", "[CLS]", "[SEP]"].map(String::from), CONTROL);
                vocabulary.ids.extend([("padding", 0), ("unknown", 1), ("bos", 2), ("seperator", 3)]);
            }
            "t5" => vocabulary.add(["<pad>", "</s>", "<unk>"].map(String::from), CONTROL),
            "rwkv" => vocabulary.add((0..=255).map(|byte: u8| format!("\\x{byte:02x}")), NORMAL),
            _ => {
                vocabulary.add(["<unk>".to_string()], UNKNOWN);
                vocabulary.add(["<s>", "</s>", "<pad>"].map(String::from), CONTROL);
                vocabulary.add(bytes(), BYTE);
            }
        }
        vocabulary.add(words.map(String::from), NORMAL);
        if model == "hybriddna" {
            let plain = (0..=255).map(|byte| byte_token(byte).to_string());
            vocabulary.add(plain.filter(|token| !words.contains(&token.as_str())), NORMAL);
            vocabulary.add(["<dna>", "</dna>", "<oov>", "ACGTAC\u{e000}"].map(String::from), NORMAL);
        }
        if !matches!(model, "rwkv" | "bert" | "t5") {
            vocabulary.ids.extend([("bos", 1), ("eos", 2), ("unknown", 0), ("padding", 3)]);
        }
        vocabulary.merges.push("a a".to_string());
        vocabulary
    }

    fn empty(model: &'static str, pre: &str) -> Self {
        Self { model, pre: pre.to_string(), tokens: Vec::new(), merges: Vec::new(), ids: Vec::new() }
    }

    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Adds tokens of the type `kind`.
    pub fn add(&mut self, tokens: impl IntoIterator<Item = String>, kind: i32) {
        self.tokens.extend(tokens.into_iter().map(|token| (token, kind)));
    }

    /// Keeps the tokens for which `keep` returns true.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.tokens.retain(|(token, _)| keep(token));
    }

    /// Adds merges of letters, digits and signs, of pairs of these, and of pairs of pairs.
    fn merge(&mut self) {
        for one in ["a", "b", "A", "1", "!", "Ġ"] {
            for pair in [one.to_string(), one.repeat(2)] {
                self.merges.push(format!("{pair} {pair}"));
                self.add([pair.repeat(2)], NORMAL);
            }
        }
    }

    /// Writes the vocabulary to `folder`.
    pub fn write(&self, folder: &Path) -> PathBuf {
        let text = |text: &str| Meta::String(text.to_string());
        let mut metadata = vec![
            ("general.architecture".to_string(), text("llama")),
            ("tokenizer.ggml.model".to_string(), text(self.model)),
            ("tokenizer.ggml.pre".to_string(), text(&self.pre)),
            ("tokenizer.ggml.merges".to_string(), Meta::Strings(self.merges.clone())),
        ];
        let tokens = self.tokens.iter().map(|(token, _)| token.clone()).collect();
        let kinds = self.tokens.iter().map(|(_, kind)| *kind).collect();
        // Longer tokens have better scores.
        let scores = self.tokens.iter().map(|(token, _)| token.len().min(100) as i32 - 100).collect();
        metadata.push(("tokenizer.ggml.tokens".to_string(), Meta::Strings(tokens)));
        metadata.push(("tokenizer.ggml.token_type".to_string(), Meta::I32s(kinds)));
        metadata.push(("tokenizer.ggml.scores".to_string(), Meta::I32s(scores)));
        for (name, id) in &self.ids {
            metadata.push((format!("tokenizer.ggml.{name}_token_id"), Meta::U32(*id)));
        }
        let path = folder.join(format!("{}-{}.gguf", self.model, self.pre));
        let file = BufWriter::new(std::fs::File::create(&path).expect("a file"));
        let writer = Writer::new(file, &Header { metadata, tensors: Vec::new() }).expect("a header");
        let file = writer.finish().expect("no tensors");
        file.into_inner().map(drop).expect("written");
        path
    }
}

/// Returns the character that represents `byte` in GPT-2's byte encoding.
fn byte_token(byte: u8) -> char {
    let is_shown = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let hidden = (0..byte).filter(|byte| !is_shown(*byte)).count() as u32;
    match is_shown(byte) {
        true => char::from(byte),
        false => char::from_u32(256 + hidden).expect("below the surrogates"),
    }
}
