//! Handles ctrl-C and SIGTERM.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use base::exit::INTERRUPTED;
use nix::sys::termios::{self, SetArg};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

/// Handles ctrl-C and SIGTERM during work. The first signal sets the engine's flag, so that the work stops cleanly; the
/// second signal ends the process. A repeated SIGHUP does not count as a second signal, because both the shell and the
/// kernel send SIGHUP when a terminal closes.
pub fn stop_in_order() {
    static SEEN: AtomicBool = AtomicBool::new(false);
    install(|signal| {
        if SEEN.swap(true, Ordering::Relaxed) && signal != SIGHUP {
            llama::exit_now(i32::from(INTERRUPTED));
        }
        llama::interrupt(true);
    });
}

/// Lets a write beyond `ulimit -f` fail with an I/O error, so that the process can remove the partial file. The signal
/// gets an empty handler instead of being ignored, because child processes would inherit an ignored signal.
pub fn survive_too_large_files() {
    // If the handler cannot be installed, the default action applies: a file that is too large ends the program.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

/// Maximum time for writing the last output. Without this limit, a reader that has stopped reading stdout would block
/// the process.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Makes the first signal run `last_words` and end the process. Earlier output is kept.
pub fn stop_after(last_words: fn()) {
    install(move |_| {
        let begin = Instant::now();
        // If the thread cannot be started, the last output is skipped.
        if let Ok(speaker) = std::thread::Builder::new().spawn(last_words) {
            while !speaker.is_finished() && begin.elapsed() < LAST_WORDS {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        llama::exit_now(i32::from(INTERRUPTED));
    });
}

/// Makes the first signal end the process successfully, for a command that only waits.
pub fn end_at_once() {
    install(|_| llama::exit_now(0));
}

/// Returns the signals that end the process. SIGHUP is omitted if it was ignored at program start, as with nohup.
fn ending() -> Vec<i32> {
    match base::signals::hang_up_is_ignored() {
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
        let _ = writeln!(
            io::stderr(),
            "warning: cannot handle signals, so ctrl-C ends the program without a \
                                       summary: {error}"
        );
    }
}

/// Signal, with a flag that is set when it arrives.
type Seen = (i32, Arc<AtomicBool>);

/// Returns a pipe that receives one byte per signal, and a flag for each signal. signal-hook's own iterator would open
/// a socket, but some commands promise to open no sockets.
fn waiting() -> io::Result<(io::PipeReader, Vec<Seen>)> {
    let (reader, writer) = io::pipe()?;
    let mut seen = Vec::new();
    for signal in ending() {
        let flag = Arc::new(AtomicBool::new(false));
        // The flag is registered first, so that it is set when the byte is read.
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
        signal_hook::low_level::pipe::register(signal, OwnedFd::from(writer.try_clone()?))?;
        seen.push((signal, flag));
    }
    Ok((reader, seen))
}

/// Ignores signals that would end the process. The parent process handles these signals and ends this process.
pub fn leave_to_the_driver() {
    install(|_| {});
}

/// State of a chat for the signal thread.
#[derive(Clone, Copy)]
pub struct Answers(&'static AtomicU8);

const STARTING: u8 = 0;
const WAITING: u8 = 1;
const ANSWERING: u8 = 2;

impl Answers {
    /// Marks the start of an answer. Ctrl-C then stops the answer.
    pub fn begin(self) {
        llama::interrupt(false);
        self.0.store(ANSWERING, Ordering::SeqCst);
    }

    /// Marks the end of an answer. Also called when the chat is ready for the first message.
    pub fn end(self) {
        self.0.store(WAITING, Ordering::SeqCst);
    }
}

/// Handles signals in a chat. Ctrl-C stops an answer. It ends the process if no answer is being generated, or if it is
/// pressed again before the answer has stopped. At the prompt of a terminal (`typed`), ctrl-C is a key and has no
/// effect here. All other signals end the process and restore the terminal.
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
                    // Ends the editor's bracketed paste mode. Written to stderr, because stdout may be a file with
                    // the answers.
                    let _ = write!(io::stderr(), "\u{1b}[?2004l");
                    let _ = termios::tcsetattr(io::stdin(), SetArg::TCSANOW, before);
                }
                llama::exit_now(128 + signal);
            }
        };
        std::thread::Builder::new().name("signals".to_string()).spawn(listen)
    });
    if let Err(error) = waiting {
        let _ = writeln!(
            io::stderr(),
            "warning: cannot handle signals, so ctrl-C ends the program and not just the \
                                       answer: {error}"
        );
    }
    Answers(&STATE)
}
