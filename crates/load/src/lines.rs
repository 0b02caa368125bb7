//! Lines of a streamed answer: server-sent events, or lines of JSON. A line is classified by searching for a few bytes.
//! This is safe because neither server writes spaces inside the searched keys, and quotes in generated text are
//! escaped.

/// Kind of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// Piece of text, usually one token.
    Piece,
    /// Token counts at the end of an answer.
    Counts {
        /// Number of generated tokens.
        generated: u32,
        /// Number of prompt tokens found in a cache; `None` if the server does not report this number.
        cached: Option<u32>,
    },
    /// Error from the server.
    Error,
    /// Any other line.
    Other,
}

/// Classifies `line`, which is given without its line end.
pub fn read(line: &[u8]) -> Line {
    let (line, event) = match line.strip_prefix(b"data: ") {
        Some(data) => (data, true),
        None => (line, false),
    };
    if line.starts_with(br#"{"error""#)
        || line.starts_with(b"error: ")
        || line.starts_with(br#"{"id":"#) && has_error(line)
    {
        return Line::Error;
    }
    if let Some(generated) = number_after(line, br#""completion_tokens":"#) {
        return Line::Counts { generated, cached: number_after(line, br#""cached_tokens":"#) };
    }
    // A line of JSON is a token, even if its text is empty because a character is still incomplete.
    let piece =
        if event { has_text(line) } else { line.starts_with(b"{") && find(line, br#""token":"#).is_some() };
    if piece { Line::Piece } else { Line::Other }
}

/// True for a line of JSON with an error after the id. Server-sent events never match, because their errors have no
/// id.
fn has_error(line: &[u8]) -> bool {
    find(line, br#","error":{"#).is_some()
}

/// True if the line has a non-empty text.
fn has_text(line: &[u8]) -> bool {
    const KEY: &[u8] = br#""text":""#;
    find(line, KEY).is_some_and(|at| line.get(at + KEY.len()).is_some_and(|byte| *byte != b'"'))
}

/// Returns the number after the first `key`.
pub fn number_after(line: &[u8], key: &[u8]) -> Option<u32> {
    let rest = &line[find(line, key)? + key.len()..];
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

/// Returns the position of `what` in `text`.
fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    let (first, rest) = what.split_first()?;
    let mut from = 0;
    while let Some(at) = text[from..].iter().position(|byte| byte == first) {
        let begin = from + at;
        if text[begin + 1..].starts_with(rest) {
            return Some(begin);
        }
        from = begin + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_servers_are_told_apart() {
        let counts = |generated, cached| Line::Counts { generated, cached };
        let cases: [(&str, Line); 15] = [
            ("", Line::Other),
            (": ping", Line::Other),
            ("data: [DONE]", Line::Other),
            (
                r#"data: {"id":"cmpl-1","choices":[{"index":0,"text":" upon","finish_reason":null}]}"#,
                Line::Piece,
            ),
            (r#"data: {"choices":[{"text":"\"","index":0,"logprobs":null}],"created":1}"#, Line::Piece),
            (r#"data: {"choices":[{"text":"","index":0,"finish_reason":"length"}]}"#, Line::Other),
            // Generated text cannot look like a count, because its quotes are escaped.
            (r#"data: {"choices":[{"text":"\"completion_tokens\":7","index":0}]}"#, Line::Piece),
            (
                r#"data: {"choices":[],"usage":{"completion_tokens":24,"prompt_tokens":8,"prompt_tokens_details":{"cached_tokens":3}}}"#,
                counts(24, Some(3)),
            ),
            (r#"data: {"choices":[],"usage":{"completion_tokens":4}}"#, counts(4, None)),
            (r#"{"token":17,"text":" a"}"#, Line::Piece),
            (r#"{"token":17,"text":""}"#, Line::Piece),
            (
                r#"{"done":true,"text":"","usage":{"prompt_tokens":3,"completion_tokens":2,"cached_tokens":0}}"#,
                counts(2, Some(0)),
            ),
            (r#"{"error":{"message":"busy"}}"#, Line::Error),
            (r#"data: {"error":{"code":500}}"#, Line::Error),
            (r#"{"id":3,"error":{"message":"busy"}}"#, Line::Error),
        ];
        for (line, expected) in cases {
            assert_eq!(read(line.as_bytes()), expected, "{line}");
        }
    }

    #[test]
    fn numbers_that_are_none_are_not_taken() {
        for (text, expected) in [
            (r#""a":12,"#, Some(12)),
            (r#""a":-1"#, None),
            (r#""a":"1""#, None),
            (r#""a":99999999999"#, None),
            (r#""a""#, None),
            ("", None),
            (r#""b":1"#, None),
        ] {
            assert_eq!(number_after(text.as_bytes(), br#""a":"#), expected, "{text}");
        }
        assert_eq!(find(b"aab", b"ab"), Some(1));
        assert_eq!(find(b"a", b""), None);
    }
}
