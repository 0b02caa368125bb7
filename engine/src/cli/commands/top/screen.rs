//! The terminal: looks and keys until somebody leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crate::remote::{Failure, Place};
use anyhow::{Context as _, Result};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::look::{Looker, Seen};
use super::view::View;

/// How often keys and signals are looked at, at least.
const GLANCE: Duration = Duration::from_millis(100);

/// Shows the server until q, ctrl-C or a signal. The terminal is given back as it was, after a panic as well.
pub fn run(place: &Place, looker: Looker) -> Result<()> {
    let told = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
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
            if event::poll(GLANCE).context("the terminal cannot be read")? {
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
