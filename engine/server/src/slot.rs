//! Slot: a sequence of the context, with the request that runs in it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_core::stream_utf8::StreamUtf8;
use engine_core::thought_counter::ThoughtCounter;
use llama::error::Result;
use llama::{Context, Model, SequenceId, Token};
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;

use super::done::{Done, Timings, Usage};
use super::drafts::Draft;
use super::finish_reason::FinishReason;
use super::job::{Job, JobEvent, Piece, PromptProgress};
use super::logprobs::{Likelihood, ScoredToken};
use super::plan::Want;
use super::scope::Scope;
use super::slot_status::{RequestSnapshot, SlotSnapshot, SlotState};
use super::stops::StopStrings;

/// Slot of the scheduler.
pub struct Slot {
    /// Sequence in the context.
    pub sequence: SequenceId,
    /// Evaluated tokens in the sequence, in order.
    pub held: Vec<Token>,
    /// Scope of the held tokens. Requests of other scopes never see these tokens.
    pub scope: Option<Scope>,
    /// Number of held tokens that are on the disk.
    pub saved: usize,
    /// Counter value when the slot was last taken, for LRU order. 0 if the slot was never used.
    pub used: u64,
    /// Numbers of prompt tokens after which the evaluation pauses to save a checkpoint, in increasing order.
    pub pauses: Vec<usize>,
    /// Request that runs in the slot.
    pub run: Option<RunningRequest>,
}

impl Slot {
    /// Creates an empty slot.
    pub fn new(sequence: SequenceId) -> Self {
        Slot { sequence, held: Vec::new(), scope: None, saved: 0, used: 0, pauses: Vec::new(), run: None }
    }

    /// Returns a snapshot for `GET /status`.
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

    /// Returns the slot's work for the next batch. `None` if the slot has no work.
    pub fn want(&self) -> Option<Want> {
        let run = self.run.as_ref().filter(|run| !run.outbox.is_stalled())?;
        Some(match run.next {
            Some(_) => Want::Decode,
            None => {
                let pause = self.pauses.iter().copied().find(|pause| *pause > self.held.len());
                let end = pause.unwrap_or(run.job.prompt.len());
                Want::Prefill(end.saturating_sub(self.held.len()) as u32)
            }
        })
    }
}

/// The scheduler's end of an event channel, which never waits for the reader.
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

    /// Sends `event`. If the channel is full, keeps the event for later.
    pub fn send(&mut self, event: JobEvent) {
        self.unsent.push_back(event);
        self.flush();
    }

    /// Sends as many of the kept events as the channel has room for.
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

    /// True if the reader has not received all events.
    pub fn is_stalled(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// True if the reader has disconnected, or has not read for the time `most`.
    pub fn is_lost(&self, most: Duration) -> bool {
        self.events.is_closed() || self.since.is_some_and(|since| since.elapsed() > most)
    }
}

/// Running request.
pub struct RunningRequest {
    /// Job of the request.
    pub job: Job,
    /// Number of the request's admission.
    pub number: u64,
    /// Channel for events.
    pub outbox: Outbox,
    /// Token that was sampled last and is not evaluated yet.
    pub next: Option<Token>,
    /// Drafting state.
    pub draft: Draft,
    /// Number of prompt tokens whose probabilities were sent, not counting the first token.
    scored: usize,
    /// Probabilities of the token that was sampled last, if requested.
    likelihood: Option<Box<Likelihood>>,
    stream: StreamUtf8,
    stops: StopStrings,
    cached: u32,
    prompt_tokens: u32,
    /// Evaluated tokens of the answer since the prompt was evaluated. `next` is not included.
    evaluated: Vec<Token>,
    /// Last token of the answer, which is never evaluated.
    last_token: Option<Token>,
    generated: u32,
    admitted: Instant,
    first: Option<Instant>,
    last: Option<Instant>,
    /// Time by which the request's grammar has delayed other requests.
    pub grammar_time: Duration,
}

impl RunningRequest {
    /// Starts `job`. The first `cached` tokens of its prompt are already evaluated.
    pub fn new(job: Job, number: u64, cached: u32) -> Self {
        RunningRequest {
            number,
            outbox: Outbox::new(job.events.clone()),
            next: None,
            draft: Draft::new(job.drafts),
            scored: 0,
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

    /// Samples the next token of `sequence` from row `row` of `context`. A token that closes the thoughts is not
    /// sampled.
    ///
    /// # Errors
    /// If sampling fails.
    pub fn choose(&mut self, context: &mut Context, sequence: SequenceId, row: i32) -> Result<Token> {
        let closing = self.job.thoughts.as_ref().and_then(ThoughtCounter::closing_token);
        // A character that consists of several tokens is completed first.
        let token = match closing.filter(|_| self.stream.is_whole()) {
            Some(token) if self.job.chain.force(token)? => token,
            _ => self.job.chain.sample_of(context, sequence, row)?,
        };
        if let Some(top) = self.job.logprobs {
            let model = Arc::clone(context.model());
            self.likelihood = Some(Box::new(Likelihood::new(context.logits_at(row)?, token, top, &model)?));
        }
        // The prompt is now evaluated, so other jobs can share it.
        self.job.leads = None;
        Ok(token)
    }

    /// True if the probabilities of prompt tokens are still missing.
    pub fn is_scoring(&self) -> bool {
        self.job.prompt_logprobs && self.scored + 1 < self.prompt_tokens as usize
    }

    /// True if the logits of the prompt token at `position` determine a missing probability. After the request was
    /// preempted, the first tokens are evaluated again, and their probabilities were already sent.
    pub fn scores(&self, position: usize) -> bool {
        self.is_scoring() && (self.scored..self.prompt_tokens as usize - 1).contains(&position)
    }

    /// Sends the probabilities of the next prompt tokens.
    pub fn send_scores(&mut self, scores: Vec<ScoredToken>) {
        self.scored += scores.len();
        self.outbox.send(JobEvent::Prompt(scores));
    }

    /// Returns the texts of the prompt and of the answer, including control tokens.
    pub fn texts(&self, model: &Model) -> (String, String) {
        let text = |tokens: &[Token]| {
            let mut bytes = Vec::new();
            // Tokens that cannot be rendered are omitted.
            tokens.iter().for_each(|token| drop(model.piece_with(*token, true, &mut bytes)));
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let (prompt, before) =
            self.job.prompt.split_at((self.prompt_tokens as usize).min(self.job.prompt.len()));
        let answer: Vec<Token> =
            before.iter().chain(&self.evaluated).chain(&self.next).chain(&self.last_token).copied().collect();
        (text(prompt), text(&answer))
    }

    /// Reports that `processed` tokens of the prompt are evaluated, if the client asked for it.
    pub fn report_progress(&mut self, processed: usize) {
        if self.job.return_progress && self.generated == 0 {
            self.outbox.send(JobEvent::Progress(PromptProgress {
                total: self.prompt_tokens,
                cache: self.cached,
                processed: processed as u32,
                time_ms: self.admitted.elapsed().as_secs_f64() * 1e3,
            }));
        }
    }

    /// Records that the token `next` was evaluated.
    pub fn evaluated(&mut self, token: Token) {
        self.evaluated.push(token);
    }

    /// Appends the generated tokens to the prompt, so that the request can resume in another slot.
    pub fn preempt(&mut self) {
        self.job.prompt.append(&mut self.evaluated);
        self.job.prompt.extend(self.next.take());
    }

    /// Returns the number of tokens that may still be generated.
    pub fn left(&self) -> u32 {
        self.job.max_tokens.saturating_sub(self.generated)
    }

    /// Returns the last `count` evaluated tokens of the answer. `None` if the answer has fewer tokens.
    pub fn last_made(&self, count: usize) -> Option<&[Token]> {
        Some(&self.evaluated[self.evaluated.len().checked_sub(count)?..])
    }

    /// Returns all tokens so far, followed by `next`.
    pub fn text_with(&self, next: Token) -> Vec<Token> {
        [&self.job.prompt, &self.evaluated[..], &[next]].concat()
    }

    /// True if no token has been sampled yet.
    pub fn is_fresh(&self) -> bool {
        self.first.is_none()
    }

    /// Ends the request with the reason `finish`, and returns its final data.
    pub fn done(&mut self, finish: FinishReason, stop_string: Option<String>) -> Done {
        let since = |from: Instant, to: Option<Instant>| to.map(|to| to.saturating_duration_since(from));
        let rest = match finish {
            FinishReason::StopString => String::new(),
            _ => {
                // The tail replaces a broken character. A stop string that it completes does not change the finish
                // reason.
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
            seed: self.job.seed(),
            device: self.job.chain.device_said().cloned(),
            usage: Usage {
                prompt_tokens: self.prompt_tokens,
                cached_tokens: self.cached,
                completion_tokens: self.generated,
                reasoning_tokens: self.job.thoughts.as_ref().map_or(0, ThoughtCounter::tokens),
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

    /// Accepts the sampled `token` and sends it. Returns the final data of the request if `token` ends the request.
    /// `room` is true if the context has a cell for the token.
    ///
    /// # Errors
    /// If the token cannot be converted to text.
    pub fn take(&mut self, token: Token, model: &Model, room: bool) -> Result<Option<Done>> {
        let now = Instant::now();
        self.first.get_or_insert(now);
        self.next = None;
        // With a grammar, an end token is sampled only at positions where the grammar allows the answer to end.
        if model.is_end(token) && (!self.job.ignore_end || self.job.chain.is_constrained()) {
            if self.job.prompt_logprobs {
                // Programs that compute likelihoods ask for one token and drop the last entry, so the end token needs
                // an entry.
                let likelihood = self.likelihood.take();
                self.outbox.send(JobEvent::Token(Piece { token, text: String::new(), likelihood }));
            }
            return Ok(Some(self.done(FinishReason::End, None)));
        }
        self.last = Some(now);
        self.generated += 1;
        model.piece_with(token, self.job.shown.contains(&token), self.stream.buffer())?;
        let text = self.stream.take();
        if let Some(thoughts) = &mut self.job.thoughts {
            thoughts.add(token, text);
        }
        let found = self.stops.push(text);
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
            // The grammar allows no further token except the end.
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

/// Returns the final data of a job that never ran.
pub fn unstarted(job: &Job, finish: FinishReason) -> Done {
    Done {
        rest: String::new(),
        finish,
        stop_string: None,
        seed: job.seed(),
        device: None,
        usage: Usage { prompt_tokens: job.prompt.len() as u32, ..Usage::default() },
        timings: Timings { queued: job.arrived.elapsed(), ..Timings::default() },
    }
}
