//! End of a generation: its reason, token counts and times.

use std::time::Duration;

use sampling::DeviceReport;
use serde::Serialize;

use super::finish_reason::FinishReason;

/// End of a generation.
#[derive(Clone, Debug)]
pub struct Done {
    /// Text that was held back as a possible stop string, but is part of the answer.
    pub rest: String,
    /// Reason why the generation ended.
    pub finish: FinishReason,
    /// Stop string that was found.
    pub stop_string: Option<String>,
    /// Seed that the client sent, or the seed of the sampler's random number generator. The same request with this
    /// seed gets the same tokens.
    pub seed: u64,
    /// Report on sampling by a device, if a device was asked to sample.
    pub device: Option<DeviceReport>,
    /// Token counts of the request.
    pub usage: Usage,
    /// Times of the request.
    pub timings: Timings,
}

/// Token counts of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Number of tokens in the prompt.
    pub prompt_tokens: u32,
    /// Number of prompt tokens that were in the cache.
    pub cached_tokens: u32,
    /// Number of generated tokens.
    pub completion_tokens: u32,
    /// Number of tokens generated as thoughts, including the markers.
    pub reasoning_tokens: u32,
}

/// Times of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// Time in the queue.
    pub queued: Duration,
    /// Time from the request's arrival to its first token.
    pub first_token: Option<Duration>,
    /// Time from leaving the queue to the first token.
    pub prefill: Option<Duration>,
    /// Time from the first token to the last.
    pub decode: Duration,
    /// Results of speculative decoding.
    pub drafted: Drafted,
}

impl Timings {
    /// Returns the JSON object for clients. `usage` provides the token counts for the rates.
    pub fn to_json(self, usage: &Usage) -> serde_json::Value {
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        let rate = |tokens: u32, time: Duration| {
            (tokens > 0 && !time.is_zero()).then(|| f64::from(tokens) / time.as_secs_f64())
        };
        let evaluated = usage.prompt_tokens - usage.cached_tokens;
        serde_json::json!({
            "queue_ms": milliseconds(self.queued),
            "time_to_first_token_ms": self.first_token.map(milliseconds),
            "prefill_ms": self.prefill.map(milliseconds),
            "prefill_tokens_per_second": self.prefill.and_then(|time| rate(evaluated, time)),
            "decode_ms": milliseconds(self.decode),
            "drafted_tokens": self.drafted.drafted,
            "accepted_tokens": self.drafted.accepted,
            "drafts_turned_off": self.drafted.turned_off,
            // Prefill produces the first token, so decode produces one token fewer.
            "decode_tokens_per_second": rate(usage.completion_tokens.saturating_sub(1), self.decode),
        })
    }
}

/// Results of speculative decoding for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drafted {
    /// Number of drafted tokens.
    pub drafted: u32,
    /// Number of drafted tokens that were accepted.
    pub accepted: u32,
    /// True if drafting was turned off for the rest of the request because it was slower than decoding without
    /// drafts.
    pub turned_off: bool,
}
