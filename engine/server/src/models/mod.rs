//! The models of a server by their names: which there are, which are loaded, and the way to each.
//!
//! A request [holds](ModelLease) its model as long as it is answered. A model that is not loaded is [loaded](load) first, on a
//! thread of its own: requests for it wait, requests for others go on. Where the memory would be more than the limit, what was used longest ago
//! and is not in use goes first. All of this runs on the one thread of the connections; only loading has its own.

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
