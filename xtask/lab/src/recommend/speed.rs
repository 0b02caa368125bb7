//! What the machine's measured limits leave of speed: ceilings, not promises.

use build_info::Roofline;
use build_info::roofline::Rates;
use serde::Serialize;

use super::fit::FitVerdict;
use super::model_facts::{Macs, ModelFacts};

/// The most that a model can reach on a machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Speed {
    /// Tokens a second of decode with an empty context, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode: Option<f64>,
    /// The same when the context is full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_full: Option<f64>,
    /// Tokens a second of prefill, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill: Option<f64>,
    /// Bandwidth that decode is reckoned with, bytes a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_bytes: Option<f64>,
    /// Bytes that a token of decode reads: weights, and keys and values of a full context.
    pub bytes_per_token: u64,
    /// See `bytes_per_token`.
    pub kv_bytes_at_full_context: u64,
    /// Multiply-adds of a token of prefill, without attention.
    pub macs_per_token: u64,
    /// How it was reckoned, or what is missing for it.
    pub how: String,
}

/// How to get a roofline.
pub const MEASURE: &str = "measure the machine's limits with `anneal bench --roofline`";

impl Speed {
    /// Of `model` on a machine with these limits; `threads` are those of decode and of prefill.
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
            how: format!("bandwidth unknown: {MEASURE}, then ask again"),
        };
        let rates = |threads| roofline.and_then(|roofline| roofline.at(threads)).copied();
        let (Some(decode), Some(prefill)) = (rates(threads.0), rates(threads.1)) else { return speed };
        if verdict >= FitVerdict::StreamsFromDisk {
            speed.how =
                "weights come from the disk: its speed is the ceiling, and was not measured".to_string();
            return speed;
        }
        speed.read_bytes = positive(decode.read_bytes);
        speed.decode = decode_ceiling(decode.read_bytes, model.bytes_per_token.0, 0);
        speed.decode_full = decode_ceiling(decode.read_bytes, model.bytes_per_token.0, kv);
        speed.prefill = prefill_ceiling(&prefill, model.prefill_macs);
        if speed.decode.is_none() {
            speed.how = format!("the measured limits make no sense: {MEASURE} again");
            return speed;
        }
        speed.how = format!(
            "measured bandwidth of {} threads over the bytes of a token; measured multiply-adds of {} threads over those \
             of a token; at most, not to be expected",
            decode.threads, prefill.threads
        );
        speed
    }
}

/// Tokens a second when each reads `weights` and `kv` bytes once, at `read_bytes` bytes a second.
pub fn decode_ceiling(read_bytes: f64, weights: u64, kv: u64) -> Option<f64> {
    let bytes = weights.saturating_add(kv);
    positive(positive(read_bytes)? / bytes as f64)
}

/// Tokens a second when each takes `macs`: quantised weights at the rate of 8-bit integers, half precision at that of
/// bf16 where the CPU multiplies it, else of 32-bit floats. The parts follow each other, so their times add up.
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

/// `value` when it is a speed: above zero and not without end.
fn positive(value: f64) -> Option<f64> {
    (value.is_finite() && value > 0.0).then_some(value)
}
