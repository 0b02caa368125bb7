//! Jobs for the scheduler, and the events that the scheduler sends back.

use std::sync::{Arc, Weak};
use std::time::Instant;

use engine_core::thought_counter::ThoughtCounter;
use llama::Token;
use sampling::Chain;
use serde::Serialize;
use tokio::sync::mpsc;

use super::budget::SharedCharge;
use super::drafts::Wish;
use super::logprobs::{Likelihood, ScoredToken};
use super::request_log::RequestLog;
use super::scope::Scope;
use super::workloads::WorkloadThreads;
use crate::client::Client;
use crate::done::Done;

/// Validated request, ready to run.
pub struct Job {
    /// Client that sent the request.
    pub client: Client,
    /// Scope of the job's prompt.
    pub scope: Scope,
    /// Prompt: at least one token, and no more tokens than fit into the context.
    pub prompt: Vec<Token>,
    /// [Ends of the messages](engine_core::message_ends) in the prompt. Empty if the prompt is not a conversation, or
    /// if the model needs no checkpoints.
    pub message_ends: Vec<usize>,
    /// Maximum number of tokens to generate.
    pub max_tokens: u32,
    /// True if end-of-generation tokens do not end the answer.
    pub ignore_end: bool,
    /// Sampler chain. It has already accepted the prompt.
    pub chain: Chain,
    /// Seed that the client sent. The chain folds it into 32 bits.
    pub sent_seed: Option<u64>,
    /// Stop strings, which end the answer but are not part of it.
    pub stop: Vec<String>,
    /// Control tokens that are rendered as text, because they mark thoughts or tool calls.
    pub shown: Vec<Token>,
    /// True if the prompt may reuse cached tokens of earlier requests.
    pub cache_prompt: bool,
    /// Counter of the tokens in thoughts. `None` if the answer contains no thoughts.
    pub thoughts: Option<ThoughtCounter>,
    /// Number of alternatives to report with the probability of each token. `None` if no probabilities are requested.
    pub logprobs: Option<u32>,
    /// True if the client also wants the probabilities of the prompt's tokens. Needs `logprobs`.
    pub prompt_logprobs: bool,
    /// Speculative decoding. `None` if the request does not use it.
    pub drafts: Option<Wish>,
    /// Handle that other jobs watch while they wait for this job's prompt. Dropped when the first token is sampled;
    /// `None` if no job waits.
    pub leads: Option<Arc<()>>,
    /// Handle to the job that evaluates the same prompt first. This job reuses the evaluated prompt.
    pub follows: Option<Weak<()>>,
    /// Thread counts of the workload.
    pub threads: WorkloadThreads,
    /// Charge for the bytes of the request, held until the job has a slot.
    pub waiting: SharedCharge,
    /// Time of arrival.
    pub arrived: Instant,
    /// Time at which the request times out.
    pub deadline: Instant,
    /// Log line of the request.
    pub request_log: RequestLog,
    /// Channel for events. The receiver closes the channel when the client no longer waits for the answer.
    pub events: mpsc::Sender<JobEvent>,
    /// True if the client wants to know the progress of evaluating the prompt.
    pub return_progress: bool,
    /// Number of jobs that overtook this job, and the time of its first failed attempt to get a slot. Set only while
    /// the job is next in the queue but does not fit into the context.
    pub passed: Option<(u32, Instant)>,
}

impl Job {
    /// True if the client has disconnected.
    pub fn is_abandoned(&self) -> bool {
        self.events.is_closed()
    }

    /// Returns the seed for the answer.
    pub fn seed(&self) -> u64 {
        self.sent_seed.unwrap_or_else(|| self.chain.seed().into())
    }

    /// True if another job is evaluating the same prompt, or will evaluate it.
    pub fn waits(&self) -> bool {
        self.follows.as_ref().is_some_and(|leader| leader.strong_count() > 0)
    }
}

/// Progress of evaluating a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PromptProgress {
    /// Number of tokens in the prompt.
    pub total: u32,
    /// Number of prompt tokens that were in the cache.
    pub cache: u32,
    /// Number of prompt tokens that are in the cache or evaluated.
    pub processed: u32,
    /// Time since the request got a slot, in milliseconds.
    pub time_ms: f64,
}

/// Event of a job. A job sends any number of progress reports and tokens, followed by one [`Done`](JobEvent::Done) or
/// [`Failed`](JobEvent::Failed).
#[derive(Debug)]
pub enum JobEvent {
    /// A part of the prompt was evaluated. Sent only if the request asks for it.
    Progress(PromptProgress),
    /// Probabilities of the next tokens of the prompt are known. Sent only if the request asks for them.
    Prompt(Vec<ScoredToken>),
    /// A token was generated.
    Token(Piece),
    /// The generation ended.
    Done(Box<Done>),
    /// The evaluation failed. Contains the message.
    Failed(String),
}

/// Token with the text that can be sent now. The text is empty if a character is incomplete, or if the text could be
/// the beginning of a stop string.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// Token number.
    pub token: Token,
    /// Text that can be sent now.
    pub text: String,
    /// Probability of the token and its alternatives, if requested.
    pub likelihood: Option<Box<Likelihood>>,
}
