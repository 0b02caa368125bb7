//! A slot: a sequence of the context, and the request that runs in it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_core::stream_utf8::StreamUtf8;
use llama::error::Result;
use llama::{Context, Model, SequenceId, Token};
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;

use super::done::{Done, Timings, Usage};
use super::drafts::Draft;
use super::finish_reason::FinishReason;
use super::job::{Job, JobEvent, Piece};
use super::logprobs::Likelihood;
use super::plan::Want;
use super::scope::Scope;
use super::slot_status::{RequestSnapshot, SlotSnapshot, SlotState};
use super::stops::StopStrings;

/// A sequence of the context.
pub struct Slot {
    /// Its number there.
    pub sequence: SequenceId,
    /// The tokens that it holds: evaluated, in order.
    pub held: Vec<Token>,
    /// Scope of these tokens; requests of other scopes never see them.
    pub scope: Option<Scope>,
    /// How many of them are on the disk.
    pub saved: usize,
    /// When it was taken last, as a number that grows; 0 for never.
    pub used: u64,
    /// What runs in it.
    pub run: Option<RunningRequest>,
}

impl Slot {
    /// An empty one.
    pub fn new(sequence: SequenceId) -> Self {
        Slot { sequence, held: Vec::new(), scope: None, saved: 0, used: 0, run: None }
    }

    /// What there is to see of it.
    pub fn shown(&self) -> SlotSnapshot {
        let state = match &self.run {
            None => SlotState::Idle,
            Some(run) if run.outbox.is_stalled() => SlotState::Waiting,
            Some(run) if run.next.is_some() => SlotState::Decode,
            Some(_) => SlotState::Prefill,
        };
        SlotSnapshot {
            state,
            held: self.held.len() as u32,
            owner: self.scope.map(|scope| scope.owner()),
            run: self.run.as_ref().map(RunningRequest::shown),
        }
    }

    /// What it wants of the next batch.
    pub fn want(&self) -> Option<Want> {
        let run = self.run.as_ref().filter(|run| !run.outbox.is_stalled())?;
        Some(match run.next {
            Some(_) => Want::Decode,
            None => Want::Prefill(run.job.prompt.len().saturating_sub(self.held.len()) as u32),
        })
    }
}

/// The end of a run's channel that is the scheduler's: it must not wait for a reader.
#[derive(Debug)]
pub struct Outbox {
    events: Sender<JobEvent>,
    unsent: VecDeque<JobEvent>,
    since: Option<Instant>,
}

impl Outbox {
    fn new(events: Sender<JobEvent>) -> Self {
        Outbox { events, unsent: VecDeque::new(), since: None }
    }

    /// Sends `event`, or keeps it until there is room.
    pub fn send(&mut self, event: JobEvent) {
        self.unsent.push_back(event);
        self.flush();
    }

    /// Sends what is kept, as far as there is room.
    pub fn flush(&mut self) {
        while let Some(event) = self.unsent.pop_front() {
            match self.events.try_send(event) {
                Ok(()) => self.since = None,
                Err(TrySendError::Full(event)) => {
                    self.unsent.push_front(event);
                    self.since.get_or_insert_with(Instant::now);
                    return;
                }
                Err(TrySendError::Closed(_)) => self.unsent.clear(),
            }
        }
    }

    /// Whether the reader is behind.
    pub fn is_stalled(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Whether the reader is gone, or has not read for `most`.
    pub fn is_lost(&self, most: Duration) -> bool {
        self.events.is_closed() || self.since.is_some_and(|since| since.elapsed() > most)
    }
}

/// A request that runs.
pub struct RunningRequest {
    /// The request.
    pub job: Job,
    /// The number of its admission.
    pub number: u64,
    /// Where its events go.
    pub outbox: Outbox,
    /// The token that was chosen last, if it is to be evaluated.
    pub next: Option<Token>,
    /// Tokens that may follow it.
    pub draft: Draft,
    /// How likely the token was that was chosen last, where asked for.
    likelihood: Option<Box<Likelihood>>,
    stream: StreamUtf8,
    stops: StopStrings,
    cached: u32,
    prompt_tokens: u32,
    /// What was chosen so far, but for `next`, since the prompt began to be evaluated.
    evaluated: Vec<Token>,
    /// The token that it ended with, which is not evaluated.
    last_token: Option<Token>,
    generated: u32,
    admitted: Instant,
    first: Option<Instant>,
    last: Option<Instant>,
    /// Time for which its grammar has kept others waiting.
    pub grammar_time: Duration,
}

impl RunningRequest {
    /// Begins `job`, of whose prompt `cached` tokens are evaluated already.
    pub fn new(job: Job, number: u64, cached: u32) -> Self {
        RunningRequest {
            number,
            outbox: Outbox::new(job.events.clone()),
            next: None,
            draft: Draft::new(job.drafts),
            likelihood: None,
            stream: StreamUtf8::default(),
            stops: StopStrings::new(job.stop.clone()),
            cached,
            prompt_tokens: job.prompt.len() as u32,
            evaluated: Vec::new(),
            last_token: None,
            generated: 0,
            admitted: Instant::now(),
            first: None,
            last: None,
            grammar_time: Duration::ZERO,
            job,
        }
    }

    fn shown(&self) -> RequestSnapshot {
        RequestSnapshot {
            prompt: self.prompt_tokens,
            cached: self.cached,
            generated: self.generated,
            arrived: self.job.arrived,
            first: self.first,
        }
    }

    /// Chooses the next token by row `row` of `context`, which is of `sequence`.
    pub fn choose(&mut self, context: &mut Context, sequence: SequenceId, row: i32) -> Result<Token> {
        let token = self.job.chain.sample_of(context, sequence, row)?;
        if let Some(top) = self.job.logprobs {
            let model = Arc::clone(context.model());
            self.likelihood = Some(Box::new(Likelihood::new(context.logits_at(row)?, token, top, &model)?));
        }
        // Its prompt is evaluated: others can share it.
        self.job.leads = None;
        Ok(token)
    }

    /// The prompt and what was chosen after it, as texts with all their tokens.
    pub fn texts(&self, model: &Model) -> (String, String) {
        let text = |tokens: &[Token]| {
            let mut bytes = Vec::new();
            // A token that cannot be shown is left out.
            tokens.iter().for_each(|token| drop(model.piece_with(*token, true, &mut bytes)));
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let (prompt, before) =
            self.job.prompt.split_at((self.prompt_tokens as usize).min(self.job.prompt.len()));
        let answer: Vec<Token> =
            before.iter().chain(&self.evaluated).chain(&self.next).chain(&self.last_token).copied().collect();
        (text(prompt), text(&answer))
    }

    /// Notes that `next` was evaluated.
    pub fn evaluated(&mut self, token: Token) {
        self.evaluated.push(token);
    }

    /// Makes what was generated a part of the prompt, so that the request can go on in another slot.
    pub fn preempt(&mut self) {
        self.job.prompt.append(&mut self.evaluated);
        self.job.prompt.extend(self.next.take());
    }

    /// How many tokens it may still generate.
    pub fn left(&self) -> u32 {
        self.job.max_tokens.saturating_sub(self.generated)
    }

    /// The last `count` tokens that were chosen and evaluated, if there are as many.
    pub fn last_made(&self, count: usize) -> Option<&[Token]> {
        Some(&self.evaluated[self.evaluated.len().checked_sub(count)?..])
    }

    /// All of the text so far, with `next` at its end.
    pub fn text_with(&self, next: Token) -> Vec<Token> {
        [&self.job.prompt, &self.evaluated[..], &[next]].concat()
    }

    /// Whether nothing was chosen yet.
    pub fn is_fresh(&self) -> bool {
        self.first.is_none()
    }

    /// The end of it with nothing more to say; what it was about is in `finish`.
    pub fn done(&mut self, finish: FinishReason, stop_string: Option<String>) -> Done {
        let since = |from: Instant, to: Option<Instant>| to.map(|to| to.saturating_duration_since(from));
        let rest = match finish {
            FinishReason::StopString => String::new(),
            _ => {
                // A stop string that only the end of a broken character completes is none.
                let tail = self.stream.finish().to_string();
                let mut rest = self.stops.push(&tail).text;
                rest.push_str(&self.stops.finish());
                rest
            }
        };
        Done {
            rest,
            finish,
            stop_string,
            seed: self.job.chain.seed(),
            device: self.job.chain.device_said().cloned(),
            usage: Usage {
                prompt_tokens: self.prompt_tokens,
                cached_tokens: self.cached,
                completion_tokens: self.generated,
            },
            timings: Timings {
                queued: self.admitted.saturating_duration_since(self.job.arrived),
                first_token: since(self.job.arrived, self.first),
                prefill: since(self.admitted, self.first),
                decode: self.first.and_then(|first| since(first, self.last)).unwrap_or_default(),
                drafted: self.draft.drafted,
            },
        }
    }

    /// Takes the chosen `token`: tells it, and says whether that was the end. `room` is whether the context has a cell
    /// for it.
    pub fn take(&mut self, token: Token, model: &Model, room: bool) -> Result<Option<Done>> {
        let now = Instant::now();
        self.first.get_or_insert(now);
        self.next = None;
        // Where a grammar says when it ends, that is the end.
        if model.is_end(token) && (!self.job.ignore_end || self.job.chain.is_constrained()) {
            return Ok(Some(self.done(FinishReason::End, None)));
        }
        self.last = Some(now);
        self.generated += 1;
        model.piece_with(token, self.job.shown.contains(&token), self.stream.buffer())?;
        let found = self.stops.push(self.stream.take());
        self.outbox.send(JobEvent::Token(Piece {
            token,
            text: found.text,
            likelihood: self.likelihood.take(),
        }));
        let finish = match found.stop {
            Some(stop) => {
                self.last_token = Some(token);
                return Ok(Some(self.done(FinishReason::StopString, Some(stop))));
            }
            // All that could follow is the end.
            None if self.job.chain.is_complete() => FinishReason::End,
            None if self.generated >= self.job.max_tokens => FinishReason::Length,
            None if !room => FinishReason::ContextFull,
            None => {
                self.next = Some(token);
                return Ok(None);
            }
        };
        self.last_token = Some(token);
        Ok(Some(self.done(finish, None)))
    }
}

/// The end of a job that never ran.
pub fn unstarted(job: &Job, finish: FinishReason) -> Done {
    Done {
        rest: String::new(),
        finish,
        stop_string: None,
        seed: job.chain.seed(),
        device: None,
        usage: Usage { prompt_tokens: job.prompt.len() as u32, ..Usage::default() },
        timings: Timings { queued: job.arrived.elapsed(), ..Timings::default() },
    }
}
