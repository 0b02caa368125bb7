//! Lists of values, in llama-bench's notation.

use std::path::PathBuf;

use llama::options::{FlashAttention, LoadMode};

/// Maximum number of values in a range. A larger range, such as `1-4294967295`, is probably a typo and would give an
/// unreadable table.
const MOST: usize = 4096;

/// Element of a list of numbers: a number or a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers(Vec<u32>);

/// Returns all numbers of a list, in order.
pub fn flat(list: &[Numbers]) -> Vec<u32> {
    list.iter().flat_map(|numbers| &numbers.0).copied().collect()
}

/// Returns a parser for `8`, `1-8`, `1-8+2` (every second number) and `1-8*2` (doubling). Error messages show
/// `range`, which describes the valid values.
pub fn numbers(
    range: &'static str,
) -> impl Fn(&str) -> Result<Numbers, String> + Clone + Send + Sync + 'static {
    move |text| {
        let how = || format!("use {range}\nhint: write a range as 1-8, 1-8+2 or 1-8*2");
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| how());
        let Some((first, rest)) = text.split_once('-').filter(|(first, _)| !first.is_empty()) else {
            return Ok(Numbers(vec![number(text)?]));
        };
        let (last, step): (u32, Box<dyn Fn(u32) -> Option<u32>>) = match rest.find(['+', '*']) {
            None => (number(rest)?, Box::new(|value| value.checked_add(1))),
            Some(at) => {
                let by = number(&rest[at + 1..])?;
                let last = number(&rest[..at])?;
                if rest.as_bytes()[at] == b'+' {
                    (last, Box::new(move |value: u32| value.checked_add(by)))
                } else {
                    (last, Box::new(move |value: u32| value.checked_mul(by)))
                }
            }
        };
        let first = number(first)?;
        if first > last {
            return Err(format!("{first} is greater than {last}\nhint: write the smaller number first"));
        }
        let (mut values, mut at) = (vec![first], first);
        // The range ends with the last number, or before a step that would overflow.
        while let Some(next) = (at < last).then(|| step(at)).flatten().filter(|next| *next <= last) {
            if next <= at {
                return Err(format!("{text} never ends, because its step makes no progress: {}", how()));
            }
            if values.len() == MOST {
                return Err(format!("{text} has more than {MOST} values\nhint: use a larger step"));
            }
            values.push(next);
            at = next;
        }
        Ok(Numbers(values))
    }
}

/// Parses a flash attention mode, given as Anneal's name or llama-bench's number.
pub fn flash_attention(text: &str) -> Result<FlashAttention, String> {
    match text {
        "1" => Ok(FlashAttention::On),
        "0" => Ok(FlashAttention::Off),
        "-1" => Ok(FlashAttention::Auto),
        _ => text.parse(),
    }
}

/// Parses a load mode, by Anneal's or llama-bench's names.
pub fn load_mode(text: &str) -> Result<LoadMode, String> {
    match text {
        "mmap+mlock" => Ok(LoadMode::MmapMlock),
        "dio" => Ok(LoadMode::DirectIo),
        _ => text.parse(),
    }
}

/// Parses `on` or `off`, or llama-bench's 1 or 0.
pub fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" | "1" => Ok(true),
        "off" | "0" => Ok(false),
        _ => Err("use on or off".to_string()),
    }
}

/// Returns the models of `-m`, which may be repeated or contain commas. The name of an existing file is not split
/// at commas.
pub fn models(given: &[PathBuf]) -> Vec<PathBuf> {
    let split = |path: &PathBuf| match path.to_str() {
        Some(text) if text.contains(',') && !path.exists() => text.split(',').map(PathBuf::from).collect(),
        _ => vec![path.clone()],
    };
    given.iter().flat_map(split).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_llama_benchs() {
        let cases: [(&str, &[u32]); 9] = [
            ("8", &[8]),
            ("0", &[0]),
            ("1-4", &[1, 2, 3, 4]),
            ("1-8+3", &[1, 4, 7]),
            ("1-8*2", &[1, 2, 4, 8]),
            ("3-20*2", &[3, 6, 12]),
            ("5-5", &[5]),
            ("5-5*1", &[5]),
            ("4294967294-4294967295", &[4294967294, 4294967295]),
        ];
        for (text, expected) in cases {
            assert_eq!(numbers("numbers")(text), Ok(Numbers(expected.to_vec())), "{text}");
        }
    }

    #[test]
    fn what_is_no_range_is_told() {
        let cases = [
            ("", "use numbers"),
            ("-1", "use numbers"),
            ("1-", "use numbers"),
            ("1-8+", "use numbers"),
            ("1-8/2", "use numbers"),
            ("1-2-3", "use numbers"),
            ("8-1", "smaller number first"),
            ("1-8*1", "never ends"),
            ("0-8*2", "never ends"),
            ("1-8+0", "never ends"),
            ("1-4294967295", "more than 4096"),
            ("99999999999", "use numbers"),
        ];
        for (text, words) in cases {
            let error = numbers("numbers")(text).expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn several_models_are_separated_by_commas_unless_a_file_is_called_so() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let odd = folder.path().join("a,b");
        std::fs::write(&odd, "").expect("a file");
        let found = models(&[PathBuf::from("x,y"), odd.clone(), PathBuf::from("z")]);
        assert_eq!(found, [PathBuf::from("x"), PathBuf::from("y"), odd, PathBuf::from("z")]);
    }
}
