//! Choice of devices for a model, according to its settings.

use llama::error::Result;
use llama::kernels::{self, Wanted, WantedBy};
use llama::offload::{Placed, place};

use crate::settings::{Settings, Source};

/// Loads the CPU kernels that `settings` request, if no kernels are loaded yet, and finds the devices that `settings`
/// request.
///
/// # Errors
/// Errors of [`load_kernels`] and of [`place`].
pub fn place_for(settings: &Settings) -> Result<Placed> {
    load_kernels(settings)?;
    place(&settings.offload())
}

/// Loads the CPU kernels that `settings` request, if no kernels are loaded yet.
///
/// # Errors
/// Errors of [`kernels::load_wanted`].
pub fn load_kernels(settings: &Settings) -> Result<()> {
    llama::start(false);
    let matrix = (settings.kernels.value, wanted_by(settings.kernels.source));
    kernels::load_wanted(wanted_kernels(settings), Some(matrix)).map(drop)
}

/// Returns the kernels that `settings` request.
fn wanted_kernels(settings: &Settings) -> Option<Wanted> {
    let by = wanted_by(settings.cpu_variant.source);
    settings.cpu_variant.value.clone().map(|name| Wanted { name, by })
}

fn wanted_by(source: Source) -> WantedBy {
    match source {
        Source::Environment => WantedBy::Environment,
        Source::TuningRecord => WantedBy::TuningRecord,
        _ => WantedBy::Flag,
    }
}
