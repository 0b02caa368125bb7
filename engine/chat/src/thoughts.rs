//! Thoughts of reasoning models: the part of an answer between markers such as `<think>` and `</think>`, before the
//! answer proper. The template or the model writes the opening marker.

mod families;

use families::KNOWN;

use super::calls::overlap;
use super::part::Part;

/// Markers around thoughts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThoughtMarks {
    /// Marker that opens the thoughts.
    pub open: &'static str,
    /// Marker that closes the thoughts.
    pub close: &'static str,
    /// Markers around the answer after the thoughts, if the family writes them.
    answer: Option<(&'static str, &'static str)>,
    place: Place,
    /// Marker of a tool call, if a call also ends the thoughts.
    call: Option<&'static str>,
    /// Markers that may follow the thoughts or the answer, and that are dropped.
    dropped: &'static [&'static str],
    /// Text that identifies the template, if its markers do not.
    sign: Option<&'static str>,
    /// Texts of the markers that may be special tokens, which are not rendered as text unless requested.
    tokens: &'static [&'static str],
}

/// Position of thoughts in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Before the answer, after the opening marker.
    Start,
    /// Before the answer, even without the opening marker.
    Always,
    /// Anywhere, because text cannot contain the markers.
    Anywhere,
}

const THINK: ThoughtMarks = ThoughtMarks {
    open: "<think>",
    close: "</think>",
    answer: None,
    place: Place::Start,
    call: None,
    dropped: &[],
    sign: None,
    tokens: &["<think>", "</think>"],
};

impl ThoughtMarks {
    /// Returns the markers that the template `source` contains; `None` if it contains none.
    pub fn of_template(source: &str) -> Option<Self> {
        let fits = |marks: &ThoughtMarks| match marks.sign {
            Some(sign) => source.contains(sign),
            None => {
                let has_answer = marks.answer.is_none_or(|(open, _)| source.contains(open));
                has_answer && (source.contains(marks.open) || source.contains(marks.close))
            }
        };
        KNOWN.into_iter().find(fits)
    }

    /// True if `prompt` ends with the marker that opens the answer proper.
    fn is_answer_open_after(self, prompt: &str) -> bool {
        self.answer_open().is_some_and(|open| prompt.trim_end().ends_with(open))
    }

    /// Returns the marker that opens the answer proper, if the family writes one.
    fn answer_open(self) -> Option<&'static str> {
        self.answer.map(|(open, _)| open).filter(|open| !open.is_empty())
    }

    /// True if an answer to `prompt` begins within thoughts: the prompt ends with the opening marker, or the template
    /// asks for thoughts in every answer.
    pub fn are_open_after(self, prompt: &str) -> bool {
        self.place == Place::Always || prompt.trim_end().ends_with(self.open)
    }

    /// Returns the texts that begin or end thoughts. In some models they are special tokens, which are not rendered as
    /// text unless requested.
    pub fn markers(self) -> &'static [&'static str] {
        self.tokens
    }
}

impl Default for ThoughtMarks {
    fn default() -> Self {
        THINK
    }
}

/// Incremental reader that separates thoughts from the answer.
#[derive(Clone, Debug)]
pub struct MarkReader {
    marks: ThoughtMarks,
    at: At,
    /// Text that was received but not yet emitted.
    held: String,
    /// Number of bytes at the start of `held` that are known to be white space. They are not searched again, because
    /// an answer may consist of white space.
    searched: usize,
    /// True if thoughts were emitted.
    has_thoughts: bool,
    /// True if a separator must precede the next thoughts.
    separates: bool,
    /// True if an unfinished closing marker at the end is dropped.
    drops_unfinished: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Only white space has been received, or a part of an opening marker.
    Start,
    /// At the start of the thoughts, where white space is dropped. `may_repeat` is true if the prompt already has the
    /// opening marker, which some models repeat.
    Begin {
        may_repeat: bool,
    },
    Inside,
    /// After the closing marker, where white space and further markers are dropped.
    After,
    /// Between the markers of an answer.
    Answer,
    Text,
}

/// Text between two separate thoughts.
pub(super) const SEPARATOR: &str = "\n\n";

impl MarkReader {
    /// Creates a reader. `is_open` is true if the answer begins within thoughts.
    pub fn new(marks: ThoughtMarks, is_open: bool) -> Self {
        let at = if is_open { At::Begin { may_repeat: true } } else { At::Start };
        MarkReader {
            marks,
            at,
            held: String::new(),
            searched: 0,
            has_thoughts: false,
            separates: false,
            drops_unfinished: false,
        }
    }

    /// Creates a reader of an answer to `prompt`. `has_begun` is true if the prompt contains the beginning of the
    /// answer proper.
    pub fn after(marks: ThoughtMarks, prompt: &str, has_begun: bool) -> Self {
        let mut reader = MarkReader::new(marks, !has_begun && marks.are_open_after(prompt));
        if marks.is_answer_open_after(prompt) {
            reader.at = At::Answer;
        }
        reader
    }

    /// Drops an unfinished closing marker at the end of an answer that was cut off.
    #[must_use]
    pub fn dropping_unfinished(self) -> Self {
        MarkReader { drops_unfinished: true, ..self }
    }

    /// True if thoughts are open.
    pub fn is_inside(&self) -> bool {
        matches!(self.at, At::Begin { .. } | At::Inside)
    }

    /// Adds `piece` to the answer, and returns the parts that are now certain.
    pub fn push(&mut self, piece: &str) -> Vec<Part> {
        self.held.push_str(piece);
        let mut parts = Vec::new();
        while self.step(&mut parts) {}
        parts
    }

    /// Ends the answer, and returns the remaining parts.
    pub fn finish(&mut self) -> Vec<Part> {
        let held = std::mem::take(&mut self.held);
        let mut parts = Vec::new();
        match self.at {
            // An unfinished closing marker stays a part of the thoughts, unless the server inserted it.
            At::Begin { .. } | At::Inside => {
                let unfinished = if self.drops_unfinished { overlap(&held, self.marks.close) } else { 0 };
                self.think(held[..held.len() - unfinished].trim_end(), &mut parts);
            }
            At::Start | At::After | At::Answer | At::Text => say(held, &mut parts),
        }
        parts
    }

    /// Emits `text` as thoughts.
    fn think(&mut self, text: &str, parts: &mut Vec<Part>) {
        if text.is_empty() {
            return;
        }
        let separator = if std::mem::take(&mut self.separates) { SEPARATOR } else { "" };
        self.has_thoughts = true;
        parts.push(Part::Thought(format!("{separator}{text}")));
    }

    /// Advances by one step. Returns true if another step may be possible.
    fn step(&mut self, parts: &mut Vec<Part>) -> bool {
        let ThoughtMarks { open, close, answer, place, call, .. } = self.marks;
        match self.at {
            At::Start => {
                let rest = self.held[self.searched..].trim_start();
                self.searched = self.held.len() - rest.len();
                let answer = self.marks.answer_open().map(|open| (open, At::Answer));
                let marks = [(open, At::Begin { may_repeat: false })].into_iter().chain(answer);
                if marks.clone().any(|(mark, _)| mark.len() > rest.len() && mark.starts_with(rest)) {
                    return false;
                }
                self.at = At::Text;
                for (mark, next) in marks {
                    if let Some(after) = rest.strip_prefix(mark) {
                        (self.held, self.at) = (after.to_string(), next);
                        break;
                    }
                }
                self.searched = 0;
                true
            }
            At::Begin { may_repeat } => {
                let rest = self.held.trim_start();
                if may_repeat && let Some(after) = rest.strip_prefix(open) {
                    (self.held, self.at) = (after.to_string(), At::Begin { may_repeat: false });
                    return true;
                }
                let is_uncertain = rest.is_empty() || may_repeat && open.starts_with(rest);
                self.held = rest.to_string();
                if !is_uncertain {
                    self.at = At::Inside;
                }
                !is_uncertain
            }
            At::Inside => {
                let (text, found) = self.until(&[Some(close), call]);
                self.think(&text, parts);
                match found {
                    Some(mark) if mark != close => {
                        self.held.insert_str(0, mark);
                        self.at = At::Text;
                    }
                    Some(_) => self.at = At::After,
                    None => {}
                }
                found.is_some()
            }
            At::After => self.after_mark(),
            At::Answer => {
                let (text, found) = self.until(&[answer.map(|(_, end)| end)]);
                say(text, parts);
                if found.is_some() {
                    self.at = At::After;
                }
                found.is_some()
            }
            At::Text if place == Place::Anywhere => {
                let (text, found) = self.until(&[Some(open)]);
                say(text, parts);
                if found.is_some() {
                    (self.at, self.separates) = (At::Begin { may_repeat: false }, self.has_thoughts);
                }
                found.is_some()
            }
            At::Text => {
                say(std::mem::take(&mut self.held), parts);
                false
            }
        }
    }

    /// Takes the text before the first of `marks`, and the marker if one was found. Keeps the end of the text that may
    /// belong to a marker: white space before a marker is a part of it.
    fn until(&mut self, marks: &[Option<&'static str>]) -> (String, Option<&'static str>) {
        let new = &self.held[self.searched..];
        let marks = marks.iter().flatten().copied();
        let found = marks.clone().filter_map(|mark| Some((new.find(mark)?, mark))).min();
        let unfinished = || marks.map(|mark| overlap(new, mark)).max().unwrap_or_default();
        let end = found.map_or_else(|| new.len() - unfinished(), |(at, _)| at);
        let solid = match new[..end].trim_end().len() {
            0 => 0,
            length => self.searched + length,
        };
        let end = self.searched + end;
        let text = self.held[..solid].to_string();
        let found = found.map(|(_, mark)| mark);
        let (taken, searched) = found.map_or((solid, end - solid), |mark| (end + mark.len(), 0));
        self.held.drain(..taken);
        self.searched = searched;
        (text, found)
    }

    /// Drops the markers that may follow the thoughts: thoughts that open again, a repeated closing marker, and the
    /// opening marker of the answer.
    fn after_mark(&mut self) -> bool {
        let ThoughtMarks { open, close, answer, dropped, .. } = self.marks;
        let rest = self.held.trim_start();
        if rest.is_empty() {
            self.held.clear();
            return false;
        }
        let begin = self.marks.answer_open().map(|begin| (begin, At::Answer));
        let marks = [(open, At::Begin { may_repeat: false }), (close, At::After)].into_iter().chain(begin);
        let marks = marks.chain(dropped.iter().map(|mark| (*mark, At::After)));
        for (mark, next) in marks.clone() {
            if let Some(after) = rest.strip_prefix(mark) {
                (self.held, self.at) = (after.to_string(), next);
                self.separates |= mark == open && self.has_thoughts;
                return true;
            }
        }
        let is_certain = !marks.into_iter().any(|(mark, _)| mark.starts_with(rest));
        self.held = rest.to_string();
        if is_certain {
            let has_begun = answer.is_some_and(|(begin, _)| begin.is_empty());
            self.at = if has_begun { At::Answer } else { At::Text };
        }
        is_certain
    }
}

/// Emits `text` as a part of the answer.
fn say(text: String, parts: &mut Vec<Part>) {
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the thoughts and the text of `answer`, which arrives in pieces of `piece` characters.
    fn read_as(marks: ThoughtMarks, answer: &str, is_open: bool, piece: usize) -> (String, String) {
        let mut reader = MarkReader::new(marks, is_open);
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

    fn check(marks: ThoughtMarks, cases: &[(&str, bool, &str, &str)]) {
        for &(answer, is_open, thoughts, text) in cases {
            for piece in [1, 2, 5, 100] {
                let found = read_as(marks, answer, is_open, piece);
                let expected = (thoughts.to_string(), text.to_string());
                assert_eq!(found, expected, "{answer:?} in pieces of {piece}");
            }
        }
    }

    #[test]
    fn thoughts_are_separated_from_the_answer() {
        let cases = [
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
        ];
        check(ThoughtMarks::default(), &cases);
    }

    #[test]
    fn marks_may_be_repeated_before_the_answer() {
        let cases = [
            // The prompt already has the opening marker.
            ("<think>\ntwo\n</think>Four", true, "two", "Four"),
            ("<th", true, "<th", ""),
            ("two\n</think>\n\n</think>\n\nFour", true, "two", "Four"),
            ("two</think>\n<think>\nthree\n</think>Four", true, "two\n\nthree", "Four"),
            ("<think>\n</think><think>two</think>", false, "two", ""),
            ("two</think>\n<thin", true, "two", "<thin"),
            ("two</think>Four <think>five</think>", true, "two", "Four <think>five</think>"),
        ];
        check(ThoughtMarks::default(), &cases);
    }

    fn of(source: &str) -> ThoughtMarks {
        ThoughtMarks::of_template(source).expect("marks")
    }

    #[test]
    fn every_family_has_its_marks() {
        let granite = of("thoughts between <think></think> and your response between <response></response>");
        check(
            granite,
            &[
                ("<think>two</think>\n<response>\nFour\n</response>", false, "two", "\nFour"),
                ("<think>two</think>Four</response>", false, "two", "Four</response>"),
                ("<think>two</think><respond>", false, "two", "<respond>"),
            ],
        );
        check(
            of("<think></think><answer></answer>"),
            &[("<think>\ntwo\n</think>\n<answer>\nFour\n</answer>\n", false, "two", "\nFour")],
        );
        check(
            of("'Here is my thought process:' 'Here is my response:'"),
            &[
                ("Here is my thought process:\ntwo\n\nHere is my response:\n\nFour", false, "two", "Four"),
                ("Here is the answer", false, "", "Here is the answer"),
            ],
        );
        let apriel = of("[BEGIN FINAL RESPONSE] ... [END FINAL RESPONSE]");
        assert!(apriel.are_open_after("<|assistant|>\n"));
        check(
            apriel,
            &[
                ("two\n[BEGIN FINAL RESPONSE]\nFour\n[END FINAL RESPONSE]\n", true, "two", "Four"),
                ("Here are my reasoning steps:\ntwo\n[BEGIN FINAL RESPONSE]Four", true, "two", "Four"),
            ],
        );
        let apriel = of("after the marker [BEGIN FINAL RESPONSE]. {{ 'Here are my reasoning steps:\\n' }}");
        check(apriel, &[("hm\n[BEGIN FINAL RESPONSE]\nFour", true, "hm", "Four")]);
        let hunyuan = of("{%- set think_begin_token = '<think{}>'.format(HYTK) %}");
        assert!(hunyuan.are_open_after("a<think:opensource>"));
        check(hunyuan, &[("hm</think:opensource>Four", true, "hm", "Four")]);
        check(of("◁think▷"), &[("◁think▷two◁/think▷Four ◁", false, "two", "Four ◁")]);
    }

    #[test]
    fn special_tokens_mark_thoughts_anywhere() {
        let gemma = of("{{ '<|channel>thought\\n<channel|>' }}");
        assert_eq!(gemma.markers(), ["<|channel>", "<channel|>"]);
        assert!(!gemma.are_open_after("<|turn>model\n<|channel>thought\n<channel|>"));
        check(
            gemma,
            &[
                ("<|channel>thought\ntwo\n<channel|>Four", false, "two", "Four"),
                ("<|channel>thought\n<channel|>Four", false, "", "Four"),
                (
                    "Wait: <|channel>thought\ntwo<channel|> Four\n<|channel>thought\nthree<channel|>",
                    false,
                    "two\n\nthree",
                    "Wait:Four",
                ),
                ("Four <|chan", false, "", "Four <|chan"),
            ],
        );
    }

    #[test]
    fn messages_and_calls_may_follow_thoughts() {
        let solar = of("'<|begin|>assistant<|think|>' + message.reasoning + '<|end|>'");
        let call = "<|tool_calls|><|tool_call:begin|>";
        check(
            solar,
            &[
                ("<|think|>hm<|end|><|begin|>assistant<|content|>Four", false, "hm", "Four"),
                ("<|content|>Four<|end|>", false, "", "Four"),
                ("<|think|>hm<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>", false, "hm", call),
                (call, false, "", call),
            ],
        );
        let kimi = of("{{- open_tag('think') -}}");
        let call = "<|open|>tools<|sep|>";
        let end = "<|close|>response<|sep|>";
        for (answer, text) in [
            (format!("Four{end}<|close|>message<|sep|>"), "Four".to_string()),
            (format!("Four{end}{call}"), format!("Four{call}")),
            ("Four".to_string(), "Four".to_string()),
        ] {
            let thoughts = format!("hm<|close|>think<|sep|><|open|>response<|sep|>{answer}");
            check(kimi, &[(thoughts.as_str(), true, "hm", text.as_str())]);
            // The prompt opens the answer.
            let mut reader = MarkReader::after(kimi, "<|open|>response<|sep|>", false);
            let mut parts = reader.push(&answer);
            parts.extend(reader.finish());
            let said: String =
                parts.iter().map(|part| if let Part::Text(text) = part { text } else { "?" }).collect();
            assert_eq!(said, text);
        }
        let apertus =
            of("{%- set inner_token = '<|inner_prefix|>' -%}{%- set outer_token = '<|inner_suffix|>' -%}");
        let call = "<|tools_prefix|>[{\"f\": {}}]<|tools_suffix|>";
        let with_call = format!("<|inner_prefix|>hm{call}");
        check(
            apertus,
            &[
                ("<|inner_prefix|>hm<|inner_suffix|>Four", false, "hm", "Four"),
                (with_call.as_str(), false, "hm", call),
            ],
        );
    }

    #[test]
    fn a_closing_marker_that_the_server_inserted_may_be_unfinished() {
        for (text, expected) in [("two </thi", "two"), ("</th", ""), ("two", "two"), ("a < b", "a < b")] {
            let mut reader = MarkReader::new(THINK, true).dropping_unfinished();
            let mut parts = reader.push(text);
            parts.extend(reader.finish());
            let expected: Vec<Part> =
                (!expected.is_empty()).then(|| Part::Thought(expected.to_string())).into_iter().collect();
            assert_eq!(parts, expected, "{text}");
        }
    }

    /// Returns texts that are made of `pieces` in a pseudo-random order.
    fn mixed(pieces: &[&str], count: usize) -> Vec<String> {
        let mut state = 7_u64;
        let mut next = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let mut text = |_| (0..next(9)).map(|_| pieces[next(pieces.len())]).collect();
        (0..count).map(&mut text).collect()
    }

    #[test]
    fn no_text_is_lost_or_doubled() {
        let families =
            ["<think>", "<|channel>thought", "<think><answer>", "[BEGIN FINAL RESPONSE][END FINAL RESPONSE]"];
        for marks in families.map(of) {
            let (begin, end) = marks.answer.unwrap_or_default();
            let all =
                [marks.open, marks.close, begin, end, "a", "é\n", " ", "<", "\n\n", "b c", "</thi", "🦀"];
            for (index, text) in mixed(&all, 2_000).iter().enumerate() {
                let whole = read_as(marks, text, index % 2 == 0, usize::MAX);
                for piece in [1, 3] {
                    assert_eq!(read_as(marks, text, index % 2 == 0, piece), whole, "{text:?}");
                }
                // Apart from markers and white space, both parts together contain each character as often as before.
                let letters = |text: &str| text.chars().filter(|next| "aébc🦀".contains(*next)).count();
                let mut rest = text.clone();
                for mark in [marks.open, marks.close, begin, end].into_iter().filter(|mark| !mark.is_empty())
                {
                    rest = rest.replace(mark, "");
                }
                let mut found = format!("{}{}", whole.0, whole.1);
                for mark in [marks.open, marks.close, begin, end].into_iter().filter(|mark| !mark.is_empty())
                {
                    found = found.replace(mark, "");
                }
                assert_eq!(letters(&found), letters(&rest), "{text:?}: {whole:?}");
            }
        }
    }

    /// Each piece is searched once: the quadratic work of searching all earlier white space would take many minutes.
    #[test]
    fn white_space_is_searched_once() {
        let blank = " \n".repeat(1 << 20);
        let (granite, gemma) = (of("<think><response>"), of("<|channel>thought"));
        for (marks, begin, thoughts, text) in [
            (THINK, "", "", format!("{blank}b")),
            (THINK, "<think>a", format!("a{blank}b").as_str(), String::new()),
            (granite, "<think>a</think><response>b", "a", format!("b{blank}b")),
            (gemma, "a", "", format!("a{blank}b")),
        ] {
            let found = read_as(marks, &format!("{begin}{blank}b"), false, 16);
            // The texts are too long for a message.
            assert!(found == (thoughts.to_string(), text), "{begin:?}");
        }
        let found =
            read_as(THINK, &format!("{blank}<think>{blank}a{blank}</think>{blank}b{blank}"), false, 16);
        assert!(found == ("a".to_string(), format!("b{blank}")), "between all marks");
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
