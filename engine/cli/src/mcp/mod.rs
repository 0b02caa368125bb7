//! Command `anneal mcp`: serves a model with the Model Context Protocol, over stdin and stdout.
//!
//! [`stdio`] reads and writes the messages, [`handler`] answers them, and [`tools`] describes the tools. A server
//! executes the calls like the requests of any other client ([`remote`](crate::remote)). The server either is a
//! separate process, or runs in this process without a socket.

mod handler;
mod stdio;
mod tools;

use std::collections::HashSet;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use base::signals::hang_up_is_ignored;
use engine_core::runtime_host::RuntimeHost;
use llama::error::{Error, Result};
use rmcp::service::{ServerInitializeError, serve_server};
use server::models::{Resolve, Say, Served};
use server::run::{Hooks, Ready, run};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use self::handler::Handler;
use self::stdio::Stdio;
use crate::remote::ServerAddress;

/// Maximum time for which loading may continue after stdin has closed.
const LOADING: Duration = Duration::from_secs(1);

/// Loads the model of `served` into this process, with the settings from `resolve`, and offers it until stdin closes
/// or a signal arrives. Calls `on_ready` when the model is loaded, and `warn` with warnings for the user.
///
/// # Errors
/// Errors of [`run`], or if stdin or stdout cannot be used.
pub fn own(
    served: &Served,
    resolve: Resolve,
    runtime_host: RuntimeHost,
    on_ready: &mut dyn FnMut(&Ready),
    warn: Say,
) -> Result<()> {
    let (door, inside) = mpsc::unbounded_channel();
    let (stop, stopping) = oneshot::channel();
    let is_ready = Arc::new(AtomicBool::new(false));
    let offering = offer_beside(ServerAddress::Inside(door), stopping, Arc::clone(&is_ready))?;
    let mut hooks = Hooks {
        on_ready: &mut |ready| {
            is_ready.store(true, Ordering::Relaxed);
            on_ready(ready);
        },
        reload: None,
        warn,
        resolve,
        inside: Some(inside),
    };
    run(served, runtime_host, &mut hooks)?;
    // The thread then waits for the last answers.
    let _ = stop.send(());
    offering.join().map_err(|_| Error::Serve("the protocol thread panicked".to_string()))?
}

/// Offers the server at `place` until stdin closes or a signal arrives.
///
/// # Errors
/// If stdin or stdout cannot be used.
pub fn connect(place: ServerAddress) -> Result<()> {
    let (stop, stopping) = oneshot::channel();
    let protocol = stdout_of_ours()?;
    let runtime = runtime()?;
    let ended = runtime.block_on(async {
        let told = told_to_end().map_err(|why| Error::Serve(why.to_string()))?;
        tokio::spawn(async move {
            told.await;
            let _ = stop.send(());
        });
        offer(place, protocol, stopping).await
    });
    runtime.shutdown_background();
    ended
}

/// Returns a future that completes at the first signal that ends the program.
fn told_to_end() -> std::io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = (!hang_up_is_ignored()).then(|| signal(SignalKind::hangup())).transpose()?;
    Ok(async move {
        let hang_up = async {
            match &mut hang_up {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hang_up => {}
        }
    })
}

/// Runs [`offer`] in a separate thread, because the server uses the current thread.
fn offer_beside(
    place: ServerAddress,
    stopping: oneshot::Receiver<()>,
    is_ready: Arc<AtomicBool>,
) -> Result<JoinHandle<Result<()>>> {
    let protocol = stdout_of_ours()?;
    let runtime = runtime()?;
    let work = move || {
        let ended = runtime.block_on(offer(place, protocol, stopping));
        runtime.shutdown_background();
        // The client has disconnected and loading cannot be cancelled, so the process ends. A short wait leaves
        // time to report a loading error.
        if ended.is_ok() && !is_ready.load(Ordering::Relaxed) {
            std::thread::sleep(LOADING);
            if !is_ready.load(Ordering::Relaxed) {
                llama::exit_now(0);
            }
        }
        ended
    };
    let thread = Builder::new().name("mcp".to_string()).spawn(work);
    thread.map_err(|why| Error::Serve(format!("cannot start a thread for the protocol: {why}")))
}

fn runtime() -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|why| Error::Serve(format!("cannot start the asynchronous runtime: {why}")))
}

/// Reserves stdout for the protocol. Other output to stdout, for example from a library, is redirected to stderr.
fn stdout_of_ours() -> Result<File> {
    let ours = rustix::io::dup(std::io::stdout()).and_then(|ours| {
        rustix::stdio::dup2_stdout(std::io::stderr())?;
        Ok(File::from(ours))
    });
    ours.map_err(|why| Error::Serve(format!("cannot use stdout: {why}")))
}

/// Runs the protocol until stdin closes or `stopping` is signalled.
async fn offer(place: ServerAddress, protocol: File, mut stopping: oneshot::Receiver<()>) -> Result<()> {
    let transport = Stdio::start(protocol)?;
    let mut open = transport.open();
    let serving = tokio::select! {
        serving = serve_server(Handler::new(place), transport) => serving,
        _ = &mut stopping => return Ok(()),
    };
    let serving = match serving {
        Ok(serving) => serving,
        // Stdin closed before the session began.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => {
            return Err(Error::Serve(format!(
                "the client did not initialise the session correctly: {error}"
            )));
        }
    };
    let token = serving.cancellation_token();
    tokio::spawn(async move {
        let _ = stopping.await;
        // Waits until the last answers have been written.
        let _ = timeout(stdio::LAST, open.wait_for(HashSet::is_empty)).await;
        token.cancel();
    });
    serving.waiting().await.map_err(|why| Error::Serve(why.to_string()))?;
    Ok(())
}
