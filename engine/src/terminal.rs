//! Standard output and standard error for texts that others wrote: models, files, servers.
//!
//! A terminal obeys control characters: with them a text can move the cursor over what was written before, set the title of
//! the window, or fill the clipboard. So a terminal gets them escaped. A file or a pipe gets every byte as it is.

use std::io::{self, IsTerminal, Write};

use build_info::words::printable_lines;

/// A stream that escapes what steers a terminal, if it is one.
#[derive(Debug)]
pub struct Stream<W> {
    out: W,
    is_terminal: bool,
}

/// Standard output. Nothing of it is held between two writes.
pub fn stdout() -> Stream<io::Stdout> {
    Stream { is_terminal: io::stdout().is_terminal(), out: io::stdout() }
}

/// Standard error.
pub fn stderr() -> Stream<io::Stderr> {
    Stream { is_terminal: io::stderr().is_terminal(), out: io::stderr() }
}

impl<W: Write> Write for Stream<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_terminal {
            return self.out.write(bytes);
        }
        // Texts come whole; what is no text must not reach a terminal either.
        self.out.write_all(printable_lines(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
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
            let mut stream = Stream { out: Vec::new(), is_terminal };
            write!(stream, "{text}").expect("memory");
            assert_eq!(String::from_utf8(stream.out).expect("a text"), expected);
        }
        let mut stream = Stream { out: Vec::new(), is_terminal: true };
        stream.write_all(b"\xff\x9b2J").expect("memory");
        assert_eq!(stream.out, "\u{fffd}\u{fffd}2J".as_bytes());
    }
}
