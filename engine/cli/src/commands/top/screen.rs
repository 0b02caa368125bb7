//! Terminal screen: updates the display and handles keys until the user quits.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use base::colour;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::look::{Looker, Seen};
use super::view::View;
use crate::remote::{Failure, ServerAddress};

/// Maximum interval between checks for keys and signals.
const GLANCE: Duration = Duration::from_millis(100);

/// Shows the server's state until q, ctrl-C or a signal. Restores the terminal afterwards, even after a panic.
///
/// # Errors
/// If the terminal cannot be used.
pub fn run(place: &ServerAddress, looker: Looker) -> Result<()> {
    let told = Arc::new(AtomicBool::new(false));
    // SIGHUP keeps its default action: if the terminal was closed, there is nothing to restore.
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&told)).context("cannot handle signals")?;
    }
    let view = View::new(place.to_string(), !colour::are_unwanted());
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let ended = watch(&mut terminal, view, looker, &told);
    let _ = ratatui::try_restore();
    ended
}

fn watch(terminal: &mut DefaultTerminal, mut view: View, looker: Looker, told: &AtomicBool) -> Result<()> {
    let seen = look_beside(looker);
    loop {
        terminal
            .draw(|frame| view.draw(frame.area(), frame.buffer_mut()))
            .context("cannot write to the terminal")?;
        // Waits for something new to draw.
        loop {
            if told.load(Ordering::Relaxed) {
                return Ok(());
            }
            if is_gone() {
                return Ok(());
            }
            if event::poll(Duration::ZERO).context("cannot read from the terminal")? {
                match event::read().context("cannot read from the terminal")? {
                    Event::Key(key) if leaves(key) => return Ok(()),
                    Event::Resize(..) => break,
                    _ => {}
                }
            }
            match seen.recv_timeout(Duration::ZERO) {
                Ok(look) => {
                    view.see(look);
                    break;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => anyhow::bail!(
                    "the thread that queries the server has ended \
                                                                     unexpectedly"
                ),
            }
        }
    }
}

/// Waits for a key or a short time. Returns true if the terminal was closed; otherwise, crossterm would read
/// end-of-file in an endless loop.
fn is_gone() -> bool {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        // Keys come from the controlling terminal. The process receives a signal when this terminal closes.
        std::thread::sleep(GLANCE);
        return false;
    }
    let mut terminal = [PollFd::new(&stdin, PollFlags::IN)];
    let glance = Timespec { tv_sec: 0, tv_nsec: i64::from(GLANCE.subsec_nanos()) };
    // A signal ends the wait.
    let _ = poll(&mut terminal, Some(&glance));
    terminal[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
}

fn leaves(key: KeyEvent) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    let wanted = match key.code {
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => true,
        KeyCode::Char('c' | 'd') => control,
        _ => false,
    };
    wanted && key.kind != KeyEventKind::Release
}

/// Queries the server in a separate thread, so that a hanging server does not block the handling of keys.
fn look_beside(mut looker: Looker) -> mpsc::Receiver<Result<Seen, Failure>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        while sender.send(looker.look()).is_ok() {
            looker.rest();
        }
    });
    receiver
}
