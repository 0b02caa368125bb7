//! Ctrl-C and SIGTERM.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use base::exit::INTERRUPTED;
use nix::sys::termios::{self, SetArg};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

/// The first signal sets the engine's flag, so that the work stops in order; the second ends the process. A terminal that
/// closes says so twice, by its shell and by the kernel: that is no second one.
pub fn stop_in_order() {
    static SEEN: AtomicBool = AtomicBool::new(false);
    install(|signal| {
        if SEEN.swap(true, Ordering::Relaxed) && signal != SIGHUP {
            llama::exit_now(i32::from(INTERRUPTED));
        }
        llama::interrupt(true);
    });
}

/// A file that gets larger than `ulimit -f` allows is an error like a full disk, not the end with half a file beside its
/// place. A handler that does nothing, and not to ignore it: programs that are started begin with what is usual.
pub fn survive_too_large_files() {
    // Where it cannot be set, such a file ends the program as it ends others.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

/// How long the last words may take: whoever reads stdout may have stopped reading.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The first signal ends the process, after `last_words`; what was printed stays.
pub fn stop_after(last_words: fn()) {
    install(move |_| {
        let begin = Instant::now();
        // Without a thread there are no last words.
        if let Ok(speaker) = std::thread::Builder::new().spawn(last_words) {
            while !speaker.is_finished() && begin.elapsed() < LAST_WORDS {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        llama::exit_now(i32::from(INTERRUPTED));
    });
}

/// The first signal ends the process as what was asked for: it does nothing but wait.
pub fn end_at_once() {
    install(|_| llama::exit_now(0));
}

/// Signals that end a process; not SIGHUP where it was ignored from the start, as under nohup.
fn ending() -> Vec<i32> {
    match server::signals::hang_up_is_ignored() {
        true => vec![SIGINT, SIGTERM],
        false => vec![SIGINT, SIGTERM, SIGHUP],
    }
}

fn install(mut handler: impl FnMut(i32) + Send + 'static) {
    let waiting = waiting().and_then(|(mut pipe, seen)| {
        let listen = move || {
            while pipe.read_exact(&mut [0]).is_ok() {
                for (signal, seen) in &seen {
                    if seen.swap(false, Ordering::SeqCst) {
                        handler(*signal);
                    }
                }
            }
        };
        std::thread::Builder::new().name("signals".to_string()).spawn(listen)
    });
    if let Err(error) = waiting {
        let _ = writeln!(io::stderr(), "warning: ctrl-C will end the program without a summary: {error}");
    }
}

/// A signal, and whether it came.
type Seen = (i32, Arc<AtomicBool>);

/// A pipe with a byte for each signal that came, and which ones those are. signal-hook's own iterator waits at a socket,
/// and a program that says that it opens none should not.
fn waiting() -> io::Result<(io::PipeReader, Vec<Seen>)> {
    let (reader, writer) = io::pipe()?;
    let mut seen = Vec::new();
    for signal in ending() {
        let flag = Arc::new(AtomicBool::new(false));
        // In this order: whoever reads the byte has to find the flag.
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
        signal_hook::low_level::pipe::register(signal, OwnedFd::from(writer.try_clone()?))?;
        seen.push((signal, flag));
    }
    Ok((reader, seen))
}

/// Signals that would end the process do nothing: whoever started it ends it.
pub fn leave_to_the_driver() {
    install(|_| {});
}

/// What a conversation is at, for the thread that waits for signals.
#[derive(Clone, Copy)]
pub struct Answers(&'static AtomicU8);

const STARTING: u8 = 0;
const WAITING: u8 = 1;
const ANSWERING: u8 = 2;

impl Answers {
    /// An answer begins: from now on ctrl-C stops it.
    pub fn begin(self) {
        llama::interrupt(false);
        self.0.store(ANSWERING, Ordering::SeqCst);
    }

    /// It has ended, or everything is ready for the first one.
    pub fn end(self) {
        self.0.store(WAITING, Ordering::SeqCst);
    }
}

/// Ctrl-C stops an answer; a second one before it has stopped, and one while there is none, ends the process. At the
/// prompt of a terminal (`typed`) it does nothing: there it is a key. Every other signal that ends a process does, and
/// the terminal is given back as it was.
pub fn stop_answers(typed: bool) -> Answers {
    static STATE: AtomicU8 = AtomicU8::new(STARTING);
    let before = typed.then(|| termios::tcgetattr(io::stdin()).ok()).flatten();
    let waiting = Signals::new(ending()).and_then(|mut signals| {
        let listen = move || {
            for signal in &mut signals {
                let state = STATE.load(Ordering::SeqCst);
                if signal == SIGINT && state == ANSWERING && !llama::interrupted() {
                    llama::interrupt(true);
                    continue;
                }
                if signal == SIGINT && state == WAITING && typed {
                    continue;
                }
                if let Some(before) = &before {
                    // The editor's marks around what is pasted. Not on stdout, which an answer may hold.
                    let _ = write!(io::stderr(), "\u{1b}[?2004l");
                    let _ = termios::tcsetattr(io::stdin(), SetArg::TCSANOW, before);
                }
                llama::exit_now(128 + signal);
            }
        };
        std::thread::Builder::new().name("signals".to_string()).spawn(listen)
    });
    if let Err(error) = waiting {
        let _ = writeln!(io::stderr(), "warning: ctrl-C will end the program, not the answer: {error}");
    }
    Answers(&STATE)
}
