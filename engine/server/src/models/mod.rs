//! Models of a server: the registry by name, loading, unloading and leases.
//!
//! A request holds a [lease](ModelLease) of its model while it is answered. A model that is not loaded is
//! [loaded](load) first, on a separate thread. Requests for this model wait, and requests for other models continue.
//! If the memory limit would be exceeded, the least recently used idle model is unloaded first. Everything except
//! loading runs on the connection thread.

mod change;
mod entry;
mod load;
mod memory;
mod model_status;
mod named;
mod registry;
mod start;

pub use self::memory::{MemoryEstimate, estimate};
pub use self::model_status::{KnownModels, ModelSnapshot};
pub use self::named::{Named, Served};
pub use self::registry::{Loader, ModelLease, ModelRegistry, Resolve, Say};
pub use self::start::Running;
