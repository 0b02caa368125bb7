//! Properties of the NVIDIA GPUs: clock limits and free memory, but not the load.

use host::nvml::{LibrarySource, Nvml, PATIENCE};
use serde::{Deserialize, Serialize};

use crate::gpu::{Visible, visible};

/// Properties of one GPU. Properties that the driver does not report are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Card {
    /// Marketing name.
    pub name: String,
    /// Total memory, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Free memory at the time of the call, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free: Option<u64>,
    /// Maximum clock of the multiprocessors, in MHz.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_mhz_most: Option<u32>,
    /// Maximum clock of the memory, in MHz.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mhz_most: Option<u32>,
    /// Width of the memory bus, in bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bus_bits: Option<u32>,
    /// Theoretical bandwidth from clock and bus width, in bytes per second. No program reaches this bandwidth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub theoretical_bandwidth: Option<f64>,
}

/// Returns the complete GPUs that CUDA shows to this process. The result is empty if no driver is loaded or the
/// driver does not answer in time; `cargo xtask doctor` shows the reason.
pub fn cards() -> Vec<Card> {
    if !host::nvml::driver_seems_loaded() {
        return Vec::new();
    }
    cards_of(&LibrarySource::System)
}

/// Returns the GPUs that the library at `place` reports.
fn cards_of(place: &LibrarySource) -> Vec<Card> {
    host::nvml::ask(place, PATIENCE, |driver| Ok(told(driver))).unwrap_or_default()
}

fn told(driver: &Nvml) -> Vec<Card> {
    let card = |Visible { name, device, .. }: Visible<'_>| {
        let (memory, limits) = (device.memory().ok(), device.limits());
        Card {
            name,
            memory: memory.map(|memory| memory.total),
            free: memory.map(|memory| memory.total.saturating_sub(memory.used)),
            sm_mhz_most: limits.sm_mhz,
            memory_mhz_most: limits.memory_mhz,
            memory_bus_bits: limits.memory_bus_bits,
            theoretical_bandwidth: limits.memory_bandwidth(),
        }
    };
    visible(driver).into_iter().map(card).collect()
}

#[cfg(test)]
mod tests {
    use host::nvml::testing::Fake;

    use super::*;

    #[test]
    fn a_card_is_what_its_driver_tells() {
        let fake = Fake::new(
            "device\n name NVIDIA H200\n total 1000\n used 400\n most-sm-mhz 1980\n most-memory-mhz 3201\n bus-bits 6144\n\
             device\n name Tesla T4\n total 15360\n",
        );
        let cards = cards_of(&fake.place());
        assert_eq!(cards[0].free, Some(600 << 20));
        assert_eq!(cards[0].theoretical_bandwidth, Some(2.0 * 3201e6 * 768.0));
        let t4 = Card { name: "Tesla T4".to_string(), memory: Some(15360 << 20), ..Card::default() };
        assert_eq!(Card { free: None, ..cards[1].clone() }, t4);
        assert_eq!(cards_of(&LibrarySource::At("/nowhere".into())), []);
    }
}
