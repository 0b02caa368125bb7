//! What the lines of a streamed answer say: server-sent events, or lines of JSON. Told apart by a search for a few
//! bytes: neither server writes spaces into what is looked for, and text cannot look like it, since its quotes are
//! escaped.

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// A piece of text: one token, as a rule.
    Piece,
    /// The counts at the end: so many tokens were generated, so many of the prompt's were found in a cache.
    Counts {
        /// Tokens generated.
        generated: u32,
        /// Tokens of the prompt that were not evaluated again, where it is told.
        cached: Option<u32>,
    },
    /// The server says that something is wrong.
    Error,
    /// Nothing of interest.
    Other,
}

/// What `line`, without its end, is.
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
    // A line of JSON is a token, also where its text waits for the rest of a character.
    let piece =
        if event { has_text(line) } else { line.starts_with(b"{") && find(line, br#""token":"#).is_some() };
    if piece { Line::Piece } else { Line::Other }
}

/// A line of JSON with an error behind the id; never an event of a stream, whose error comes alone.
fn has_error(line: &[u8]) -> bool {
    find(line, br#","error":{"#).is_some()
}

/// Whether there is a text that is not empty.
fn has_text(line: &[u8]) -> bool {
    const KEY: &[u8] = br#""text":""#;
    find(line, KEY).is_some_and(|at| line.get(at + KEY.len()).is_some_and(|byte| *byte != b'"'))
}

/// The number behind the first `key`.
pub fn number_after(line: &[u8], key: &[u8]) -> Option<u32> {
    let rest = &line[find(line, key)? + key.len()..];
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

/// Where `what` begins in `text`.
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
            // What a model says cannot look like a count: its quotes are escaped.
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
