//! Minimal HTTP/1.1 decoder (RFC 9112) for answers from the two tested servers. Supports a status line, headers,
//! and a body with a length, in chunks, or up to the end of the connection. Input may arrive in pieces of any
//! size.

/// Maximum size of a head, in bytes. Neither server sends a longer head.
const LONGEST_HEAD: usize = 64 << 10;

/// Decoder state of a partly received answer.
#[derive(Debug)]
pub struct Decoder {
    state: ParserState,
    /// Incomplete head or chunk size.
    part: Vec<u8>,
    status: u16,
}

#[derive(Debug, PartialEq)]
enum ParserState {
    Head,
    /// Number of remaining body bytes.
    Counted(u64),
    /// The body continues to the end of the connection.
    Open,
    ChunkSize,
    /// Number of remaining bytes of the chunk.
    Chunk(u64),
    /// Line end after a chunk.
    ChunkEnd,
    /// Trailer fields after the last chunk.
    Trailer,
    Over,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { state: ParserState::Head, part: Vec::new(), status: 0 }
    }
}

impl Decoder {
    /// Returns the status, or 0 if the status has not been received yet.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// True if the answer is complete.
    pub fn is_over(&self) -> bool {
        self.state == ParserState::Over
    }

    /// True if the answer would be complete if the connection ended now.
    pub fn may_end(&self) -> bool {
        matches!(self.state, ParserState::Over | ParserState::Open)
    }

    /// Decodes `bytes` and appends the decoded body bytes to `body`.
    ///
    /// # Errors
    /// A message if the input is not valid HTTP.
    pub fn feed(&mut self, mut bytes: &[u8], body: &mut Vec<u8>) -> Result<(), String> {
        while !bytes.is_empty() {
            match &mut self.state {
                ParserState::Head => match self.line(&mut bytes, LONGEST_HEAD, b"\r\n\r\n")? {
                    Some(head) => self.begin(&head)?,
                    None => return Ok(()),
                },
                ParserState::Counted(left) | ParserState::Chunk(left) => {
                    let take = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    body.extend_from_slice(&bytes[..take]);
                    bytes = &bytes[take..];
                    *left -= take as u64;
                    if *left == 0 {
                        let chunk = matches!(self.state, ParserState::Chunk(_));
                        self.state = if chunk { ParserState::ChunkEnd } else { ParserState::Over };
                    }
                }
                ParserState::Open => {
                    body.extend_from_slice(bytes);
                    return Ok(());
                }
                ParserState::ChunkEnd => match self.line(&mut bytes, 2, b"\r\n")? {
                    Some(line) if line.is_empty() => self.state = ParserState::ChunkSize,
                    Some(_) => return Err("a chunk is longer than its stated size".to_string()),
                    None => return Ok(()),
                },
                ParserState::ChunkSize => match self.line(&mut bytes, 64, b"\r\n")? {
                    Some(line) => {
                        self.state = match size(&line)? {
                            0 => ParserState::Trailer,
                            size => ParserState::Chunk(size),
                        }
                    }
                    None => return Ok(()),
                },
                ParserState::Trailer => match self.line(&mut bytes, LONGEST_HEAD, b"\r\n")? {
                    Some(line) if line.is_empty() => self.state = ParserState::Over,
                    Some(_) => {}
                    None => return Ok(()),
                },
                ParserState::Over => return Err("data follows the end of the response".to_string()),
            }
        }
        Ok(())
    }

    /// Returns the bytes before `end`, once they are complete.
    fn line(&mut self, bytes: &mut &[u8], most: usize, end: &[u8]) -> Result<Option<Vec<u8>>, String> {
        while let Some((first, rest)) = bytes.split_first() {
            *bytes = rest;
            self.part.push(*first);
            if self.part.ends_with(end) {
                self.part.truncate(self.part.len() - end.len());
                return Ok(Some(std::mem::take(&mut self.part)));
            }
            if self.part.len() > most {
                return Err(format!("a line is longer than {most} bytes"));
            }
        }
        Ok(None)
    }

    fn begin(&mut self, head: &[u8]) -> Result<(), String> {
        let head = std::str::from_utf8(head).map_err(|_| "the response head is not UTF-8".to_string())?;
        let mut lines = head.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let status = first.strip_prefix("HTTP/1.1 ").or_else(|| first.strip_prefix("HTTP/1.0 "));
        let status = status.and_then(|rest| rest.get(..3)?.parse().ok());
        self.status =
            status.ok_or_else(|| format!("not HTTP/1.1: {:.60}", first.escape_debug().to_string()))?;
        let mut state = ParserState::Open;
        for line in lines {
            let Some((name, value)) = line.split_once(':') else {
                return Err(format!("a header has no colon: {:.60}", line.escape_debug().to_string()));
            };
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                let length = value.parse().map_err(|_| format!("invalid length: {value:.60}"))?;
                state = if length == 0 { ParserState::Over } else { ParserState::Counted(length) };
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                if !value.eq_ignore_ascii_case("chunked") {
                    return Err(format!("unknown transfer encoding: {value:.60}"));
                }
                // Chunked encoding takes precedence over a length (RFC 9112, 6.3).
                self.state = ParserState::ChunkSize;
                return Ok(());
            }
        }
        // 100 Continue is followed by the final head.
        self.state = if self.status == 100 { ParserState::Head } else { state };
        Ok(())
    }
}

/// Parses a chunk's size in hexadecimal digits. Extensions after a semicolon are ignored.
fn size(line: &[u8]) -> Result<u64, String> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
    let text = std::str::from_utf8(digits).unwrap_or_default().trim();
    // `from_str_radix` would accept a sign.
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let size = plain.then(|| u64::from_str_radix(text, 16).ok()).flatten();
    size.ok_or_else(|| format!("invalid chunk size: {:?}", String::from_utf8_lossy(line)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes `text` in pieces of `step` bytes. Returns the status, the body, and true if the answer is complete.
    fn decode(text: &[u8], step: usize) -> Result<(u16, String, bool), String> {
        let (mut decoder, mut body) = (Decoder::default(), Vec::new());
        for piece in text.chunks(step) {
            decoder.feed(piece, &mut body)?;
        }
        Ok((decoder.status(), String::from_utf8_lossy(&body).into_owned(), decoder.is_over()))
    }

    #[test]
    fn answers_are_read_whole_whatever_pieces_they_come_in() {
        let cases: [(&str, u16, &str, bool); 9] = [
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, "hello", true),
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel", 200, "hel", false),
            ("HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", 204, "", true),
            ("HTTP/1.0 404 Nope\r\nConnection: close\r\n\r\nall of it", 404, "all of it", false),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\n00a;x=y\r\n0123456789\r\n0\r\n\r\n",
                200,
                "abc0123456789",
                true,
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Sum: 1\r\n\r\n",
                200,
                "a",
                true,
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n2\r\nab\r\n",
                200,
                "ab",
                false,
            ),
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Made\r\nContent-Length: 1\r\n\r\nx", 201, "x", true),
            ("HTTP/1.1 200 OK\r\nConte", 0, "", false),
        ];
        for (text, status, body, over) in cases {
            for step in [1, 2, 3, 7, 1000] {
                let expected = Ok((status, body.to_string(), over));
                assert_eq!(decode(text.as_bytes(), step), expected, "{text:?} by {step}");
            }
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let cases = [
            ("SSH-2.0-x\r\n\r\n", "not HTTP/1.1"),
            ("HTTP/2 200\r\n\r\n", "not HTTP/1.1"),
            ("HTTP/1.1 abc\r\n\r\n", "not HTTP/1.1"),
            ("HTTP/1.1 2é0\r\n\r\n", "not HTTP/1.1"),
            ("HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "a header has no colon"),
            ("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "invalid length"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "unknown transfer encoding"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "invalid chunk size"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n+1\r\na\r\n", "invalid chunk size"),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
                "invalid chunk size",
            ),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabcdef\r\n", "a line is longer than"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab", "data follows the end of the response"),
        ];
        for (text, words) in cases {
            let found = decode(text.as_bytes(), 4).err().unwrap_or_default();
            assert!(found.contains(words), "{text:?}: {found:?}");
        }
        let endless = [b"HTTP/1.1 200 OK\r\n".as_slice(), &vec![b'a'; LONGEST_HEAD + 8]].concat();
        assert!(decode(&endless, 999).is_err_and(|why| why.contains("a line is longer than")));
    }
}
