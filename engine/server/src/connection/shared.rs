//! State and functions that all kinds of connections share.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use crate::admission::{Admitted, ConnectionBounds, ConnectionState, Full, Gate, Network};
use crate::api_error::{ApiError, ApiErrorKind};
use crate::http::routes::Routes;
use crate::limits::ServerLimits;
use crate::models::ModelRegistry;

/// State that all connections of a listener share.
#[derive(Clone)]
pub struct ListenerContext {
    /// Registry of the models.
    pub registry: Arc<ModelRegistry>,
    /// HTTP routes of the listener.
    pub routes: Routes,
    /// Gate of this listener. A separate gate per listener keeps a flood at one listener from affecting the others.
    pub gate: Arc<Gate>,
    /// Limits of the gate that override the configured limits.
    pub bounds: Option<ConnectionBounds>,
    /// Becomes true when the server stops.
    pub stopping: watch::Receiver<bool>,
    /// Sender that every connection clones. The channel closes when the last connection ends.
    pub open: mpsc::Sender<()>,
}

/// Admission of an open connection.
pub struct Open {
    admitted: Admitted,
    _open: mpsc::Sender<()>,
}

impl Open {
    /// Returns the state of the connection.
    pub fn state(&self) -> &Arc<ConnectionState> {
        self.admitted.state()
    }

    /// Runs `work` until it ends, or until the connection must make room for another.
    pub async fn during(self, work: impl Future<Output = ()>) {
        tokio::select! {
            () = work => {}
            () = self.state().evicted() => {}
        }
    }
}

impl ListenerContext {
    /// Admits a connection from `network`, if the limits allow it or another connection can be evicted.
    pub fn admit(&self, network: Option<Network>) -> Option<Open> {
        let limits = self.registry.current().limits;
        let configured =
            ConnectionBounds { total: limits.connections, per_network: limits.connections_per_address };
        let admitted = self.gate.admit(network, self.bounds.unwrap_or(configured))?;
        Some(Open { admitted, _open: self.open.clone() })
    }
}

/// Returns the error for a connection that exceeds the limit `full`.
pub fn too_many_connections(full: Full, limits: &ServerLimits) -> ApiError {
    let (bound, key) = match full {
        Full::Total => (limits.connections, "connections are open (max_connections), and none is idle"),
        Full::Network => (
            limits.connections_per_address,
            "connections from this address are open (max_connections_per_address), and none is idle",
        ),
    };
    let message = format!("{bound} {key}: try again later");
    ApiError { retry_after: Some(1), ..ApiError::new(ApiErrorKind::Overloaded, message) }
}

/// Pauses after a failed accept. The usual cause is that all file descriptors are in use until other connections end.
pub async fn pause(error: &io::Error) {
    if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) {
        sleep(Duration::from_millis(50)).await;
    }
}

/// Time limit for the first byte of a connection. For HTTP, also the time limit for the head of a request, counted
/// from its first byte.
pub const FIRST: Duration = Duration::from_secs(10);
