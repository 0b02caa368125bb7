//! Formats in which models write thoughts, and a reader for all of them.

use serde_json::Value;

use super::channels::{self, ChannelReader};
use super::part::{Offered, Part};
use super::thoughts::{MarkReader, ThoughtMarks};

/// Format in which a family of models writes thoughts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThoughtFormat {
    /// Thoughts between two markers.
    Marks(ThoughtMarks),
    /// Channels of gpt-oss.
    Channels,
}

impl Default for ThoughtFormat {
    fn default() -> Self {
        ThoughtFormat::Marks(ThoughtMarks::default())
    }
}

impl ThoughtFormat {
    /// Returns the format that the template `source` uses; `None` if it contains no markers.
    pub(super) fn of_template(source: &str) -> Option<Self> {
        match channels::are_in(source) {
            true => Some(ThoughtFormat::Channels),
            false => ThoughtMarks::of_template(source).map(ThoughtFormat::Marks),
        }
    }

    /// True if the answer is a sequence of messages in channels. Its text then contains markers even without thoughts.
    pub fn has_channels(self) -> bool {
        self == ThoughtFormat::Channels
    }

    /// Returns the texts that mark thoughts. In most models they are special tokens, which are not rendered as text
    /// unless requested.
    pub fn markers(self) -> &'static [&'static str] {
        match self {
            ThoughtFormat::Marks(marks) => marks.markers(),
            ThoughtFormat::Channels => &channels::MARKERS,
        }
    }

    /// Returns the text that ends open thoughts. `may_call` is true if a tool call may follow instead of the answer.
    pub fn closing(self, may_call: bool) -> &'static str {
        match self {
            ThoughtFormat::Marks(marks) => marks.close,
            ThoughtFormat::Channels if may_call => channels::CLOSE,
            ThoughtFormat::Channels => channels::CLOSE_AND_ANSWER,
        }
    }

    /// Appends to `prompt` the `thoughts` of an answer, which may be empty, and the text that begins the answer proper.
    pub(super) fn begin_answer(self, prompt: &mut String, thoughts: &str) {
        match self {
            ThoughtFormat::Marks(marks) => {
                // Some templates write empty thoughts if they are off.
                let end = prompt.trim_end();
                if let Some(before) = end.strip_suffix(marks.close).filter(|_| !thoughts.is_empty()) {
                    prompt.truncate(before.len());
                }
                let is_open = marks.are_open_after(prompt);
                if !is_open && thoughts.is_empty() {
                    return;
                }
                if is_open {
                    prompt.truncate(prompt.trim_end().len());
                }
                let open = if is_open { "" } else { marks.open };
                let separator = if thoughts.is_empty() { "" } else { "\n" };
                prompt.push_str(&format!("{open}{separator}{thoughts}\n{}\n\n", marks.close));
            }
            ThoughtFormat::Channels => {
                if !thoughts.is_empty() {
                    prompt.push_str(&channels::thoughts(thoughts));
                }
                prompt.push_str(channels::ANSWER);
            }
        }
    }

    /// Returns a reader of an answer to `prompt`. `has_begun` is true if the prompt contains the beginning of the
    /// answer proper.
    pub fn reader(self, prompt: &str, has_begun: bool) -> ThoughtReader {
        match self {
            ThoughtFormat::Marks(marks) => ThoughtReader::Marks(MarkReader::after(marks, prompt, has_begun)),
            ThoughtFormat::Channels => ThoughtReader::Channels(ChannelReader::new(prompt)),
        }
    }
}

/// Variables of templates that turn thoughts on or off.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

/// Returns the variables of a template that turn thoughts on or off and set their effort. `None` leaves a choice to the
/// template.
pub fn thought_variables(is_on: Option<bool>, effort: Option<&str>) -> Vec<(&'static str, Value)> {
    let switches = SWITCHES.into_iter().filter_map(|name| Some((name, is_on?.into())));
    switches.chain(effort.map(|effort| ("reasoning_effort", effort.into()))).collect()
}

/// Incremental reader that separates thoughts from the answer.
#[derive(Clone, Debug)]
pub enum ThoughtReader {
    /// Reader of thoughts between two markers.
    Marks(MarkReader),
    /// Reader of channels.
    Channels(ChannelReader),
}

impl ThoughtReader {
    /// Makes a reader of channels also find calls to the functions in `offered`.
    #[must_use]
    pub fn offering(self, offered: Vec<Offered>) -> Self {
        match self {
            ThoughtReader::Channels(reader) => ThoughtReader::Channels(reader.offering(offered)),
            marks @ ThoughtReader::Marks(_) => marks,
        }
    }

    /// Drops an unfinished closing marker at the end of an answer that was cut off. The server may have inserted this
    /// marker.
    #[must_use]
    pub fn dropping_unfinished(self) -> Self {
        match self {
            ThoughtReader::Marks(reader) => ThoughtReader::Marks(reader.dropping_unfinished()),
            channels @ ThoughtReader::Channels(_) => channels,
        }
    }

    /// True if thoughts are open.
    pub fn is_inside(&self) -> bool {
        match self {
            ThoughtReader::Marks(reader) => reader.is_inside(),
            ThoughtReader::Channels(reader) => reader.is_inside(),
        }
    }

    /// Adds `piece` to the answer, and returns the parts that are now certain.
    pub fn push(&mut self, piece: &str) -> Vec<Part> {
        match self {
            ThoughtReader::Marks(reader) => reader.push(piece),
            ThoughtReader::Channels(reader) => reader.push(piece),
        }
    }

    /// Ends the answer, and returns the remaining parts.
    pub fn finish(&mut self) -> Vec<Part> {
        match self {
            ThoughtReader::Marks(reader) => reader.finish(),
            ThoughtReader::Channels(reader) => reader.finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_select_the_notation() {
        let open = |source: &str| match ThoughtFormat::of_template(source) {
            Some(ThoughtFormat::Marks(marks)) => marks.open,
            Some(ThoughtFormat::Channels) => "channels",
            None => "none",
        };
        for (source, expected) in [
            ("{{ '</think>' }}", "<think>"),
            ("[THINK]{{ x }}[/THINK]", "[THINK]"),
            ("<seed:think>", "<seed:think>"),
            ("<|END_THINKING|>", "<|START_THINKING|>"),
            ("{{ '<|channel>thought\\n<channel|>' }}", "<|channel>thought"),
            ("text.split('<channel|>')", "<|channel>thought"),
            ("<|start|>assistant<|channel|>final<|message|>{{ x }}<|end|>", "channels"),
            (
                "after 'Here is my thought process:' and after 'Here is my response:'",
                "Here is my thought process:",
            ),
            ("[BEGIN FINAL RESPONSE] ... [END FINAL RESPONSE]", "Here are my reasoning steps:"),
            ("{{ content }}", "none"),
        ] {
            assert_eq!(open(source), expected, "{source}");
        }
    }

    #[test]
    fn the_answer_begins_after_the_thoughts() {
        let think = ThoughtFormat::default();
        let channels = ThoughtFormat::Channels;
        for (format, prompt, thoughts, expected) in [
            (think, "a:\n<think>\n", "", "a:\n<think>\n</think>\n\n"),
            (think, "a:\n", "", "a:\n"),
            (think, "a:\n<think>\n", "hm", "a:\n<think>\nhm\n</think>\n\n"),
            (think, "a:\n", "hm", "a:\n<think>\nhm\n</think>\n\n"),
            (think, "a:\n<think>\n\n</think>\n\n", "", "a:\n<think>\n\n</think>\n\n"),
            (think, "a:\n<think>\n\n</think>\n\n", "hm", "a:\n<think>\nhm\n</think>\n\n"),
            (channels, "<|start|>assistant", "", "<|start|>assistant<|channel|>final<|message|>"),
            (
                channels,
                "<|start|>assistant",
                "hm",
                "<|start|>assistant<|channel|>analysis<|message|>hm<|end|>\
                 <|start|>assistant<|channel|>final<|message|>",
            ),
        ] {
            let mut prompt = prompt.to_string();
            format.begin_answer(&mut prompt, thoughts);
            assert_eq!(prompt, expected);
            assert!(!format.reader(&prompt, true).is_inside());
        }
        assert!(think.reader("a:\n<think>\n", false).is_inside());
    }
}
