//! What the correctness gate found of a build.

use serde::{Deserialize, Serialize};

/// The logits of a build, compared with those of a reference build on models of random quantised blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Gate {
    /// Whether every case is within the limits and repeated runs were identical.
    pub passed: bool,
    /// What the logits were compared with.
    pub reference: Reference,
    /// What is accepted.
    pub limits: GateLimits,
    /// Every architecture, with and without flash attention and repacked weights, as a whole and token by token.
    pub cases: Vec<Case>,
    /// Whether the same input on the same threads gave the same logits twice, bit for bit.
    pub repeatable: bool,
    /// Wall-clock seconds.
    pub seconds: f64,
}

/// The build that the logits are compared with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Reference {
    /// llama.cpp's version.
    pub llama_version: String,
    /// Version of the sources within their origin.
    pub source_version: String,
    /// Profile and compiler.
    pub build: String,
}

/// What is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GateLimits {
    /// Greatest mean KL divergence, in nats.
    pub mean_kld: f64,
    /// Least share of positions where both find the same token the most likely, 0 to 1.
    pub top1: f64,
}

impl GateLimits {
    /// The design's, for small models that rounding hardly moves: Q8_0 against F16 is 2.4e-4 and 99.2 % on real models,
    /// and a rebuild must stay far inside that.
    pub const GATE: Self = Self { mean_kld: 5e-5, top1: 0.998 };

    /// Whether what was found is inside them.
    pub fn hold(&self, mean_kld: f64, top1: f64) -> bool {
        mean_kld <= self.mean_kld && top1 >= self.top1
    }

    /// The same for a model that rounding moves further: as near as it is to itself at `positions` positions when it adds
    /// in another order. Of `top1` that is known to two standard errors of a share.
    #[must_use]
    pub fn or_as_near_as(self, mean_kld: f64, top1: f64, positions: u32) -> Self {
        if !mean_kld.is_finite() {
            return self;
        }
        let error = (top1 * (1.0 - top1) / f64::from(positions.max(1))).sqrt();
        Self { mean_kld: self.mean_kld.max(mean_kld), top1: self.top1.min(top1 - 2.0 * error) }
    }
}

/// One comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Case {
    /// llama.cpp's name of the architecture.
    pub architecture: String,
    /// Whether flash attention was on, and weights rearranged for the kernels that want it: both or neither, so that
    /// the kernels for either are seen.
    pub flash_attention: bool,
    /// How the tokens were fed.
    pub mode: Mode,
    /// Positions compared.
    pub positions: u32,
    /// Mean KL divergence of the build from the reference, in nats.
    pub mean_kld: f64,
    /// The greatest of any position.
    pub max_kld: f64,
    /// Share of positions where both find the same token the most likely, 0 to 1.
    pub top1: f64,
    /// How many greedy tokens after the text were the reference's, until the first other one. Only token by token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub greedy: Option<Greedy>,
}

/// How the tokens of a text were fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// All at once: matrix times matrix.
    Prefill,
    /// One at a time: matrix times vector.
    Decode,
}

/// Greedy tokens compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Greedy {
    /// As many as the reference has.
    pub tokens: u32,
    /// Of these equal, from the first on.
    pub equal: u32,
}

impl Case {
    /// Whether it is within `limits`. A mean that is no number never is.
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
