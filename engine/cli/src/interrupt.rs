//! Handling of ctrl-C and SIGTERM.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use base::exit::INTERRUPTED;
use nix::sys::termios::{self, SetArg};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

/// Lets the first signal set the engine's flag, so that work stops in order, and the second signal end the process. A
/// closing terminal sends SIGHUP twice, by its shell and by the kernel, so a repeated SIGHUP does not count.
pub fn stop_in_order() {
    static SEEN: AtomicBool = AtomicBool::new(false);
    install(|signal| {
        if SEEN.swap(true, Ordering::Relaxed) && signal != SIGHUP {
            llama::exit_now(i32::from(INTERRUPTED));
        }
        llama::interrupt(true);
    });
}

/// Turns exceeding `ulimit -f` into an I/O error, so that the process can clean up the partial file. Installs an
/// empty handler and does not ignore the signal, because child processes inherit ignored signals.
pub fn survive_too_large_files() {
    // If this fails, a file that is too large ends the program, as it does by default.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

/// Maximum time for the last output: the reader of stdout may have stopped reading.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Lets the first signal end the process, after `last_words`. Earlier output stays.
pub fn stop_after(last_words: fn()) {
    install(move |_| {
        let begin = Instant::now();
        // If no thread can be started, the last output is skipped.
        if let Ok(speaker) = std::thread::Builder::new().spawn(last_words) {
            while !speaker.is_finished() && begin.elapsed() < LAST_WORDS {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        llama::exit_now(i32::from(INTERRUPTED));
    });
}

/// Lets the first signal end the process successfully, for a command that only waits.
pub fn end_at_once() {
    install(|_| llama::exit_now(0));
}

/// Returns the signals that end the process. SIGHUP is left out if it was ignored at program start, as under nohup.
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
        let _ = writeln!(
            io::stderr(),
            "warning: cannot handle signals, so ctrl-C ends the program without a \
                                       summary: {error}"
        );
    }
}

/// Signal, with a flag that is set when it arrives.
type Seen = (i32, Arc<AtomicBool>);

/// Returns a pipe that receives one byte per signal, and a flag for each signal. signal-hook's own iterator uses a
/// socket, and a program that promises to open no sockets should not do that.
fn waiting() -> io::Result<(io::PipeReader, Vec<Seen>)> {
    let (reader, writer) = io::pipe()?;
    let mut seen = Vec::new();
    for signal in ending() {
        let flag = Arc::new(AtomicBool::new(false));
        // The order matters: the reader of the byte must find the flag set.
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
        signal_hook::low_level::pipe::register(signal, OwnedFd::from(writer.try_clone()?))?;
        seen.push((signal, flag));
    }
    Ok((reader, seen))
}

/// Ignores signals that would end the process, because its parent process ends it.
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
    /// Marks the start of an answer. From now on, ctrl-C stops it.
    pub fn begin(self) {
        llama::interrupt(false);
        self.0.store(ANSWERING, Ordering::SeqCst);
    }

    /// Marks the end of an answer, or that the chat is ready for the first one.
    pub fn end(self) {
        self.0.store(WAITING, Ordering::SeqCst);
    }
}

/// Handles signals in a chat. Ctrl-C stops an answer. A second ctrl-C before the answer has stopped, or one while
/// there is no answer, ends the process. At the prompt of a terminal (`typed`), ctrl-C is a key and has no effect
/// here. All other signals end the process and restore the terminal.
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
                    // Ends the editor's bracketed paste mode. Not on stdout, which may be a file with the answers.
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
