//! The terminal: looks and keys until somebody leaves.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::look::{Looker, Seen};
use super::view::View;
use crate::remote::{Failure, ServerAddress};

/// How often keys and signals are looked at, at least.
const GLANCE: Duration = Duration::from_millis(100);

/// Shows the server until q, ctrl-C or a signal. The terminal is given back as it was, after a panic as well.
pub fn run(place: &ServerAddress, looker: Looker) -> Result<()> {
    let told = Arc::new(AtomicBool::new(false));
    // SIGHUP ends the program as it always does: with the terminal there is nothing to give back.
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&told)).context("signals cannot be waited for")?;
    }
    let coloured = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let view = View::new(place.to_string(), coloured);
    let mut terminal = ratatui::try_init().context("the terminal cannot be used")?;
    let ended = watch(&mut terminal, view, looker, &told);
    let _ = ratatui::try_restore();
    ended
}

fn watch(terminal: &mut DefaultTerminal, mut view: View, looker: Looker, told: &AtomicBool) -> Result<()> {
    let seen = look_beside(looker);
    loop {
        terminal
            .draw(|frame| view.draw(frame.area(), frame.buffer_mut()))
            .context("the terminal cannot be written")?;
        // Until there is something new to draw.
        loop {
            if told.load(Ordering::Relaxed) {
                return Ok(());
            }
            if is_gone() {
                return Ok(());
            }
            if event::poll(Duration::ZERO).context("the terminal cannot be read")? {
                match event::read().context("the terminal cannot be read")? {
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
                Err(RecvTimeoutError::Disconnected) => anyhow::bail!("whoever looks at the server broke"),
            }
        }
    }
}

/// Waits for a key or a moment; says whether the terminal is closed. crossterm would read its end again and again, and never
/// come back.
fn is_gone() -> bool {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        // Keys come from the controlling terminal, whose end is a signal's matter.
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

/// Looks on a thread of its own: a server that hangs must not hold up the keys.
fn look_beside(mut looker: Looker) -> mpsc::Receiver<Result<Seen, Failure>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        while sender.send(looker.look()).is_ok() {
            looker.rest();
        }
    });
    receiver
}
