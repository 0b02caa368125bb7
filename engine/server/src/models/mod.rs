//! Models of a server: the registry by name, loading, unloading and leases.
//!
//! Each request holds a [lease](ModelLease) of its model until it is answered. If the model is not loaded, it is
//! first [loaded](load) on a separate thread. Requests for the model wait meanwhile, and requests for other models
//! continue. If the model does not fit into the memory limit, the least recently used idle model is unloaded first.
//! Everything except loading runs on the connection thread.

mod change;
mod entry;
mod load;
mod memory;
mod model_status;
mod named;
mod registry;
mod start;
mod unload;

pub use self::memory::{MemoryEstimate, estimate};
pub use self::model_status::{KnownModels, ModelSnapshot};
pub use self::named::{Named, Served};
pub use self::registry::{Loader, ModelLease, ModelRegistry, Resolve, Say};
pub use self::start::Running;
