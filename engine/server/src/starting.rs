//! Signal handling while the model is loaded: the socket's file already exists and must not be left behind.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use super::listen::Trace;

/// Guard for start-up. While it exists, a signal removes the socket's file and ends the program. The exit code is 128
/// plus the signal number, or 0 if the server runs inside another command, because no client was told about the
/// server yet.
pub struct Starting {
    file: Arc<Mutex<Option<Trace>>>,
    waiting: Option<(Handle, JoinHandle<()>)>,
}

impl Starting {
    /// Starts waiting for signals. `hang_up_ends` includes SIGHUP.
    pub fn new(hang_up_ends: bool, is_inside: bool) -> Self {
        let file = Arc::new(Mutex::new(None));
        let mut kinds = vec![SIGINT, SIGTERM];
        if hang_up_ends {
            kinds.push(SIGHUP);
        }
        // If the thread cannot be started, the file may be left behind; the next server replaces it.
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

    /// Locks the file's place. A file that is created and stored while the lock is held is removed by a signal.
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
        // From now on the server owns the file.
        if let Some(file) = self.file().take() {
            file.keep();
        }
    }
}
