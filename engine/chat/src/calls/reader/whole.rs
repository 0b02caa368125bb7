//! Parses whole calls: calls between tags, Python calls, and calls whose arguments are not JSON.

use super::super::format::CallForm;
use super::super::partial::No;
use super::super::{python, tags};
use super::{At, CallReader};
use crate::part::{Offered, Part};

/// Maximum number of bytes that are parsed in attempts to read one call, which may contain its own closing marker.
const MAX_WORK: usize = 4 << 20;

impl CallReader {
    /// Parses a call that is read as a whole, once the text contains a marker or bracket that may be its end.
    pub(super) fn block(
        &mut self,
        begin: usize,
        mut work: usize,
        name: Option<String>,
        parts: &mut Vec<Part>,
    ) -> bool {
        let ends: Vec<&str> = match &self.format.form {
            CallForm::Tags(tags) => vec![&tags.close],
            CallForm::Python => vec!["]"],
            _ => vec!["}"],
        };
        let longest = ends.iter().map(|end| end.len()).max().unwrap_or_default();
        loop {
            let found =
                ends.iter().filter_map(|end| Some((self.held[self.searched..].find(end)?, end.len())));
            let Some((at, length)) = found.min() else {
                let from = self.held.len().saturating_sub(longest.saturating_sub(1)).max(self.searched);
                self.searched = self.held.floor_char_boundary(from);
                self.at = At::Whole { begin, work, name };
                return false;
            };
            let end = self.searched + at + length;
            work += end - begin;
            let tried = self.whole(&self.held[begin..end], false, name.as_deref());
            match tried {
                Ok((calls, length)) => {
                    let end = begin + length;
                    match self.ends_at(begin, end) {
                        Some(true) => {}
                        Some(false) => return self.give_up(end, parts),
                        // The search will find the same end again when more input arrives.
                        None => {
                            self.waits = self.held[end..].trim_start().is_empty();
                            self.at = At::Whole { begin, work: work - (end - begin), name };
                            return false;
                        }
                    }
                    parts.extend(calls);
                    self.end_call(end);
                    return true;
                }
                Err(No::Incomplete) if work <= MAX_WORK => self.searched = end,
                Err(_) => return self.give_up(end, parts),
            }
        }
    }

    /// True if the text at `end` may follow the call that starts at `begin`. `None` if more input is needed. Only a
    /// call after opening markers needs a closing marker.
    fn ends_at(&self, begin: usize, end: usize) -> Option<bool> {
        let is_marked = self.format.openers.iter().any(|mark| self.held[..begin].starts_with(&**mark));
        if !is_marked || self.format.closers.is_empty() {
            return Some(true);
        }
        let rest = self.held[end..].trim_start();
        let mut marks = self.format.closers.iter().map(String::as_str).chain(self.format.marks());
        if rest.is_empty() || marks.any(|mark| mark.len() > rest.len() && mark.starts_with(rest)) {
            return None;
        }
        Some(self.is_mark(rest))
    }

    /// True if `text` begins with a marker.
    pub(super) fn is_mark(&self, text: &str) -> bool {
        let closers = self.format.closers.iter().map(String::as_str);
        closers.chain(self.format.marks()).any(|mark| text.starts_with(mark))
    }

    /// Parses `text` as a call that is read as a whole. `name` is the name if it is already known.
    pub(super) fn whole(
        &self,
        text: &str,
        is_over: bool,
        name: Option<&str>,
    ) -> Result<(Vec<Part>, usize), No> {
        // A string may stand for a value of another type, as in `days="3"`, or the reverse.
        let convert = |function: &Offered, key: &str, value: String| {
            let text = serde_json::from_str::<String>(&value);
            tags::typed(text.as_ref().unwrap_or(&value), function, key).unwrap_or(value)
        };
        match (&self.format.form, name) {
            (CallForm::Tags(tags), _) => tags.call(text, is_over, &self.offered),
            (CallForm::Python, _) => python::calls(text, is_over, &self.offered, convert),
            (CallForm::Named { quote, .. }, Some(name)) => {
                let function = self.offered.iter().find(|function| function.name == name).ok_or(No::Other)?;
                let typed = |key: &str, value| convert(function, key, value);
                let (arguments, length) =
                    python::object(text, is_over, quote.as_deref(), typed).ok_or(No::Incomplete)?;
                Ok((arguments.call(function), length))
            }
            _ => Err(No::Other),
        }
    }
}
