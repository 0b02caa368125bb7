//! End of a generation: its reason, token counts and times.

use std::time::Duration;

use sampling::DeviceReport;
use serde::Serialize;

use super::finish_reason::FinishReason;

/// The end of a generation.
#[derive(Clone, Debug)]
pub struct Done {
    /// Text that was held back and turned out to be text.
    pub rest: String,
    /// Why it ended.
    pub finish: FinishReason,
    /// The stop string that was found.
    pub stop_string: Option<String>,
    /// The seed of its random numbers.
    pub seed: u32,
    /// What a device did of the sampling, where one was asked.
    pub device: Option<DeviceReport>,
    /// Tokens.
    pub usage: Usage,
    /// Times.
    pub timings: Timings,
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: u32,
    /// Of the prompt, those that were in the cache.
    pub cached_tokens: u32,
    /// Generated.
    pub completion_tokens: u32,
}

/// Where the time of a request went.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// In the queue.
    pub queued: Duration,
    /// From its arrival to the choice of the first token.
    pub first_token: Option<Duration>,
    /// From the queue to the choice of the first token.
    pub prefill: Option<Duration>,
    /// From the first token to the last.
    pub decode: Duration,
    /// What became of drafts.
    pub drafted: Drafted,
}

impl Timings {
    /// The object that clients get.
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
            // The first token comes out of the prefill.
            "decode_tokens_per_second": rate(usage.completion_tokens.saturating_sub(1), self.decode),
        })
    }
}

/// What became of the drafts of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drafted {
    /// Tokens.
    pub drafted: u32,
    /// Of these, those that were chosen.
    pub accepted: u32,
    /// Whether they lost against steps without at some time, and were left out from then on.
    pub turned_off: bool,
}
