//! Sampling on a device: conflicts with other options, and the report.

use std::io::Write;

use anyhow::Result;
use engine_core::settings::Settings;
use engine_core::speculative::SpeculativeOptions;
use llama::error::Error;
use llama::options::{DeviceSampling, Drafts};
use sampling::DeviceReport;
use serde_json::Value;

/// Checks for options that conflict with sampling on a device because they need logits.
///
/// # Errors
/// If sampling on a device was requested together with such an option.
pub fn check(settings: &Settings, speculation: &SpeculativeOptions, has_cache: bool) -> Result<()> {
    let other = if settings.device_sampling.value != DeviceSampling::On {
        return Ok(());
    } else if speculation.drafts != Drafts::Off {
        "drafts, which are compared with logits"
    } else if has_cache {
        "--prompt-cache, which stores logits"
    } else {
        return Ok(());
    };
    let why = format!(
        "--device-sampling on cannot be used with {other}: a device that samples returns no logits\nhint: remove one \
        of the two options"
    );
    Err(Error::Usage(why).into())
}

/// Returns the report as JSON.
pub fn to_json(report: &DeviceReport) -> Value {
    serde_json::to_value(report).unwrap_or_default()
}

/// Prints the report to stderr if a device sampled, or if device sampling was requested. Errors are ignored.
pub fn say(settings: &Settings, report: &DeviceReport) {
    if !report.offloaded.is_empty() || settings.device_sampling.value == DeviceSampling::On {
        let _ = writeln!(std::io::stderr(), "{}", report.in_words());
    }
}
