//! Thoughts of reasoning models: the part of an answer between marks such as `<think>` and `</think>`, before the answer
//! proper. The template or the model writes the opening mark.

use super::part::Part;

/// Marks around thoughts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThoughtMarks {
    /// Mark that opens the thoughts.
    pub open: &'static str,
    /// Mark that closes the thoughts.
    pub close: &'static str,
}

/// Marks of well-known families of models.
const KNOWN: [ThoughtMarks; 4] = [
    // DeepSeek, Qwen, Granite, GLM and many others.
    ThoughtMarks { open: "<think>", close: "</think>" },
    // Magistral.
    ThoughtMarks { open: "[THINK]", close: "[/THINK]" },
    // Seed.
    ThoughtMarks { open: "<seed:think>", close: "</seed:think>" },
    // Command A.
    ThoughtMarks { open: "<|START_THINKING|>", close: "<|END_THINKING|>" },
];

impl ThoughtMarks {
    /// Returns the marks that the template `source` contains; `None` if it contains none.
    pub fn of_template(source: &str) -> Option<Self> {
        KNOWN.into_iter().find(|marks| source.contains(marks.open) || source.contains(marks.close))
    }

    /// True if an answer to `prompt` begins within thoughts, because the prompt ends with the opening mark.
    pub fn are_open_after(self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.open)
    }
}

impl Default for ThoughtMarks {
    fn default() -> Self {
        KNOWN[0]
    }
}

/// Incremental reader that separates thoughts from the answer.
#[derive(Clone, Debug)]
pub struct ThoughtReader {
    marks: ThoughtMarks,
    at: At,
    /// Text that was received but not yet emitted.
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Only white space has been received, or a part of the opening mark.
    Start,
    /// At the start of the thoughts, where white space is dropped.
    Begin,
    Inside,
    /// After the closing mark, where white space is dropped.
    After,
    Text,
}

impl ThoughtReader {
    /// Creates a reader. `is_open` is true if the prompt ends with the opening mark.
    pub fn new(marks: ThoughtMarks, is_open: bool) -> Self {
        ThoughtReader { marks, at: if is_open { At::Begin } else { At::Start }, held: String::new() }
    }

    /// Adds `piece` to the answer, and returns the parts that are now certain.
    pub fn push(&mut self, piece: &str) -> Vec<Part> {
        self.held.push_str(piece);
        let mut pieces = Vec::new();
        while self.step(&mut pieces) {}
        pieces
    }

    /// Ends the answer, and returns the remaining parts.
    pub fn finish(&mut self) -> Vec<Part> {
        let held = std::mem::take(&mut self.held);
        let part = match self.at {
            // An unfinished closing mark stays a part of the thoughts.
            At::Begin | At::Inside => {
                (!held.trim_end().is_empty()).then(|| Part::Thought(held.trim_end().to_string()))
            }
            At::Start | At::After | At::Text => (!held.is_empty()).then_some(Part::Text(held)),
        };
        part.into_iter().collect()
    }

    /// Advances by one step. Returns true if another step may be possible.
    fn step(&mut self, pieces: &mut Vec<Part>) -> bool {
        match self.at {
            At::Start => {
                let rest = self.held.trim_start();
                if let Some(after) = rest.strip_prefix(self.marks.open) {
                    (self.held, self.at) = (after.to_string(), At::Begin);
                    return true;
                }
                if self.marks.open.starts_with(rest) {
                    return false;
                }
                self.at = At::Text;
                true
            }
            At::Begin | At::After => {
                let rest = self.held.trim_start();
                if rest.is_empty() {
                    self.held.clear();
                    return false;
                }
                self.held = rest.to_string();
                self.at = if self.at == At::Begin { At::Inside } else { At::Text };
                true
            }
            At::Inside => {
                let found = self.held.find(self.marks.close);
                let end = found
                    .unwrap_or_else(|| self.held.len() - super::calls::overlap(&self.held, self.marks.close));
                // White space before the closing mark belongs to the mark.
                let solid = self.held[..end].trim_end().len();
                if solid > 0 {
                    pieces.push(Part::Thought(self.held[..solid].to_string()));
                }
                match found {
                    Some(at) => {
                        self.held.drain(..at + self.marks.close.len());
                        self.at = At::After;
                        true
                    }
                    None => {
                        self.held.drain(..solid);
                        false
                    }
                }
            }
            At::Text => {
                if !self.held.is_empty() {
                    pieces.push(Part::Text(std::mem::take(&mut self.held)));
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the thoughts and the text of `answer`, which arrives in pieces of `piece` characters.
    fn read(answer: &str, is_open: bool, piece: usize) -> (String, String) {
        let mut reader = ThoughtReader::new(ThoughtMarks::default(), is_open);
        let characters: Vec<char> = answer.chars().collect();
        let mut pieces = Vec::new();
        for piece in characters.chunks(piece) {
            pieces.extend(reader.push(&piece.iter().collect::<String>()));
        }
        pieces.extend(reader.finish());
        let (mut thoughts, mut text) = (String::new(), String::new());
        for piece in pieces {
            match piece {
                Part::Thought(more) => thoughts += &more,
                Part::Text(more) => text += &more,
                call => panic!("a reader of thoughts found {call:?}"),
            }
        }
        (thoughts, text)
    }

    #[test]
    fn thoughts_are_separated_from_the_answer() {
        for (answer, is_open, thoughts, text) in [
            ("two plus two\n</think>\n\nFour", true, "two plus two", "Four"),
            (
                "<think>\ntwo  plus\n\ntwo\n</think>\n\nFour </think>",
                false,
                "two  plus\n\ntwo",
                "Four </think>",
            ),
            ("\n<think></think>Four", false, "", "Four"),
            ("</think>\n\nFour", true, "", "Four"),
            // The answer was cut off.
            ("two plus", true, "two plus", ""),
            ("two plus </thi", true, "two plus </thi", ""),
            ("<think>two", false, "two", ""),
            // No thoughts.
            ("Four", false, "", "Four"),
            ("  Four <think> five", false, "", "  Four <think> five"),
            ("<thin", false, "", "<thin"),
            ("a < b </think> c", false, "", "a < b </think> c"),
            (" \n", false, "", " \n"),
        ] {
            for piece in [1, 2, 5, 100] {
                let found = read(answer, is_open, piece);
                assert_eq!(
                    found,
                    (thoughts.to_string(), text.to_string()),
                    "{answer:?} in pieces of {piece}"
                );
            }
        }
    }

    #[test]
    fn marks_come_from_the_template() {
        let marks = |source: &str| ThoughtMarks::of_template(source).map(|marks| marks.open);
        assert_eq!(marks("{{ '</think>' }}"), Some("<think>"));
        assert_eq!(marks("[THINK]{{ x }}[/THINK]"), Some("[THINK]"));
        assert_eq!(marks("{{ content }}"), None);
        assert!(ThoughtMarks::default().are_open_after("<|assistant|>\n<think>\n"));
        assert!(!ThoughtMarks::default().are_open_after("<think>\n\n</think>\n\n"));
    }
}
