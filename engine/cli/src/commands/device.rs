//! Sampling on the device: what does not go with it, and what is said of it.

use std::io::Write;

use anyhow::Result;
use engine_core::settings::Settings;
use engine_core::speculative::SpeculativeOptions;
use llama::error::Error;
use llama::options::{DeviceSampling, Drafts};
use sampling::DeviceReport;
use serde_json::Value;

/// An error where it was asked for and what else is asked for needs logits.
pub fn check(settings: &Settings, speculation: &SpeculativeOptions, has_cache: bool) -> Result<()> {
    let other = if settings.device_sampling.value != DeviceSampling::On {
        return Ok(());
    } else if speculation.drafts != Drafts::Off {
        "drafts: they are held against logits"
    } else if has_cache {
        "--prompt-cache: it keeps logits"
    } else {
        return Ok(());
    };
    let why = format!(
        "--device-sampling on with {other}, and a device that chooses sends none; leave one of them out"
    );
    Err(Error::Usage(why).into())
}

/// As it stands in JSON.
pub fn to_json(report: &DeviceReport) -> Value {
    serde_json::to_value(report).unwrap_or_default()
}

/// A line on stderr, where a device did something or was asked to. A closed stderr is nobody's concern.
pub fn say(settings: &Settings, report: &DeviceReport) {
    if !report.offloaded.is_empty() || settings.device_sampling.value == DeviceSampling::On {
        let _ = writeln!(std::io::stderr(), "{}", report.in_words());
    }
}
