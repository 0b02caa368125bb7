//! Sanitising of text from files. The text may be hostile.

/// Maximum number of characters of a text that is shown in full.
const LONGEST: usize = 600;

/// Maximum number of characters of a command. A list of models may be long, and a reader needs the whole list to
/// repeat the command.
const LONGEST_COMMAND: usize = 4000;

/// Returns `words` on one line, shortened, and without characters that are invisible or change the text direction.
pub fn tidy(words: &str) -> String {
    shortened(words, LONGEST)
}

/// Cleans a command like [`tidy`], with a higher limit.
pub fn tidy_command(words: &str) -> String {
    shortened(words, LONGEST_COMMAND)
}

/// Shortens `words` to `most` characters. The middle is removed, because names differ at their ends.
pub fn squeezed(words: &str, most: usize) -> String {
    let words = tidy(words);
    let length = words.chars().count();
    if length <= most {
        return words;
    }
    let kept = most.saturating_sub(1);
    let head = kept / 2;
    let skip = length - (kept - head);
    words.chars().take(head).chain(['…']).chain(words.chars().skip(skip)).collect()
}

/// Wraps `words` into at most `lines` lines of at most `most` characters each. If the text does not fit, the middle
/// of the last line is removed.
pub fn broken(words: &str, most: usize, lines: usize) -> Vec<String> {
    let words = tidy(words);
    let (mut rest, mut all) = (words.as_str(), Vec::new());
    while !rest.is_empty() {
        let place = rest.char_indices().nth(most).map(|(place, _)| place);
        let end = match place {
            Some(place) if all.len() + 1 < lines => {
                // A space exactly at the limit is also a valid break.
                let space =
                    rest.char_indices().take_while(|(at, _)| *at <= place).filter(|(_, c)| *c == ' ').last();
                space.map_or(place, |(at, _)| at)
            }
            _ => rest.len(),
        };
        all.push(squeezed(&rest[..end], most));
        rest = rest[end..].trim_start();
    }
    all
}

fn shortened(words: &str, most: usize) -> String {
    // Runs of spaces are merged in this loop, so that a text of ten million spaces does not take a long time.
    let mut text = String::new();
    let mut length = 0;
    for c in words.chars() {
        let c = if c.is_whitespace() { ' ' } else { c };
        if is_hidden(c) || (c == ' ' && (text.is_empty() || text.ends_with(' '))) {
            continue;
        }
        if length == most {
            text.push('…');
            break;
        }
        text.push(c);
        length += 1;
    }
    text.trim_end().to_string()
}

/// True for control characters, characters that change the text direction, and characters that XML forbids.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
        || matches!(c, '\u{fff0}'..='\u{ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_seen_is_left_out_and_what_is_endless_is_cut() {
        let cases = [
            ("plain", "plain"),
            ("  two\n\twords ", "two words"),
            ("a\u{0}b\u{1b}[31mc", "ab[31mc"),
            ("x\u{202e}fdp.exe", "xfdp.exe"),
            ("\u{ffff}\u{feff}", ""),
        ];
        for (words, expected) in cases {
            assert_eq!(tidy(words), expected, "{words:?}");
        }
        assert_eq!(tidy(&"a".repeat(10 << 20)).chars().count(), LONGEST + 1);
        assert_eq!(tidy(&" ".repeat(10 << 20)), "");
    }

    #[test]
    fn long_labels_are_broken_between_words() {
        let cases: [(&str, &[&str]); 6] = [
            ("", &[]),
            ("short", &["short"]),
            ("one two three", &["one two", "three"]),
            ("one twos three", &["one twos", "three"]),
            ("unbreakable", &["unbreakab", "le"]),
            ("one two three four five", &["one two", "three", "four five"]),
        ];
        for (words, expected) in cases {
            assert_eq!(broken(words, 9, 3), expected, "{words}");
        }
        assert_eq!(broken("ähnlich ümlaut", 8, 3), ["ähnlich", "ümlaut"]);
    }

    #[test]
    fn names_that_are_too_long_keep_both_ends() {
        let cases =
            [("short", 5, "short"), ("abcdefghij", 5, "ab…ij"), ("abcdefghij", 1, "…"), ("ab", 0, "…")];
        for (words, most, expected) in cases {
            assert_eq!(squeezed(words, most), expected);
        }
    }
}
