//! Models of a server: the registry by name, loading, unloading and leases.
//!
//! A request holds a [lease](ModelLease) of its model while it is answered. A model that is not loaded is
//! [loaded](load) first, on its own thread. Requests for it wait, and requests for other models continue. If the
//! memory would exceed the limit, the least recently used idle model is unloaded first. All of this runs on the
//! connection thread; only loading has its own.

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
