//! Estimates of memory, and what was then used.

use build_info::Bytes;
use serde::Serialize;

use super::need::Need;
use super::plan::LayerPlan;

/// What a model is estimated to take, and what it then took.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Device by device, the host last.
    pub needs: Vec<Need>,
    /// Where its layers go and why, if that was found.
    pub plan: Option<LayerPlan>,
    /// What it then took; empty where that was not looked at.
    pub used: Vec<Need>,
}

/// An estimate beside what was taken.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// What was estimated.
    #[serde(flatten)]
    pub need: Need,
    /// Everything that was estimated.
    pub needed_bytes: Bytes,
    /// What the buffers then took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<Bytes>,
    /// By how much more than was estimated of the buffers, in percent of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difference_percent: Option<f64>,
}

impl Estimate {
    /// Each estimate beside what was taken.
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

/// By how many percent of `estimated` `used` is more, to a hundredth.
fn percent(estimated: u64, used: u64) -> f64 {
    let more = used as f64 - estimated as f64;
    let percent = if estimated == 0 && used == 0 { 0.0 } else { more / (estimated.max(1) as f64) * 100.0 };
    (percent * 100.0).round() / 100.0
}
