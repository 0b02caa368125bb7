//! Vocabulary checks, derived from the assertions of llama.cpp's tokenizers.

use std::borrow::Cow;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use super::floats::shortened;
use super::hyperparameters::{CheckedModel, text};
use crate::read::{ReadError, Texts};
use crate::value::{Scalar, Value, ValueType};

const TOKENS: &str = "tokenizer.ggml.tokens";
/// Maximum number of tokens; the largest published vocabularies have 262,144.
const MOST_TOKENS: u64 = 1 << 24;
/// Maximum length of a token's text in bytes, which llama.cpp stores in an `int32_t`.
const LONGEST: usize = i32::MAX as usize;
/// Maximum length in bytes of a token's text, for tokenizers that store texts in a tree with one nested node per
/// byte. llama.cpp builds and frees this tree recursively. The longest real texts have 128 bytes.
const LONGEST_IN_TREE: usize = 1 << 10;

/// Tokenizers without token texts.
const WITHOUT_TEXTS: [&str; 2] = ["none", "no_vocab"];

/// Special tokens that a tokenizer adds to a text unless the file specifies otherwise.
struct Defaults {
    bos: Option<u64>,
    eos: Option<u64>,
    sep: Option<u64>,
    add_bos: bool,
    add_eos: bool,
    /// True if every text ends with a separator token.
    ends_with_sep: bool,
}

/// Pre-tokenizers for byte pair encoding that add a beginning-of-text token.
const PRE_WITH_BOS: [&str; 11] = [
    "chameleon",
    "falcon-h1",
    "falcon3",
    "jina-v5-nano",
    "lfm2",
    "llama-bpe",
    "llama-v3",
    "llama3",
    "midm-2.0",
    "pixtral",
    "tekken",
];
/// Pre-tokenizers that always add a beginning-of-text token, even if the file disables it.
const PRE_ALWAYS_BOS: [&str; 2] = ["gemma4", "granite-embed-multi-311m"];
/// Pre-tokenizers without a default for the beginning-of-text token.
const PRE_WITHOUT_BOS: [&str; 3] = ["chatglm-bpe", "glm4", "glm5"];

impl Defaults {
    /// Returns the defaults of the tokenizer `model` (`llama_vocab::impl::load`); `None` if the tokenizer adds no
    /// tokens.
    fn of(model: &str, pre: &str) -> Option<Self> {
        let plain =
            Self { bos: None, eos: None, sep: None, add_bos: false, add_eos: false, ends_with_sep: false };
        Some(match model {
            "llama" => Self { bos: Some(1), eos: Some(2), add_bos: true, ..plain },
            "bert" => Self { bos: Some(101), sep: Some(102), add_bos: true, ends_with_sep: true, ..plain },
            "gpt2" | "hybriddna" | "whitespace" => Self {
                bos: (!PRE_WITHOUT_BOS.contains(&pre)).then_some(11),
                eos: Some(11),
                add_bos: PRE_WITH_BOS.contains(&pre),
                ..plain
            },
            "t5" => Self { eos: Some(1), add_eos: true, ..plain },
            "plamo2" => Self { bos: Some(1), eos: Some(2), ..plain },
            "gemma4" => plain,
            _ => return None,
        })
    }
}

pub(super) fn check(model: &CheckedModel<'_>) -> Result<(), ReadError> {
    let Some(tokenizer) = text(model.first, "tokenizer.ggml.model") else { return Ok(()) };
    if WITHOUT_TEXTS.contains(&tokenizer) {
        return check_size(model);
    }
    let Some(Value::Array { of: ValueType::String, len, .. }) = model.first.get(TOKENS) else {
        return Ok(());
    };
    if !(1..=MOST_TOKENS).contains(len) {
        return Err(model.wrong(
            TOKENS,
            format!("a list of {len} tokens"),
            format!("a list of 1 to {MOST_TOKENS} tokens"),
        ));
    }
    let longest = match tokenizer {
        "t5" | "rwkv" | "plamo2" => LONGEST_IN_TREE,
        _ => LONGEST,
    };
    let Some(tokens) = model.first.texts(TOKENS)? else { return Ok(()) };
    check_texts(model, &tokens, longest)?;
    if matches!(tokenizer, "llama" | "t5" | "plamo2") {
        check_scores(model)?;
    }
    if tokenizer == "bert" {
        check_no_bytes(model)?;
    }
    check_added(model, tokenizer, *len)
}

/// Checks the size of a vocabulary without texts, because llama.cpp allocates memory for the vocabulary before it
/// reads any tensor.
fn check_size(model: &CheckedModel<'_>) -> Result<(), ReadError> {
    let Some(size) = model.number("vocab_size") else { return Ok(()) };
    let embedding =
        model.parts.iter().flat_map(|part| part.tensors()).find(|tensor| tensor.name == "token_embd.weight");
    let rows = embedding.and_then(|tensor| tensor.dims.get(1)).map_or(MOST_TOKENS, |rows| *rows);
    match (0..=i128::from(rows.min(MOST_TOKENS))).contains(&size) {
        true => Ok(()),
        false => {
            let allowed =
                format!("at most {}, the number of rows of token_embd.weight", rows.min(MOST_TOKENS));
            Err(model.wrong(&model.key("vocab_size"), size, allowed))
        }
    }
}

/// Checks that the tokens' texts are unique, which llama.cpp asserts (`load` in src/llama-vocab.cpp; ggml 0.26.0).
fn check_texts(model: &CheckedModel<'_>, tokens: &Texts, longest: usize) -> Result<(), ReadError> {
    // Sorting hashes takes half the time of a hash map for 262,144 tokens. The hash key is random, so that an
    // attacker cannot choose texts with equal hashes.
    let state = RandomState::new();
    let mut hashes = Vec::with_capacity(tokens.len());
    for (number, token) in tokens.iter().enumerate() {
        let token = as_read(token, number);
        if token.len() > longest {
            let size = token.len();
            let what =
                format!("token {number} of {TOKENS} has {size} bytes, but must have at most {longest}");
            return Err(model.refuse(what));
        }
        hashes.push((state.hash_one(&token), number));
    }
    hashes.sort_unstable();
    let mut repeated: Option<(usize, usize)> = None;
    for group in hashes.chunk_by(|one, other| one.0 == other.0).filter(|group| group.len() > 1) {
        let text = |(_, number): (u64, usize)| as_read(tokens.get(number), number);
        let pair = (1..group.len()).find_map(|second| {
            let first = group[..second].iter().find(|one| text(**one) == text(group[second]))?;
            Some((first.1, group[second].1))
        });
        // The smallest number is reported, so that every run gives the same error despite the random hashes.
        repeated = [repeated, pair].into_iter().flatten().min_by_key(|(_, second)| *second);
    }
    match repeated {
        Some((first, second)) => Err(twice(model, first, second, &as_read(tokens.get(second), second))),
        None => Ok(()),
    }
}

/// Returns the text of a token as llama.cpp reads it: up to the first zero byte, or a generated name if that text is
/// empty.
fn as_read(token: &[u8], number: usize) -> Cow<'_, [u8]> {
    let end = token.iter().position(|byte| *byte == 0).unwrap_or(token.len());
    match end {
        0 => Cow::Owned(format!("[EMPTY_{number}]").into_bytes()),
        _ => Cow::Borrowed(&token[..end]),
    }
}

/// Returns the error for a text that occurs twice.
fn twice(model: &CheckedModel<'_>, first: usize, second: usize, token: &[u8]) -> ReadError {
    let token = shortened(&String::from_utf8_lossy(token));
    model.refuse(format!(
        "{TOKENS} contains {token:?} twice, as token {first} and as token {second}, but texts must be unique"
    ))
}

/// Checks the scores by which tokenizers order their merges.
fn check_scores(model: &CheckedModel<'_>) -> Result<(), ReadError> {
    const SCORES: &str = "tokenizer.ggml.scores";
    let scores = model.first.floats(SCORES)?.unwrap_or_default();
    match scores.iter().position(|score| score.is_nan()) {
        Some(token) => Err(model.wrong(SCORES, format!("NaN for token {token}"), "a number for every token")),
        None => Ok(()),
    }
}

/// Checks that no token represents a byte, because llama.cpp aborts on a byte token in a WordPiece vocabulary
/// (`token_to_byte` in src/llama-vocab.cpp; ggml 0.26.0).
fn check_no_bytes(model: &CheckedModel<'_>) -> Result<(), ReadError> {
    const TYPES: &str = "tokenizer.ggml.token_type";
    // Value of `LLAMA_TOKEN_TYPE_BYTE`.
    const BYTE: i128 = 6;
    let Some(Value::Array { of: ValueType::I32, .. }) = model.first.get(TYPES) else { return Ok(()) };
    let types = model.first.integers(TYPES)?.unwrap_or_default();
    match types.iter().position(|kind| *kind == BYTE) {
        Some(token) => Err(model.wrong(
            TYPES,
            format!("6 (a byte) for token {token}"),
            "another type in a WordPiece vocabulary",
        )),
        None => Ok(()),
    }
}

/// Checks that the tokens added to every text exist, because llama.cpp asserts their existence at the first text
/// (`tokenize` in src/llama-vocab.cpp; ggml 0.26.0).
fn check_added(model: &CheckedModel<'_>, tokenizer: &str, tokens: u64) -> Result<(), ReadError> {
    let pre = if tokenizer == "gemma4" {
        "gemma4"
    } else {
        text(model.first, "tokenizer.ggml.pre").unwrap_or_default()
    };
    let Some(defaults) = Defaults::of(tokenizer, pre) else { return Ok(()) };
    let flag = |key: &str, default: bool| match model.first.get(key) {
        Some(Value::Scalar(Scalar::Bool(value))) => *value,
        _ => default,
    };
    let exists = |key: &str, default: Option<u64>| {
        let given = model.first.u32(key).map(u64::from).filter(|id| *id < tokens);
        given.or(default.filter(|id| *id < tokens)).is_some()
    };
    let byte_pairs = matches!(tokenizer, "gpt2" | "hybriddna" | "whitespace" | "gemma4");
    let adds_bos = flag("tokenizer.ggml.add_bos_token", defaults.add_bos)
        || defaults.ends_with_sep
        || byte_pairs && PRE_ALWAYS_BOS.contains(&pre);
    let adds_eos = !defaults.ends_with_sep && flag("tokenizer.ggml.add_eos_token", defaults.add_eos);
    let needed = [
        (adds_bos, "tokenizer.ggml.bos_token_id", defaults.bos, "begins"),
        (adds_eos, "tokenizer.ggml.eos_token_id", defaults.eos, "ends"),
        (defaults.ends_with_sep, "tokenizer.ggml.seperator_token_id", defaults.sep, "ends"),
    ];
    for (added, key, default, what) in needed {
        if added && !exists(key, default) {
            let found = match model.first.u32(key) {
                Some(id) => id.to_string(),
                None => "missing".to_string(),
            };
            let allowed = format!("a token number below {tokens}, because this token {what} every text");
            return Err(model.wrong(key, found, allowed));
        }
    }
    Ok(())
}
