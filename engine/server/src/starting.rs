//! Signal handling while the model is loaded. The socket's file already exists, and must not be left behind.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use super::listen::Trace;

/// Guard for start-up. While the guard exists, a signal removes the socket's file and ends the program. The exit code
/// is 128 plus the signal number. If the server runs inside another command, the exit code is 0, because no client
/// knows of the server yet.
pub struct Starting {
    file: Arc<Mutex<Option<Trace>>>,
    waiting: Option<(Handle, JoinHandle<()>)>,
}

impl Starting {
    /// Starts waiting for signals that end the program, including SIGHUP if `hang_up_ends` is true.
    pub fn new(hang_up_ends: bool, is_inside: bool) -> Self {
        let file = Arc::new(Mutex::new(None));
        let mut kinds = vec![SIGINT, SIGTERM];
        if hang_up_ends {
            kinds.push(SIGHUP);
        }
        // If the thread cannot be started, a signal may leave the file behind. The next server then replaces the
        // file.
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

    /// Locks the stored file of the socket. After the lock is released, a signal removes the stored file.
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
        // From now on, the server owns the socket's file.
        if let Some(file) = self.file().take() {
            file.keep();
        }
    }
}
