//! Incremental reader of calls in any format.
//!
//! Once the name and the first character of JSON arguments are known, the call is certain, and its arguments are
//! emitted as they arrive. Other calls and ordinary text are emitted as soon as the reader can tell them apart.

mod whole;

use super::format::{CallForm, CallFormat};
use super::object::{Keys, ObjectReader, Step};
use super::partial::overlap;
use crate::part::{Offered, Part};
use crate::scan::Scan;

/// Maximum length of the markers and the white space before a call, and of the text before its arguments, in bytes.
const MAX_HEAD: usize = 4096;

/// Maximum length of an ID, in bytes.
const MAX_ID: usize = 64;

/// Incremental parser that finds tool calls in streamed text.
#[derive(Clone, Debug)]
pub struct CallReader {
    format: CallFormat,
    /// Functions that the client offered.
    offered: Vec<Offered>,
    at: At,
    /// Text that was received but not yet emitted.
    held: String,
    /// Number of bytes of `held` that were already searched.
    searched: usize,
    /// White space before the opening marker. Emitted as text if no call follows.
    before: String,
    /// True if no marker precedes the possible call.
    is_bare: bool,
    /// True inside a list of objects.
    in_list: bool,
    /// True once a call was found.
    called: bool,
    /// True if the reader waits for text after white space in `held`. More white space is then not searched.
    waits: bool,
}

#[derive(Clone, Debug)]
enum At {
    /// Only white space has been received.
    Beginning,
    /// Inside text.
    Text,
    /// At a possible call. `held` begins with its markers.
    Open,
    /// Inside a possible call that is a JSON object, which begins at `begin`.
    Object { begin: usize, reader: Box<ObjectReader> },
    /// Before the arguments of a named call. The name begins at the position.
    Name(usize),
    /// Inside the arguments of a call, which are emitted as they arrive.
    Arguments { scan: Scan, is_member: bool },
    /// After the arguments within a call's object. The rest of the object is dropped.
    Rest(Scan),
    /// Inside a possible call that is parsed as a whole. The text after its markers begins at `begin`.
    Whole { begin: usize, work: usize, name: Option<String> },
    /// After a call, where markers may follow.
    After,
}

/// Text after the markers of a possible call.
enum Opening {
    /// More input is needed.
    More,
    No,
    Object(usize),
    Name(usize),
    Whole(usize),
}

impl CallReader {
    /// Creates a reader that looks for calls to the functions in `offered`.
    pub fn new(format: CallFormat, offered: Vec<Offered>) -> Self {
        CallReader {
            format,
            offered,
            at: At::Beginning,
            held: String::new(),
            searched: 0,
            before: String::new(),
            is_bare: false,
            in_list: false,
            called: false,
            waits: false,
        }
    }

    /// Adds `piece` to the input, and returns the parts that are now certain.
    pub fn push(&mut self, piece: &str) -> Vec<Part> {
        self.held.push_str(piece);
        if self.waits && piece.trim_start().is_empty() {
            return Vec::new();
        }
        self.waits = false;
        let mut parts = Vec::new();
        while self.step(&mut parts) {}
        parts
    }

    /// Ends the input, and returns the remaining parts.
    pub fn finish(&mut self) -> Vec<Part> {
        let held = std::mem::take(&mut self.held);
        let text = std::mem::take(&mut self.before) + &held;
        let is_end = |rest: &str| self.format.closers.iter().any(|mark| mark.starts_with(rest.trim()));
        let calls = match std::mem::replace(&mut self.at, At::Text) {
            At::Whole { begin, name, .. } => {
                let whole = self.whole(&held[begin..], true, name.as_deref());
                whole.ok().map(|(calls, length)| (calls, &held[begin + length..]))
            }
            At::Arguments { .. } => {
                Some((Vec::from_iter((!held.is_empty()).then(|| Part::Arguments(held.clone()))), ""))
            }
            At::Rest(_) => Some((Vec::new(), "")),
            // Separators, or an unfinished closing marker.
            At::After if held.trim_matches([',', ';', ' ', '\n']).is_empty() || is_end(&held) => {
                Some((Vec::new(), ""))
            }
            _ => None,
        };
        match calls {
            Some((mut parts, rest)) => {
                if !rest.trim().is_empty() && !is_end(rest) {
                    parts.push(Part::Text(rest.to_string()));
                }
                parts
            }
            // White space after the last call is dropped.
            None if text.is_empty() || self.called && text.trim().is_empty() => Vec::new(),
            None => vec![Part::Text(text)],
        }
    }

    /// Advances by one step. Returns true if another step may be possible.
    fn step(&mut self, parts: &mut Vec<Part>) -> bool {
        match self.at.clone() {
            At::Beginning => self.beginning(),
            At::Text => self.text(parts),
            At::Open => self.open(parts),
            At::Object { begin, reader } => self.object(begin, reader, parts),
            At::Name(begin) => self.name(begin, parts),
            At::Arguments { scan, is_member } => self.arguments(scan, is_member, parts),
            At::Rest(scan) => self.rest(scan),
            At::Whole { begin, work, name } => self.block(begin, work, name, parts),
            At::After => self.after(),
        }
    }

    fn beginning(&mut self) -> bool {
        let new = &self.held[self.searched..];
        let begun = new.trim_start();
        self.searched += new.len() - begun.len();
        let Some(first) = begun.chars().next() else { return false };
        if let Some(text) = &self.format.before_text {
            if text.len() > begun.len() && text.starts_with(begun) {
                return false;
            }
            if let Some(after) = begun.strip_prefix(&**text) {
                (self.held, self.at) = (after.trim_start().to_string(), At::Text);
            } else {
                self.at = At::Name(0);
            }
            self.searched = 0;
            return true;
        }
        // A call without its opening marker is recognised only at the start of the answer.
        let is_bare = match self.format.form {
            CallForm::Json { .. } => matches!(first, '{' | '['),
            CallForm::Python => first == '[',
            CallForm::Named { .. } | CallForm::Tags(_) => false,
        };
        if is_bare && !self.format.marks().any(|mark| begun.starts_with(mark)) {
            if self.format.marks().any(|mark| mark.starts_with(begun)) {
                return false;
            }
            self.before = self.held.drain(..self.searched).collect();
            (self.at, self.searched, self.is_bare) = (At::Open, 0, true);
        } else {
            self.at = At::Text;
        }
        true
    }

    fn text(&mut self, parts: &mut Vec<Part>) -> bool {
        // The bytes that were already searched are white space, so they contain no marker.
        let new = &self.held[self.searched..];
        let found = self.format.marks().filter_map(|mark| new.find(mark)).min();
        let overlap = self.format.marks().map(|mark| overlap(new, mark)).max().unwrap_or_default();
        let body = found.unwrap_or(new.len() - overlap);
        // White space before a marker belongs to the marker.
        let certain = match new[..body].trim_end().len() {
            0 => 0,
            solid => self.searched + solid,
        };
        let body = self.searched + body;
        if certain > 0 {
            let rest = self.held.split_off(certain);
            parts.push(Part::Text(std::mem::replace(&mut self.held, rest)));
        }
        self.searched = body - certain;
        if found.is_some() {
            self.before = self.held.drain(..self.searched).collect();
            (self.at, self.searched, self.is_bare) = (At::Open, 0, false);
        }
        found.is_some()
    }

    fn open(&mut self, parts: &mut Vec<Part>) -> bool {
        self.at = match self.opening() {
            Opening::More => return false,
            Opening::No => return self.give_up(self.first_mark(), parts),
            Opening::Object(begin) => {
                self.in_list |= self.held[..begin].trim_end().ends_with('[');
                At::Object { begin, reader: Box::default() }
            }
            Opening::Name(begin) => At::Name(begin),
            Opening::Whole(begin) => At::Whole { begin, work: 0, name: None },
        };
        self.searched = match &self.at {
            At::Object { begin, .. } | At::Name(begin) | At::Whole { begin, .. } => *begin,
            _ => 0,
        };
        true
    }

    /// Returns the length of the marker at the start of `held`, or of the first character.
    fn first_mark(&self) -> usize {
        let marks = self.format.marks().filter(|mark| self.held.starts_with(mark)).map(str::len);
        marks.max().or(self.held.chars().next().map(char::len_utf8)).unwrap_or_default()
    }

    /// Skips the markers at the start of `held`.
    fn opening(&self) -> Opening {
        let (mut at, mut last) = (0, None);
        loop {
            let rest = self.held[at..].trim_start();
            at = self.held.len() - rest.len();
            if at > MAX_HEAD {
                return Opening::No;
            }
            let marks = self.format.marks().filter(|mark| rest.starts_with(mark));
            match marks.max_by_key(|mark| mark.len()) {
                Some(mark) => (at, last) = (at + mark.len(), Some(mark)),
                None if last.is_some() && last == self.format.before_id.as_deref() => {
                    match rest.find(['<', '[', '{']) {
                        None if rest.len() <= MAX_ID => return Opening::More,
                        Some(end) if end > 0 && end <= MAX_ID => at += end,
                        _ => break,
                    }
                }
                None => break,
            }
        }
        let rest = &self.held[at..];
        if rest.is_empty() || self.format.marks().any(|mark| mark.starts_with(rest)) {
            return Opening::More;
        }
        // A list of objects.
        let list = rest.strip_prefix('[').map(str::trim_start);
        let object = rest
            .strip_prefix('{')
            .map(|_| at)
            .or(list.filter(|list| list.starts_with('{')).map(|list| self.held.len() - list.len()));
        let is_after_open = last.is_some() && last == self.format.open();
        match (&self.format.form, object) {
            (CallForm::Json { .. } | CallForm::Named { .. }, Some(begin)) => Opening::Object(begin),
            (CallForm::Json { .. } | CallForm::Named { .. }, None) if list == Some("") => Opening::More,
            (CallForm::Named { .. }, None) if is_after_open => Opening::Name(at),
            (CallForm::Tags(_), _) if is_after_open => Opening::Whole(at),
            (CallForm::Python, _) if rest.starts_with('[') => Opening::Whole(at),
            _ => Opening::No,
        }
    }

    /// Emits the first `length` bytes of `held` as text.
    fn give_up(&mut self, length: usize, parts: &mut Vec<Part>) -> bool {
        let rest = self.held.split_off(length);
        let text = std::mem::take(&mut self.before) + &std::mem::replace(&mut self.held, rest);
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        (self.at, self.searched) = (At::Text, 0);
        !self.held.is_empty()
    }

    fn keys(&self) -> Keys<'_> {
        match &self.format.form {
            CallForm::Json { name, arguments } => Keys { name: name.as_deref(), arguments },
            _ => Keys { name: Some("name"), arguments: "arguments" },
        }
    }

    fn object(&mut self, begin: usize, mut reader: Box<ObjectReader>, parts: &mut Vec<Part>) -> bool {
        while let Some(next) = self.held[self.searched..].chars().next() {
            let object = &self.held[begin..self.searched];
            let step = reader.step(object, next, self.is_bare, self.keys(), &self.offered);
            let after = self.searched + next.len_utf8();
            match step {
                Step::More => self.searched = after,
                Step::No => return self.give_up(after, parts),
                Step::Arguments(name) => {
                    self.begin_call(name, self.searched, true, parts);
                    return true;
                }
                Step::Call(call) => {
                    parts.extend(call);
                    self.end_call(after);
                    return true;
                }
            }
        }
        self.at = At::Object { begin, reader };
        false
    }

    /// Emits the start of a call whose JSON arguments begin at `at`.
    fn begin_call(&mut self, name: String, at: usize, is_member: bool, parts: &mut Vec<Part>) {
        self.end_call(at);
        parts.push(Part::Call(name));
        self.at = At::Arguments { scan: Scan::default(), is_member };
    }

    /// Drops the first `length` bytes of `held`, which belong to a call.
    fn end_call(&mut self, length: usize) {
        self.held.drain(..length);
        self.before.clear();
        (self.at, self.searched, self.called) = (At::After, 0, true);
    }

    fn name(&mut self, begin: usize, parts: &mut Vec<Part>) -> bool {
        let CallForm::Named { after_name, quote, .. } = &self.format.form else { return false };
        let text = self.held[begin..].trim_start();
        if text.len() > MAX_HEAD && !text[..text.floor_char_boundary(MAX_HEAD)].contains('{') {
            return self.give_up(begin, parts);
        }
        let names = self.offered.iter().map(|function| function.name.as_str());
        let known = names.clone().filter(|name| text.starts_with(name)).max_by_key(|name| name.len());
        // A longer name may follow.
        if names.clone().any(|name| name.len() > text.len() && name.starts_with(text)) {
            return false;
        }
        let Some(name) = known else { return self.give_up(begin, parts) };
        let rest = text[name.len()..].trim_start();
        let Some(first) = rest.chars().next() else { return false };
        if first != '{' && Some(first) != *after_name && !matches!(first, '[' | '<') {
            return self.give_up(begin, parts);
        }
        let Some(brace) = rest.find('{') else { return false };
        let at = self.held.len() - rest.len() + brace;
        let (name, is_json) = (name.to_string(), quote.is_none());
        if is_json {
            self.begin_call(name, at, false, parts);
        } else {
            (self.at, self.searched) = (At::Whole { begin: at, work: 0, name: Some(name) }, at);
        }
        true
    }

    fn arguments(&mut self, mut scan: Scan, is_member: bool, parts: &mut Vec<Part>) -> bool {
        let mut is_over = false;
        let mut end = 0;
        while let Some(next) = self.held[end..].chars().next() {
            // A closing marker outside a string ends arguments whose brackets are not closed.
            if !scan.in_text && !next.is_ascii_alphanumeric() && !"{}[],:\" \n".contains(next) {
                let rest = &self.held[end..];
                if self.format.closers.iter().any(|mark| rest.starts_with(&**mark)) {
                    is_over = true;
                    break;
                }
                if self.format.closers.iter().any(|mark| mark.starts_with(rest)) {
                    break;
                }
            }
            scan.follow(next);
            end += next.len_utf8();
            if scan.depth == 0 {
                is_over = true;
                break;
            }
        }
        let rest = self.held.split_off(end);
        let piece = std::mem::replace(&mut self.held, rest);
        if !piece.is_empty() {
            parts.push(Part::Arguments(piece));
        }
        self.at = match is_over {
            true if is_member && scan.depth == 0 => At::Rest(Scan::within(1)),
            true => At::After,
            false => At::Arguments { scan, is_member },
        };
        is_over
    }

    /// Drops the rest of a call's object.
    fn rest(&mut self, mut scan: Scan) -> bool {
        let is_new = scan == Scan::within(1) && self.searched == 0;
        let mut characters = self.held.char_indices().peekable();
        if is_new {
            while characters.next_if(|(_, next)| next.is_whitespace()).is_some() {}
            match characters.peek() {
                None => {
                    self.waits = true;
                    return false;
                }
                Some((_, ',' | '}')) => {}
                // The object's closing brace is missing.
                Some(_) => {
                    self.at = At::After;
                    return true;
                }
            }
        }
        let mut end = None;
        for (at, next) in characters {
            scan.follow(next);
            if scan.depth == 0 {
                end = Some(at + 1);
                break;
            }
        }
        match end {
            Some(end) => {
                self.held.drain(..end);
                (self.at, self.searched) = (At::After, 0);
            }
            None => {
                self.held.clear();
                (self.at, self.searched) = (At::Rest(scan), 1);
            }
        }
        end.is_some()
    }

    /// Drops markers and separators after a call.
    fn after(&mut self) -> bool {
        loop {
            let rest = self.held.trim_start();
            let closers = self.format.closers.iter().filter(|mark| rest.starts_with(&***mark));
            if let Some(mark) = closers.max_by_key(|mark| mark.len()) {
                self.held = rest[mark.len()..].to_string();
                continue;
            }
            if rest.is_empty() || self.format.closers.iter().any(|mark| mark.starts_with(rest)) {
                self.waits = rest.is_empty();
                return false;
            }
            if !matches!(self.format.form, CallForm::Json { .. } | CallForm::Named { .. }) {
                break;
            }
            if let Some(after) = rest.strip_prefix(']').filter(|_| self.in_list) {
                (self.held, self.in_list) = (after.to_string(), false);
                continue;
            }
            let next = rest.trim_start_matches([',', ';']).trim_start();
            let mut marks = self.format.closers.iter().map(String::as_str).chain(self.format.marks());
            if marks.any(|mark| mark.len() > next.len() && mark.starts_with(next)) || next.is_empty() {
                self.waits = next.is_empty();
                return false;
            }
            if next.starts_with('{') {
                let separator = self.held.len() - next.len();
                self.before = self.held.drain(..separator).collect();
                (self.at, self.is_bare) = (At::Open, true);
                return true;
            }
            if next.len() < rest.len() && self.is_mark(next) {
                self.held = next.to_string();
                continue;
            }
            break;
        }
        self.at = At::Text;
        true
    }
}
