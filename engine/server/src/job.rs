//! What goes to the scheduler, and what comes back.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use llama::Token;
use sampling::{Chain, DeviceReport};
use serde::Serialize;
use tokio::sync::mpsc;

use super::budget::SharedCharge;
use super::drafts::{Drafted, Wish};
use super::logprobs::Likelihood;
use super::scope::Scope;
use super::ticket::Ticket;
use super::workloads::Threads;

/// Whose a request is, for fairness: requests of one client wait for each other, not for those of another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Client {
    /// A process at the Unix socket.
    Process {
        /// Its process ID.
        id: i32,
        /// User ID that it runs as.
        user: u32,
    },
    /// A machine at the TCP address.
    Machine(std::net::IpAddr),
    /// Nobody knows.
    Unknown,
}

/// Payer for the bytes of requests that wait. A user can start any number of processes, so they share one account.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Account {
    /// A user at the Unix socket, by user ID.
    User(u32),
    /// A machine at the TCP address.
    Machine(std::net::IpAddr),
    /// A client that the system does not identify.
    Unknown,
}

impl Client {
    /// Account that pays for the client's requests.
    pub fn account(&self) -> Account {
        match self {
            Client::Process { user, .. } => Account::User(*user),
            Client::Machine(address) => Account::Machine(*address),
            Client::Unknown => Account::Unknown,
        }
    }
}

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
    pub threads: Threads,
    /// The bytes that it was sent in, charged until it has a slot.
    pub waiting: SharedCharge,
    /// When it came.
    pub arrived: Instant,
    /// When it must be done.
    pub deadline: Instant,
    /// What the log tells of it.
    pub ticket: Ticket,
    /// Where its events go. Closed by the reader when nobody wants them any more.
    pub events: mpsc::Sender<Event>,
    /// While it was the next one and did not fit: how many others went before it, and since when.
    pub passed: Option<(u32, Instant)>,
}

impl Job {
    /// Whether nobody waits for it any more.
    pub fn is_abandoned(&self) -> bool {
        self.events.is_closed()
    }

    /// Whether another evaluates its prompt, or is going to.
    pub fn waits(&self) -> bool {
        self.follows.as_ref().is_some_and(|leader| leader.strong_count() > 0)
    }
}

/// What the scheduler tells of a job: any number of tokens, then one [`Done`](Event::Done) or
/// [`Failed`](Event::Failed).
#[derive(Debug)]
pub enum Event {
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

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// The model ended the text.
    End,
    /// A stop string.
    StopString,
    /// As many tokens as asked for.
    Length,
    /// The context has no room for another token.
    ContextFull,
    /// The request's time is over.
    Deadline,
    /// The server stops.
    Shutdown,
}

impl Finish {
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Finish::End => "end",
            Finish::StopString => "stop_string",
            Finish::Length => "length",
            Finish::ContextFull => "context_full",
            Finish::Deadline => "deadline",
            Finish::Shutdown => "shutdown",
        }
    }
}

/// The end of a generation.
#[derive(Clone, Debug)]
pub struct Done {
    /// Text that was held back and turned out to be text.
    pub rest: String,
    /// Why it ended.
    pub finish: Finish,
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
