//! Life of a server from start-up to shutdown.

use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use engine_core::core_lock::Turns;
use engine_core::runtime_host::RuntimeHost;
use llama::error::{Error, Result};
use rustix::net::listen;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use super::admission::{ConnectionBounds, Gate, RESERVE};
use super::blocking_pool;
use super::closing::Closing;
use super::connection::shared::ListenerContext;
use super::connection::{Inside, inside, unix};
use super::http::routes::{Door, Routes};
use super::listen::{self as socket_file, Socket};
use super::models::{Loader, ModelRegistry, Named, Resolve, Say, Served};
use super::starting::Starting;
use crate::options::ServeOptions;
use base::signals::hang_up_is_ignored;

/// Addresses of a running server.
#[derive(Clone, Debug)]
pub struct Ready {
    /// Path of the Unix socket.
    pub socket: Option<PathBuf>,
    /// TCP address, with the port that the system chose if 0 was requested.
    pub listen: Option<SocketAddr>,
    /// TCP address for `/health` and `/metrics`, with the port that the system chose if 0 was requested.
    pub health: Option<SocketAddr>,
    /// Number of tokens in the context of the default model, if it is loaded.
    pub n_ctx: Option<u32>,
    /// Names of the models, beginning with the default model.
    pub names: Vec<String>,
}

/// Callbacks of a server.
pub struct Hooks<'a> {
    /// Called when the server is ready for requests.
    pub on_ready: &'a mut dyn FnMut(&Ready),
    /// Called on SIGHUP. Returns the new configuration if it changed. Without this callback, SIGHUP ends the server.
    pub reload: Option<&'a mut dyn FnMut() -> Option<Served>>,
    /// Shows a warning to the user.
    pub warn: Say,
    /// Resolves the settings of a model before it is loaded.
    pub resolve: Resolve,
    /// Source of connections from inside the process. The server ends when the source is closed.
    pub inside: Option<Inside>,
}

/// Bound sockets. Dropping this value removes the file of the Unix socket.
struct BoundSockets {
    unix: Option<(Socket, UnixListener)>,
    tcp: Option<std::net::TcpListener>,
    health: Option<std::net::TcpListener>,
    health_door: Door,
}

/// Limits on connections that serve only `/health` and `/metrics`. Requests on these connections are short, and the
/// oldest connection is evicted first.
const HEALTH_BOUNDS: ConnectionBounds = ConnectionBounds { total: 64, per_network: 32 };

/// Exit code if a second signal ends the server.
const TWICE: i32 = 130;

/// Exit code if the shutdown did not complete.
const STUCK: i32 = 1;

/// Time limit of the last step of the shutdown, when all work is cancelled.
const LAST_STEP: Duration = Duration::from_secs(5);

/// Runs the server until a signal ends it.
///
/// # Errors
/// If the server cannot listen, a model with `preload` cannot be loaded, or the scheduler of the only model fails.
pub fn run(served: &Served, runtime_host: RuntimeHost, hooks: &mut Hooks<'_>) -> Result<()> {
    // The disposition of SIGHUP is read before any signal handler is installed.
    let hang_up = match (&hooks.reload, hang_up_is_ignored()) {
        // SIGHUP requests a reload even under `nohup`, as in other servers.
        (Some(_), _) => HangUp::Reloads,
        (None, true) => HangUp::Ignored,
        (None, false) => HangUp::Ends,
    };
    let first = served.models.first().ok_or_else(|| Error::Usage("no model is configured".to_string()))?;
    let options = &first.options;
    let starting = Starting::new(hang_up == HangUp::Ends, hooks.inside.is_some());
    let bound = {
        let mut file = starting.file();
        let bound = bind(options)?;
        *file = bound.unix.as_ref().map(|(socket, _)| socket.trace());
        bound
    };
    if let Some(warning) = bound.unix.as_ref().and_then(|(socket, _)| socket.warning.as_ref()) {
        (hooks.warn)(warning);
    }
    // For a connection from inside the process, both ends are open files.
    let listeners = usize::from(options.socket.is_some())
        + usize::from(options.listen.is_some())
        + 2 * usize::from(hooks.inside.is_some());
    let health = if options.health_listen.is_some() { HEALTH_BOUNDS.total + RESERVE } else { 0 };
    allow_files((options.limits.connections + RESERVE) * listeners + health);
    let loader = Loader {
        resolve: Arc::clone(&hooks.resolve),
        say: Arc::clone(&hooks.warn),
        turns: Arc::new(Turns::default()),
    };
    let registry = Arc::new(ModelRegistry::new(served, options.current(&first.engine), loader));
    registry.preload(&Arc::new(runtime_host))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(blocking_pool::THREADS)
        .build()
        .map_err(|why| Error::Serve(format!("cannot start the asynchronous runtime: {why}")))?;
    let ended = runtime.block_on(async {
        // From now on, the runtime handles signals.
        let signals = Signals::new(hang_up).map_err(|why| Error::Serve(why.to_string()))?;
        drop(starting);
        serve(&registry, bound, signals, hooks).await
    });
    // Work that has not ended belongs to clients that have disconnected.
    runtime.shutdown_background();
    ended?;
    registry.join()
}

/// Raises the soft limit on open files towards the hard limit, because each connection is an open file.
fn allow_files(connections: usize) {
    /// Number of other open files: files of the model, the libraries and the runtime, and evicted connections that
    /// are not closed yet. One iteration of the runtime can leave one unclosed connection for each accepted
    /// connection.
    const OTHERS: u64 = 64 + 128;
    let wanted = connections as u64 + OTHERS;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < wanted) {
        let current = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
        // If this fails, the lower limit remains, and fewer connections can be open.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..limit });
    }
}

fn bind(options: &ServeOptions) -> Result<BoundSockets> {
    let failed = |at: String, flag: &str, why: std::io::Error| {
        let mend = match why.kind() {
            std::io::ErrorKind::AddrInUse => {
                format!("\nhint: another program uses the port; choose another port with {flag}")
            }
            std::io::ErrorKind::PermissionDenied => format!("\nhint: choose a port above 1023 with {flag}"),
            std::io::ErrorKind::AddrNotAvailable => "\nhint: use an address of this machine".to_string(),
            _ => String::new(),
        };
        Error::Listen { at, why: format!("{why}{mend}") }
    };
    let tcp = |address: Option<SocketAddr>, flag| {
        let listener = address.map(|address| {
            let listener = listen_tcp(address);
            listener.map_err(|why| failed(address.to_string(), flag, why))
        });
        listener.transpose()
    };
    let health = tcp(options.health_listen, "--health-listen")?;
    let tcp = tcp(options.listen, "--listen")?;
    let unix = options.socket.as_deref().map(|path| -> Result<_> {
        let (socket, listener) = socket_file::bind(path, options.group)?;
        let failed = |why| failed(path.display().to_string(), "--socket", why);
        listener.set_nonblocking(true).map_err(failed)?;
        Ok((socket, listener))
    });
    let health_door = Door::Health { open_metrics: options.metrics_without_key };
    Ok(BoundSockets { unix: unix.transpose()?, tcp, health, health_door })
}

/// Listens at `address` with a long backlog. During a flood, new connections wait in the system's queue instead of
/// being dropped. A client whose first packet is dropped would retry only after a second.
fn listen_tcp(address: SocketAddr) -> std::io::Result<std::net::TcpListener> {
    const BACKLOG: i32 = 4096;
    let listener = std::net::TcpListener::bind(address)?;
    listen(&listener, BACKLOG)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

async fn serve(
    registry: &Arc<ModelRegistry>,
    bound: BoundSockets,
    mut signals: Signals,
    hooks: &mut Hooks<'_>,
) -> Result<()> {
    let failed = |why: std::io::Error| Error::Serve(why.to_string());
    let (stop, stopping) = watch::channel(false);
    let (open, mut closed) = mpsc::channel::<()>(1);
    let shared = |bounds, door| ListenerContext {
        registry: Arc::clone(registry),
        routes: Routes::new(registry, door),
        gate: Arc::new(Gate::new(&registry.metrics)),
        bounds,
        stopping: stopping.clone(),
        open: open.clone(),
    };
    let known = registry.known();
    let n_ctx = known.server.map(|server| server.n_ctx);
    let mut ready = Ready { socket: None, listen: None, health: None, n_ctx, names: known.names };
    tokio::spawn(Arc::clone(registry).tidy());
    let mut socket = None;
    if let Some((file, listener)) = bound.unix {
        ready.socket = Some(file.path().to_path_buf());
        socket = Some(file);
        let listener = tokio::net::UnixListener::from_std(listener).map_err(failed)?;
        tokio::spawn(unix(listener, shared(None, Door::All)));
    }
    if let Some(listener) = bound.tcp {
        let listener = TcpListener::from_std(listener).map_err(failed)?;
        ready.listen = Some(listener.local_addr().map_err(failed)?);
        tokio::spawn(super::http::tcp(listener, shared(None, Door::All)));
    }
    if let Some(listener) = bound.health {
        let listener = TcpListener::from_std(listener).map_err(failed)?;
        ready.health = Some(listener.local_addr().map_err(failed)?);
        tokio::spawn(super::http::tcp(listener, shared(Some(HEALTH_BOUNDS), bound.health_door)));
    }
    let (over, mut inside_over) = oneshot::channel::<()>();
    // `_held` keeps the channel open if the server has no connections from inside the process.
    let mut _held = None;
    match hooks.inside.take() {
        Some(streams) => {
            drop(tokio::spawn(inside(streams, shared(Some(ConnectionBounds::NONE), Door::All), over)))
        }
        None => _held = Some(over),
    }
    drop((open, stopping));
    (hooks.on_ready)(&ready);

    loop {
        let told = tokio::select! {
            told = signals.next() => told,
            _ = &mut inside_over => SignalAction::End,
            () = registry.broke() => return Err(Error::Serve("the scheduler ended unexpectedly".to_string())),
        };
        match (told, &mut hooks.reload) {
            (SignalAction::HangUp, Some(reload)) => {
                if let Some(served) = reload()
                    && let Some(Named { options, engine, .. }) = served.models.first()
                {
                    registry.change(&served, options.current(engine));
                }
            }
            _ => break,
        }
    }
    tracing::info!("shutting down: running requests may finish");
    // From now on, new connections and requests are refused. The socket's file is removed first, so that a new server
    // can create its own file.
    drop(socket);
    registry.close(Closing::Draining);
    let _ = stop.send(true);
    let told_twice = async {
        // SIGHUP from a closing terminal does not count as a second signal.
        while signals.next().await == SignalAction::HangUp {}
        llama::exit_now(TWICE);
    };
    let drained = async {
        if timeout(registry.current().limits.drain, registry.all_ended()).await.is_err() {
            registry.close(Closing::Now);
            llama::interrupt(true);
            if timeout(LAST_STEP, registry.all_ended()).await.is_err() {
                let seconds = LAST_STEP.as_secs();
                (hooks.warn)(&format!(
                    "running requests did not stop within {seconds} more seconds; the server exits now"
                ));
                llama::exit_now(STUCK);
            }
        }
        // The clients may still be reading their last answers.
        let _ = timeout(LAST_ANSWERS, closed.recv()).await;
    };
    tokio::select! {
        () = drained => {}
        () = told_twice => {}
    }
    tracing::info!("ended");
    Ok(())
}

/// Time for clients to read the end of their answers.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// Reaction to SIGHUP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HangUp {
    /// Ignores the signal, because it was ignored when the program started.
    Ignored,
    Reloads,
    Ends,
}

/// Meaning of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SignalAction {
    End,
    HangUp,
}

/// Signals that end the server or reload its configuration.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Option<Signal>,
}

impl Signals {
    fn new(hang_up: HangUp) -> std::io::Result<Self> {
        let hang_up = (hang_up != HangUp::Ignored).then(|| signal(SignalKind::hangup()));
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: hang_up.transpose()?,
        })
    }

    async fn next(&mut self) -> SignalAction {
        let hang_up = async {
            match &mut self.hang_up {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => SignalAction::End,
            _ = self.interrupt.recv() => SignalAction::End,
            _ = hang_up => SignalAction::HangUp,
        }
    }
}
