//! Upper bounds on the speed, from the machine's measured limits. The bounds are not predictions.

use build_info::roofline::Rates;
use build_info::{Roofline, words};
use serde::Serialize;

use super::fit::FitVerdict;
use super::model_facts::{Macs, ModelFacts};

/// Upper bounds on a model's speed on a machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Speed {
    /// Upper bound on decode speed with an empty context, in tokens per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode: Option<f64>,
    /// Upper bound on decode speed with a full context, in tokens per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_full: Option<f64>,
    /// Upper bound on prefill speed, in tokens per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill: Option<f64>,
    /// Memory bandwidth assumed for decode, in bytes per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_bytes: Option<f64>,
    /// Bytes of weights that decode reads per token.
    pub bytes_per_token: u64,
    /// Bytes of keys and values that decode reads per token with a full context.
    pub kv_bytes_at_full_context: u64,
    /// Number of multiply-adds of prefill per token, without attention.
    pub macs_per_token: u64,
    /// Method of the computation, or the missing input.
    pub how: String,
}

/// Advice on how to measure a roofline.
pub const MEASURE: &str = "measure the machine's limits with `anneal bench --roofline`";

impl Speed {
    /// Computes the bounds for `model` on a machine with the limits in `roofline`. `threads` contains the threads of
    /// decode and of prefill.
    pub fn of(
        model: &ModelFacts,
        roofline: Option<&Roofline>,
        threads: (u32, u32),
        n_ctx: u32,
        verdict: FitVerdict,
    ) -> Self {
        let kv = model.kv.f16.0.saturating_mul(n_ctx.into());
        let mut speed = Self {
            decode: None,
            decode_full: None,
            prefill: None,
            read_bytes: None,
            bytes_per_token: model.bytes_per_token.0,
            kv_bytes_at_full_context: kv,
            macs_per_token: model.prefill_macs.total(),
            how: format!("bandwidth unknown: {MEASURE}, then run this command again"),
        };
        let rates = |threads| roofline.and_then(|roofline| roofline.at(threads)).copied();
        let (Some(decode), Some(prefill)) = (rates(threads.0), rates(threads.1)) else { return speed };
        if verdict >= FitVerdict::StreamsFromDisk {
            speed.how =
                "weights are read from the disk; its speed is the limit, but was not measured".to_string();
            return speed;
        }
        speed.read_bytes = positive(decode.read_bytes);
        speed.decode = decode_ceiling(decode.read_bytes, model.bytes_per_token.0, 0);
        speed.decode_full = decode_ceiling(decode.read_bytes, model.bytes_per_token.0, kv);
        speed.prefill = prefill_ceiling(&prefill, model.prefill_macs);
        if speed.decode.is_none() {
            speed.how = format!("the measured limits are invalid: {MEASURE} again");
            return speed;
        }
        speed.how = format!(
            "these are upper bounds, not predictions: bandwidth of {} divided by bytes per token, and \
             multiply-adds per second of {} divided by multiply-adds per token",
            words::count(decode.threads, "thread"),
            words::count(prefill.threads, "thread")
        );
        speed
    }
}

/// Returns the decode speed in tokens per second. Each token reads `weights` and `kv` bytes once, at `read_bytes`
/// bytes per second.
pub fn decode_ceiling(read_bytes: f64, weights: u64, kv: u64) -> Option<f64> {
    let bytes = weights.saturating_add(kv);
    positive(positive(read_bytes)? / bytes as f64)
}

/// Returns the prefill speed in tokens per second if each token takes `macs`. Quantised weights are computed at the
/// rate of 8-bit integers. Half-precision weights are computed at the rate of bf16 if the CPU supports bf16, and all
/// other weights at the rate of 32-bit floats. The parts run one after the other, so their times are added.
pub fn prefill_ceiling(rates: &Rates, macs: Macs) -> Option<f64> {
    let seconds = |macs: u64, rate: f64| if macs == 0 { 0.0 } else { macs as f64 / rate };
    let half = rates.bf16_macs.unwrap_or(rates.f32_macs).max(rates.f32_macs);
    let all = [
        seconds(macs.quantised, rates.int8_macs),
        seconds(macs.half, half),
        seconds(macs.single, rates.f32_macs),
    ];
    positive(1.0 / all.iter().sum::<f64>())
}

/// Returns `value` if it is a valid speed: above zero and finite.
fn positive(value: f64) -> Option<f64> {
    (value.is_finite() && value > 0.0).then_some(value)
}
