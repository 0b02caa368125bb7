//! Signals while the model is loaded: the socket is there already, and must not be left behind.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use super::listen::Trace;

/// While it lives, a signal takes the socket's file along and ends the program, with 128 and its number, or with 0 where
/// whoever asks is in the same program: nobody was told yet that there is a server.
pub struct Starting {
    file: Arc<Mutex<Option<Trace>>>,
    waiting: Option<(Handle, JoinHandle<()>)>,
}

impl Starting {
    /// Waits for signals: for SIGHUP where it would end the program.
    pub fn new(hang_up_ends: bool, is_inside: bool) -> Self {
        let file = Arc::new(Mutex::new(None));
        let mut kinds = vec![SIGINT, SIGTERM];
        if hang_up_ends {
            kinds.push(SIGHUP);
        }
        // Without a thread a file may be left, which the next server replaces.
        let waiting = Signals::new(kinds).and_then(|mut signals| {
            let (handle, file) = (signals.handle(), Arc::clone(&file));
            let wait = move || {
                if let Some(signal) = signals.forever().next() {
                    lock(&file).take();
                    llama::exit_now(if is_inside { 0 } else { 128 + signal });
                }
            };
            let thread = std::thread::Builder::new().name("signals".to_string()).spawn(wait)?;
            Ok((handle, thread))
        });
        Starting { file, waiting: waiting.ok() }
    }

    /// What is made while this is held, and put there, goes with the program.
    pub fn file(&self) -> MutexGuard<'_, Option<Trace>> {
        lock(&self.file)
    }
}

fn lock(file: &Mutex<Option<Trace>>) -> MutexGuard<'_, Option<Trace>> {
    file.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some((handle, thread)) = self.waiting.take() {
            handle.close();
            let _ = thread.join();
        }
        // From now on the file is its server's.
        if let Some(file) = self.file().take() {
            file.keep();
        }
    }
}
