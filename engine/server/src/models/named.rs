//! Configured models of a server.

use build_info::Bytes;
use engine_core::settings::Requested;

use crate::options::ServeOptions;

/// Configured model.
#[derive(Clone, Debug)]
pub struct Named {
    /// Server options of the model.
    pub options: ServeOptions,
    /// Requested engine settings.
    pub engine: Requested,
    /// True if the model is loaded at start-up.
    pub preload: bool,
}

/// Configuration of all models of a server.
#[derive(Clone, Debug)]
pub struct Served {
    /// Models of the server: at least one.
    pub models: Vec<Named>,
    /// Name of the model for requests that do not specify a model.
    pub default: Option<String>,
    /// Limit on the memory of all loaded models together.
    pub memory_limit: Option<Bytes>,
    /// True if the configuration has tables `[models.NAME]`, even if there is only one.
    pub several: bool,
}
