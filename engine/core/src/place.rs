//! Choice of devices for a model, according to its settings.

use llama::error::Result;
use llama::kernels::{self, Wanted, WantedBy};
use llama::offload::{Placed, place};

use crate::settings::{Settings, Source};

/// Loads the CPU kernels that `settings` request, if no kernels are loaded yet, and finds the devices that `settings`
/// name.
///
/// # Errors
/// Errors of [`kernels::load_wanted`] and of [`place`].
pub fn place_for(settings: &Settings) -> Result<Placed> {
    llama::start(false);
    kernels::load_wanted(wanted_kernels(settings))?;
    place(&settings.offload())
}

/// Returns the kernels that `settings` name.
fn wanted_kernels(settings: &Settings) -> Option<Wanted> {
    let by = match settings.cpu_variant.source {
        Source::Environment => WantedBy::Environment,
        Source::TuningRecord => WantedBy::TuningRecord,
        _ => WantedBy::Flag,
    };
    settings.cpu_variant.value.clone().map(|name| Wanted { name, by })
}
