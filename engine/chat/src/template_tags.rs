//! Tags in the source of a template.

use std::ops::Range;

/// Tag of a template, with its delimiters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    /// Position in the source, in bytes.
    pub(super) range: Range<usize>,
    /// True for a statement, `{% … %}`; false for an expression, `{{ … }}`.
    pub(super) is_statement: bool,
    /// Number of bytes outside string literals.
    pub(super) code: usize,
}

/// Returns the tags of `source`, without the tags in comments and raw blocks.
pub(super) fn tags(source: &str) -> Vec<Tag> {
    let bytes = source.as_bytes();
    let mut tags = Vec::new();
    let mut at = 0;
    while let Some(found) = bytes[at..].iter().position(|&byte| byte == b'{') {
        let start = at + found;
        at = start + 1;
        match bytes.get(at) {
            Some(b'#') => at += source.get(at..).and_then(|rest| rest.find("#}")).unwrap_or(bytes.len() - at),
            Some(b'{' | b'%') => {
                if let Some(len) = raw_len(&source[start..]) {
                    at = start + len;
                    continue;
                }
                let is_statement = bytes[at] == b'%';
                let (end, code) = tag_end(bytes, at + 1, if is_statement { b'%' } else { b'}' });
                tags.push(Tag { range: start..end, is_statement, code });
                at = end;
            }
            _ => {}
        }
    }
    tags
}

/// Returns the length of the raw block at the start of `source`. Comments and tags inside a raw block are plain text.
/// `None` if `source` does not start with a raw block.
fn raw_len(source: &str) -> Option<usize> {
    let tag_len = |source: &str, name: &str| {
        let inner = source.strip_prefix("{%")?;
        let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner).trim_start().strip_prefix(name)?;
        let inner = inner.trim_start();
        let after = inner.strip_prefix(['-', '+']).unwrap_or(inner).strip_prefix("%}")?;
        Some(source.len() - after.len())
    };
    let start = tag_len(source, "raw")?;
    let ends = source[start..].match_indices("{%").map(|(at, _)| start + at);
    let mut ends = ends.filter_map(|at| tag_len(&source[at..], "endraw").map(|len| at + len));
    Some(ends.next().unwrap_or(source.len()))
}

/// Returns the end of the tag whose content starts at `at`, and how many of its bytes are outside string literals.
/// The tag ends with `closes` and a brace. minijinja does not end a tag inside brackets: in `{'a': {}}`, both closing
/// braces belong to the expression.
fn tag_end(bytes: &[u8], mut at: usize, closes: u8) -> (usize, usize) {
    let (mut code, mut open) = (0, 0_usize);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' | b'\'' => {
                at += literal_len(&bytes[at..]);
                continue;
            }
            _ if open == 0 && byte == closes && bytes.get(at + 1) == Some(&b'}') => return (at + 2, code),
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        code += 1;
        at += 1;
    }
    (bytes.len(), code)
}

/// Returns the length of the string literal at the start of `bytes`, with its quotes. A literal without an end extends
/// to the end of `bytes`.
pub(super) fn literal_len(bytes: &[u8]) -> usize {
    let Some(quote) = bytes.first() else { return 0 };
    let mut at = 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 2,
            end if end == quote => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}
