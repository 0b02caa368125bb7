//! Validated requests for text.

use std::time::Duration;

use llama::Token;
use llama::error::Error;
use sampling::{Constraint, PARAMETERS, SamplingOptions, seed_number};
use serde_json::{Map, Value};

use super::api_error::ApiError;
use super::budget::SharedCharge;
use super::conversation::Conversation;
use super::drafts::{self, Drafting, Wish};
use super::fields::{Fields, shown, wrong};
use super::infill::Infill;
use super::input::{Input, InputFault};
use super::logprobs;
use super::reasoning::Reasoning;
use super::schema_field::SchemaField;
use super::scope::SALT_CHARACTERS;
use super::workloads::{WorkloadThreads, Workloads};

/// Maximum number of stop strings in a request.
pub const STOPS: usize = 16;
/// Maximum length of a stop string, in characters.
pub const STOP_CHARACTERS: usize = 1024;

/// Defaults of a request, and limits on its values.
#[derive(Clone, Debug)]
pub struct Defaults {
    /// Sampling options. If the options contain no seed, each request gets a random seed.
    pub sampling: SamplingOptions,
    /// Default maximum number of tokens to generate.
    pub max_tokens: u32,
    /// Default maximum number of thought tokens. `None` for no limit.
    pub reasoning_budget: Option<u32>,
    /// Maximum time of a request, including its time in the queue.
    pub deadline: Duration,
    /// Workloads that a request may name.
    pub workloads: Workloads,
    /// Configuration of speculative decoding.
    pub drafts: Drafting,
}

#[cfg(test)]
impl Defaults {
    /// Returns defaults for tests: a minute, 64 tokens, and the sampler's own options.
    pub fn for_tests() -> Self {
        Defaults {
            sampling: SamplingOptions::default(),
            max_tokens: 64,
            reasoning_budget: None,
            deadline: Duration::from_secs(60),
            workloads: Workloads::default(),
            drafts: Drafting::default(),
        }
    }
}

/// Prompt of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// Text.
    Text(String),
    /// Tokens.
    Tokens(Vec<Token>),
    /// Messages, which the model's template renders as text.
    Messages(Conversation),
    /// Texts around a gap.
    Infill(Box<Infill>),
}

impl Prompt {
    /// Returns the name of the field that contained the prompt.
    pub fn field(&self) -> &'static str {
        match self {
            Prompt::Text(_) | Prompt::Tokens(_) => "prompt",
            Prompt::Infill(infill) => infill.field,
            Prompt::Messages(conversation) => conversation.field(),
        }
    }
}

/// Request for text.
#[derive(Clone, Debug, PartialEq)]
pub struct Generate {
    /// Prompt to continue.
    pub prompt: Prompt,
    /// Other prompts, which are answered separately with the same options.
    pub further: Vec<Prompt>,
    /// True if the answer begins with the prompt. With `logprobs`, the answer also has the probabilities of the
    /// prompt's tokens.
    pub echo: bool,
    /// True if tokens are sent as they are generated.
    pub stream: bool,
    /// Maximum number of tokens to generate.
    pub max_tokens: u32,
    /// True if end-of-generation tokens do not end the answer.
    pub ignore_end: bool,
    /// Stop strings.
    pub stop: Vec<String>,
    /// Sampling options.
    pub sampling: SamplingOptions,
    /// Seed that the client sent. The sampling options contain it folded into 32 bits.
    pub sent_seed: Option<u64>,
    /// Field that contains the JSON schema of the answer, if the sampling options have one.
    pub schema_field: SchemaField,
    /// True if the prompt may reuse cached tokens of earlier requests.
    pub cache_prompt: bool,
    /// Settings for the thoughts in the answer.
    pub reasoning: Reasoning,
    /// Salt that separates the client's requests: only requests with the same salt share prompts.
    pub cache_salt: Option<String>,
    /// Speculative decoding. `None` if the request does not use it.
    pub drafts: Option<Wish>,
    /// True if the stream reports the progress of evaluating the prompt.
    pub return_progress: bool,
    /// Number of alternatives to report with the probability of each token. `None` if no probabilities are requested.
    pub logprobs: Option<u32>,
    /// Maximum time of the request.
    pub deadline: Duration,
    /// Thread counts of the workload.
    pub threads: WorkloadThreads,
    /// Charge for the bytes of the request, held until the request has a slot.
    pub waiting: SharedCharge,
}

impl Generate {
    /// Takes the fields that all interfaces share. The caller has already taken the prompt.
    ///
    /// # Errors
    /// If a field is invalid.
    pub fn take(fields: &mut Fields, mut prompt: Prompt, defaults: &Defaults) -> Result<Self, ApiError> {
        let max_tokens = fields.tokens("max_tokens", 1)?.unwrap_or(defaults.max_tokens);
        let most = defaults.deadline.as_secs_f64();
        let deadline = fields.number("timeout_s", 0.001..=most)?;
        let sent_seed = fields.peek("seed").and_then(seed_number);
        let sampling = with_forced(sampling(fields, defaults)?, &prompt)?;
        let schema_field = match &prompt {
            Prompt::Messages(conversation) if !conversation.forced_tools().is_empty() => SchemaField::Tools {
                indices: conversation.forced_tools().to_vec(),
                path: "function.parameters",
            },
            _ => SchemaField::Whole("json_schema"),
        };
        let reasoning = match &mut prompt {
            Prompt::Messages(conversation) => {
                Reasoning::take(fields, conversation, defaults.reasoning_budget)?
            }
            Prompt::Text(_) | Prompt::Tokens(_) | Prompt::Infill(_) => Reasoning::none(),
        };
        let mut generate = Generate {
            prompt,
            further: Vec::new(),
            echo: false,
            schema_field,
            reasoning,
            stream: fields.bool("stream")?.unwrap_or(false),
            max_tokens,
            ignore_end: fields.bool("ignore_eos")?.unwrap_or(false),
            stop: stops("stop", fields.take("stop"))?,
            sampling,
            sent_seed,
            return_progress: fields.bool("return_progress")?.unwrap_or(false),
            logprobs: None,
            cache_prompt: fields.bool("cache_prompt")?.unwrap_or(true),
            cache_salt: salt(fields)?,
            drafts: drafts::take(fields, defaults.drafts)?,
            deadline: deadline.map_or(defaults.deadline, Duration::from_secs_f64),
            threads: defaults.workloads.take(fields)?,
            waiting: fields.waiting(),
        };
        generate.end_thoughts_before_schema();
        Ok(generate)
    }

    /// Sets the constraint on the answer.
    pub fn constrain(&mut self, constraint: Constraint) {
        self.sampling.constraint = Some(constraint);
        self.end_thoughts_before_schema();
    }

    /// True if the answer must match a schema, and therefore must not contain thoughts.
    pub fn has_schema(&self) -> bool {
        matches!(self.sampling.constraint, Some(Constraint::JsonSchema(_)))
    }

    /// Closes the thoughts in the prompt if the answer must match a schema.
    fn end_thoughts_before_schema(&mut self) {
        let has_schema = self.has_schema();
        if let Prompt::Messages(conversation) = &mut self.prompt
            && has_schema
        {
            conversation.answer_at_once();
        }
    }
}

/// Takes the number of alternatives to report with each token, for the interfaces in which `logprobs` is a number.
///
/// # Errors
/// If the value is invalid.
pub fn take_logprobs(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    fields.whole("logprobs", 0..=logprobs::MOST)
}

/// Takes `prompt`, or `messages` instead.
///
/// # Errors
/// If both are given, or if the value is invalid.
pub fn prompt_or_messages(fields: &mut Fields) -> Result<Prompt, ApiError> {
    let Some(messages) = fields.raw("messages") else { return prompt(fields) };
    match fields.raw("prompt") {
        None => Conversation::take(fields, messages).map(Prompt::Messages),
        Some(_) => Err(ApiError::field("messages", "give messages or prompt, not both")),
    }
}

/// Takes `prompt`: a text, a list with one text, or a list of tokens.
///
/// # Errors
/// If the field is missing or invalid.
pub fn prompt(fields: &mut Fields) -> Result<Prompt, ApiError> {
    prompts(fields, 1).map(|(first, _)| first)
}

/// Takes `prompt`: a text, a list of tokens, or a list of at most `most` texts and lists of tokens. Returns the first
/// prompt and the other prompts.
///
/// # Errors
/// If the field is missing or invalid.
pub fn prompts(fields: &mut Fields, most: usize) -> Result<(Prompt, Vec<Prompt>), ApiError> {
    const NAME: &str = "prompt";
    let missing = || ApiError::field(NAME, "is missing: give the text to continue");
    let empty = || wrong(NAME, "use token numbers in a list", &Value::Array(Vec::new()));
    let one = |input: Input| match input {
        Input::Text(text) => Ok(Prompt::Text(text)),
        Input::Tokens(tokens) => Ok(Prompt::Tokens(tokens)),
        Input::List(_) => Err(empty()),
    };
    match fields.input(NAME, most).ok_or_else(missing)? {
        Ok(Input::Text(text)) => Ok((Prompt::Text(text), Vec::new())),
        Ok(Input::Tokens(tokens)) => Ok((Prompt::Tokens(tokens), Vec::new())),
        Ok(Input::List(list)) => {
            let mut prompts = list.into_iter().map(one);
            let first = prompts.next().ok_or_else(empty)??;
            Ok((first, prompts.collect::<Result<_, _>>()?))
        }
        Err(InputFault::Many(_)) if most == 1 => {
            Err(ApiError::field(NAME, "must be a single string: send several requests"))
        }
        Err(InputFault::Many(count)) => {
            Err(ApiError::field(NAME, format!("use at most {most} prompts, not {count}")))
        }
        Err(InputFault::Token(value) | InputFault::Item(value)) => {
            Err(wrong(NAME, "use token numbers in a list", &value))
        }
        Err(InputFault::Kind(value)) => Err(wrong(NAME, "use a string or a list of tokens", &value)),
        Err(InputFault::Json(why)) => Err(ApiError::field(NAME, format!("is not JSON: {why}"))),
    }
}

/// Takes the field `cache_salt`.
fn salt(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let refused = |what: String| Err(ApiError::field("cache_salt", what));
    match fields.text("cache_salt")? {
        Some(salt) if salt.is_empty() => {
            refused("must not be empty: give a string or omit the field".to_string())
        }
        Some(salt) if salt.chars().nth(SALT_CHARACTERS).is_some() => {
            refused(format!("must have at most {SALT_CHARACTERS} characters"))
        }
        salt => Ok(salt),
    }
}

/// Reads `value`, the stop strings in the field `name`.
///
/// # Errors
/// If the value is invalid.
pub fn stops(name: &str, value: Option<Value>) -> Result<Vec<String>, ApiError> {
    let stops = match value {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![Value::String(text)],
        Some(Value::Array(list)) => list,
        Some(other) => return Err(wrong(name, "use a string or a list of strings", &other)),
    };
    if stops.len() > STOPS {
        return Err(ApiError::field(name, format!("use at most {STOPS} strings, not {}", stops.len())));
    }
    let check = |stop: Value| match stop {
        Value::String(text) if text.is_empty() => {
            Err(ApiError::field(name, "a stop string must not be empty"))
        }
        // The limit counts characters, like `maxLength` in JSON Schema.
        Value::String(text) if text.chars().nth(STOP_CHARACTERS).is_some() => Err(ApiError::field(
            name,
            format!("a stop string must have at most {STOP_CHARACTERS} characters"),
        )),
        Value::String(text) => Ok(text),
        other => Err(ApiError::field(name, format!("use strings in the list, not {}", shown(&other)))),
    };
    stops.into_iter().map(check).collect()
}

fn sampling(fields: &mut Fields, defaults: &Defaults) -> Result<SamplingOptions, ApiError> {
    let mut options = defaults.sampling.clone();
    for parameter in PARAMETERS {
        let Some(value) = fields.take(parameter.name) else { continue };
        match value.as_f64().filter(|value| parameter.takes(*value)) {
            Some(number) => parameter.set(&mut options, number),
            None => return Err(wrong(parameter.name, format!("use {}", parameter.range), &value)),
        }
    }
    // Fields that are not numbers are parsed separately, so that an error can name the field.
    let mut read = |name: &'static str| {
        let Some(value) = fields.take(name) else { return Ok(None) };
        let read = SamplingOptions::from_json(&Map::from_iter([(name.to_string(), value)]));
        read.map(Some).map_err(|error| named(name, &error))
    };
    if let Some(read) = read("seed")? {
        options.seed = read.seed;
    }
    if let Some(read) = read("dry_sequence_breakers")? {
        options.dry_sequence_breakers = read.dry_sequence_breakers;
    }
    if let Some(read) = read("logit_bias")? {
        options.logit_bias = read.logit_bias;
    }
    options.constraint = match (read("grammar")?, read("json_schema")?) {
        (Some(_), Some(_)) => {
            return Err(ApiError::field("json_schema", "give json_schema or grammar, not both"));
        }
        (grammar, schema) => grammar.or(schema).and_then(|read| read.constraint),
    };
    Ok(options)
}

/// Adds the schema of a required tool call to `options`.
fn with_forced(mut options: SamplingOptions, prompt: &Prompt) -> Result<SamplingOptions, ApiError> {
    let Prompt::Messages(conversation) = prompt else { return Ok(options) };
    let Some(schema) = conversation.forced() else { return Ok(options) };
    let schema = Constraint::JsonSchema(schema.clone());
    match options.constraint.replace(schema) {
        None => Ok(options),
        Some(_) => Err(ApiError::field("tool_choice", "a required call excludes grammar and json_schema")),
    }
}

/// Returns an error about the field `name`. The message of `error` may already begin with the name.
fn named(name: &'static str, error: &Error) -> ApiError {
    let message = error.to_string();
    let message =
        message.strip_prefix(name).map_or(message.as_str(), |rest| rest.trim_start_matches([':', ' ']));
    match message.split_once(": use ") {
        Some((value, range)) => ApiError::field(name, format!("use {range}, not {value}")),
        None => ApiError::field(name, message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaults() -> Defaults {
        let sampling =
            SamplingOptions { top_p: 0.9, temperature: 0.0, seed: Some(7), ..SamplingOptions::default() };
        Defaults { sampling, ..Defaults::for_tests() }
    }

    fn read(json: &str) -> Result<Generate, ApiError> {
        let mut fields = Fields::read(json.as_bytes())?;
        let prompt = prompt(&mut fields)?;
        let mut generate = Generate::take(&mut fields, prompt, &defaults())?;
        generate.logprobs = take_logprobs(&mut fields)?;
        fields.finish()?;
        Ok(generate)
    }

    #[test]
    fn what_is_not_said_is_the_default() {
        let found = read(r#"{"prompt": "a"}"#).expect("a request");
        assert_eq!(found.sampling, defaults().sampling);
        assert_eq!((found.max_tokens, found.stream, found.cache_prompt), (64, false, true));
        let hot =
            read(r#"{"prompt": [1, 2.0], "temperature": 1, "seed": 3, "stop": "x"}"#).expect("a request");
        assert_eq!(hot.prompt, Prompt::Tokens(vec![1, 2]));
        assert_eq!((hot.sampling.top_p, hot.sampling.temperature, hot.sampling.seed), (0.9, 1.0, Some(3)));
        assert_eq!(hot.stop, ["x"]);
    }

    #[test]
    fn what_cannot_be_meant_names_its_field() {
        let long = format!(r#"{{"prompt": "a", "stop": "{}"}}"#, "x".repeat(2000));
        let cases = [
            ("{}", "prompt: is missing"),
            (r#"{"prompt": 1}"#, "prompt: use a string or a list of tokens, not 1"),
            (r#"{"prompt": ["a", "b"]}"#, "prompt: must be a single string"),
            (r#"{"prompt": [1, 1.5]}"#, "prompt: use token numbers in a list, not 1.5"),
            (r#"{"prompt": [99999999999]}"#, "prompt: use token numbers in a list"),
            (r#"{"prompt": "a", "max_tokens": 0}"#, "max_tokens: use a whole number from 1"),
            (r#"{"prompt": "a", "max_tokens": -2}"#, "max_tokens: use a whole number from 1"),
            (r#"{"prompt": "a", "logprobs": 21}"#, "logprobs: use a whole number from 0 to 20, not 21"),
            (r#"{"prompt": "a", "logprobs": true}"#, "logprobs: use a whole number from 0 to 20, not true"),
            (r#"{"prompt": "a", "timeout_s": 61}"#, "timeout_s: use a number from 0.001 to 60"),
            (r#"{"prompt": "a", "temperature": -1}"#, "temperature: use 0 (most likely token) to 100"),
            (r#"{"prompt": "a", "top_p": 1.1}"#, "top_p: use 0 to 1"),
            (r#"{"prompt": "a", "seed": -2}"#, "seed: use 0 to 18446744073709551615"),
            (
                r#"{"prompt": "a", "seed": "1"}"#,
                "seed: use 0 to 18446744073709551615, or -1 in JSON for a random seed, not \"1\"",
            ),
            (r#"{"prompt": "a", "grammar": 5}"#, "grammar: use a text, not 5"),
            (r#"{"prompt": "a", "stop": [""]}"#, "stop: a stop string must not be empty"),
            (r#"{"prompt": "a", "stop": [1]}"#, "stop: use strings in the list, not 1"),
            (&long, "stop: a stop string must have at most 1024 characters"),
            (r#"{"prompt": "a", "cache_salt": 7}"#, "cache_salt: use a string, not 7"),
            (r#"{"prompt": "a", "cache_salt": ""}"#, "cache_salt: must not be empty"),
            (r#"{"prompt": "a", "max_token": 3}"#, "max_token: unknown field; did you mean max_tokens?"),
        ];
        for (json, expected) in cases {
            let message = read(json).err().map(|refusal| refusal.message).unwrap_or_default();
            assert!(message.starts_with(expected), "{json}: {message}");
        }
    }
}
