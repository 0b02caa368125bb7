//! Memory estimates, compared with the memory that was actually used.

use build_info::Bytes;
use serde::Serialize;

use super::need::Need;
use super::plan::LayerPlan;

/// Estimated memory of a model, and the memory that the model actually used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Estimate for each device; the host is last.
    pub needs: Vec<Need>,
    /// Distribution of the layers and its reason; `None` if no search was made.
    pub plan: Option<LayerPlan>,
    /// Memory that was actually used on each device; empty if the use was not measured.
    pub used: Vec<Need>,
}

/// Estimate for a device and the memory actually used.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Estimate for the device.
    #[serde(flatten)]
    pub need: Need,
    /// Estimated total.
    pub needed_bytes: Bytes,
    /// Memory that the buffers used; `None` if the use was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<Bytes>,
    /// Difference between the used and the estimated memory of the buffers, in per cent of the estimate; positive if
    /// more memory was used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difference_percent: Option<f64>,
}

impl Estimate {
    /// Pairs each estimate with the memory actually used.
    pub fn compared(&self) -> Vec<Compared> {
        let one = |need: &Need| {
            let used = self.used.iter().find(|used| used.device == need.device).map(Need::buffers);
            Compared {
                need: need.clone(),
                needed_bytes: need.all(),
                used_bytes: used,
                difference_percent: used.map(|used| percent(need.buffers().0, used.0)),
            }
        };
        self.needs.iter().map(one).collect()
    }
}

/// Returns the excess of `used` over `estimated`, in per cent of `estimated`, rounded to a hundredth.
fn percent(estimated: u64, used: u64) -> f64 {
    let more = used as f64 - estimated as f64;
    let percent = if estimated == 0 && used == 0 { 0.0 } else { more / (estimated.max(1) as f64) * 100.0 };
    (percent * 100.0).round() / 100.0
}
