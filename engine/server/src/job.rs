//! What goes to the scheduler, and what comes back.

use std::sync::{Arc, Weak};
use std::time::Instant;

use llama::Token;
use sampling::Chain;
use tokio::sync::mpsc;

use super::budget::SharedCharge;
use super::drafts::Wish;
use super::logprobs::Likelihood;
use super::request_log::RequestLog;
use super::scope::Scope;
use super::workloads::WorkloadThreads;
use crate::client::Client;
use crate::done::Done;

/// A request that was checked, ready to be run.
pub struct Job {
    /// Whose it is.
    pub client: Client,
    /// Scope of its prompt.
    pub scope: Scope,
    /// The prompt: 1 token to as many as the context holds.
    pub prompt: Vec<Token>,
    /// Most tokens to generate.
    pub max_tokens: u32,
    /// Whether tokens that end a text are like any other.
    pub ignore_end: bool,
    /// Chooses the tokens; knows the prompt.
    pub chain: Chain,
    /// Texts that end it; not part of what is sent.
    pub stop: Vec<String>,
    /// Control tokens that are shown by name: they mark calls of tools.
    pub shown: Vec<Token>,
    /// Whether the prompt may begin with what an earlier request left in the cache.
    pub cache_prompt: bool,
    /// How many alternatives are told of each token, and how likely it was; nothing where not asked for.
    pub logprobs: Option<u32>,
    /// Drafts, where it is to have any.
    pub drafts: Option<Wish>,
    /// Held until its first token is chosen, where others wait for its prompt.
    pub leads: Option<Arc<()>>,
    /// The one with the same prompt that goes before it: what that has evaluated need not be evaluated again.
    pub follows: Option<Weak<()>>,
    /// The threads that its workload may have.
    pub threads: WorkloadThreads,
    /// The bytes that it was sent in, charged until it has a slot.
    pub waiting: SharedCharge,
    /// When it came.
    pub arrived: Instant,
    /// When it must be done.
    pub deadline: Instant,
    /// Line of the log about it.
    pub request_log: RequestLog,
    /// Where its events go. Closed by the reader when nobody wants them any more.
    pub events: mpsc::Sender<JobEvent>,
    /// While it was the next one and did not fit: how many others went before it, and since when.
    pub passed: Option<(u32, Instant)>,
}

impl Job {
    /// Whether nobody waits for it any more.
    pub fn is_abandoned(&self) -> bool {
        self.events.is_closed()
    }

    /// True if another job evaluates its prompt, or is going to.
    pub fn waits(&self) -> bool {
        self.follows.as_ref().is_some_and(|leader| leader.strong_count() > 0)
    }
}

/// What the scheduler tells of a job: any number of tokens, then one [`Done`](JobEvent::Done) or
/// [`Failed`](JobEvent::Failed).
#[derive(Debug)]
pub enum JobEvent {
    /// A token.
    Token(Piece),
    /// It ended.
    Done(Box<Done>),
    /// It could not be evaluated; in words.
    Failed(String),
}

/// A token and the text that can be shown now: none while a character is not complete or could begin a stop string.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The token.
    pub token: Token,
    /// The text.
    pub text: String,
    /// How likely it was, where asked for.
    pub likelihood: Option<Box<Likelihood>>,
}
