//! A server from its start to its end.

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
use crate::signals::hang_up_is_ignored;

/// Where a server can be reached.
#[derive(Clone, Debug)]
pub struct Ready {
    /// The Unix socket.
    pub socket: Option<PathBuf>,
    /// The TCP address, with the port that the system chose where 0 was asked for.
    pub listen: Option<SocketAddr>,
    /// The TCP address for `/health` and `/metrics` alone, likewise.
    pub health: Option<SocketAddr>,
    /// Tokens of the first model's context, if it is loaded.
    pub n_ctx: Option<u32>,
    /// The models' names, the default one first.
    pub names: Vec<String>,
}

/// What a server tells whoever started it, and asks.
pub struct Hooks<'a> {
    /// Called when requests are answered.
    pub on_ready: &'a mut dyn FnMut(&Ready),
    /// Called on SIGHUP: what is in force from then on, if anything changes. Without it SIGHUP ends the server.
    pub reload: Option<&'a mut dyn FnMut() -> Option<Served>>,
    /// Called with what the user should know.
    pub warn: Say,
    /// Makes the settings of a model before it is loaded.
    pub resolve: Resolve,
    /// Where connections come from inside the process. The server ends when no more can come.
    pub inside: Option<Inside>,
}

/// What was bound; the socket's file goes with it.
struct BoundSockets {
    unix: Option<(Socket, UnixListener)>,
    tcp: Option<std::net::TcpListener>,
    health: Option<std::net::TcpListener>,
    health_door: Door,
}

/// Bounds of the connections for `/health` and `/metrics` alone. They are short, and the oldest goes first.
const HEALTH_BOUNDS: ConnectionBounds = ConnectionBounds { total: 64, per_network: 32 };

/// Exit code of a server that was told twice to end.
const TWICE: i32 = 130;

/// Exit code of one that could not be ended in order.
const STUCK: i32 = 1;

/// How long the last step may take once everything has to end now.
const LAST_STEP: Duration = Duration::from_secs(5);

/// Serves until it is told to end.
///
/// # Errors
/// Where it cannot listen, a model that is to be there from the start or its context cannot be had, or the scheduler of the
/// only one ended by itself.
pub fn run(served: &Served, runtime_host: RuntimeHost, hooks: &mut Hooks<'_>) -> Result<()> {
    // Before anything waits for it.
    let hang_up = match (&hooks.reload, hang_up_is_ignored()) {
        // Under `nohup` too, as other servers do: it asks for the configuration, not for the end.
        (Some(_), _) => HangUp::Reloads,
        (None, true) => HangUp::Ignored,
        (None, false) => HangUp::Ends,
    };
    let first = served.models.first().ok_or_else(|| Error::Usage("no model".to_string()))?;
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
    // One from inside has both its ends here.
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
        .map_err(|why| Error::Serve(format!("no asynchronous runtime: {why}")))?;
    let ended = runtime.block_on(async {
        // From here on they are waited for there.
        let signals = Signals::new(hang_up).map_err(|why| Error::Serve(why.to_string()))?;
        drop(starting);
        serve(&registry, bound, signals, hooks).await
    });
    // What still runs there is of clients that are gone.
    runtime.shutdown_background();
    ended?;
    registry.join()
}

/// Raises the soft limit of open files, each connection being one, as far as the hard one lets.
fn allow_files(connections: usize) {
    /// The model, the libraries, the runtime; and connections that were evicted and have yet to close, of which there can
    /// be as many as are accepted in one turn of the runtime.
    const OTHERS: u64 = 64 + 128;
    let wanted = connections as u64 + OTHERS;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < wanted) {
        let current = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
        // Without it connections wait to be taken sooner.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..limit });
    }
}

fn bind(options: &ServeOptions) -> Result<BoundSockets> {
    let failed = |at: String, flag: &str, why: std::io::Error| {
        let mend = match why.kind() {
            std::io::ErrorKind::AddrInUse => {
                format!("; another program has it: choose another port with {flag}")
            }
            std::io::ErrorKind::PermissionDenied => format!("; choose a port above 1023 with {flag}"),
            std::io::ErrorKind::AddrNotAvailable => "; it is no address of this machine".to_string(),
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

/// Listens at `address`. Newcomers of a flood wait in the system's queue, up to its own bound, rather than be dropped: a
/// client whose first packet is dropped tries again only after a second.
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
    // Held where nobody is inside: then it is never over.
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
            () = registry.broke() => return Err(Error::Serve("its scheduler ended".to_string())),
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
    tracing::info!("ending: what runs may go on for a while");
    // No more connections, no more requests. The file first: whoever starts now can have its place.
    drop(socket);
    registry.close(Closing::Draining);
    let _ = stop.send(true);
    let told_twice = async {
        // A terminal that closes is no one who insists.
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
                    "what runs did not end within {seconds} seconds more: the server ends without it"
                ));
                llama::exit_now(STUCK);
            }
        }
        // The last answers are on their way.
        let _ = timeout(LAST_ANSWERS, closed.recv()).await;
    };
    tokio::select! {
        () = drained => {}
        () = told_twice => {}
    }
    tracing::info!("ended");
    Ok(())
}

/// How long clients may take to read the end of their answers.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// What SIGHUP does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HangUp {
    /// Nothing, as it was when the program started.
    Ignored,
    Reloads,
    Ends,
}

/// What a signal says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SignalAction {
    End,
    HangUp,
}

/// What asks the server to end, or to read its configuration again.
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
