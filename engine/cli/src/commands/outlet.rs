//! Writes generated text in a separate thread, so that generation does not wait for the reader.
//!
//! A write to a pipe or a terminal may wait for the reader. Each write also takes some microseconds, during which a
//! device is idle. The generating thread only puts the text into a channel. If the channel is full, generation waits.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

/// Maximum number of pieces of text in the channel. Most pieces are a single token.
const PIECES: usize = 1024;

/// Sending end of the channel, for the generating thread.
pub struct Outlet(Way);

enum Way {
    /// Normal case: a separate thread writes the text.
    Thread {
        pieces: SyncSender<String>,
        writer: JoinHandle<io::Result<()>>,
    },
    /// Fallback if no thread can be started: the generating thread writes the text.
    Here {
        out: Box<dyn Write + Send>,
        written: io::Result<()>,
    },
    Ended,
}

impl Outlet {
    /// Writes to stdout. If stdout is a terminal, control characters are escaped. The caller must not hold the lock
    /// of stdout.
    pub fn stdout() -> Self {
        Self::to(engine_core::terminal::stdout)
    }

    fn to<W: Write + Send + 'static>(out: impl Fn() -> W) -> Self {
        let (pieces, waiting) = sync_channel(PIECES);
        let own = out();
        // The thread keeps the default stack size: a BOLT-instrumented program needs 20 KiB of stack at its first
        // indirect call, and unused stack takes no memory.
        let thread = Builder::new().name("output".to_string());
        Outlet(match thread.spawn(move || write_all(&waiting, own)) {
            Ok(writer) => Way::Thread { pieces, writer },
            Err(_) => Way::Here { out: Box::new(out()), written: Ok(()) },
        })
    }

    /// Sends `piece`. Returns `Break` if writing has failed; [`finish`](Self::finish) returns the error.
    pub fn send(&mut self, piece: String) -> ControlFlow<()> {
        let sent = match &mut self.0 {
            Way::Thread { pieces, .. } => pieces.send(piece).is_ok(),
            Way::Here { out, written: written @ Ok(()) } => {
                *written = out.write_all(piece.as_bytes()).and_then(|()| out.flush());
                written.is_ok()
            }
            Way::Here { .. } | Way::Ended => false,
        };
        if sent { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    /// Waits until everything is written.
    ///
    /// # Errors
    /// If a write fails. The text after the error is lost.
    pub fn finish(mut self) -> io::Result<()> {
        self.end()
    }

    fn end(&mut self) -> io::Result<()> {
        match std::mem::replace(&mut self.0, Way::Ended) {
            Way::Thread { pieces, writer } => {
                drop(pieces);
                writer.join().unwrap_or_else(|_| Err(io::Error::other("the output thread panicked")))
            }
            Way::Here { written, .. } => written,
            Way::Ended => Ok(()),
        }
    }
}

impl Drop for Outlet {
    /// Writes the remaining text, which was generated before an error.
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Writes the pieces. Pieces that are waiting are written together.
fn write_all(waiting: &Receiver<String>, mut out: impl Write) -> io::Result<()> {
    while let Ok(mut text) = waiting.recv() {
        text.extend(waiting.try_iter().take(PIECES));
        out.write_all(text.as_bytes())?;
        out.flush()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, mpsc};
    use std::time::Duration;

    use super::*;

    /// Writer that waits for permission before each write, and fails once nobody can grant permission any more.
    struct Slow {
        leave: mpsc::Receiver<()>,
        read: Arc<Mutex<String>>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.leave.recv().map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
            let text = std::str::from_utf8(bytes).expect("whole pieces");
            self.read.lock().expect("no panic").push_str(text);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn slow() -> (mpsc::Sender<()>, Arc<Mutex<String>>, Outlet) {
        let (let_it, leave) = mpsc::channel();
        let read = Arc::new(Mutex::new(String::new()));
        let leave = Mutex::new(Some(leave));
        let out = || {
            let leave = leave.lock().expect("no panic").take().expect("one thread");
            Slow { leave, read: Arc::clone(&read) }
        };
        let outlet = Outlet::to(out);
        (let_it, read, outlet)
    }

    #[test]
    fn a_slow_reader_holds_up_whoever_sends_only_when_the_channel_is_full() {
        let (let_it, read, mut outlet) = slow();
        // The writer receives the first piece and any others that have already arrived.
        assert_eq!(outlet.send("0 ".to_string()), ControlFlow::Continue(()));
        let mut expected = "0 ".to_string();
        let (told, sent) = mpsc::channel();
        let sender = std::thread::spawn(move || {
            for number in 1.. {
                if outlet.send(format!("{number} ")).is_break() || told.send(number).is_err() {
                    break;
                }
                if number == 3 * PIECES {
                    break;
                }
            }
            outlet.finish()
        });
        // The reader reads nothing, so the channel accepts pieces only until it is full.
        for number in 1..=PIECES {
            assert_eq!(sent.recv_timeout(Duration::from_secs(60)), Ok(number));
        }
        // The writer holds the pieces that it has received, at most as many as fit into the channel. The sender then
        // blocks.
        let mut last = PIECES;
        while let Ok(number) = sent.recv_timeout(Duration::from_secs(1)) {
            last = number;
        }
        assert!(last < 3 * PIECES, "it never waited");
        assert_eq!(*read.lock().expect("no panic"), "");
        for _ in 0..3 * PIECES {
            let _ = let_it.send(());
        }
        sender.join().expect("no panic").expect("written");
        for number in 1..=3 * PIECES {
            expected.push_str(&format!("{number} "));
        }
        assert_eq!(*read.lock().expect("no panic"), expected);
    }

    #[test]
    fn a_reader_that_is_gone_ends_it_and_is_told() {
        let (let_it, read, mut outlet) = slow();
        let_it.send(()).expect("it waits");
        assert_eq!(outlet.send("read".to_string()), ControlFlow::Continue(()));
        while read.lock().expect("no panic").is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(let_it);
        while outlet.send("lost".to_string()).is_continue() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let why = outlet.finish().expect_err("nobody reads");
        assert_eq!(
            (why.kind(), read.lock().expect("no panic").as_str()),
            (io::ErrorKind::BrokenPipe, "read")
        );
    }
}
