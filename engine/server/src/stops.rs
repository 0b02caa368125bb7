//! Stop strings in a text that comes in pieces: what could become one is held back.

/// Looks for stop strings.
#[derive(Debug, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    /// The beginning of a stop string, perhaps.
    held: String,
}

/// What can be said after a piece.
#[derive(Debug, PartialEq, Eq)]
pub struct StopScan {
    /// The text that is certain.
    pub text: String,
    /// The stop string that ended it.
    pub stop: Option<String>,
}

impl StopStrings {
    /// Looks for `stops`, of which none is empty.
    pub fn new(stops: Vec<String>) -> Self {
        StopStrings { stops, held: String::new() }
    }

    /// The text that is certain after `piece`, and the stop string if there is one: the first in the text, and of
    /// those that begin at the same place the first given.
    pub fn push(&mut self, piece: &str) -> StopScan {
        if self.stops.is_empty() {
            return StopScan { text: piece.to_string(), stop: None };
        }
        self.held.push_str(piece);
        let found = self.stops.iter().filter_map(|stop| Some((self.held.find(stop.as_str())?, stop)));
        // Of equal keys min_by_key takes the first.
        if let Some((at, stop)) = found.min_by_key(|(at, _)| *at) {
            let stop = stop.clone();
            self.held.truncate(at);
            return StopScan { text: std::mem::take(&mut self.held), stop: Some(stop) };
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        StopScan { text: std::mem::replace(&mut self.held, rest), stop: None }
    }

    /// What is still held back, at the end.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes at the end of `text` that `stop` begins with; less than all of it.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len() - 1);
    // A whole character of `stop` each: where its bytes end in `text`, a character begins.
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
            // Both begin at once: the first given, though the other is whole before.
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
            // The worst cut: every character alone.
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
