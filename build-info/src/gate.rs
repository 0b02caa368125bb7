//! Result of the correctness gate for a build.

use serde::{Deserialize, Serialize};

/// Comparison of a build's logits with a reference build's logits, on models with random quantised blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Gate {
    /// True if every case is within the limits and repeated runs were identical.
    pub passed: bool,
    /// Build that the logits were compared with.
    pub reference: Reference,
    /// Limits that every case must meet.
    pub limits: GateLimits,
    /// One case for each architecture and mode, with and without flash attention and repacked weights.
    pub cases: Vec<Case>,
    /// True if the same input on the same threads gave bit-identical logits twice.
    pub repeatable: bool,
    /// Duration of the gate, in wall-clock seconds.
    pub seconds: f64,
}

/// Build that the logits are compared with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Reference {
    /// Version of llama.cpp.
    pub llama_version: String,
    /// Version of the sources within their origin.
    pub source_version: String,
    /// Profile and compiler of the build.
    pub build: String,
}

/// Limits that a comparison must meet.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GateLimits {
    /// Maximum mean KL divergence, in nats.
    pub mean_kld: f64,
    /// Minimum fraction of positions with the same most likely token, 0 to 1.
    pub top1: f64,
}

impl GateLimits {
    /// Limits for small models, in which rounding hardly changes the logits. For comparison, Q8_0 against F16 gives
    /// 2.4e-4 nats and 99.2 % on real models, and a rebuild must be far closer to the reference.
    pub const GATE: Self = Self { mean_kld: 5e-5, top1: 0.998 };

    /// True if the results are within the limits.
    pub fn hold(&self, mean_kld: f64, top1: f64) -> bool {
        mean_kld <= self.mean_kld && top1 >= self.top1
    }

    /// Relaxes the limits for a model that is more sensitive to rounding. The arguments are the results of comparing
    /// two runs of the reference that add in different orders, at `positions` positions. The limit for `top1` allows
    /// two standard errors of a proportion.
    #[must_use]
    pub fn or_as_near_as(self, mean_kld: f64, top1: f64, positions: u32) -> Self {
        if !mean_kld.is_finite() {
            return self;
        }
        let error = (top1 * (1.0 - top1) / f64::from(positions.max(1))).sqrt();
        Self { mean_kld: self.mean_kld.max(mean_kld), top1: self.top1.min(top1 - 2.0 * error) }
    }
}

/// One comparison of logits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Case {
    /// Name of the architecture in llama.cpp.
    pub architecture: String,
    /// True if flash attention was on and weights were repacked. The two settings always have the same value, and both
    /// values are tested.
    pub flash_attention: bool,
    /// Mode in which the tokens were evaluated.
    pub mode: Mode,
    /// Number of positions compared.
    pub positions: u32,
    /// Mean KL divergence of the build from the reference, in nats.
    pub mean_kld: f64,
    /// Maximum KL divergence at any position, in nats.
    pub max_kld: f64,
    /// Fraction of positions with the same most likely token, 0 to 1.
    pub top1: f64,
    /// Comparison of greedy continuations; only in decode mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub greedy: Option<Greedy>,
}

/// Mode in which the tokens of a text are evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// All tokens together: matrix-matrix products.
    Prefill,
    /// One token at a time: matrix-vector products.
    Decode,
}

/// Comparison of greedily generated tokens with the reference's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Greedy {
    /// Number of tokens that the reference generated.
    pub tokens: u32,
    /// Number of leading tokens that are equal.
    pub equal: u32,
}

impl Case {
    /// True if the case is within `limits`. A case with a NaN mean never passes.
    pub fn passes(&self, limits: &GateLimits) -> bool {
        limits.hold(self.mean_kld, self.top1)
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let attention = if self.flash_attention { "on" } else { "off" };
        write!(f, "{}, flash attention {attention}, {}", self.architecture, self.mode)
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        })
    }
}
