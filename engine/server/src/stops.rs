//! Detection of stop strings in streamed text. Text that may be the beginning of a stop string is held back.

/// Incremental search for stop strings.
#[derive(Debug, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    /// Last part of the text so far, held back because it may be the beginning of a stop string.
    held: String,
}

/// Result of scanning a piece of text.
#[derive(Debug, PartialEq, Eq)]
pub struct StopScan {
    /// Text that certainly belongs to the answer.
    pub text: String,
    /// Stop string that was found.
    pub stop: Option<String>,
}

impl StopStrings {
    /// Creates a search for `stops`, none of which may be empty.
    pub fn new(stops: Vec<String>) -> Self {
        StopStrings { stops, held: String::new() }
    }

    /// Adds `piece`. Returns the text that is now certain, and the stop string if one was found. If several stop
    /// strings match, the earliest match is used. If matches begin at the same position, the first stop string in the
    /// list is used.
    pub fn push(&mut self, piece: &str) -> StopScan {
        if self.stops.is_empty() {
            return StopScan { text: piece.to_string(), stop: None };
        }
        self.held.push_str(piece);
        let found = self.stops.iter().filter_map(|stop| Some((self.held.find(stop.as_str())?, stop)));
        // `min_by_key` returns the first of equal keys.
        if let Some((at, stop)) = found.min_by_key(|(at, _)| *at) {
            let stop = stop.clone();
            self.held.truncate(at);
            return StopScan { text: std::mem::take(&mut self.held), stop: Some(stop) };
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        StopScan { text: std::mem::replace(&mut self.held, rest), stop: None }
    }

    /// Returns the text that is still held back when the answer ends.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Returns the length of the longest proper prefix of `stop` that `text` ends with, in bytes.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len() - 1);
    // Only prefixes of whole characters are considered, so that `text` is not split within a character.
    let lengths = (1..=longest).rev().filter(|&length| stop.is_char_boundary(length));
    lengths.into_iter().find(|&length| text.as_bytes().ends_with(&stop.as_bytes()[..length])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_string_is_found_wherever_pieces_end() {
        type Case = (&'static [&'static str], &'static str, &'static str, Option<&'static str>);
        let cases: [Case; 11] = [
            (&[], "anything", "anything", None),
            (&["END"], "the text", "the text", None),
            (&["END"], "the ENDless", "the ", Some("END")),
            (&["END"], "the EN", "the EN", None),
            (&["END", "text"], "a text END", "a ", Some("text")),
            // Both stop strings begin at the same position. The first stop string in the list is used, although the
            // other is complete earlier.
            (&["aab", "aa"], "xaab", "x", Some("aa")),
            (&["aab"], "aaab", "a", Some("aab")),
            (&["é!"], "caf\u{e9}\u{e9}!", "caf\u{e9}", Some("é!")),
            (&["\n\n"], "a\nb\n\nc", "a\nb", Some("\n\n")),
            (&["x"], "x", "", Some("x")),
            (&["abcabd"], "abcabcabd", "abc", Some("abcabd")),
        ];
        for (stops, text, expected, expected_stop) in cases {
            let mut looking = StopStrings::new(stops.iter().map(ToString::to_string).collect());
            let (mut out, mut stop) = (String::new(), None);
            // In the worst case, every character is a separate piece.
            for character in text.chars() {
                let found = looking.push(&character.to_string());
                out.push_str(&found.text);
                if found.stop.is_some() {
                    stop = found.stop;
                    break;
                }
            }
            if stop.is_none() {
                out.push_str(&looking.finish());
            }
            assert_eq!((out.as_str(), stop.as_deref()), (expected, expected_stop), "{stops:?} in {text:?}");
        }
    }

    #[test]
    fn a_stop_string_within_one_piece() {
        let mut looking = StopStrings::new(vec!["b".to_string(), "ab".to_string()]);
        assert_eq!(looking.push("xxab"), StopScan { text: "xx".to_string(), stop: Some("ab".to_string()) });
    }
}
