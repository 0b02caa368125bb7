//! Shared state of a loaded model: prepares requests and passes them to the scheduler.

mod thoughts;

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use chat::{Template, ThoughtReader};
use engine_core::model::check_generates;
use llama::error::Error;
use llama::{Model, Token};
use sampling::{Chain, Constraint, SamplingOptions};
use tokio::sync::mpsc;
use tokio::time::timeout_at;

use super::api_error::{ApiError, ApiErrorKind};
use super::blocking_pool::{BlockingPool, WorkKind};
use super::client::Client;
use super::closing::Closing;
use super::conversation::Conversation;
use super::embeddings::embedder::Embedder;
use super::finish_reason::FinishReason;
use super::hidden_paths::hide_folders;
use super::infill;
use super::job::{Job, JobEvent};
use super::logprobs::{PROMPT_VALUES, ScoredToken};
use super::metrics::Metrics;
use super::origins::{AllowedHosts, AllowedOrigins};
use super::queue::{Inbox, QueueRefusal};
use super::request::{Defaults, Generate, Prompt};
use super::request_log::RequestLog;
use super::schema_field::SchemaField;
use super::scope::{Owner, Scope};
use crate::api_error::stopping;
use crate::limits::ServerLimits;

/// Number of events that may wait for a reader before the slot pauses.
const EVENTS: usize = 64;

/// Options that can change while the server runs.
#[derive(Clone, Debug)]
pub struct Current {
    /// Defaults of requests.
    pub defaults: Defaults,
    /// Limits on clients.
    pub limits: ServerLimits,
    /// API keys for requests over TCP. If empty, no key is needed.
    pub keys: Vec<String>,
    /// Origins of web pages that may use the server.
    pub origins: AllowedOrigins,
    /// Names by which clients may address the server.
    pub hosts: AllowedHosts,
    /// True if a request that names an unknown model gets the default model.
    pub accept_any_model: bool,
    /// True if clients share evaluated prompts.
    pub prompt_sharing: bool,
}

/// Shared state of a loaded model.
pub struct Server {
    /// Name of the model.
    pub name: String,
    /// Loaded model.
    pub model: Arc<Model>,
    /// Chat template, or the reason why the model has no usable template.
    pub template: Result<Arc<Template>, String>,
    /// Number of tokens in the context.
    pub n_ctx: u32,
    /// Number of slots.
    pub slots: u32,
    /// Time at which the server was created, in seconds since 1970.
    pub created: u64,
    /// Options that can change.
    pub current: RwLock<Arc<Current>>,
    /// Queue to the scheduler.
    pub inbox: Arc<Inbox>,
    /// Queue to the embedding thread.
    pub embedder: Arc<Embedder>,
    /// Metrics of the model.
    pub metrics: Arc<Metrics>,
    /// Thread pool for slow work, shared by all models.
    pub blocking_pool: Arc<BlockingPool>,
}

/// Prompt of a conversation.
struct ConversationTokens {
    tokens: Vec<Token>,
    /// Ends of the messages, for models that need checkpoints.
    message_ends: Vec<usize>,
    /// Reader of the answer.
    reader: ThoughtReader,
}

/// Request in the queue of the scheduler.
pub struct Submitted {
    /// Receivers of the events, one for each answer. Dropping a receiver cancels its answer.
    pub events: Vec<mpsc::Receiver<JobEvent>>,
    /// Reader that separates the thoughts from the rest of an answer. `None` if the answers contain no thoughts.
    pub thoughts: Option<ThoughtReader>,
    /// Paths of the keywords of the JSON schema that are not enforced.
    pub ignored_keywords: Vec<String>,
}

impl Server {
    /// Returns the current options.
    pub fn current(&self) -> Arc<Current> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the current options.
    pub fn change(&self, current: Current) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(current);
    }

    /// Submits `request` of `client` to the scheduler, for `choices` answers to each of its prompts. For the same
    /// prompt, each answer's seed is one greater than the previous answer's. `owner` owns the prompts of the request.
    /// Either all answers are queued, or none.
    ///
    /// # Errors
    /// If the request is invalid, the queue is full, the preparation times out, or the server is shutting down.
    pub async fn submit(
        &self,
        request: Generate,
        choices: u32,
        client: Client,
        owner: Owner,
        arrived: Instant,
    ) -> Result<Submitted, ApiError> {
        check_generates(&self.model).map_err(|error| self.invalid(&error))?;
        let bound = self.inbox.bound();
        let answers = (1 + request.further.len()) * choices as usize;
        if answers > bound.max(1) {
            let what = format!(
                "{answers} answers do not fit into the queue of {bound} requests (--queue): request fewer answers"
            );
            let field = if request.further.is_empty() { "n" } else { request.prompt.field() };
            return Err(ApiError::field(field, what));
        }
        let deadline = arrived + request.deadline;
        let owner = if self.current().prompt_sharing { Owner::All } else { owner };
        let scope = Scope::new(owner, request.cache_salt.as_deref());
        let prepared = self.prepare(request, choices, client, scope, arrived);
        let prepared = timeout_at(deadline.into(), prepared).await;
        let (jobs, submitted) = prepared.unwrap_or_else(|_| {
            self.metrics.count_end(FinishReason::Deadline);
            let message = "the request timed out during preparation: a grammar or schema of this or another \
                          request took too long (timeout_s)";
            Err(ApiError::new(ApiErrorKind::Deadline, message))
        })?;
        match self.inbox.push_all(jobs) {
            Ok(()) => Ok(submitted),
            Err(refused) => Err(self.words(&refused)),
        }
    }

    /// Prepares the jobs of `request`, one job per prompt and choice, with tokens and sampler chains.
    async fn prepare(
        &self,
        request: Generate,
        choices: u32,
        client: Client,
        scope: Scope,
        arrived: Instant,
    ) -> Result<(Vec<Job>, Submitted), ApiError> {
        // The number of requests in preparation is limited to the number that may wait and run.
        let most = self.inbox.bound() + self.slots as usize;
        let share = self.blocking_pool.of(&client);
        let answers = (1 + request.further.len()) * choices as usize;
        let preparing = share.enter(answers, most);
        let _preparing = preparing.map_err(|waiting| self.words(&QueueRefusal::Busy { waiting }))?;
        let field = request.prompt.field();
        let shown = self.marks(&request.prompt)?;
        let (has_schema, budget) = (request.has_schema(), request.reasoning.budget);
        let (mut jobs, mut receivers, mut thoughts_of_answer) = (Vec::new(), Vec::new(), None);
        let mut ignored_keywords = Vec::new();
        let (sampling, schema_field) = (request.sampling, request.schema_field);
        let prompt_logprobs = request.echo && request.logprobs.is_some();
        // Cached tokens have no logits.
        let cache_prompt = request.cache_prompt && !prompt_logprobs;
        let mut values = 0;
        for prompt in std::iter::once(request.prompt).chain(request.further) {
            let (prompt, message_ends, thoughts) = match prompt {
                Prompt::Messages(conversation) => {
                    let may_call = !conversation.offered().is_empty();
                    let found = self.conversation_tokens(conversation, &client).await?;
                    // If the answer is cut off, a marker that the server inserted may be unfinished.
                    let reader =
                        if budget.is_some() { found.reader.dropping_unfinished() } else { found.reader };
                    let reader = Some(reader).filter(|_| !has_schema);
                    thoughts_of_answer.clone_from(&reader);
                    let counter = reader.map(|reader| self.thought_counter(reader, budget, may_call));
                    (found.tokens, found.message_ends, counter.transpose()?)
                }
                prompt => (self.prompt_tokens(prompt, &client).await?, Vec::new(), None),
            };
            self.check(field, &prompt)?;
            if let Some(top) = request.logprobs.filter(|_| prompt_logprobs) {
                values += prompt.len() * (1 + top as usize) * choices as usize;
                check_values(values)?;
            }
            // If caching is allowed, the first choice evaluates the prompt, and the other choices share it.
            let leader = (choices > 1 && cache_prompt).then(|| Arc::new(()));
            let mut sampling = sampling.clone();
            // Values above the context size have no effect, but llama.cpp would allocate memory for the whole range.
            sampling.repeat_last_n = sampling.repeat_last_n.min(self.n_ctx);
            sampling.dry_penalty_last_n = sampling.dry_penalty_last_n.min(self.n_ctx);
            for choice in 0..choices {
                let chain = self.chain(sampling.clone(), &schema_field, &prompt, &client).await?;
                sampling.seed = Some(next_seed(chain.seed()));
                ignored_keywords = chain.ignored_keywords().to_vec();
                let (events, receiver) = mpsc::channel(EVENTS);
                if prompt_logprobs {
                    let first = ScoredToken::first(prompt[0], &self.model);
                    let first =
                        first.map_err(|error| ApiError::new(ApiErrorKind::Failed, error.to_string()))?;
                    // The channel is empty, so sending cannot fail.
                    let _ = events.try_send(JobEvent::Prompt(vec![first]));
                }
                receivers.push(receiver);
                jobs.push(Job {
                    client: client.clone(),
                    scope,
                    prompt: prompt.clone(),
                    message_ends: message_ends.clone(),
                    max_tokens: request.max_tokens,
                    ignore_end: request.ignore_end,
                    chain,
                    sent_seed: request.sent_seed.filter(|_| choice == 0),
                    stop: request.stop.clone(),
                    shown: shown.clone(),
                    cache_prompt,
                    drafts: request.drafts,
                    thoughts: thoughts.clone(),
                    logprobs: request.logprobs,
                    prompt_logprobs,
                    return_progress: request.return_progress && request.stream,
                    threads: request.threads,
                    waiting: request.waiting.clone(),
                    leads: leader.clone().filter(|_| choice == 0),
                    follows: leader.as_ref().filter(|_| choice > 0).map(Arc::downgrade),
                    arrived,
                    deadline: arrived + request.deadline,
                    request_log: RequestLog::current(),
                    events,
                    passed: None,
                });
            }
        }
        let submitted = Submitted { events: receivers, thoughts: thoughts_of_answer, ignored_keywords };
        Ok((jobs, submitted))
    }

    /// Runs short work for `client` on the blocking pool, so that the work does not delay other clients' tokens.
    pub async fn aside<T: Send + 'static>(
        &self,
        client: &Client,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        self.blocking_pool.of(client).run(WorkKind::Light, work).await
    }

    /// Returns the tokens of `prompt`. Refuses a text that is too long for the context without tokenising it.
    ///
    /// # Errors
    /// If the template rejects the conversation, or the prompt is too long.
    pub async fn prompt_tokens(&self, prompt: Prompt, client: &Client) -> Result<Vec<Token>, ApiError> {
        match prompt {
            Prompt::Text(text) => {
                self.model
                    .check_length(text.len(), self.n_ctx)
                    .map_err(|error| self.invalid_field("prompt", &error))?;
                self.text_tokens(text, client).await
            }
            Prompt::Messages(conversation) => {
                self.conversation_tokens(conversation, client).await.map(|found| found.tokens)
            }
            Prompt::Infill(infill) => {
                let names = infill::tokens_of(&self.model, &self.name)?;
                let (model, size) = (Arc::clone(&self.model), infill.bytes());
                let field = infill.field;
                let failed = |error: Error| self.invalid_field(field, &error);
                self.model.check_length(size, self.n_ctx).map_err(failed)?;
                let kind = WorkKind::of_text(size);
                self.cut(client, kind, move || infill.tokens(&model, &names)).await?.map_err(failed)
            }
            tokens @ Prompt::Tokens(_) => plain_tokens(&self.model, tokens),
        }
    }

    /// Returns the tokens of `conversation`, and a reader of the answer.
    async fn conversation_tokens(
        &self,
        conversation: Conversation,
        client: &Client,
    ) -> Result<ConversationTokens, ApiError> {
        let field = conversation.field();
        let failed = |error: Error| self.invalid_field(field, &error);
        let (text, conversation) = self.rendered(conversation, client).await?;
        let (model, template) = (Arc::clone(&self.model), self.template()?);
        self.model.check_length(text.len(), self.n_ctx).map_err(failed)?;
        let needs_ends = model.prefix_reuse().needs_checkpoints();
        // The ends of the messages need the template, and rendering a template may take any amount of time.
        let kind = WorkKind::of_text(text.len()).or(needs_ends.then_some(WorkKind::Light));
        let work = move || {
            let tokens = template.tokenize(&model, &text)?;
            let message_ends = match needs_ends {
                true => conversation.message_ends(&model, &template, &text, &tokens)?,
                false => Vec::new(),
            };
            let reader = conversation.thought_reader(&template, &text);
            Ok(ConversationTokens { tokens, message_ends, reader })
        };
        self.cut(client, kind, work).await?.map_err(failed)
    }

    /// Returns the text of `conversation` that the model sees, and the conversation.
    ///
    /// # Errors
    /// If the model has no template, or the template rejects the conversation.
    pub async fn rendered(
        &self,
        conversation: Conversation,
        client: &Client,
    ) -> Result<(String, Conversation), ApiError> {
        let (template, field) = (self.template()?, conversation.field());
        // Rendering a template may take any amount of time.
        let work = move || conversation.prompt(&template).map(|text| (text, conversation));
        self.aside(client, work).await?.map_err(|error| self.invalid_field(field, &error))
    }

    /// Returns the tokens of `text`.
    pub async fn text_tokens(&self, text: String, client: &Client) -> Result<Vec<Token>, ApiError> {
        let (model, kind) = (Arc::clone(&self.model), WorkKind::of_text(text.len()));
        self.cut(client, kind, move || plain_tokens(&model, Prompt::Text(text))).await?
    }

    /// Runs `work`, which tokenises texts of `client`. `kind` is the result of [`WorkKind::of_text`].
    pub async fn cut<T: Send + 'static>(
        &self,
        client: &Client,
        kind: Option<WorkKind>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        match kind {
            Some(kind) => self.blocking_pool.of(client).run(kind, work).await,
            None => Ok(work()),
        }
    }

    /// Returns the maximum number of tokens of a text: the size of the context, or a smaller number if the model
    /// generates no text.
    pub fn longest_text(&self) -> usize {
        if self.model.is_causal() { self.n_ctx as usize } else { self.embedder.longest }
    }

    /// Converts an error that the field `field` of the request caused.
    fn invalid_field(&self, field: &str, error: &Error) -> ApiError {
        ApiError { param: Some(field.to_string()), ..self.invalid(error) }
    }

    /// Converts an error that the request caused. The message contains the model's name but not its path. The error
    /// is not logged, because it may repeat text from the client.
    fn invalid(&self, error: &Error) -> ApiError {
        if let Error::NotGenerative { what, .. } = error {
            return ApiError::new(ApiErrorKind::Invalid, format!("the model {:?} {what}", self.name));
        }
        let refusal = invalid(error);
        let template = self.template.iter().map(|template| Path::new(template.origin()));
        let paths = std::iter::once(self.model.path()).chain(template);
        ApiError { message: hide_folders(&refusal.message, paths), ..refusal }
    }

    /// Returns the tokens that mark thoughts and, if the request offers tools, tool calls. They are rendered as text.
    fn marks(&self, prompt: &Prompt) -> Result<Vec<Token>, ApiError> {
        let Prompt::Messages(conversation) = prompt else { return Ok(Vec::new()) };
        let template = self.template()?;
        let thoughts = template.thought_format().markers();
        let format = (!conversation.offered().is_empty()).then(|| template.call_format()).flatten();
        let calls = format.map(|format| format.markers()).unwrap_or_default();
        let tokens = Template::tokens_of_marks(&self.model, thoughts.iter().copied().chain(calls));
        tokens.map_err(|error| ApiError::new(ApiErrorKind::Failed, error.to_string()))
    }

    /// Returns the chat template.
    ///
    /// # Errors
    /// If the model has no usable template.
    pub fn template(&self) -> Result<Arc<Template>, ApiError> {
        let template = self.template.as_ref().map(Arc::clone);
        template.map_err(|why| {
            ApiError::new(
                ApiErrorKind::Invalid,
                format!(
                    "this model has no usable chat template: \
                                                                        {why}"
                ),
            )
        })
    }

    /// Creates the sampler chain that continues `prompt`.
    async fn chain(
        &self,
        sampling: SamplingOptions,
        schema_field: &SchemaField,
        prompt: &[Token],
        client: &Client,
    ) -> Result<Chain, ApiError> {
        // Field to name in an error. All other fields have already been validated.
        let has_schema = matches!(sampling.constraint, Some(Constraint::JsonSchema(_)));
        let field = match (&sampling.constraint, sampling.logit_bias.is_empty()) {
            (_, false) if bias_is_wrong(&sampling, &self.model) => Some("logit_bias"),
            (Some(Constraint::Grammar(_)), _) => Some("grammar"),
            _ => None,
        };
        // Creating some chains takes a long time. DRY searches the whole vocabulary for its sequence breakers.
        let pool_work = match (&sampling.constraint, sampling.dry_multiplier > 0.0) {
            (Some(_), _) => Some(WorkKind::Grammar),
            (None, true) => Some(WorkKind::Light),
            (None, false) => None,
        };
        let chain = match pool_work {
            Some(kind) => {
                let model = Arc::clone(&self.model);
                self.blocking_pool.of(client).run(kind, move || Chain::new(&sampling, &model)).await?
            }
            None => Chain::new(&sampling, &self.model),
        };
        let mut chain = chain.map_err(|error| {
            let of_schema = || has_schema.then(|| schema_field.of_error(&error));
            let param = field.map(String::from).or_else(of_schema);
            ApiError { param, ..self.invalid(&schema_field.renamed(error)) }
        })?;
        chain
            .accept_prompt(prompt)
            .map_err(|error| ApiError::new(ApiErrorKind::Failed, error.to_string()))?;
        Ok(chain)
    }

    /// Returns the error for a request whose events ended without a final event: the answer was not read in time, or
    /// the server shut down before the request began.
    pub fn unread(&self) -> ApiError {
        match self.inbox.closing() {
            Closing::Now => stopping(),
            _ => ApiError::new(
                ApiErrorKind::Failed,
                "the request was cancelled because its answer was not read in \
                                                    time",
            ),
        }
    }

    fn check(&self, field: &str, prompt: &[Token]) -> Result<(), ApiError> {
        if prompt.is_empty() {
            return Err(ApiError::field(field, "is empty, but this model needs at least one token"));
        }
        if prompt.len() > self.n_ctx as usize {
            let message = format!(
                "the prompt has {} tokens, but the context of this server holds only {}: shorten the prompt, or \
                start the server with a larger -c",
                prompt.len(),
                self.n_ctx
            );
            let param = Some(field.to_string());
            return Err(ApiError { param, ..ApiError::new(ApiErrorKind::PromptTooLong, message) });
        }
        Ok(())
    }

    fn words(&self, refused: &QueueRefusal) -> ApiError {
        match refused {
            QueueRefusal::Stopping => {
                self.metrics.refused.add(1);
                stopping()
            }
            QueueRefusal::Busy { waiting } => {
                self.metrics.refused.add(1);
                let message = format!("too many requests: {waiting} are already waiting; try again later");
                ApiError {
                    retry_after: Some(self.retry_after(*waiting)),
                    ..ApiError::new(ApiErrorKind::Busy, message)
                }
            }
        }
    }

    /// Estimates the time, in seconds, until one of `waiting` requests leaves the queue. The estimate is based on the
    /// average time of a request so far and on the number of slots.
    fn retry_after(&self, waiting: usize) -> u64 {
        let (metrics, slots) = (&self.metrics, u64::from(self.slots.max(1)));
        let ended = metrics.finished();
        let total = metrics.decode_time.get() + metrics.first_token_time.get()
            - metrics.queue_time.get().min(metrics.first_token_time.get());
        let average = total.checked_div(ended).unwrap_or(1_000_000_000);
        let rounds = waiting as u64 / slots + 1;
        // The estimate is halved, because a retry needs only one place in the queue, not an empty queue.
        (average.saturating_mul(rounds) / 2).div_ceil(1_000_000_000).clamp(1, 60)
    }
}

/// Tokenises `prompt`, which must not be a conversation.
pub fn plain_tokens(model: &Model, prompt: Prompt) -> Result<Vec<Token>, ApiError> {
    let field = prompt.field();
    match prompt {
        Prompt::Text(text) => {
            let failed = |error: Error| ApiError { param: Some(field.to_string()), ..invalid(&error) };
            model.tokenize(&text).map_err(failed)
        }
        Prompt::Tokens(tokens) => match tokens.iter().find(|token| !model.has_token(**token)) {
            None => Ok(tokens),
            Some(token) => {
                let last = model.n_vocab().saturating_sub(1);
                let what = format!("use tokens from 0 to {last}, not {token}");
                Err(ApiError::field("prompt", what))
            }
        },
        Prompt::Messages(_) | Prompt::Infill(_) => {
            Err(ApiError::field(field, "use a string or tokens, not messages"))
        }
    }
}

/// Checks the number of `values` in the log-probabilities of a request's prompts.
fn check_values(values: usize) -> Result<(), ApiError> {
    if values <= PROMPT_VALUES {
        return Ok(());
    }
    let what = format!(
        "the log-probabilities of the prompts have more than {PROMPT_VALUES} values, counting each token and its \
        alternatives: request fewer alternatives or use shorter prompts"
    );
    Err(ApiError::field("logprobs", what))
}

/// Returns the seed of the next choice. llama.cpp treats `u32::MAX` as "no seed".
fn next_seed(seed: u32) -> u32 {
    if seed >= u32::MAX - 1 { 0 } else { seed + 1 }
}

/// True if `sampling` biases a token that `model` does not have.
fn bias_is_wrong(sampling: &SamplingOptions, model: &Model) -> bool {
    sampling.logit_bias.iter().any(|bias| bias.token.cast_unsigned() >= model.n_vocab())
}

/// Converts an error that the request caused.
pub fn invalid(error: &Error) -> ApiError {
    let kind = match error {
        Error::TextTooLong { .. } => ApiErrorKind::PromptTooLong,
        _ => ApiErrorKind::Invalid,
    };
    ApiError::new(kind, error.to_string())
}
