//! Standard output and standard error for text from models, files and servers.
//!
//! A terminal interprets control characters. A text can use them to move the cursor over earlier output, set the window
//! title, or fill the clipboard. Therefore, control characters are escaped for a terminal. A file or a pipe receives
//! every byte unchanged.

use std::io::{self, IsTerminal, Write};

use build_info::words::printable_lines;

/// Stream that escapes control characters if it is a terminal.
#[derive(Debug)]
pub struct Stream<W: Write> {
    out: W,
    is_terminal: bool,
    /// Beginning of a character that is not complete yet, because a token may end in the middle of a character.
    begun: Vec<u8>,
}

/// Returns standard output. Between two writes, at most an incomplete character is buffered.
pub fn stdout() -> Stream<io::Stdout> {
    Stream::new(io::stdout(), io::stdout().is_terminal())
}

/// Returns standard error.
pub fn stderr() -> Stream<io::Stderr> {
    Stream::new(io::stderr(), io::stderr().is_terminal())
}

impl<W: Write> Stream<W> {
    fn new(out: W, is_terminal: bool) -> Self {
        Self { out, is_terminal, begun: Vec::new() }
    }
}

impl<W: Write> Write for Stream<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_terminal {
            return self.out.write(bytes);
        }
        let mut all = std::mem::take(&mut self.begun);
        all.extend_from_slice(bytes);
        self.begun = all.split_off(all.len() - begun(&all));
        // Invalid UTF-8 must not reach a terminal either. A control sequence may arrive in two parts, but its first
        // character is escaped, so the rest is plain text.
        self.out.write_all(printable_lines(&String::from_utf8_lossy(&all)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl<W: Write> Drop for Stream<W> {
    /// Writes a replacement character if the last character is incomplete.
    fn drop(&mut self) {
        if !self.begun.is_empty() {
            let _ = write!(self.out, "{}", char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Returns the length of the incomplete character at the end of `bytes`; 0 if the last character is complete.
fn begun(bytes: &[u8]) -> usize {
    let last = bytes.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
    match std::str::from_utf8(last) {
        // An error without a length means that more bytes could complete the character.
        Err(error) if error.error_len().is_none() => last.len(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_escapes_and_a_file_every_byte() {
        let text = "a\tb\n\u{1b}]0;title\u{7}\u{9b}2J\u{7f}\u{202e}Größe 模型\r\n";
        for (is_terminal, expected) in
            [(true, "a\tb\n\\u{1b}]0;title\\u{7}\\u{9b}2J\\u{7f}\\u{202e}Größe 模型\\r\n"), (false, text)]
        {
            let mut out = Vec::new();
            write!(Stream::new(&mut out, is_terminal), "{text}").expect("memory");
            assert_eq!(String::from_utf8(out).expect("a text"), expected);
        }
        let mut out = Vec::new();
        Stream::new(&mut out, true).write_all(b"\xff\x9b2J").expect("memory");
        assert_eq!(out, "\u{fffd}\u{fffd}2J".as_bytes());
    }

    #[test]
    fn a_text_is_filtered_alike_wherever_it_is_cut() {
        let text = "a\u{9b}2J\u{1b}]0;title\u{7}模型🙂\u{202e}é\n".as_bytes();
        let broken = [text, b"\xf0\x9f\x99 \xc2", b"\xe6\xa8"].concat();
        let written = |parts: &[&[u8]]| {
            let mut out = Vec::new();
            let mut stream = Stream::new(&mut out, true);
            for part in parts {
                stream.write_all(part).and_then(|()| stream.flush()).expect("memory");
            }
            drop(stream);
            String::from_utf8(out).expect("a text")
        };
        let expected = "a\\u{9b}2J\\u{1b}]0;title\\u{7}模型🙂\\u{202e}é\n";
        assert_eq!(written(&[text]), expected);
        let whole = written(&[&broken]);
        assert_eq!(whole, format!("{expected}\u{fffd} \u{fffd}\u{fffd}"));
        for cut in 0..=broken.len() {
            assert_eq!(written(&[&broken[..cut], &broken[cut..]]), whole, "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = broken.chunks(1).collect();
        assert_eq!(written(&bytes), whole, "byte by byte");
    }
}
