//! Position within JSON text that arrives in pieces.

/// Tracker of brackets and strings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Scan {
    /// Number of open brackets.
    pub(super) depth: u32,
    /// True inside a string.
    pub(super) in_text: bool,
    escaped: bool,
}

impl Scan {
    /// Creates a tracker inside `depth` brackets.
    pub(super) fn within(depth: u32) -> Self {
        Scan { depth, ..Scan::default() }
    }

    /// Advances past `character`.
    pub(super) fn follow(&mut self, character: char) {
        match character {
            _ if std::mem::take(&mut self.escaped) => {}
            '\\' if self.in_text => self.escaped = true,
            '"' => self.in_text = !self.in_text,
            _ if self.in_text => {}
            '{' | '[' => self.depth += 1,
            '}' | ']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }
}
