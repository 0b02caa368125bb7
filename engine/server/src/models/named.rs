//! Models that a server is told to serve.

use build_info::Bytes;
use engine_core::settings::Requested;

use crate::options::ServeOptions;

/// A model that can be asked for.
#[derive(Clone, Debug)]
pub struct Named {
    /// How it is served.
    pub options: ServeOptions,
    /// What is asked of the engine for it.
    pub engine: Requested,
    /// Whether it is loaded at the start.
    pub preload: bool,
}

/// All that is to be served.
#[derive(Clone, Debug)]
pub struct Served {
    /// The models, at least one.
    pub models: Vec<Named>,
    /// The one for requests that name none.
    pub default: Option<String>,
    /// What all loaded models may take together.
    pub memory_limit: Option<Bytes>,
    /// Whether the configuration names models, though it may be one.
    pub several: bool,
}
