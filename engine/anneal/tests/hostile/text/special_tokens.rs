//! Tests of special tokens in texts.

use std::time::Duration;

use super::vocabularies::{CONTROL, USER_DEFINED, Vocabulary};
use super::{in_a_child, load};
use crate::effort;

/// Splits `text` with a slow reference algorithm, which searches the remaining text for each special token, the
/// longest first. Returns special tokens by their index, and the lengths of the text between them.
fn slowly(text: &str, specials: &[&str]) -> Vec<Result<usize, usize>> {
    let mut order: Vec<usize> = (0..specials.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(specials[*index].len()));
    let mut pieces: Vec<Result<usize, String>> = vec![Err(text.to_string())];
    for index in order {
        let special = specials[index];
        pieces = pieces
            .into_iter()
            .flat_map(|piece| match piece {
                Ok(token) => vec![Ok(token)],
                Err(text) => {
                    let parts = text.split(special).map(|part| Err(part.to_string()));
                    let mut cut: Vec<Result<usize, String>> = Vec::new();
                    for part in parts {
                        if !cut.is_empty() {
                            cut.push(Ok(index));
                        }
                        cut.push(part);
                    }
                    cut.retain(|part| part.as_ref().err().is_none_or(|text| !text.is_empty()));
                    cut
                }
            })
            .collect();
    }
    pieces.into_iter().map(|piece| piece.map_err(|text| text.len())).collect()
}

#[test]
fn longer_special_tokens_are_cut_out_first() {
    // With so few tokens, llama.cpp's sort keeps the order of tokens of equal length.
    let specials = ["<a>", "<a><b>", "a>", "<<", "<b", "b><", "a", "><><"];
    let mut vocabulary = Vocabulary::bpe("default");
    vocabulary.retain(|token| !specials.contains(&token) && token.chars().count() == 1);
    let first = vocabulary.len();
    for (i, special) in specials.iter().enumerate() {
        let kind = if i % 2 == 0 { CONTROL } else { USER_DEFINED };
        vocabulary.add([special.to_string()], kind);
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = load(&vocabulary.write(folder.path()));
    let mut state = 1u64;
    for _ in 0..effort::choose(2000, 20_000) {
        let mut text = String::new();
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..1 + next(12) {
            text.push(char::from(b"<>ab"[next(4) as usize]));
        }
        let tokens = model.tokenize_with(&text, false).expect("tokens");
        // Every other character is a separate token.
        let mut found: Vec<Result<usize, usize>> = Vec::new();
        for token in tokens {
            let index = token as usize;
            match found.last_mut() {
                _ if index >= first => found.push(Ok(index - first)),
                Some(Err(length)) => *length += 1,
                _ => found.push(Err(1)),
            }
        }
        assert_eq!(found, slowly(&text, &specials), "{text}");
    }
}

/// An earlier version searched the list of fragments from its beginning for each token. It also searched the text
/// once for each special token of the vocabulary.
#[test]
fn many_special_tokens_take_no_longer() {
    const TEST: &str = "text::special_tokens::many_special_tokens_take_no_longer";
    in_a_child(TEST, Duration::from_secs(60), || {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut vocabulary = Vocabulary::bpe("deepseek-llm");
        let specials: Vec<String> = (0..4000).map(|number| format!("<|{number}|>")).collect();
        vocabulary.add(specials.clone(), CONTROL);
        vocabulary.add((1..32).map(|count| "\n".repeat(count)), USER_DEFINED);
        let model = load(&vocabulary.write(folder.path()));
        let bytes = effort::choose(1 << 20, 8 << 20);
        let all = specials.concat();
        for unit in ["<|1|>", "<|1|>a", "<", "<|", "\n", &all] {
            let text = unit.repeat(bytes / unit.len());
            assert!(!model.tokenize(&text).expect("tokens").is_empty());
        }
    });
}
